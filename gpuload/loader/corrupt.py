"""Counts, lists and logs samples that do not decode."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gpuload.counted import counted
from gpuload.decode.arguments import OnCorrupt
from gpuload.decode.faults import HandledBatch
from gpuload.decode.interface import BatchDecodeError, Fault
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, DecodeError
from gpuload.read.batch import Batch

_LOG = logging.getLogger(__name__)

_MOST_LISTED = 1000  # samples in a report, about 0.5 MB


@dataclass(frozen=True)
class CorruptSample:
    """A sample that did not decode.

    key: of the sample.
    shard: path of its shard.
    offset, bytes: position and size in the shard of its image, or of the mask that does not decode.
    reason: the decoder's message.
    index, dataset: its number in the stored order of its data set, and that one's number in a mixture.
    epoch: of its first occurrence.
    times: number of occurrences.
    """

    key: str
    shard: str
    offset: int
    bytes: int
    reason: str
    index: int
    dataset: int
    epoch: int
    times: int = 1


class Report(NamedTuple):
    """The undecodable samples of a loader on this rank since construction.

    corrupt: the number of samples replaced or marked, counted in every epoch. samples: the first 1,000 distinct ones.
    """

    corrupt: int
    samples: tuple[CorruptSample, ...]


class CorruptSamples:
    """Counts, lists and logs undecodable samples.

    masks: names of the mask fields. on_corrupt: None if the first one raises. epoch_samples: this rank's samples in an
    epoch.

    Raises:
        ArgumentError: the file cannot be written.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        masks: Sequence[str],
        on_corrupt: OnCorrupt | None,
        *,
        epoch_samples: float,
        rank: int,
    ) -> None:
        self._datasets, self._masks, self._rank = datasets, masks, rank
        self._wanted, self._epoch_samples = on_corrupt or OnCorrupt("skip"), epoch_samples
        most, log = self._wanted.most, self._wanted.log
        self._most = most if isinstance(most, int) else most * epoch_samples
        self._log = None if log is None else Path(log)
        self._count, self._in_epoch = 0, 0
        self._listed: dict[tuple[int, int], CorruptSample] = {}
        if self._log is not None:
            try:
                self._log.open("a").close()
            except OSError as error:
                raise ArgumentError(
                    f"OnCorrupt(log={str(log)!r}): cannot be written ({error.strerror}). Give a file in a "
                    "folder that exists and can be written"
                ) from None

    def start_epoch(self) -> None:
        """Resets the count for `OnCorrupt.most`, which limits one epoch, or the rest of one after a resume."""
        self._in_epoch = 0

    def add(self, handled: HandledBatch, epoch: int) -> None:
        """Records the faults of a batch.

        Raises:
            DecodeError: there are more than `OnCorrupt.most` in this epoch.
        """
        for row, fault in sorted(handled.faults.items()):
            corrupt = self._identify(handled.asked, row, fault, epoch)
            self._count += 1
            self._in_epoch += 1
            place = corrupt.dataset, corrupt.index
            if place in self._listed:
                self._listed[place] = replace(self._listed[place], times=self._listed[place].times + 1)
            elif len(self._listed) < _MOST_LISTED:
                self._listed[place] = corrupt
            self._write(corrupt, handled.batch, row)
            if self._in_epoch > self._most:
                raise DecodeError(self._too_many(corrupt, epoch))

    def report(self) -> Report:
        """The undecodable samples so far."""
        return Report(self._count, tuple(self._listed.values()))

    def explain(self, error: BatchDecodeError) -> DecodeError:
        """The user's error for a decoder's."""
        row, fault = next(iter(error.faults.items()))
        corrupt = self._identify(error.batch, row, fault, 0)
        what = "sample" if fault.mask is None else f"the mask {self._masks[fault.mask]!r} of sample"
        number = len(error.faults) - 1
        others = f", nor {'does' if number == 1 else 'do'} {counted(number, 'other')} of its batch" if number else ""
        return DecodeError(
            f"{corrupt.shard}: {what} {corrupt.key!r} does not decode (byte {corrupt.offset:,}): "
            f"{corrupt.reason}{others}. "
            "Pack it again: `python -m gpuload pack` rejects and lists undecodable images; or use "
            "on_corrupt='skip'"
        )

    def _identify(self, batch: Batch, row: int, fault: Fault, epoch: int) -> CorruptSample:
        source, sample = int(batch.sources[row]), int(batch.encoded.samples[row])
        dataset = self._datasets[source]
        stored = dataset.row(sample).to_pylist()[0]
        field = dataset.fields["image" if fault.mask is None else self._masks[fault.mask]]
        offset, size = stored[field.offset_column], stored[field.bytes_column]
        path = str(dataset.shard_paths[int(dataset.shards_of(sample))])
        return CorruptSample(stored["key"], path, offset, size, fault.reason, sample, source, epoch)

    def _write(self, corrupt: CorruptSample, batch: Batch, row: int) -> None:
        """Appends a line in one write, so that several ranks can share the file. A file that becomes unwritable does
        not end the run."""
        if self._log is None:
            return
        line = {**asdict(corrupt), "rank": self._rank, "on_corrupt": self._wanted.action}
        del line["times"]
        if self._wanted.action == "skip":
            source, sample = int(batch.sources[row]), int(batch.encoded.samples[row])
            line |= {"replaced_by": self._datasets[source].keys([sample])[0]}
        try:
            with self._log.open("ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            _LOG.warning("%s: a sample that does not decode was not written (%s)", self._log, error)

    def _too_many(self, last: CorruptSample, epoch: int) -> str:
        share = "" if isinstance(self._wanted.most, int) else f" of this rank's {self._epoch_samples:,.0f} samples"
        return (
            f"epoch {epoch}: {counted(self._in_epoch, 'corrupt sample')}, more than OnCorrupt(most="
            f"{self._wanted.most}) allows{share}; the last one is {last.key!r} in {last.shard}: {last.reason}. "
            "`python -m gpuload verify --quarantine FILE` finds them all, for gpuload.Dataset(exclude=FILE); or "
            "raise most"
        )
