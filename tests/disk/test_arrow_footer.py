"""Where the record batches of an Arrow file lie."""

import struct
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.disk.arrow_footer import batch_bounds, footer_bytes

SCHEMA = pa.schema([("key", pa.large_string()), ("width", pa.int32()), ("boxes", pa.list_(pa.float32()))])


def file_of(rows: list[int], schema: pa.Schema = SCHEMA, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, **options) as writer:
        for count in rows:
            values = {
                "key": [f"{number:08d}" for number in range(count)],
                "width": range(count),
                "boxes": [[0.5] * (number % 3) for number in range(count)],
            }
            columns = [pa.array(values[field.name], field.type) for field in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(sink.getvalue())


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_each_range_is_the_message_of_a_batch(rows: list[int]) -> None:
    data = file_of(rows)
    length = footer_bytes(data[-10:])
    assert length is not None
    bounds = batch_bounds(data[-length:], len(data))
    assert bounds is not None and bounds.dtype == np.int64 and len(bounds) == len(rows) + 1
    reader = pa.ipc.open_file(data)
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        message = pa.ipc.read_message(pa.BufferReader(data[begin:end]))
        assert pa.ipc.read_record_batch(message, reader.schema).equals(reader.get_batch(number))
        assert end - begin == message.body.size + struct.unpack_from("<i", data, begin + 4)[0] + 8
    assert bounds[-1] + 8 == len(data) - length  # the end of the stream


def test_files_that_are_not_ours_have_none() -> None:
    data = file_of([5, 3])
    assert batch_bounds(data, len(data)) is not None
    dictionary = pa.schema([("key", pa.dictionary(pa.int32(), pa.string()))])
    for other in (
        file_of([]),
        file_of([5], dictionary, options=pa.ipc.IpcWriteOptions(unify_dictionaries=False)),
        b"",
        b"ARROW1",
        data[:-1],
        data[-9:],
        data[:-10] + struct.pack("<i", -1) + b"ARROW1",
        data[:-10] + struct.pack("<i", 1 << 30) + b"ARROW1",
    ):
        assert batch_bounds(other, len(other)) is None


def footer_of(data: bytes) -> tuple[int, int]:
    """Where the footer, and in it the first block begin."""
    begin = len(data) - struct.unpack_from("<i", data, len(data) - 10)[0] - 10
    bounds = batch_bounds(data, len(data))
    assert bounds is not None
    return begin, data.index(struct.pack("<q", bounds[0]), begin)


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        (0, "<q", -8),
        (0, "<q", 0),  # a gap before the second
        (0, "<q", 1 << 62),
        (8, "<i", 0),
        (8, "<i", -(1 << 31)),
        (16, "<q", -1),
        (16, "<q", (1 << 63) - 1),
        (16, "<q", 1 << 40),
        (24, "<q", 8),
        (40, "<q", 1 << 20),  # the last one ends after the file
        (-4, "<I", 3),
        (-4, "<I", 1 << 31),
        (-4, "<I", 0),
    ],
)
def test_a_block_that_does_not_lie_in_the_file(at: int, code: str, value: int) -> None:
    data = bytearray(file_of([5, 3]))
    _, block = footer_of(bytes(data))
    struct.pack_into(code, data, block + at, value)
    assert batch_bounds(bytes(data), len(data)) is None


def test_a_footer_in_a_shorter_file_does_not_reach_into_itself() -> None:
    data = file_of([5, 3])
    length = footer_bytes(data)
    assert length is not None
    assert batch_bounds(data[-length:], len(data) - 16) is None
    assert batch_bounds(data[-length + 1 :], len(data)) is None
