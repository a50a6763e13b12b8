"""Where a shard ends: one byte less than the manifest says, one byte more than the index may ask for."""

import shutil
from pathlib import Path

import packed_fields
import pyarrow as pa
import pytest
from fuzzing.loader import write_value

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.read.reader import Reader


@pytest.fixture(scope="module")
def packed_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of field, in three shards of 4, 4 and 3 samples."""
    samples = [packed_fields.sample(number) for number in range(packed_fields.COUNT)]
    return packed_fields.pack(tmp_path_factory.mktemp("set"), samples).folder


@pytest.fixture
def copy(packed_all: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed_all, tmp_path / "copy"))


def read_all(dataset: gpuload.Dataset) -> None:
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=8, shuffle=False)
    Reader(dataset, [], ["mask"]).read(order, 0, len(order))


@pytest.mark.parametrize("missing", [1, 512, 4095, 4096])
def test_a_shard_that_was_truncated_since_it_was_opened_is_refused(copy: Path, missing: int) -> None:
    shard, dataset = copy / "shard-000001.tar", gpuload.Dataset(copy)
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - missing)
    with pytest.raises(
        gpuload.ShardError,
        match=rf"shard-000001.tar: is {size - missing:,} bytes, manifest.json says {size:,}. It was truncated",
    ):
        read_all(dataset)


@pytest.mark.parametrize(("name", "row"), [("mask", 5), ("image", 10)])
def test_members_may_reach_the_end_of_their_shard_and_no_further(copy: Path, name: str, row: int) -> None:
    pristine = (copy / "index.arrow").read_bytes()
    shard = row // 4
    size = pa.ipc.open_file(pristine).get_batch(shard).column(f"{name}_bytes")[row % 4].as_py()
    end = (copy / f"shard-{shard:06d}.tar").stat().st_size
    for past in (1, 511, 512, 4096):
        write_value(copy, pristine, f"{name}_offset", row, end - size + past)
        with pytest.raises(
            gpuload.ShardError,
            match=rf"its '{name}' as {size:,} bytes at byte {end - size + past:,}, and the shard has {end:,}. Copy",
        ):
            read_all(gpuload.Dataset(copy))
    write_value(copy, pristine, f"{name}_offset", row, end - size)
    if name == "image":  # is in the shard, but there is no header before it
        with pytest.raises(gpuload.ShardError, match="its index does not match it"):
            read_all(gpuload.Dataset(copy))
    else:
        read_all(gpuload.Dataset(copy))


@pytest.mark.parametrize("name", ["image", "mask"])
def test_a_member_is_no_larger_than_its_shard(copy: Path, name: str) -> None:
    write_value(copy, (copy / "index.arrow").read_bytes(), f"{name}_offset", 5, 0)
    end = (copy / "shard-000001.tar").stat().st_size
    write_value(copy, (copy / "index.arrow").read_bytes(), f"{name}_bytes", 5, end + 1)
    with pytest.raises(gpuload.ShardError, match=rf"its '{name}' as {end + 1:,} bytes at byte 0, and the shard has"):
        read_all(gpuload.Dataset(copy))
