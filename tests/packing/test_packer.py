"""Complete runs of the packer: always the same bytes, no sample lost, no partial output left."""

import gc
import io
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from images import Folder, encode, photo, write_files
from PIL import Image
from reading import files_of, rejected_of, rows_of
from stand_ins import FaultySource, TimedSource, die, mute, pack_watched
from tars import read_by_dali, same_as_wds2idx

import gpuload
from gpuload import ArgumentError, GpuloadError, OutputError, SourceError
from gpuload.disk import Manifest
from gpuload.machine.fork_server import EndedError, Worker, ensure_server
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource, open_source

Settings = dict[str, Any]

ROOT = Path(__file__).parents[2]


def test_every_image_is_in_one_shard(source: FolderSource, undisturbed: Path, photo_files: dict[str, bytes]) -> None:
    rows = rows_of(undisturbed / "train") + rows_of(undisturbed / "val")
    assert Counter(row["source"] for row in rows) == Counter([*photo_files, "ant/odd.gif"])
    kept = {row["source"]: row["image"] for row in rows if row["source"] != "ant/odd.gif"}
    assert kept == photo_files
    assert all(row["label"] == ["ant", "bee", "cat"].index(row["source"].split("/")[0]) for row in rows)
    listed = sorted([*photo_files, "ant/odd.gif", "bee/bad.jpg", "cat/short.jpg"])
    assert all(int(row["key"][:8]) == listed.index(row["source"]) for row in rows)  # unique over both splits
    rejected = {**rejected_of(undisturbed / "train"), **rejected_of(undisturbed / "val")}
    assert rejected.keys() == {"bee/bad.jpg", "cat/short.jpg"}
    assert rejected["bee/bad.jpg"] == "cannot be decoded: it is not an image in a format that Pillow reads"
    of_val = [*(row["source"] for row in rows_of(undisturbed / "val")), *rejected_of(undisturbed / "val")]
    assert Counter(name[:3] for name in of_val) == {"ant": 6, "bee": 5, "cat": 2}  # a fifth of 31, 21 and 11


def test_files_of_a_packed_folder(undisturbed: Path) -> None:
    train = undisturbed / "train"
    manifest, rows = Manifest.read(train), rows_of(train)
    assert sorted(path.name for path in undisturbed.iterdir()) == ["README.md", "_info.json", "train", "val"]
    names = [shard.name for shard in manifest.shards]
    assert names == [f"shard-{number:06d}.tar" for number in range(8)]
    expected = {name.replace(".tar", end) for name in names for end in (".tar", ".idx")}
    others = {"index.arrow", "manifest.json", "rejected.jsonl", "README.md"}
    assert {path.name for path in train.iterdir()} == expected | others
    assert verify(undisturbed, 1) == []  # sizes and checksums of shards, sizes of images
    assert (manifest.samples, manifest.classes) == (len(rows), ("ant", "bee", "cat"))
    assert manifest.width == max(row["width"] for row in rows)
    assert manifest.height == max(row["height"] for row in rows)
    assert manifest.image_bytes == max(len(row["image"]) for row in rows)
    re_encoded = [Counter(Manifest.read(undisturbed / name).packing["stored_anew"]) for name in ("train", "val")]
    assert re_encoded[0] + re_encoded[1] == {"gif": 1}
    info = json.loads((undisturbed / "_info.json").read_text())["splits"]["train"]
    assert (info["filenames"], info["num_samples"]) == ([f"train/{name}" for name in names], len(rows))
    images = [np.asarray(Image.open(io.BytesIO(row["image"])).convert("RGB")) for row in rows]
    pixels = np.concatenate([image.reshape(-1, 3) for image in images]) / 255
    assert manifest.pixels_from == len(images)
    np.testing.assert_allclose(manifest.mean, pixels.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(manifest.std, pixels.std(axis=0), atol=1e-5)


def test_the_manifest_tells_each_setting_once(source: FolderSource, tmp_path: Path) -> None:
    gpuload.pack(source, tmp_path / "out", encode="jpeg", size=16, fit="center-crop", quality=80, workers=2)
    settings = Manifest.read(tmp_path / "out" / "train").packing
    assert (settings["encode"], settings["fit"], settings["options"]) == ("jpeg", "center-crop", {"quality": 80})


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_change_the_bytes(
    source: FolderSource, undisturbed: Path, settings: Settings, tmp_path: Path, workers: int
) -> None:
    """The limit of time is on reading and decoding alone, and progress reaches the end."""
    seen, out = [], tmp_path / "out"
    report = gpuload.pack(TimedSource(source.path), out, **{**settings, "workers": workers}, watch=seen.append)
    assert files_of(out) == files_of(undisturbed)
    total = seen[-1].total_bytes
    assert (seen[-1].images, seen[-1].bytes) == (seen[-1].total_images, total) == (63, total)
    assert report.images == 61
    assert sorted(rejection.source for rejection in report.rejected) == ["bee/bad.jpg", "cat/short.jpg"]


def test_a_worker_that_dies_loses_no_other_image(make_folder: Folder, tmp_path: Path) -> None:
    good = {f"a/{number:02d}.jpg": encode(photo(number)) for number in range(20)}
    bad = {
        "a/abort.jpg": "the decoder crashed: SIGABRT",
        "a/exit.jpg": "the decoder crashed: exit code 7",
        "a/hang.jpg": "took longer than 4 s",
        "a/killed-always.jpg": "the decoder was killed (SIGKILL) twice; out of memory?",
        "a/memory.jpg": "does not fit into memory",
        "a/segv.jpg": "the decoder crashed: SIGSEGV",
    }
    # With the server that starts the workers, all of them die, and no image is blamed.
    root = make_folder({**good, "a/server-killed.jpg": encode(photo(50)), **dict.fromkeys(bad, encode(photo(51)))})
    out = tmp_path / "out"
    notes = tmp_path / "notes"
    notes.mkdir()
    options = {"workers": 2, "maxcount": 9, "time_limit_s": 4}
    report = gpuload.pack(FaultySource(root, notes), out, **options)
    assert rejected_of(out / "train") == bad
    assert [rejection.source for rejection in report.rejected] == sorted(bad)
    # The shards are the same as if these images were merely unreadable.
    for name in bad:
        (root / name).write_bytes(b"unreadable")
    gpuload.pack(FolderSource(root), tmp_path / "undisturbed", **options)
    shards, undisturbed = files_of(out / "train"), files_of(tmp_path / "undisturbed" / "train")
    assert shards.pop("rejected.jsonl") != undisturbed.pop("rejected.jsonl")
    assert shards == undisturbed
    assert len([name for name in shards if name.endswith(".tar")]) == 3


def test_workers_that_die_without_an_image_to_blame(
    source: FolderSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuload.packing.packer.pack_shard", die)
    monkeypatch.setattr("gpuload.packing.workers.MOST_DEATHS", 2)
    with pytest.raises(GpuloadError, match=r"workers died 3 times with no image to blame, .*fewer --workers.*__main__"):
        gpuload.pack(source, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_a_shard_without_samples_is_at_no_time_a_shard(
    make_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuload.packing.packer.pack_shard", pack_watched)
    monkeypatch.setattr("gpuload.packing.workers.MOST_DEATHS", 0)
    source = FolderSource(make_folder({"a/1.jpg": encode(photo()), "a/2.jpg": b"no image", "a/3.jpg": encode(photo())}))
    gpuload.pack(source, tmp_path / "out", maxcount=1, shuffle=False, workers=1)
    train, names = (
        tmp_path / "out" / "train",
        [f"shard-{number:06d}.{end}" for number in (0, 2) for end in ("idx", "tar")],
    )
    assert sorted(path.name for path in train.glob("shard*")) == names
    manifest = Manifest.read(train)
    assert [shard.name for shard in manifest.shards] == names[1::2] and len(rows_of(train)) == 2
    assert manifest.packing["splits"] == {"train": 1}


def test_a_worker_that_cannot_answer_ends() -> None:
    """Otherwise it and its parent would wait for each other."""
    worker = Worker(partial(ensure_server, ()), mute, name="mute", need_main=False)
    worker.send("task")
    assert worker.pipe.poll(60)
    with pytest.raises(EndedError):
        worker.receive()
    assert worker.stop() == 0


def test_no_readable_image(make_folder: Folder, tmp_path: Path) -> None:
    """The folder of the output is removed, or emptied if it was there."""
    root, new, empty = make_folder({"a/1.jpg": b"bad", "a/2.jpg": b""}), tmp_path / "new" / "deep", tmp_path / "empty"
    empty.mkdir()
    message = r"no readable image for 'train': all 2 were rejected \(1 × .*'a/1.jpg', 'a/2.jpg'. Is"
    for out in (new, empty):
        with pytest.raises(SourceError, match=message):
            gpuload.pack(FolderSource(root), out, workers=1)
    assert not new.parent.exists() and list(empty.iterdir()) == []
    (root / "a" / "2.jpg").write_bytes(encode(photo()))
    with pytest.raises(
        ArgumentError, match=r"--val 0.1: no image of 2 is left for 'val'. Change --val, or leave it out"
    ):
        gpuload.pack(FolderSource(root), empty, workers=1, val=0.1)
    assert gpuload.pack(FolderSource(root), empty, workers=1).images == 1


def test_an_output_folder_that_is_not_empty(source: FolderSource, undisturbed: Path, tmp_path: Path) -> None:
    before = files_of(undisturbed)
    (tmp_path / "file").touch()
    (tmp_path / "broken" / ".packing").mkdir(parents=True)
    # A run with --append that was killed while it listed the source is not resumed as one without.
    write_files(tmp_path / "set", before)
    (tmp_path / "set" / ".packing").mkdir()
    added = "holds a packed set. Give --overwrite to replace it, --append to add to it, or another place"
    with pytest.raises(OutputError, match=added):
        gpuload.pack(source, tmp_path / "set", workers=1, resume=True)
    assert files_of(tmp_path / "set") == before
    for out, message in (
        (undisturbed, added),
        (undisturbed / "train", "train: is a packed folder, as splits of a set are. Give the folder above it, with "),
        (tmp_path, "is not empty, it holds 'broken'"),
        (tmp_path / "file", "file: cannot be written"),
        (tmp_path / "broken", "holds an interrupted run. Continue it with --resume"),
    ):
        with pytest.raises(OutputError, match=message):
            gpuload.pack(source, out, workers=1)
    assert files_of(undisturbed) == before


@pytest.mark.parametrize("limit", [5_000, 21_000])
def test_a_full_disk(make_folder: Folder, tmp_path: Path, limit: int) -> None:
    """A limit on the size of files simulates a full disk: writing beyond it fails in the same way."""
    large = encode(photo(0, 200, 200), "PNG", compress_level=0)  # it alone is beyond the second limit
    root = make_folder({f"a/{n}.jpg": encode(photo(n)) for n in range(4)} | {"b/0.png": large})
    # A separate process, so that its workers have the limit too: this process may have started its fork server already.
    out, settings = tmp_path / "out", {"maxcount": 2, "shuffle": False, "workers": 1}
    command = [sys.executable, "-Bm", "gpuload", "pack", root, out, "--maxcount=2", "--no-shuffle", "--workers=1"]
    limits = resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    lower = partial(resource.setrlimit, *limits)
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=lower)
    assert run.returncode == 2 and ".tar: cannot be written (File too large). Free some space, or" in run.stderr
    assert ("finished shards are kept: continue with --resume" in run.stderr) == out.exists() == (limit > 20_000)
    gpuload.pack(FolderSource(root), out, **settings, resume=True)
    gpuload.pack(FolderSource(root), tmp_path / "undisturbed", **settings)
    assert files_of(out) == files_of(tmp_path / "undisturbed")


@pytest.mark.parametrize("moment", [".packing", ".packing/state.json", "train/*.tmp"])
def test_ctrl_c(source: FolderSource, tmp_path: Path, moment: str) -> None:
    """While the packer lists samples, while its workers start, and while they pack."""
    out = tmp_path / "out"
    script = ROOT / "tests" / "stand_ins.py"
    # Of one shard, which is not finished before the signal comes, however late that is noticed here.
    command = [sys.executable, script, source.path, out, "--workers", "2", "--maxcount", "1000"]
    hold = {**os.environ, "HOLD": "ant"}
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=hold)
    while not list(out.glob(moment)):
        assert run.poll() is None
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate()
    assert said == "gpuload: stopped; no half-written files are left\n"  # first: it tells what else went wrong
    assert run.returncode == 130
    assert not out.exists()


def test_ctrl_c_while_the_output_is_opened(
    source: FolderSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as there is the folder by which an interrupted run is known."""
    mkdir = Path.mkdir

    def mkdir_interrupted(path: Path, *args: Any, **options: Any) -> None:
        mkdir(path, *args, **options)
        if path.name == ".packing":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Path, "mkdir", mkdir_interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpuload.pack(source, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_a_second_packer_is_refused(tmp_path: Path) -> None:
    """While the first one lists its samples, and until it ends."""

    def samples() -> Iterator[dict[str, bytes]]:
        yield {"image": encode(photo())}
        refused()

    def refused(*_: object) -> None:
        with pytest.raises(OutputError, match="is in use by another packer. Wait for it to end"):
            gpuload.pack([], tmp_path, workers=1)
        seen.append(sorted(path.name for path in tmp_path.iterdir()))

    seen: list[list[str]] = []
    assert gpuload.pack(samples(), tmp_path, workers=1, watch=refused).images == 1
    assert seen[0] == [".packing"] and seen[-1] == [".packing", "train"]


def test_large_shards_are_whole(tmp_path: Path) -> None:
    """Their write-back starts before they end."""
    samples = ({"image": np.full((1800, 1600, 3), number, np.uint8)} for number in range(3))
    gpuload.pack(samples, tmp_path / "out", workers=1, encode="raw")
    assert verify(tmp_path / "out", 1) == []


def test_files_are_read_whole(tmp_path: Path) -> None:
    """Also one that reports no size."""
    (tmp_path / "proc.jpg").symlink_to("/proc/version")
    for size in (0, 1, 100_000):
        (tmp_path / f"{size}.jpg").write_bytes(os.urandom(size))
    for path in list(tmp_path.iterdir()):
        assert open_source(tmp_path).read(path.name) == path.read_bytes()
    (tmp_path / "2.jpg").mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        open_source(tmp_path).read("2.jpg")


def test_keys_are_numbers_and_what_is_plain_in_names(tmp_path: Path) -> None:
    names = {
        "a/n01440764_190.JPEG": "-n01440764_190", "a/two words.v2.jpg": "-two-words-v2", "a/日本.jpg": "",
        "a/-x-.jpg": "-x", "x" * 99 + ".jpg": "-" + "x" * 40,
    }  # fmt: skip
    samples = ({"image": encode(photo()), "name": name} for name in names)
    gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False)
    expected = [f"{number:08d}{rest}" for number, rest in enumerate(names.values())]
    assert [row["key"] for row in rows_of(tmp_path / "out" / "train")] == expected


GOLDEN = Path(__file__).parents[1] / "golden"


def test_golden_shard(tmp_path: Path) -> None:
    script = SimpleNamespace(**runpy.run_path(str(GOLDEN / "regenerate_shard.py")))
    packed = script.pack_golden(tmp_path / "out")
    assert sorted(path.name for path in packed.glob("shard-*")) == sorted(script.FILES)
    for name in script.FILES:
        assert (packed / name).read_bytes() == (GOLDEN / name).read_bytes(), name


@pytest.fixture
def shards(undisturbed: Path) -> list[Path]:
    """Of train, whose rows are `rows`."""
    found = sorted((undisturbed / "train").glob("*.tar"))
    assert len(found) == 8
    return found


@pytest.fixture
def rows(undisturbed: Path) -> list[dict[str, Any]]:
    return rows_of(undisturbed / "train")


def test_tar_reads_it(shards: list[Path], rows: list[dict[str, Any]]) -> None:
    keys = [row["key"] for row in rows]
    listed = [subprocess.check_output(["tar", "tf", shard], text=True).split() for shard in shards]
    assert [name for names in listed for name in names] == [f"{key}.{end}" for key in keys for end in ("jpg", "cls")]
    with tarfile.open(shards[0]) as archive:
        for info in archive:
            assert (info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode) == (0, 0, 0, "", "", 0o644)
            assert not info.pax_headers


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_it(shards: list[Path], rows: list[dict[str, Any]]) -> None:
    wds = pytest.importorskip("webdataset")
    read = list(wds.WebDataset([str(shard) for shard in shards], shardshuffle=False))
    gc.collect()
    assert [(s["__key__"], s["jpg"], int(s["cls"])) for s in read] == [(r["key"], r["image"], r["label"]) for r in rows]


def test_dali_reads_it(shards: list[Path], rows: list[dict[str, Any]]) -> None:
    images, classes = read_by_dali(shards, [path.with_suffix(".idx") for path in shards], len(rows), "jpg", "cls")
    assert images == [row["image"] for row in rows]
    assert [int(label) for label in classes] == [row["label"] for row in rows]


def test_wds2idx_agrees(shards: list[Path], tmp_path: Path) -> None:
    assert all(same_as_wds2idx(shard, shard.with_suffix(".idx"), tmp_path / "idx") for shard in shards)
