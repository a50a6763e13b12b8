"""Writes values into `index.arrow` and iterates a loader over the set: python fuzz_index.py folder decoder examples.

A program of its own, so that a crash ends it and not the tests. It ends with 0 where each value gave either an error of
gpuload's, or batches in which all samples but the changed one are as before.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import Augment, Boxes, MultiHot, Target, Tokens

FIELDS = (
    "index",
    "image",
    "mask",
    "label",
    MultiHot("labels"),
    Target("angle", negate_on_flip=True),
    "drive",
    "caption",
    "about",
    Tokens("tokens"),
    "features",
    "wave",
    Boxes("boxes"),
    "key",
)

INTEGERS = st.one_of(
    st.sampled_from([0, 1, -1, 7, 512, 2**15, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**62), -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-600, 70_000),
)
FLOATS = st.one_of(st.sampled_from([float("nan"), float("inf"), -float("inf"), 3e38, -1.0]), st.floats(width=32))


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Any value of an Arrow type, and null."""
    if pa.types.is_integer(kind):
        bits = kind.bit_width - 1
        found: st.SearchStrategy[Any] = INTEGERS.filter(lambda number: -(1 << bits) <= number < 1 << bits)
    elif pa.types.is_floating(kind):
        found = FLOATS
    elif pa.types.is_fixed_size_list(kind):
        found = st.lists(values_of(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    elif pa.types.is_list(kind):
        found = st.lists(values_of(kind.value_type), max_size=4)
    else:
        found = st.text(max_size=20)
    return st.none() | found


def write_value(folder: Path, pristine: bytes, name: str, row: int, value: Any) -> None:
    """index.arrow with one value in place of another; `row` counts over all shards."""
    reader = pa.ipc.open_file(pristine)
    (folder / "index.arrow").unlink()
    with pa.ipc.new_file(str(folder / "index.arrow"), reader.schema) as writer:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            if 0 <= row < batch.num_rows:
                column = batch.column(name).to_pylist()
                column[row] = value
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(
                    place, batch.schema.field(place), pa.array(column, batch.schema.field(name).type)
                )
            row -= batch.num_rows
            writer.write_batch(batch)


# One view whose crops may hide a wrong size, two that share the decoded image, and one that is padded.
_VIEWS = [Augment(12, dtype="uint8", crop=crop, vertical_flip=0.5) for crop in ("random", "none")]
AUGMENTS: dict[str, Any] = {"one": _VIEWS[0], "two": _VIEWS, "padded": Augment(30, crop="pad_or_crop", flip=0.5)}


def read(folder: Path, decoder: str, augment: str, with_masks: bool) -> list[list[Any]]:
    """For each sample in stored order, its fields."""
    packed = gpuload.Dataset(folder).fields
    names = {field: field if isinstance(field, str) else field.name for field in FIELDS}
    fields = [field for field, name in names.items() if name in packed or name in ("index", "key")]
    loader = gpuload.DaliIterator(
        folder,
        4,
        augment=AUGMENTS[augment],
        fields=[field for field in fields if with_masks or field != "mask"],
        decoder=decoder,  # type: ignore[arg-type]
        device="cpu",
        num_threads=2,
        shuffle=False,
        drop_last=False,
        output="numpy",
    )
    with loader:
        return [list(sample) for batch in loader for sample in zip(*map(rows_of, batch), strict=True)]


def rows_of(field: Any) -> list[Any]:
    """A field of a batch, sample by sample, as it compares."""
    if isinstance(field, list):
        return field
    if isinstance(field, np.ndarray):
        return [(row.shape, row.tobytes()) for row in field]
    if hasattr(field, "_fields"):  # padded, to the longest of the batch, in which the changed sample may be
        *padded, lengths = field
        return [[array[row, :length].tolist() for array in padded] for row, length in enumerate(lengths)]
    return list(zip(*map(rows_of, field), strict=True))  # of several views


def main(folder: Path, decoder: str, examples: int) -> None:
    pristine = (folder / "index.arrow").read_bytes()
    reader = pa.ipc.open_file(pristine)
    schema, told = reader.schema, reader.read_all().to_pydict()
    expected = {(name, masks): read(folder, decoder, name, masks) for name in AUGMENTS for masks in (True, False)}
    tried = {"refused": 0, "read": 0}

    # Not shrunk: what it is about is printed, and a run that fails should end soon, too.
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(schema.names))
        row = data.draw(st.integers(0, len(told[name]) - 1))
        value, kind = told[name][row], schema.field(name).type
        if pa.types.is_integer(kind) and data.draw(st.booleans()):
            value += data.draw(st.integers(-9, 9))  # what is nearly right gets furthest
        else:
            value = data.draw(values_of(kind))
        options = data.draw(st.sampled_from(list(expected)))
        print(f"{name}[{row}] = {value!r}, {options}", flush=True)  # the last line tells what it crashed of
        write_value(folder, pristine, name, row, value)
        try:
            found = read(folder, decoder, *options)
        except gpuload.GpuloadError as error:
            message = str(error)
        else:
            message = ""
            assert len(found) == len(expected[options])
            assert all(a == b for n, (a, b) in enumerate(zip(found, expected[options], strict=True)) if n != row)
        assert "\n" not in message
        tried["refused" if message else "read"] += 1

    check()
    print(tried)
    assert min(tried.values()) > examples // 20


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)  # such as NaN cast to a whole number
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
