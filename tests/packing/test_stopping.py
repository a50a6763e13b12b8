"""Commands that change a set are stopped at each of their steps: the set opens all the time, and the same command
completes what was begun."""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from images import encode, photo, write_files
from store.servers import file_server, running
from tars import write_tar

import gpuload
from gpuload import FormatError
from gpuload.disk import Manifest
from gpuload.disk.fetch import fetch
from gpuload.packing.add_points import add_points
from gpuload.packing.index import index_shards
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource

SCRIPT = Path(__file__).with_name("stopping.py")


def photos(numbers: range) -> dict[str, bytes]:
    return {f"{'ab'[number % 2]}/{number}.jpg": encode(photo(number)) for number in numbers}


def stop(command: str, folder: Path, **environment: str) -> dict[str, Any]:
    """What `stopping.py` tells. Its children, which end at once, cannot remove their temporary files."""
    run = [sys.executable, "-W", "ignore", str(SCRIPT), command, str(folder)]
    with tempfile.TemporaryDirectory() as temporary:
        settings = {**os.environ, "TMPDIR": temporary, **environment}
        done = subprocess.run(run, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(("command", "least"), [("points", 20), ("append", 50), ("overwrite", 60)])
def test_each_state_of_a_set_opens_and_can_be_completed(tmp_path: Path, command: str, least: int) -> None:
    write_files(tmp_path / "first", photos(range(12)))
    write_files(tmp_path / "images", photos(range(20, 32)))
    gpuload.pack(FolderSource(tmp_path / "first"), tmp_path / "set", workers=1, val=0.3, maxcount=4)
    told = stop(command, tmp_path)
    assert told["steps"]["kill"] >= least
    assert min(told["steps"].values()) >= least // 3

    steps = [(kind, re.sub(r"\.[0-9]+\.tmp$", ".tmp", name)) for kind, name in told["log"]]
    for split in ("train", "val"):
        folder = next(name for _, name in steps if name.endswith(f"{split}/manifest.json")).rpartition("/")[0]
        new, manifest, index = (f"{folder}/{name}" for name in ("index.next.arrow", "manifest.json", "index.arrow"))
        order = [new, index, manifest] if command == "overwrite" else [new, manifest, index]  # no old set is there
        places = [steps.index(("rename", name)) for name in order]
        assert places == sorted(places)
        # Content is on disk before it gets its name, and the names before the next one changes.
        for name in (new, manifest):
            assert steps.index(("sync", f"{name}.tmp")) < steps.index(("rename", name))
        for first, second in itertools.pairwise([*places, len(steps)]):
            assert ("sync", folder) in steps[first:second] or (command == "overwrite" and first == places[0])


def test_a_join_that_is_stopped_leaves_a_set_that_opens(tmp_path: Path) -> None:
    write_files(tmp_path / "first", photos(range(12)))
    gpuload.pack(FolderSource(tmp_path / "first"), tmp_path / "set", workers=1, val=0.3, maxcount=4)
    (tmp_path / "images").mkdir()
    rows = "".join(f"{'ab'[number % 2]}/{number}.jpg,{number}\n" for number in range(12))
    (tmp_path / "images" / "table.csv").write_text(f"source,rank\n{rows}")
    told = stop("join", tmp_path)
    assert min(told["steps"].values()) >= 10
    steps = [(kind, re.sub(r"\.[0-9]+\.tmp$", ".tmp", name)) for kind, name in told["log"]]
    joined = next(place for place, (kind, name) in enumerate(steps) if kind == "rename" and "joined-" in name)
    manifest = next(place for place, (kind, name) in enumerate(steps) if kind == "rename" and "manifest" in name)
    folder = steps[manifest][1].rpartition("/")[0]
    assert joined < manifest
    assert any(kind == "sync" and "joined-" in name for kind, name in steps[:joined])  # content before its name
    assert ("sync", folder) in steps[joined:manifest]  # the name before the manifest


def test_an_index_opens_while_another_replaces_it(tmp_path: Path) -> None:
    """By `gpuload index --overwrite`, which gives the classes names."""
    for split in ("train", "val"):
        folder = tmp_path / "set" / split
        folder.mkdir(parents=True)
        for number in range(2):
            sample = {f"{number}.jpg": encode(photo(number)), f"{number}.cls": b"1"}
            write_tar(folder / f"{number}.tar", sample)
        index_shards([str(folder / "*.tar")])
    (tmp_path / "images").write_text("ant\nbee\n")
    told = stop("index", tmp_path)
    assert min(told["steps"].values()) >= 20
    expected = tmp_path / "expected" / "out" / "val"
    assert gpuload.Dataset(expected).classes == ("ant", "bee")


def test_a_copy_opens_while_another_index_replaces_its_own(tmp_path: Path) -> None:
    """By `gpuload fetch` of a set that got seek points meanwhile."""
    write_files(tmp_path / "photos", photos(range(6)))
    out = tmp_path / "images"
    gpuload.pack(FolderSource(tmp_path / "photos"), out, workers=1, val=0.3)
    with running(file_server(out)) as server:
        for split in ("train", "val"):
            fetch(f"{server.url}/{split}", tmp_path / "set" / split)
            add_points(out / split)
        told = stop("fetch", tmp_path, SERVER=server.url)
    assert told["steps"]["kill"] >= 20
    copied = tmp_path / "expected" / "out" / "train" / "index.arrow"
    assert copied.read_bytes() == (out / "train" / "index.arrow").read_bytes()


def test_a_new_index_without_its_manifest_is_not_read(tmp_path: Path) -> None:
    """Nor one that is cut short; and damage of the index that has its name is told as ever."""
    write_files(tmp_path / "images", photos(range(6)))
    gpuload.pack(FolderSource(tmp_path / "images"), tmp_path / "out", workers=1)
    train = tmp_path / "out" / "train"
    new, index, manifest = (train / name for name in ("index.next.arrow", "index.arrow", "manifest.json"))
    old_index, old_manifest = index.read_bytes(), manifest.read_bytes()
    labels = gpuload.Dataset(train).labels.tolist()
    for content in (b"", b"garbage", old_index[:-8], bytes(len(old_index))):
        new.write_bytes(content)
        assert gpuload.Dataset(train).labels.tolist() == labels
    add_points(train)
    assert not new.exists() and index.read_bytes() != old_index
    new.write_bytes(index.read_bytes())
    index.write_bytes(old_index)  # as where the manifest was replaced, and the index was not
    assert gpuload.Dataset(train).labels.tolist() == labels
    assert verify(tmp_path / "out", 1) == [f"{new}: was left by an interrupted run"]
    report = gpuload.pack(FolderSource(tmp_path / "images"), tmp_path / "out", workers=1, append=True)
    assert report.images == 12 and not new.exists()
    assert gpuload.Dataset(train).labels.tolist() == labels * 2
    manifest.write_bytes(old_manifest)
    with pytest.raises(FormatError, match=r"index.arrow: is [\d,]+ bytes, manifest.json says [\d,]+. Copy the folder"):
        gpuload.Dataset(train)
    assert Manifest.read(train).samples == 6
