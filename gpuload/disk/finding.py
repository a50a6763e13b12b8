"""Finds samples of a data set: by number, key or source, or in a quarantine list."""

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from gpuload.checks import shown
from gpuload.disk.sample import read_quarantine
from gpuload.errors import ArgumentError, CallError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.cells import is_integer
from gpuload.types import I64

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset


_NAMES: tuple[Literal["key", "source"], ...] = ("key", "source")  # of a sample
_NAMED = 3  # samples in a message


def find_named(dataset: "Dataset", name: str, column: Literal["key", "source"]) -> I64:
    """int64 (n,): the numbers, in this data set, of the samples with this key or source.

    Args:
        dataset: In which it is looked for.
        name: That is looked for.
        column: Of the index, in which it is.

    Raises:
        ArgumentError: it is not text, but holds lone surrogates.
    """
    stored = _find_keys(dataset, [name], column)
    selection = dataset.stored_samples(np.arange(len(dataset)))
    return np.flatnonzero(np.isin(selection, stored))


def samples_in_words(dataset: "Dataset", numbers: I64) -> str:
    """Some samples by their numbers in this data set and their keys, for a message."""
    keys = dataset.keys(dataset.stored_samples(numbers[:_NAMED]))
    texts = [
        f"{number} (key {key!r})"
        for number, key in zip(numbers[:_NAMED].tolist(), keys, strict=True)
    ]
    more = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
    return f"{', '.join(texts)}{more}"


def find_sample(dataset: "Dataset", index: Any) -> int:
    """The number of a sample in this data set.

    Raises:
        ArgumentError: there is no such key, or number, or several samples have the key. CallError: it is neither.
    """
    if isinstance(index, str):
        return _find_one(dataset, index)
    if not is_integer(index):
        advice = "dataset.subset([...]) chooses several; for batches use gpuload.DaliIterator(dataset, ...)"
        raise CallError(
            f"Dataset: dataset[{shown(index)}]: expected a key or a whole number. {advice}"
        )
    if not -len(dataset) <= index < len(dataset):
        raise ArgumentError(
            f"Dataset: dataset[{int(index)}]: {dataset.folder} has samples 0 to {len(dataset) - 1}. Use one of these"
        )
    return int(index) % len(dataset)


def _find_one(dataset: "Dataset", name: str) -> int:
    """The number, in this data set, of the one sample with this key, or with this source where none has the key.

    Raises:
        ArgumentError: there is none, or there are several.
    """
    for column in _NAMES:
        numbers = find_named(dataset, name, column)
        if len(numbers) == 1:
            return int(numbers[0])
        if len(numbers):
            raise ArgumentError(
                f"Dataset: dataset[{shown(name)}]: {len(numbers):,} samples of {dataset.folder} have this {column}: "
                f"numbers {samples_in_words(dataset, numbers)}. Give the number or the key of one"
            )
    raise ArgumentError(
        f"Dataset: dataset[{shown(name)}]: {dataset.folder} has no sample of this key or source. "
        "dataset.keys([...]) tells keys by number"
    )


def _find_keys(
    dataset: "Dataset",
    keys: Sequence[str],
    column: str = "key",
    shards: Sequence[int] | None = None,
) -> I64:
    """int64 (n,): the numbers, in the stored order of the whole set, of the samples with one of these keys, or of these
    values of another column.

    Args:
        shards: To look in; None: in all.

    Raises:
        ArgumentError: a key is not text, but holds lone surrogates.
    """
    import pyarrow.compute as pc

    try:
        wanted = array_of(keys, pa.large_string())
    except (pa.ArrowException, ValueError):
        raise ArgumentError(
            f"Dataset: {shown(list(keys))} is not text. Use keys of the set"
        ) from None
    numbers = [np.zeros(0, np.int64)]
    for first, rows in dataset.all_rows(shards):
        is_wanted = pc.is_in(rows.column(column), wanted)
        numbers.append(first + np.flatnonzero(is_wanted))
    return np.concatenate(numbers)


def find_excluded(dataset: "Dataset", exclude: str | Path | Sequence[str]) -> I64:
    """int64 (n,): the numbers of these samples in the stored order of the whole set.

    Args:
        dataset: In which they are looked for.
        exclude: Path of a quarantine list, whose samples need not be in this set; or keys, each of which must be. With
            keys, the keys of all shards are read.

    Raises:
        ArgumentError: there is no such key, or the list cannot be read.
    """
    if isinstance(exclude, str | Path):
        return _find_listed(dataset, read_quarantine(exclude))
    numbers = _find_keys(dataset, exclude)
    keys = set(dataset.keys(numbers))
    missing = [key for key in exclude if key not in keys]
    if missing:
        raise ArgumentError(
            f"Dataset(exclude): {dataset.folder} has no sample with the key {some_of(missing)}. Keys are those of the "
            'field "key"'
        )
    return numbers


def _find_listed(dataset: "Dataset", listed: Set[tuple[str, str, int, int]]) -> I64:
    """The same for a list that `read_quarantine` has read."""
    names = {place[0] for place in listed}
    shards = [
        shard for shard, path in enumerate(dataset.shard_paths) if path.name in names
    ]
    keys = [place[1] for place in listed]
    numbers = _find_keys(dataset, keys, shards=shards)
    shard_of = dataset.shards_of(numbers)
    is_listed = list[bool]()
    for shard in shards:
        of_shard = numbers[shard_of == shard] - dataset.first_samples[shard]
        is_listed += [place in listed for place in _places_of(dataset, shard, of_shard)]
    return numbers[np.array(is_listed, bool)]


def _places_of(
    dataset: "Dataset", shard: int, rows: I64
) -> Iterator[tuple[str, str, int, int]]:
    """Some samples of a shard as a quarantine list names them. They may be many, so they are read by columns."""
    image = dataset.manifest.image
    columns = ["key", image.offset_column, image.bytes_column]
    table = dataset.rows(shard).select(columns).take(array_of(rows))
    name = dataset.shard_paths[shard].name
    places = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for key, offset, size in places:
        yield name, key, offset, size
