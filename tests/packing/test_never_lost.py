"""Whatever interrupts a run: once resumed, it gives the same bytes as an undisturbed run; and a real Ray cluster on this
machine gives them, even if a worker is killed."""

import gzip
import io
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from damaged import change_manifest, damage
from images import Folder, encode, photo, write_files
from PIL import Image
from reading import files_of, rejected_of, rows_of
from stand_ins import HeldSource
from tars import tar_bytes

import gpuload
from gpuload import ArgumentError, FormatError, GpuloadError, OutputError, SourceError, cli
from gpuload.disk import Manifest
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource, open_source

Settings = dict[str, Any]


ARGUMENTS = ["--maxcount", "7", "--val", "0.2", "--seed", "5", "--workers", "2"]  # those of `settings`


SCRIPT = Path(__file__).parents[1] / "stand_ins.py"


def held(root: Path, out: Path, names: str) -> "subprocess.Popen[bytes]":
    """A packer that never reads images whose names begin so, which it therefore never finishes."""
    command = [sys.executable, SCRIPT, root, out, *ARGUMENTS, "--time-limit", "100000"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, start_new_session=True, env={**os.environ, "HOLD": names}, **streams)


class Process(NamedTuple):
    parent: int
    session: int
    command: bytes


def processes() -> dict[int, Process]:
    """Those that run, by their numbers."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(folder.name)] = Process(int(parent), int(session), (folder / "cmdline").read_bytes())
    return found


def wait_for(run: "subprocess.Popen[bytes]", happened: Callable[[], Any]) -> None:
    while not happened():
        assert run.poll() is None
        time.sleep(0.01)


def test_killed_again_and_again(source: FolderSource, undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, each time a little later, until a run completes."""
    out, rng, kills = tmp_path / "out", random.Random(0), 0
    kept: dict[str, tuple[int, int]] = {}
    for attempt in itertools.count():
        command = [sys.executable, SCRIPT, source.path, out, *ARGUMENTS, "--resume"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            _, said = run.communicate(timeout=rng.uniform(0.6, 1.4) + attempt * 0.6)
        except subprocess.TimeoutExpired:
            run.kill()  # only the packer: its workers must end by themselves
            run.communicate()  # until they have
            kills += 1
            tars = {path.name + path.parent.name: path.stat() for path in out.glob("*/*.tar")}
            now = {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in tars.items()}
            # A shard that was finished before the previous kill must still be the same file.
            assert all(now.get(name) == identity for name, identity in kept.items())
            done = {path.stem.rpartition("-")[2]: path for path in (out / ".packing").glob("train-*.done")}
            kept = {name: identity for name, identity in now.items() if "train" in name and name[6:12] in done}
            continue
        assert (run.returncode, said) == (cli.REJECTED, b"")
        break
    assert kills >= 2
    assert files_of(out) == files_of(undisturbed)


WRITES_INDEX, WRITES_INFO = "gpuload.packing.output.write_index", "gpuload.packing.output.write_timm_info"


WRITES_MANIFEST, FINISHES = "gpuload.disk.Manifest.write", "gpuload.packing.output.Output._finish"


def interrupt(monkeypatch: pytest.MonkeyPatch, step: str, run: Callable[[], object]) -> None:
    """Ends a run as Ctrl-C does, at this step."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step, die)
        run()


@pytest.fixture(scope="module")
def extended(
    source: FolderSource, undisturbed: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The set to which the same images were appended."""
    out = tmp_path_factory.mktemp("extended")
    write_files(out, files_of(undisturbed))
    gpuload.pack(source, out, **settings, append=True)
    assert Manifest.read(out / "train").samples == 98
    return out


@pytest.mark.parametrize(
    ("append", "step"),
    [(False, WRITES_INFO), (True, WRITES_INDEX), *itertools.product([False, True], [WRITES_MANIFEST, FINISHES])],
)
def test_killed_while_finishing(
    source: FolderSource, undisturbed: Path, extended: Path, settings: Settings, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, step: str, append: bool,
) -> None:  # fmt: skip
    out, wanted = tmp_path / "out", files_of(extended if append else undisturbed)
    if append:
        write_files(out, files_of(undisturbed))
    more = {**settings, "append": append}
    interrupt(monkeypatch, step, lambda: gpuload.pack(source, out, **more))
    if append and step == WRITES_MANIFEST:
        # The new index is not under its name before the new manifest is.
        assert Manifest.read(out / "train") == Manifest.read(undisturbed / "train")
        assert len(gpuload.Dataset(out / "train").labels) == 49
    with pytest.raises(OutputError, match=r"holds an interrupted run. Continue it with --resume"):
        gpuload.pack(source, out, **more)
    gpuload.pack(source, out, **more, resume=True)
    assert files_of(out) == wanted
    if not append:
        report = gpuload.pack(source, out, **more, resume=True)  # nothing is left to do
        assert files_of(out) == wanted
        assert (report.images, len(report.rejected), report.notes) == (61, 2, ("the set was complete already",))
        (out / "train" / "rejected.jsonl").unlink()
        assert gpuload.pack(source, out, **more, resume=True).images == 61


def test_what_an_earlier_version_recorded(
    source: FolderSource, undisturbed: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resizer, and a list of copies: an interrupted run goes on, and a complete set stays as it is."""
    interrupt(monkeypatch, WRITES_MANIFEST, lambda: gpuload.pack(source, tmp_path, **settings))
    (path,) = tmp_path.rglob("state.json")
    state = json.loads(path.read_text())
    state["settings"]["resizer"] = "torch"
    path.write_text(json.dumps({**state, "duplicates": [["ant/1.jpg", "ant/0.jpg", "val"]]}))
    gpuload.pack(source, tmp_path, resume=True, **settings)
    assert files_of(tmp_path) == files_of(undisturbed)
    change_manifest(tmp_path / "train", lambda found: found["packing"].update(resizer="torch"))
    assert gpuload.pack(source, tmp_path, resume=True, **settings).notes == ("the set was complete already",)


def test_damaged_shards_are_packed_again(
    source: FolderSource, undisturbed: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = tmp_path / "train"
    interrupt(monkeypatch, WRITES_MANIFEST, lambda: gpuload.pack(source, tmp_path, **settings))
    (train / "shard-000001.tar").unlink()
    (train / "shard-000002.tar").write_bytes((train / "shard-000002.tar").read_bytes()[:-512])
    (train / "shard-000003.idx").unlink()
    assert gpuload.pack(source, tmp_path, resume=True, **settings).packed in (19, 20, 21)
    assert files_of(tmp_path) == files_of(undisturbed)


def test_stopped_and_resumed_after_the_source_has_changed(source: FolderSource, tmp_path: Path) -> None:
    """New files are left to the next run, deleted ones are rejected by name, and the plan does not change."""
    root, out = tmp_path / "photos", tmp_path / "out"
    shutil.copytree(source.path, root)
    with held(root, out, "ant/odd") as run:
        wait_for(run, lambda: list(out.glob("train/*.tar")) and list(out.glob(".packing/*.done")))
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate()
    assert (run.returncode, said) == (130, b"gpuload: stopped; finished shards are kept: continue with --resume\n")
    before = files_of(out)
    with pytest.raises(ArgumentError, match=r"had seed 5, this run has 6. Give the same, or delete the folder"):
        gpuload.pack(FolderSource(root), out, resume=True, maxcount=7, val=0.2, seed=6)
    assert files_of(out) == before
    (root / "bee" / "new.jpg").write_bytes(encode(photo(7)))
    (root / "aaa").mkdir()
    for path in list((root / "ant").iterdir()):
        path.unlink()
    assert subprocess.call([sys.executable, SCRIPT, root, out, *ARGUMENTS, "--resume"]) == cli.REJECTED
    assert Manifest.read(out / "train").classes == ("ant", "bee", "cat")
    sources = {row["source"] for split in ("train", "val") for row in rows_of(out / split)}
    lost = {**rejected_of(out / "train"), **rejected_of(out / "val")}
    assert sources | set(lost) == {f"{p.parent.name}/{p.name}" for p in source.path.rglob("*.*")}  # without new.jpg
    assert {lost[name] for name in lost if name.startswith("ant")} == {"cannot be read: No such file or directory"}
    assert verify(out, 2) == []


def test_append_keeps_class_numbers(make_folder: Folder, tmp_path: Path) -> None:
    first = make_folder({f"{name}/{n}.jpg": encode(photo(n)) for name in ("bee", "dog") for n in range(4)})
    second = make_folder({f"{name}/{n}.jpg": encode(photo(n + 9)) for name in ("ant", "dog") for n in range(4)})
    out = tmp_path / "out"
    gpuload.pack(FolderSource(first), out, workers=1, maxcount=3)
    before = files_of(out)
    gpuload.pack(FolderSource(second), out, workers=1, maxcount=3, append=True)
    manifest = Manifest.read(out / "train")
    assert manifest.classes == ("bee", "dog", "ant")
    assert [shard.name for shard in manifest.shards] == [f"shard-{n:06d}.tar" for n in range(6)]
    after = files_of(out)
    assert all(after[name] == data for name, data in before.items() if name.endswith((".tar", ".idx")))
    rows = rows_of(out / "train")
    assert [manifest.classes[row["label"]] for row in rows] == [row["source"].split("/")[0] for row in rows]
    assert len({row["key"] for row in rows}) == len(rows) == 16 == manifest.packing["listed"]
    pixels = np.concatenate([np.asarray(Image.open(io.BytesIO(row["image"]))).reshape(-1, 3) for row in rows])
    np.testing.assert_allclose(manifest.mean or (), pixels.mean(0) / 255, atol=1e-4)
    assert verify(out, 1) == []
    numbers = io.BytesIO()
    np.save(numbers, np.zeros(3))
    (tmp_path / "x.tar").write_bytes(tar_bytes({"1.jpg": encode(photo()), "1.npy": numbers.getvalue()}))
    gpuload.pack([{"image": encode(photo()), "array": np.zeros(3)}], tmp_path / "arrays", workers=1)
    for samples, to, error, message in (
        ([{"image": encode(photo()), "caption": "x"}], out, SourceError,
         r"--append: train has the fields image \(image RGB\), label \(class cls\), the new"),
        ([{"image": encode(photo()), "label": 3}], out, SourceError,
         r"'label' has the names .*'bee', .* in the set, and None in the new samples"),
        (open_source(tmp_path / "x.tar"), tmp_path / "arrays", SourceError,
         r"array \(array array.npy <f8\), the new .* array \(array npy <f8\)"),
        (FolderSource(second), tmp_path / "none", OutputError, "holds no packed set for --append. Pack one first"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            gpuload.pack(samples, to, append=True, workers=1)
    assert files_of(out) == after


def test_a_split_as_out_gets_all_that_is_appended(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({f"{name}/{n}.jpg": encode(photo(n)) for name in ("ant", "bee") for n in range(5)})
    out = tmp_path / "out"
    gpuload.pack(FolderSource(root), out, val=0.2, workers=1)
    counts = []
    for place in (out / "val", out / "train", out):
        report = gpuload.pack(FolderSource(root), place, append=True, workers=1)
        counts.append({name: manifest.samples for name, manifest in report.manifests.items()})
        assert (
            "all samples went to 'train'; the set has 'val', too: --val 0.1 puts a tenth there" in report.notes
        ) == (place == out)
    assert counts == [{"train": 8, "val": 12}, {"train": 18, "val": 12}, {"train": 28, "val": 12}]
    assert verify(out, 1) == []
    for settings, message in (
        ({"val": 0.1}, f"--val draws splits, but OUT {out}/val is one. Give the folder above it, {out}$"),
        ({"splits": "a=0.5,b=0.5"}, "--splits draws splits, but OUT"),
    ):
        with pytest.raises(ArgumentError, match=message):
            gpuload.pack(FolderSource(root), out / "val", append=True, workers=1, **settings)
    split = make_folder({f"{name}/ant/{n}.jpg": encode(photo(n)) for name in ("train", "val") for n in range(2)})
    with pytest.raises(ArgumentError, match="all samples are to go to 'val', but the source has its own splits"):
        gpuload.pack(FolderSource(split), out / "val", append=True, workers=1)


def test_mean_and_std_of_an_appended_set_are_those_of_all_its_images(make_folder: Folder, tmp_path: Path) -> None:
    """Nine bright images and one dark one: each image has the same weight, not each part, unless it has none."""

    def plain(values: range) -> dict[str, bytes]:
        return {f"a/{n}.png": encode(Image.new("RGB", (8, 8), (n, n // 2, 255 - n)), "PNG") for n in values}

    first, second = plain(range(200, 209)), plain(range(10, 11))
    gpuload.pack(FolderSource(make_folder(first)), tmp_path / "out", workers=1)
    gpuload.pack(FolderSource(make_folder(second)), tmp_path / "out", workers=1, append=True)
    gpuload.pack(FolderSource(make_folder(first | second)), tmp_path / "once", workers=1)
    appended, once = Manifest.read(tmp_path / "out" / "train"), Manifest.read(tmp_path / "once" / "train")
    assert appended.pixels_from == once.pixels_from == 10
    np.testing.assert_allclose(appended.mean, once.mean, atol=2e-6)  # each is rounded to 6 digits
    np.testing.assert_allclose(appended.std, once.std, atol=1e-5)
    replace(appended, std=None).write(tmp_path / "out" / "train")
    report = gpuload.pack(FolderSource(make_folder(second)), tmp_path / "out", workers=1, append=True)
    np.testing.assert_allclose(report.manifests["train"].mean or (), np.divide([10, 5, 245], 255), atol=1e-6)


def test_overwrite(
    source: FolderSource, undisturbed: Path, settings: Settings, make_folder: Folder, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    gpuload.pack([{"image": encode(photo())}], out, workers=1)
    before = files_of(out)
    with pytest.raises(SourceError):  # the old set remains until the new one is complete
        gpuload.pack(FolderSource(make_folder({"a/1.jpg": b"bad"})), out, workers=1, overwrite=True)
    assert files_of(out) == before
    old = {**before, ".packing-old": b""}  # as where a run is killed while it removes the old set
    write_files(tmp_path / ".out.packing", old)
    gpuload.pack(source, out, **settings, overwrite=True)
    assert files_of(out) == files_of(undisturbed)
    assert [path.name for path in tmp_path.glob(".*")] == []
    (out / "mine.txt").touch()
    with pytest.raises(OutputError, match="holds .mine.txt., which is no folder that"):
        gpuload.pack(source, out, workers=1, overwrite=True)


def test_duplicates(make_folder: Folder, tmp_path: Path) -> None:
    data = [encode(photo(n)) for n in range(12)]
    files = {f"{'ab'[n % 2]}/{n}-{repeat}.jpg": data[n] for n in range(12) for repeat in range(1 + n % 3)}
    source = FolderSource(make_folder(files))
    splits = (("train", 0.5), ("val", 0.25), ("test", 0.25))
    report = gpuload.pack(source, tmp_path / "all", workers=1, splits=splits)
    found = {row["source"]: (split, row["image"]) for split, _ in splits for row in rows_of(tmp_path / "all" / split)}
    assert len(found) == len(files) == 24
    assert len(set(found.values())) == 12  # all duplicates of an image are in the same split
    report = gpuload.pack(source, tmp_path / "drop", workers=1, dedup=True)
    assert report.images == len({row["image"] for row in rows_of(tmp_path / "drop" / "train")}) == 12
    assert rejected_of(tmp_path / "drop" / "train")["a/2-1.jpg"] == "has the same bytes as 'a/2-0.jpg'"
    assert Manifest.read(tmp_path / "drop" / "train").packing["left_out"] == 12


def test_too_many_rejected(source: FolderSource, settings: Settings, tmp_path: Path) -> None:
    message = r"2 of 63 images were rejected, more than --max-rejected 0.03 \(1 × .*higher"
    with pytest.raises(SourceError, match=message):
        gpuload.pack(source, tmp_path / "out", **settings, max_rejected=0.03)
    assert gpuload.pack(source, tmp_path / "out", **settings, max_rejected=0.1, resume=True).images == 61


def test_no_process_outlives_a_killed_packer(source: FolderSource, tmp_path: Path) -> None:
    def of_session() -> list[int]:
        return [number for number, found in processes().items() if found.session == run.pid]

    out = tmp_path / "out"
    with held(source.path, out, "ant") as run:
        wait_for(run, lambda: len(list(out.glob("*/*.tmp"))) == 2)
        assert len(of_session()) >= 4  # packer, server, two workers
        run.kill()
    for _ in range(25_000):  # 250 s
        if not of_session():
            return
        time.sleep(0.01)
    pytest.fail(f"processes are still there: {of_session()}")


def test_verify_lists_every_fault(undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, train = tmp_path / "out", tmp_path / "out" / "train"
    assert cli.main(["verify", str(undisturbed)]) == cli.DONE
    assert capsys.readouterr().out == f"{undisturbed}: all is well\n"
    shutil.copytree(undisturbed / "val", out / "val")
    damage(undisturbed / "train", train, [9])
    (key,) = gpuload.Dataset(train).keys([9])
    short = (train / "shard-000002.tar").read_bytes()
    (train / "shard-000002.tar").write_bytes(short[:-512])
    (train / "shard-000003.tar").unlink()
    (train / "shard-000004.idx").unlink()
    (train / "shard-000005.idx").write_text("v1.2 0\n")
    shutil.copy(train / "shard-000000.tar", train / "shard-000099.tar")
    index = (out / "val" / "index.arrow").read_bytes()
    (out / "val" / "index.arrow").write_bytes(index[:100])
    shutil.copytree(train, out / "lone", ignore=shutil.ignore_patterns("manifest.json"))
    assert cli.main(["verify", str(out), "--workers", "2"]) == cli.FAULTY
    *lines, last = [line.replace(f"{out}/", "") for line in capsys.readouterr().out.splitlines()]
    assert lines.pop(0) == "lone: holds shards but no manifest.json"
    for line, (name, fault) in zip(lines, [
        ("train/shard-000099.tar", "is not in manifest.json"), ("train/shard-000001.tar", "its SHA-256 is"),
        ("train/shard-000001.tar", f"sample {key!r}: its image cannot be decoded"),
        ("train/shard-000002.tar", "bytes, manifest.json says"), ("train/shard-000003.tar", "No such file"),
        ("train/shard-000004.idx", "cannot be read (No such file"),
        ("train/shard-000005.idx", "does not describe shard-000005.tar"),
        ("val/index.arrow", "cannot be read as an Arrow file"),
    ], strict=True):  # fmt: skip
        assert line.startswith(f"{name}: ") and fault in line
    assert last == f"{out}: 9 faults"
    with pytest.raises(FormatError, match="this is not a packed folder"):
        verify(tmp_path)


def test_many_files_are_listed_in_little_memory(tmp_path: Path) -> None:
    """200,000 of them, 200 links to a folder of 1,000: listing, planning and writing the plan take less than 120 MiB
    beside the interpreter and its libraries, which take 60. A million files take 215 MiB."""
    root = tmp_path / "photos"
    write_files(tmp_path / "images", {f"n{number:014d}.JPEG": b"" for number in range(1000)})
    root.mkdir()
    for number in range(200):
        (root / f"n{number:08d}").symlink_to(tmp_path / "images")
    code = f"""
from pathlib import Path
import pyarrow
from gpuload.packing.options import PackOptions
from gpuload.packing.split_plan import make_plan, write_plan
from gpuload.sources import FolderSource

def mebibytes(kind):  # not ru_maxrss, which includes the process that started this one
    return int(Path("/proc/self/status").read_text().split(kind)[1].split()[0]) // 1024

pyarrow.array([None])  # imports pandas, where that is installed: 34 MiB
before = mebibytes("VmRSS:")
listing = FolderSource(Path({str(root)!r})).list_samples()
assert len(listing) == 200_000
for split in make_plan(listing, PackOptions()):
    write_plan(Path({str(tmp_path)!r}), split, listing.samples)
print(mebibytes("VmHWM:") - before)
"""
    assert int(subprocess.check_output([sys.executable, "-c", code], text=True)) < 120


def test_a_complete_set_is_not_resumed_with_other_settings(
    source: FolderSource, undisturbed: Path, settings: Settings
) -> None:
    before = files_of(undisturbed)
    for changes, message in (
        ({"encode": "jpeg", "size": (16, 16)}, r"had encode 'keep', this run has 'jpeg'\. Pack it again"),
        ({"lossless": True}, r"had options None, this run has \{'lossless': True\}"),
        ({"seed": 1}, r"the complete set in .* had seed 5, this run has 1"),
        ({"val": 0.1}, r"had splits \{'train': 0.8, 'val': 0.2\}, this run has \{'train': 0.9, 'val': 0.1\}"),
        ({"dedup": True}, r"had options None, this run has \{'dedup': 'drop'\}"),
    ):
        with pytest.raises(ArgumentError, match=message):
            gpuload.pack(source, undisturbed, **{**settings, **changes}, resume=True)
    assert files_of(undisturbed) == before


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Tests run from a checkout, whose modules Ray's workers must find as they would find an installed package's.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}{os.pathsep}{Path(__file__).parents[1]}")
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80_000_000})
        yield started
        ray.shutdown()
        started.shutdown()


def ray_workers() -> list[int]:
    """Process numbers of the Ray workers that run a task of this process."""
    found = processes()

    def is_ours(number: int) -> bool:
        return number == os.getpid() or (number in found and is_ours(found[number].parent))

    return [number for number, one in found.items() if b"ray::pack_guarded" in one.command and is_ours(number)]


@pytest.mark.filterwarnings("ignore")
def test_same_bytes_although_a_worker_is_killed(cluster, photo_files: dict[str, bytes], tmp_path: Path) -> None:
    root = tmp_path / "photos"
    write_files(root, {**photo_files, "ant/segv.jpg": encode(photo()), "bee/bad.jpg": b"bad"})

    def kill() -> None:
        while not (found := ray_workers()):
            time.sleep(0.02)
        os.kill(found[0], signal.SIGKILL)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    source, settings = HeldSource(root, tmp_path), {"maxcount": 30, "val": 0.2, "seed": 5, "workers": 2}
    settings |= {"time_limit_s": 100_000, "encode": "jpeg", "size": (16, 16)}
    gpuload.pack(source, tmp_path / "ray", engine="ray", address=cluster.address, **settings)
    killer.join()
    gpuload.pack(source, tmp_path / "local", **settings)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
    lost = {**rejected_of(tmp_path / "ray" / "train"), **rejected_of(tmp_path / "ray" / "val")}
    assert lost["ant/segv.jpg"] == "the decoder crashed: SIGSEGV"
    assert Manifest.read(tmp_path / "ray" / "train").packing["stored_anew"].keys() == {"resized"}


STORES = Path(__file__).parents[1] / "sources" / "stores" / "golden"


def places_of_each_way(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """A place for each way in which sources come by what they read, with arguments of `pack`."""
    photos = {f"{number}.jpg": encode(photo(number)) for number in range(4)}
    labels = {f"{number}.cls": b"1" for number in range(4)}
    classes = {f"photos/a/{name}": data for name, data in photos.items()}
    depths = {f"depths/a/{number}.png": encode(photo(number).convert("L"), "PNG") for number in range(4)}
    archives = {
        "photos.tar.gz": classes,
        "depths.tgz": depths,
        "both.tar.gz": {**classes, **depths},
        "shard-000000.tar.gz": dict(sorted({**photos, **labels}.items())),
    }
    write_files(folder, {name: gzip.compress(tar_bytes(files)) for name, files in archives.items()})
    patterns = {"image": "photos/*/*.jpg", "depth": "depths/*/*.png"}
    return {
        "archives that are unpacked": (folder / "photos.tar.gz", {"pictures": {"depth": folder / "depths.tgz"}}),
        "patterns in an archive": (folder / "both.tar.gz", {"pictures": patterns}),
        "a compressed shard": (folder / "shard-000000.tar.gz", {}),
        "a store": (STORES / "mds" / "zstd", {}),
    }


@pytest.mark.filterwarnings("ignore")
def test_each_way_of_reading_a_source_on_a_cluster(cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read nothing of a temporary folder, which other machines have not."""
    places = places_of_each_way(tmp_path / "places")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    left_here = set[str]()
    settings = {"workers": 1, "progress": False, "lossless": True}
    on_ray = {"engine": "ray", "address": cluster.address, "watch": lambda _: left_here.update(os.listdir(here))}
    for name, (place, arguments) in places.items():
        gpuload.pack(place, tmp_path / "ray" / name, **settings, **arguments, **on_ray)
        gpuload.pack(place, tmp_path / "local" / name, **settings, **arguments)
        assert files_of(tmp_path / "ray" / name) == files_of(tmp_path / "local" / name), name
        assert len(rows_of(tmp_path / "ray" / name / "train")) >= 4, name
    assert not any(name.startswith("gpuload-") for name in left_here)


def test_a_source_of_the_script_itself_is_refused_on_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("ray")

    class OfTheScript(gpuload.Source):
        __module__ = "__main__"

        def rows(self, findings: Any) -> Iterator[dict[str, Any]]:
            yield {"image": encode(photo())}

    with pytest.raises(ArgumentError, match=r"OfTheScript is a class of the script that runs.* Move it into a module"):
        gpuload.pack(OfTheScript(tmp_path), tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", ".*Connection refused"),
        ("127.0.0.1:nine", "Unable to parse port number"),  # of these, Ray says what is wrong
        ("x://127.0.0.1:9", "Module: x does not exist"),
    ],
)
def test_no_cluster(tmp_path: Path, address: str, reason: str) -> None:
    pytest.importorskip("ray").shutdown()
    message = rf"--address {address}: no Ray cluster there \({reason}.*\)\. `ray status` shows one"
    with pytest.raises(GpuloadError, match=message):
        gpuload.pack([{"image": encode(photo())}], tmp_path / "out", engine="ray", address=address)
    assert not (tmp_path / "out").exists()
