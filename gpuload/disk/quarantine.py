"""Lists of samples that a loader leaves out: lines of JSON, written by `verify --quarantine`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gpuload.disk.stored import StoredSet
from gpuload.errors import ArgumentError, some_of
from gpuload.types import I64


class Quarantined(NamedTuple):
    """A sample, identified by its key and by where its image lies in its shard: a list may span several splits, and
    does not match a set that was packed again.

    shard: name of the file. offset, bytes: of the image. reason: why it is left out.
    """

    key: str
    shard: str
    offset: int
    bytes: int
    reason: str


def write_quarantine(path: str | Path, samples: Iterable[Quarantined]) -> None:
    """Writes a list, which may be empty."""
    lines = [json.dumps(sample._asdict(), ensure_ascii=False) + "\n" for sample in samples]
    Path(path).write_text("".join(lines), encoding="utf-8")


def read_quarantine(path: str | Path) -> list[Quarantined]:
    """Reads a list.

    Raises:
        ArgumentError: it cannot be read, or a line of it is no such sample.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: cannot be read as a quarantine list ({error}). Is it the right file?") from None
    samples = []
    for number, line in enumerate(lines, start=1):
        try:
            samples.append(_parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ArgumentError(
                f"{path}: line {number} is no sample of a quarantine list. Write it with `python -m gpuload verify "
                "--quarantine`, or give exclude a list of keys"
            ) from None
    return samples


def _parse(entry: Any) -> Quarantined:
    texts, numbers = [entry[name] for name in ("key", "shard")], [entry[name] for name in ("offset", "bytes")]
    if not all(type(text) is str for text in texts) or not all(type(n) is int for n in numbers):
        raise ValueError
    (key, shard), (offset, size) = texts, numbers
    return Quarantined(key, shard, offset, size, str(entry.get("reason", "")))


def find_excluded(dataset: StoredSet, exclude: str | Path | Sequence[str]) -> I64:
    """int64 (n,): the numbers of these samples in the stored order of the whole set.

    exclude: path of a quarantine list, whose samples need not be in this set; or keys, each of which must be. With
    keys, the keys of all shards are read.

    Raises:
        ArgumentError: there is no such key, or the list cannot be read.
    """
    if isinstance(exclude, str | Path):
        return _find_listed(dataset, read_quarantine(exclude))
    found, known = _find_keys(dataset, exclude)
    if missing := [key for key in exclude if key not in known]:
        raise ArgumentError(
            f"Dataset(exclude): {dataset.folder} has no sample with the key {some_of(missing)}. Keys are those of the "
            'field "key"'
        )
    return found


def _find_listed(dataset: StoredSet, listed: Sequence[Quarantined]) -> I64:
    numbers = {path.name: number for number, path in enumerate(dataset.shard_paths)}
    image = dataset.require_field("image")
    wanted: dict[int, list[Quarantined]] = {}
    for sample in listed:
        if sample.shard in numbers:
            wanted.setdefault(numbers[sample.shard], []).append(sample)
    dataset.fetch_rows(list(wanted))
    found = []
    for shard, samples in wanted.items():
        rows = dataset.rows(shard)
        offsets, sizes = (rows.column(name).to_numpy() for name in (image.offset_column, image.bytes_column))
        for sample in samples:
            at = np.flatnonzero((offsets == sample.offset) & (sizes == sample.bytes))
            found += [
                int(dataset.first_samples[shard]) + r for r in at.tolist() if rows["key"][r].as_py() == sample.key
            ]
    return np.array(found, np.int64)


def _find_keys(dataset: StoredSet, keys: Sequence[str]) -> tuple[I64, set[str]]:
    """The numbers of samples with these keys, and the keys that were found."""
    import pyarrow.compute as pc  # 0.02 s of the first batch

    wanted = pa.array(keys, pa.string())
    numbers, names = [np.empty(0, np.int64)], set()
    for first, rows in dataset.all_rows():
        column = rows.column("key")
        at = np.flatnonzero(pc.is_in(column, value_set=wanted).to_numpy(zero_copy_only=False))
        numbers.append(at + first)
        names.update(column.take(pa.array(at)).to_pylist())
    return np.concatenate(numbers), names
