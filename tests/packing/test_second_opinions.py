"""Others read our shards to the same bytes: tar, webdataset, DALI; and wds2idx writes the same index."""

import gc
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from reading import rows_of
from tars import same_as_wds2idx


@pytest.fixture
def train(undisturbed: Path) -> Path:
    return undisturbed / "train"


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.tar"))
    assert len(found) == 8
    return found


def test_tar_reads_it(train: Path) -> None:
    keys = [row["key"] for row in rows_of(train)]
    listed = [subprocess.check_output(["tar", "tf", shard], text=True).split() for shard in shards(train)]
    assert [name for names in listed for name in names] == [f"{key}.{end}" for key in keys for end in ("jpg", "cls")]
    with tarfile.open(shards(train)[0]) as archive:
        for info in archive:
            assert (info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode) == (0, 0, 0, "", "", 0o644)
            assert not info.pax_headers


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_it(train: Path) -> None:
    wds = pytest.importorskip("webdataset")
    read = list(wds.WebDataset([str(shard) for shard in shards(train)], shardshuffle=False))
    gc.collect()
    rows = rows_of(train)
    assert [(s["__key__"], s["jpg"], int(s["cls"])) for s in read] == [(r["key"], r["image"], r["label"]) for r in rows]


def test_dali_reads_it(train: Path) -> None:
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def

    @pipeline_def(batch_size=len(rows_of(train)), num_threads=1, device_id=None)
    def read():
        paths = [str(shard) for shard in shards(train)]
        indexes = [str(shard.with_suffix(".idx")) for shard in shards(train)]
        return tuple(fn.readers.webdataset(paths=paths, index_paths=indexes, ext=["jpg", "cls"]))

    pipeline = read()
    pipeline.build()
    images, classes = pipeline.run()
    rows = rows_of(train)
    assert [np.asarray(image).tobytes() for image in images] == [row["image"] for row in rows]
    assert [int(np.asarray(label).tobytes()) for label in classes] == [row["label"] for row in rows]


def test_wds2idx_agrees(train: Path, tmp_path: Path) -> None:
    assert all(same_as_wds2idx(shard, shard.with_suffix(".idx"), tmp_path / "idx") for shard in shards(train))
