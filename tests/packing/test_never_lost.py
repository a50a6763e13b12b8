"""Whatever interrupts a run: once resumed, it gives the same bytes as an undisturbed run."""

import io
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import Folder, encode, photo, write_files
from PIL import Image
from reading import files_of, rejected_of, rows_of
from stand_ins import FaultySource
from tars import tar_bytes

import gpuload
from gpuload import ArgumentError, FormatError, OutputError, SourceError, cli
from gpuload.disk import Manifest
from gpuload.packing.verify import verify
from gpuload.sources import FolderSource, open_source

SETTINGS = {"maxcount": 7, "val": 0.2, "seed": 5}
ARGUMENTS = ["--maxcount", "7", "--val", "0.2", "--seed", "5", "--workers", "2"]
SCRIPT = Path(__file__).parents[1] / "stand_ins.py"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, photo_files: dict[str, bytes]) -> FolderSource:
    root = tmp_path_factory.mktemp("photos")
    odd = {"ant/odd.gif": encode(photo(99), "GIF"), "bee/bad.jpg": b"garbage"}
    write_files(root, {**photo_files, **odd})
    return FolderSource(root)


@pytest.fixture(scope="module")
def undisturbed(source: FolderSource, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    out = tmp_path_factory.mktemp("undisturbed")
    gpuload.pack(source, out, workers=2, **SETTINGS)
    return files_of(out)


def held(root: Path, out: Path, names: str) -> "subprocess.Popen[bytes]":
    """A packer that never reads images whose names begin so, which it therefore never finishes."""
    command = [sys.executable, SCRIPT, root, out, *ARGUMENTS, "--time-limit", "100000"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, start_new_session=True, env={**os.environ, "HOLD": names}, **streams)


def wait_for(run: "subprocess.Popen[bytes]", happened: Callable[[], Any]) -> None:
    while not happened():
        assert run.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again(source: FolderSource, undisturbed: dict[str, bytes], tmp_path: Path, seed: int) -> None:
    """SIGKILL at random moments, each time a little later, until a run completes."""
    out, rng, kills = tmp_path / "out", random.Random(seed), 0
    kept: dict[str, tuple[int, int]] = {}
    for attempt in itertools.count():
        command = [sys.executable, SCRIPT, source.root, out, *ARGUMENTS, "--resume"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            _, said = run.communicate(timeout=rng.uniform(0.6, 1.4) + attempt * 0.3)
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
    assert files_of(out) == undisturbed


WRITES_INDEX, WRITES_INFO = "gpuload.packing.packer._write_index", "gpuload.packing.packer.write_timm_info"
WRITES_MANIFEST, FINISHES = "gpuload.disk.Manifest.write", "gpuload.packing.output.Output._finish"


def die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", [WRITES_INFO, WRITES_MANIFEST, FINISHES])
def test_killed_while_finishing(
    source: FolderSource, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step, die)
        gpuload.pack(source, out, workers=2, **SETTINGS)
    gpuload.pack(source, out, workers=2, resume=True, **SETTINGS)
    assert files_of(out) == undisturbed
    report = gpuload.pack(source, out, workers=2, resume=True, **SETTINGS)  # nothing is left to do
    assert files_of(out) == undisturbed
    assert (report.images, len(report.rejected), report.notes) == (61, 1, ("the set was complete already",))


def test_the_source_folder_changes_meanwhile(
    source: FolderSource, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """New files are left to the next run, deleted ones are rejected by name, and the plan does not change."""
    root, out = tmp_path / "photos", tmp_path / "out"
    shutil.copytree(source.root, root)
    with held(root, out, "ant/odd") as run:
        wait_for(run, lambda: list(out.glob("train/*.tar")))
        run.kill()
    (root / "bee" / "new.jpg").write_bytes(encode(photo(7)))
    (root / "aaa").mkdir()
    for path in list((root / "ant").iterdir()):
        path.unlink()
    assert subprocess.call([sys.executable, SCRIPT, root, out, *ARGUMENTS, "--resume"]) == cli.REJECTED
    manifest = Manifest.read(out / "train")
    assert manifest.classes == ("ant", "bee", "cat")
    sources = {row["source"] for split in ("train", "val") for row in rows_of(out / split)}
    assert "bee/new.jpg" not in sources
    lost = {**rejected_of(out / "train"), **rejected_of(out / "val")}
    assert sources | set(lost) == {f"{p.parent.name}/{p.name}" for p in source.root.rglob("*.*")}
    assert {lost[name] for name in lost if name.startswith("ant")} == {"cannot be read: No such file or directory"}
    assert verify(out, 2) == []


@pytest.mark.parametrize("damage", ["missing", "truncated", "no index"])
def test_a_damaged_shard_is_packed_again(
    source: FolderSource, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Manifest, "write", die)
        gpuload.pack(source, out, workers=2, **SETTINGS)
    shard = out / "train" / "shard-000002.tar"
    if damage == "missing":
        shard.unlink()
    elif damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-512])
    else:
        shard.with_suffix(".idx").unlink()
    gpuload.pack(source, out, workers=2, resume=True, **SETTINGS)
    assert files_of(out) == undisturbed


def test_resume_needs_the_same_settings(source: FolderSource, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with held(source.root, out, "ant/odd") as run:
        wait_for(run, lambda: list(out.glob(".packing/*.done")))
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate()
    assert (run.returncode, said) == (130, b"gpuload: stopped; finished shards are kept: continue with --resume\n")
    before = files_of(out)
    with pytest.raises(ArgumentError, match=r"had seed 5, this run has 6. Give the same, or delete the folder"):
        gpuload.pack(source, out, resume=True, **{**SETTINGS, "seed": 6})
    with pytest.raises(OutputError, match=r"holds an interrupted run. Continue it with --resume"):
        gpuload.pack(source, out, **SETTINGS)
    assert files_of(out) == before


@pytest.fixture
def small_disk(tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(
            f"needs the right to mount a small disk (root, or in a container --privileged): {mounted.stderr.strip()}"
        )
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_disk_becomes_full(source: FolderSource, undisturbed: dict[str, bytes], small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(650_000))
    with pytest.raises(
        OutputError, match=r"No space left on device.*; finished shards are kept: continue with --resume"
    ):
        gpuload.pack(source, small_disk / "out", workers=1, **SETTINGS)
    assert list((small_disk / "out").glob("*/*.tar"))
    filler.unlink()
    gpuload.pack(source, small_disk / "out", workers=1, resume=True, **SETTINGS)
    assert files_of(small_disk / "out") == undisturbed


def test_disk_is_full_from_the_start(source: FolderSource, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(890_000))
    with pytest.raises(OutputError, match="No space left on device"):
        gpuload.pack(source, small_disk / "out", workers=1, **SETTINGS)
    assert not (small_disk / "out").exists()


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
    assert manifest.mean is not None
    pixels = [np.asarray(Image.open(io.BytesIO(row["image"]))) for row in rows]
    np.testing.assert_allclose(
        manifest.mean, np.concatenate([p.reshape(-1, 3) for p in pixels]).mean(0) / 255, atol=1e-4
    )
    assert verify(out, 1) == []
    with pytest.raises(
        SourceError, match=r"--append: train has the fields image \(image RGB\), label \(class cls\), the new"
    ):
        gpuload.pack([{"image": encode(photo()), "caption": "x"}], out, append=True, workers=1)
    with pytest.raises(SourceError, match=r"'label' has the names .*'bee', .* in the set, and None in the new samples"):
        gpuload.pack([{"image": encode(photo()), "label": 3}], out, append=True, workers=1)
    assert files_of(out) == after
    numbers = io.BytesIO()
    np.save(numbers, np.zeros(3))
    (tmp_path / "x.tar").write_bytes(tar_bytes({"1.jpg": encode(photo()), "1.npy": numbers.getvalue()}))
    gpuload.pack([{"image": encode(photo()), "array": np.zeros(3)}], tmp_path / "arrays", workers=1)
    with pytest.raises(SourceError, match=r"array \(array array.npy <f8\), the new .* array \(array npy <f8\)"):
        gpuload.pack(open_source(tmp_path / "x.tar"), tmp_path / "arrays", append=True, workers=1)
    with pytest.raises(OutputError, match=r"holds no packed set for --append. Pack one first"):
        gpuload.pack(FolderSource(second), tmp_path / "none", append=True)


@pytest.mark.parametrize("step", [WRITES_INDEX, WRITES_MANIFEST, FINISHES])
def test_an_interrupted_append(
    source: FolderSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for name in ("undisturbed", "killed"):
        gpuload.pack(source, tmp_path / name, workers=2, **SETTINGS)
    before = Manifest.read(tmp_path / "killed" / "train")
    more = {"workers": 2, "append": True, **SETTINGS}
    gpuload.pack(source, tmp_path / "undisturbed", **more)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step, die)
        gpuload.pack(source, tmp_path / "killed", **more)
    if step == WRITES_MANIFEST:
        # The old manifest beside the new index is not a valid set, and readers get an error.
        assert Manifest.read(tmp_path / "killed" / "train") == before
        with pytest.raises(FormatError, match=r"index.arrow: is [0-9,]+ bytes, manifest.json says"):
            gpuload.Dataset(tmp_path / "killed" / "train")
    with pytest.raises(OutputError, match=r"holds an interrupted run. Continue it with --resume"):
        gpuload.pack(source, tmp_path / "killed", **more)
    gpuload.pack(source, tmp_path / "killed", workers=2, append=True, resume=True, **SETTINGS)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "undisturbed")
    assert Manifest.read(tmp_path / "undisturbed" / "train").samples == 100


def test_mean_and_std_of_an_appended_set_are_those_of_all_its_images(make_folder: Folder, tmp_path: Path) -> None:
    """Nine bright images and one dark one: each image has the same weight, not each part."""

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


def test_overwrite(source: FolderSource, undisturbed: dict[str, bytes], make_folder: Folder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    gpuload.pack(FolderSource(make_folder({"a/1.jpg": encode(photo())})), out, workers=1)
    before = files_of(out)
    with pytest.raises(SourceError):  # the old set remains until the new one is complete
        gpuload.pack(FolderSource(make_folder({"a/1.jpg": b"bad"})), out, workers=1, overwrite=True)
    assert files_of(out) == before
    gpuload.pack(source, out, workers=2, overwrite=True, **SETTINGS)
    assert files_of(out) == undisturbed
    assert [path.name for path in tmp_path.glob(".*")] == []
    (out / "mine.txt").touch()
    with pytest.raises(OutputError, match="is not empty"):
        gpuload.pack(source, out, workers=1, overwrite=True)


def test_duplicates(make_folder: Folder, tmp_path: Path) -> None:
    data = [encode(photo(n)) for n in range(12)]
    files = {f"{'ab'[n % 2]}/{n}-{repeat}.jpg": data[n] for n in range(12) for repeat in range(1 + n % 3)}
    source = FolderSource(make_folder(files))
    splits = (("train", 0.5), ("val", 0.25), ("test", 0.25))
    report = gpuload.pack(source, tmp_path / "report", workers=1, splits=splits, dedup="report")
    found = {
        row["source"]: (split, row["image"]) for split, _ in splits for row in rows_of(tmp_path / "report" / split)
    }
    assert len(found) == len(files) == 24
    assert len(set(found.values())) == 12  # all duplicates of an image are in the same split
    assert report.notes[-1] == "12 images have the same bytes as earlier ones; --dedup drop skips them"
    texts = [(tmp_path / "report" / split / "duplicates.jsonl").read_text() for split, _ in splits]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    assert len(lines) == 12 and all(found[line["source"]] == found[line["same_as"]] for line in lines)
    report = gpuload.pack(source, tmp_path / "drop", workers=1, dedup="drop")
    assert report.images == len({row["image"] for row in rows_of(tmp_path / "drop" / "train")}) == 12
    assert rejected_of(tmp_path / "drop" / "train")["a/2-1.jpg"] == "has the same bytes as 'a/2-0.jpg'"
    assert Manifest.read(tmp_path / "drop" / "train").packing["left_out"] == 12
    assert cli.main(["pack", str(source.root), str(tmp_path / "cli"), "--dedup", "drop"]) == cli.DONE


def test_too_many_rejected(make_folder: Folder, tmp_path: Path) -> None:
    files = {f"a/{n}.jpg": encode(photo(n)) for n in range(18)} | {"a/x.jpg": b"bad", "a/y.jpg": b""}
    source = FolderSource(make_folder(files))
    with pytest.raises(
        SourceError, match=r"2 of 20 images were rejected, more than --max-rejected 0.05 \(1 × .*higher"
    ):
        gpuload.pack(source, tmp_path / "out", workers=1, max_rejected=0.05)
    assert gpuload.pack(source, tmp_path / "out", workers=1, max_rejected=0.1, resume=True).images == 18


def test_the_fork_server_is_killed(make_folder: Folder, tmp_path: Path) -> None:
    """Its workers die with it, and no image is blamed."""
    root = make_folder({f"a/{n}.jpg": encode(photo(n)) for n in range(9)} | {"a/server-killed.jpg": encode(photo(50))})
    (tmp_path / "notes").mkdir()
    gpuload.pack(FaultySource(root, tmp_path / "notes"), tmp_path / "out", workers=2, maxcount=4)
    assert list((tmp_path / "notes").iterdir()) != []
    gpuload.pack(FolderSource(root), tmp_path / "undisturbed", workers=2, maxcount=4)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "undisturbed")


def test_no_process_outlives_a_killed_packer(source: FolderSource, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with held(source.root, out, "ant") as run:
        wait_for(run, lambda: len(list(out.glob("*/*.tmp"))) == 2)
        assert len(of_session(run.pid)) >= 4  # packer, server, two workers
        run.kill()
    while of_session(run.pid):
        time.sleep(0.01)


def of_session(session: int) -> list[int]:
    """Numbers of the running processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def test_verify_lists_every_fault(source: FolderSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    gpuload.pack(source, out, workers=2, **SETTINGS)
    assert cli.main(["verify", str(out)]) == cli.DONE
    assert capsys.readouterr().out == f"{out}: all is well\n"
    train = out / "train"
    row = next(row for row in rows_of(train) if row["shard"] == "shard-000001.tar" and row["source"].endswith(".jpg"))
    corrupted = bytearray((train / "shard-000001.tar").read_bytes())
    middle = row["image_offset"] + row["image_bytes"] // 2
    corrupted[middle : row["image_offset"] + row["image_bytes"]] = bytes(row["image_bytes"] - row["image_bytes"] // 2)
    (train / "shard-000001.tar").write_bytes(corrupted)
    short = (train / "shard-000002.tar").read_bytes()
    (train / "shard-000002.tar").write_bytes(short[:-512])
    (train / "shard-000003.tar").unlink()
    (train / "shard-000004.idx").unlink()
    (train / "shard-000005.idx").write_text("v1.2 0\n")
    shutil.copy(train / "shard-000000.tar", train / "shard-000099.tar")
    index = (out / "val" / "index.arrow").read_bytes()
    (out / "val" / "index.arrow").write_bytes(index[:100])
    assert cli.main(["verify", str(out), "--workers", "2"]) == cli.FAULTY
    lines = [line.replace(str(out) + "/", "") for line in capsys.readouterr().out.splitlines()]
    assert [line.split(": ")[0] for line in lines[:-1]] == [
        "train/shard-000099.tar", "train/shard-000001.tar", "train/shard-000001.tar", "train/shard-000002.tar",
        "train/shard-000003.tar", "train/shard-000004.idx", "train/shard-000005.idx", "val/index.arrow",
    ]  # fmt: skip
    for line, part in zip(lines, [
        "is not in manifest.json", "its SHA-256 is", f"sample {row['key']!r}: its image cannot be decoded",
        "bytes, manifest.json says", "No such file", "is missing", "does not describe shard-000005.tar",
        "cannot be read as an Arrow file", f"{out}: 8 faults",
    ], strict=True):  # fmt: skip
        assert part in line
    with pytest.raises(FormatError, match="this is not a packed folder"):
        verify(tmp_path)


def test_many_files_are_listed_in_little_memory(tmp_path: Path) -> None:
    """A simulated folder with 200,000 files: listing, planning and writing the plan take less than 120 MiB beside the
    interpreter and its libraries, which take 60. A million files take 215 MiB."""
    code = f"""
import os
from pathlib import Path
from gpuload.packing.options import PackOptions
from gpuload.packing.plan import make_plan, write_plan
from gpuload.sources import folder

def mebibytes(kind):  # not ru_maxrss, which includes the process that started this one
    return int(Path("/proc/self/status").read_text().split(kind)[1].split()[0]) // 1024

before = mebibytes("VmRSS:")

class Entry:
    def __init__(self, name, path, is_folder):
        self.name, self.path, self._folder = name, path, is_folder
    def is_dir(self): return self._folder
    def is_symlink(self): return False
    def stat(self): return os.stat_result((0o100644,) + (0,) * 5 + (100_000 + len(self.name),) + (0,) * 3)

class Scan(list):
    def __enter__(self): return self
    def __exit__(self, *_): pass

def scandir(path):
    path = str(path)
    if path.endswith("photos"):
        return Scan(Entry(f"n{{n:08d}}", f"{{path}}/n{{n:08d}}", True) for n in range(200))
    return Scan(Entry(f"{{path[-9:]}}_{{n}}.JPEG", "", False) for n in range(1000))

root = Path({str(tmp_path)!r}) / "photos"
root.mkdir()
os.scandir, real = scandir, os.stat
os.stat = lambda path, **more: Entry(str(path)[-20:], "", False).stat() if str(path).endswith("G") else real(path, **more)
listing = folder.FolderSource(root).list_samples()
assert len(listing) == 200_000
for split in make_plan(listing, PackOptions(measure=9)):
    write_plan(Path({str(tmp_path)!r}), split, listing.samples)
print(mebibytes("VmHWM:") - before)
"""
    assert int(subprocess.check_output([sys.executable, "-c", code], text=True)) < 120


def test_a_complete_set_is_not_resumed_with_other_settings(
    make_folder: Folder, photo_files: dict[str, bytes], tmp_path: Path
) -> None:
    source = FolderSource(make_folder(photo_files))
    gpuload.pack(source, tmp_path / "out", workers=1)
    before = files_of(tmp_path / "out")
    for changes, message in (
        ({"encode": "jpeg", "size": (16, 16)}, r"had encode 'keep', this run has 'jpeg'\. Pack it again"),
        ({"lossless": True}, r"had options None, this run has \{'lossless': True\}"),
        ({"seed": 1}, r"the complete set in .*out had seed 0, this run has 1"),
        ({"val": 0.2}, r"had splits \{'train': 1.0\}, this run has \{'train': 0.8, 'val': 0.2\}"),
        ({"dedup": "drop"}, r"had options None, this run has \{'dedup': 'drop'\}"),
    ):
        with pytest.raises(ArgumentError, match=message):
            gpuload.pack(source, tmp_path / "out", workers=1, resume=True, **changes)
    assert files_of(tmp_path / "out") == before
