"""`DaliIterator`: what a training loop sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from gpuload.augment import Augment, Crops
from gpuload.dataset import Dataset
from gpuload.errors import ArgumentError, DecodeError, GpuloadError, StateError
from gpuload.order import EpochOrder, count_batches, rank_part
from gpuload.outputs import Output, make_arrays
from gpuload.pipeline import BatchDecodeError, DaliDecoder, Largest, count_gpus
from gpuload.ranks import count_threads, find_device, find_ranks
from gpuload.reader import Bytes, EncodedBatch, Reader

STATE_VERSION = 1


class _Position(NamedTuple):
    """How far all ranks together are: samples of this epoch's order that were handed out."""

    epoch: int
    samples: int


@dataclass(frozen=True)
class _Request:
    """A batch on its way through the decoder; `stop` is the position behind it."""

    encoded: EncodedBatch
    crops: Crops
    stop: int

    @property
    def images(self) -> list[Bytes]:
        return self.encoded.images


class DaliIterator:
    """Batches of decoded, cropped images on the device; each `for` loop is one epoch.

        loader = gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224))
        for images, labels in loader:
            ...

    data: a packed folder, or a `Dataset`.
    batch_size: samples in a batch of this process; all ranks together take batch_size * world_size.
    augment: the size, crop, normalisation and dtype of the images.
    device: "auto" (a GPU where there is one), "cpu", "cuda" (under torchrun: the rank's own) or "cuda:1". On a GPU
        nvJPEG decodes; on the CPU DALI's CPU operators do, with the same order and the same crops.
    fields: what a batch consists of, in this order: "image", "label" and other packed fields, and of every sample
        "key" (list of str) and "index" (int64, its number in stored order).
    shuffle: False gives stored order, in every epoch.
    seed: with the epoch it decides order, crops and flips; nothing else does.
    drop_last: leave out a last, smaller batch; by default as `shuffle`: training drops it, evaluation does not. Without
        it each sample comes once over all ranks, and a rank's last batch may have fewer samples, or none.
    rank, world_size: this process's share; by default from `torch.distributed`, else from torchrun's environment.
    num_threads: CPU threads that decode; by default this rank's share of the cores.
    prefetch: batches decoded ahead of the one handed out.
    output: "torch", "numpy" or "cupy".
    window: shards whose samples are mixed with one another at a time. More mixes better and holds more in memory.

    Yields:
        images: (N, 3, height, width), of the augment's dtype, on the device; (pixel / 255 - mean) / std.
        labels: int64 (N,), on the device. Both are yours to keep: later batches do not overwrite them.

    Raises:
        ArgumentError, FormatError, ShardError, DeviceError, MissingPackageError: at construction.
        DecodeError: while iterating, where a stored image does not decode; names shard and sample.

    7 samples, batch_size 2:  drop_last=True -> sizes 2 2 2;  drop_last=False -> 2 2 2 1.
    """

    def __init__(
        self,
        data: str | Path | Dataset,
        batch_size: int,
        *,
        augment: Augment,
        device: str = "auto",
        fields: Sequence[str] = ("image", "label"),
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int | None = None,
        prefetch: int = 2,
        output: Output = "torch",
        window: int = 8,
    ) -> None:
        for name, value in (
            ("batch_size", batch_size),
            ("num_threads", num_threads),
            ("prefetch", prefetch),
            ("window", window),
        ):
            if value is not None and value < 1:
                raise ArgumentError(f"{name}={value}: expected at least 1")
        self.dataset = data if isinstance(data, Dataset) else Dataset(data)
        self.batch_size, self.augment, self.fields = batch_size, augment, tuple(fields)
        self.shuffle, self.seed, self.window = shuffle, seed, window
        self.drop_last = shuffle if drop_last is None else drop_last
        self.ranks = find_ranks(rank, world_size)
        self.num_threads = num_threads or count_threads(self.ranks)
        self._check_batch()
        columns = self._check_fields()

        device_id = find_device(str(device), self.ranks, 0 if str(device) == "cpu" else count_gpus())
        self._arrays = make_arrays(output, device_id, augment)
        self.device = self._arrays.device
        self._reader = Reader(self.dataset, columns)
        manifest = self.dataset.manifest
        self._decoder: DaliDecoder[_Request] = DaliDecoder(
            augment,
            batch_size=batch_size,
            device_id=device_id,
            num_threads=self.num_threads,
            prefetch=prefetch,
            largest=Largest(manifest.width, manifest.height, manifest.image_bytes),
        )
        self._next = _Position(0, 0)  # where the next `for` loop starts
        self._handed_out = self._next
        self._loops = 0
        self._closed = False

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        return count_batches(len(self.dataset), self._global_batch_size, self.drop_last)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """One epoch: the next one, or the rest of one after `load_state_dict`.

        Leaving a loop early ends its epoch; the next loop starts the following one, as with a DataLoader.
        """
        if self._closed:
            raise GpuloadError("this DaliIterator is closed; construct a new one")
        self._loops += 1
        epoch, start = self._handed_out = self._next
        self._next = _Position(epoch + 1, 0)
        return self._epoch(epoch, start, self._loops)

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch. In the epoch of a loaded state it goes on where the state was taken."""
        if epoch < 0:
            raise ArgumentError(f"set_epoch({epoch}): expected 0 or more")
        if epoch != self._next.epoch:
            self._next = self._handed_out = _Position(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, after the last batch handed out: plain numbers, the same on all ranks; under 1 kB."""
        return {
            "version": STATE_VERSION,
            "epoch": self._handed_out.epoch,
            "samples": self._handed_out.samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window": self.window,
            "fingerprint": self.dataset.fingerprint,
            "dataset_samples": len(self.dataset),
            "dataset_shards": len(self.dataset.shard_paths),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next loop goes on behind the last batch that was handed out before `state_dict` was called.

        Batch size, world size and device may have changed since: order and crops do not depend on them.

        Raises:
            StateError: the state is of another data set, or of a loader with another seed, shuffle or window.
        """
        if state.get("version") != STATE_VERSION:
            raise StateError(
                f"state_dict: is of version {state.get('version')!r}, this gpuload reads {STATE_VERSION}. "
                "Was it made by another loader?"
            )
        own = self.state_dict()
        if state["fingerprint"] != own["fingerprint"]:
            raise StateError(
                f"state_dict: is of another data set ({state['dataset_samples']:,} samples in "
                f"{state['dataset_shards']:,} shards, fingerprint {state['fingerprint']}); {self.dataset.folder} has "
                f"{len(self.dataset):,} in {len(self.dataset.shard_paths):,}, fingerprint {own['fingerprint']}. "
                "Train on the set it was made with, or start afresh"
            )
        for name in ("seed", "shuffle", "window"):
            if state[name] != own[name]:
                raise StateError(
                    f"state_dict: was made with {name}={state[name]}, this loader has {name}={own[name]}. "
                    f"The order would differ: construct it with {name}={state[name]}"
                )
        self._next = self._handed_out = _Position(int(state["epoch"]), int(state["samples"]))

    def close(self) -> None:
        """Stops the threads and frees the memory. Batches handed out stay valid."""
        self._closed = True
        self._loops += 1
        self._decoder.close()
        self._reader.close()

    def __enter__(self) -> "DaliIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number; None where the packer was not told."""
        return self.dataset.classes

    def __repr__(self) -> str:
        return (
            f"DaliIterator({str(self.dataset.folder)!r}: {len(self.dataset):,} samples, {len(self):,} batches of "
            f"{self.batch_size}, rank {self.ranks.rank} of {self.ranks.world_size}, on {self.device} with "
            f"{self.num_threads} threads)"
        )

    @property
    def _global_batch_size(self) -> int:
        return self.batch_size * self.ranks.world_size

    def _epoch(self, epoch: int, start: int, loop: int) -> Iterator[tuple[Any, ...]]:
        order = EpochOrder(
            self.dataset.shard_sizes, seed=self.seed, epoch=epoch, window=self.window, shuffle=self.shuffle
        )
        try:
            for request, pixels in self._decoder.decode(self._requests(order, epoch, start)):
                self._handed_out = _Position(epoch, request.stop)
                yield self._batch(request.encoded, self._arrays.images(pixels))
                if loop != self._loops:
                    raise GpuloadError(
                        "this loop was ended by a later one over the same DaliIterator, or by close(). "
                        "To iterate twice at a time, construct two"
                    )
        except BatchDecodeError as fault:
            raise self._decode_error(fault) from None
        rest = (len(order) - start) % self._global_batch_size
        first, stop = rank_part(len(order) - rest, len(order), self.ranks.rank, self.ranks.world_size)
        if rest and first == stop and not self.drop_last:
            # The other ranks get the last samples now; this one keeps step with them.
            self._handed_out = _Position(epoch, len(order))
            yield self._batch(self._reader.read(order, first, stop), self._arrays.no_images())
        self._handed_out = _Position(epoch + 1, 0)

    def _requests(self, order: EpochOrder, epoch: int, start: int) -> Iterator[_Request]:
        """This rank's batches from position `start` on, without one that would be empty."""
        for begin in range(start, len(order), self._global_batch_size):
            end = min(begin + self._global_batch_size, len(order))
            if self.drop_last and end - begin < self._global_batch_size:
                return
            first, stop = rank_part(begin, end, self.ranks.rank, self.ranks.world_size)
            if first == stop:
                return
            encoded = self._reader.read(order, first, stop)
            crops = self.augment.draw(self.seed, epoch, encoded.samples, encoded.widths, encoded.heights)
            yield _Request(encoded, crops, end)

    def _batch(self, encoded: EncodedBatch, images: Any) -> tuple[Any, ...]:
        columns: dict[str, Any] = {**encoded.columns, "index": encoded.samples}
        batch = []
        for field in self.fields:
            values = images if field == "image" else columns[field]
            batch.append(
                self._arrays.numbers(values) if isinstance(values, np.ndarray) and field != "image" else values
            )
        return tuple(batch)

    def _check_batch(self) -> None:
        if len(self.dataset) < self._global_batch_size and self.drop_last:
            ranks = f" x world_size {self.ranks.world_size}" if self.ranks.world_size > 1 else ""
            raise ArgumentError(
                f"batch_size {self.batch_size}{ranks}: is larger than {self.dataset.folder} ({len(self.dataset):,} "
                "samples), so an epoch has no batch. Use a smaller batch_size, or drop_last=False"
            )

    def _check_fields(self) -> tuple[str, ...]:
        """The index columns that these fields need."""
        columns = []
        for field in self.fields:
            if field not in ("image", "index", "key"):
                self.dataset.require_field(field)
            if field not in ("image", "index"):
                columns.append(field)
        return tuple(columns)

    def _decode_error(self, fault: BatchDecodeError) -> DecodeError:
        assert isinstance(fault.request, _Request)
        sample = fault.request.encoded.samples[fault.places[0]]
        shard = self.dataset.shard_paths[int(np.searchsorted(self.dataset.first_samples, sample, side="right")) - 1]
        others = f", nor do {len(fault.places) - 1} others of its batch" if len(fault.places) > 1 else ""
        return DecodeError(
            f"{shard}: sample {self.dataset.keys([sample])[0]!r} does not decode{others}. Pack its images again: "
            "`python -m gpuload pack` leaves out what does not decode, and says so"
        )
