"""Several processes that make one copy, some of which are killed; room, and what is removed for it."""

import errno
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import prepared
import pytest

import gpuload
from gpuload.cli import main
from gpuload.decoded_copies import places
from gpuload.machine.limits import free_memory, is_in_memory


def start(packed: Path, folder: Path, before: int) -> "subprocess.Popen[str]":
    script = Path(__file__).with_name("make_copy.py")
    mark = folder.with_name(f"{folder.name}-mark")
    command = [*prepared.python(), "-W", "ignore", script, packed, folder, mark, str(before)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while before >= 0 and not mark.exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    return process


def digests(folder: Path) -> dict[str, str]:
    names = ("*.tar", "*.idx", "index.arrow", "manifest.json")
    paths = [path for name in names for path in folder.glob(name)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def whole(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a copy that was made by one process."""
    copy = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path_factory.mktemp("whole"))
    return digests(Path(copy.folder))


def test_what_a_killed_process_left_is_used(packed: Path, whole: dict[str, str], tmp_path: Path) -> None:
    """The next run makes only the shards that are missing, and the same bytes."""
    folder = tmp_path / "copies"
    process = start(packed, folder, before=37)
    (begun,) = places.CopiesFolder(folder)
    assert begun.in_use()
    assert not begun.is_whole
    kept = {path: path.stat().st_ino for path in begun.folder.glob("*.tar")}
    assert len(kept) == 3
    process.kill()
    process.communicate()
    assert not begun.in_use()
    done = list[tuple[int, int]]()
    copy = gpuload.decoded(gpuload.Dataset(packed), folder=folder, watch=lambda *numbers: done.append(numbers))
    assert copy.folder == begun.folder
    assert done[0] == (3, 10)
    assert {path: path.stat().st_ino for path in kept} == kept
    assert digests(begun.folder) == whole
    assert not list(begun.folder.glob("*.part"))


def test_processes_share_the_work(packed: Path, whole: dict[str, str], tmp_path: Path) -> None:
    """One process stops in the first shard, the other one makes the rest, waits, and makes that when it is killed."""
    folder = tmp_path / "copies"
    stopped = start(packed, folder, before=4)
    other = start(packed, folder, before=-1)
    (begun,) = places.CopiesFolder(folder)
    while len(list(begun.folder.glob("*.done"))) < 9:
        assert other.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    assert other.poll() is None
    stopped.kill()
    stopped.communicate()
    printed, error = other.communicate(timeout=60)
    assert (other.returncode, printed.split()) == (0, ["97", "97"]), error
    assert digests(begun.folder) == whole


def test_a_suspended_process_is_named(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds the last shard and writes nothing is not waited for without end."""
    folder = tmp_path / "copies"
    stopped = start(packed, folder, before=4)
    monkeypatch.setattr("gpuload.decoded_copies.build._STUCK_S", 0.3)
    with pytest.raises(
        gpuload.OutputError, match=r"another process makes shard-000000\.tar\.part, and has written nothing for 0\.3 s"
    ):
        gpuload.decoded(gpuload.Dataset(packed), folder=folder)
    stopped.kill()
    stopped.communicate()
    assert len(gpuload.decoded(gpuload.Dataset(packed), folder=folder)) == 97


def test_a_disk_that_fills_up_meanwhile(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, and the next run goes on."""

    def fill(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("gpuload.store.cache.os.fdatasync", fill)
        with pytest.raises(gpuload.OutputError, match=r"cannot be written \(No space left on device\)\. Free some"):
            gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert len(gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path)) == 97


def test_a_folder_that_was_deleted_is_made_again(packed: Path, tmp_path: Path) -> None:
    first = gpuload.decoded(gpuload.Dataset(packed), 20, folder=tmp_path)
    shutil.rmtree(first.folder)
    assert gpuload.decoded(gpuload.Dataset(packed), 20, folder=tmp_path).manifest == first.manifest
    (copy,) = places.CopiesFolder(tmp_path)
    assert copy.in_use()


@pytest.mark.parametrize("lost", ["shard", "part of a shard", "DALI's index"])
def test_a_shard_that_a_copy_has_lost_is_made_again(
    packed: Path, whole: dict[str, str], tmp_path: Path, lost: str
) -> None:
    """And no other one."""
    first = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path)
    copy = Path(first.folder)
    shard = copy / "shard-000003.tar"
    kept = {path: path.stat().st_ino for path in copy.glob("*.tar") if path != shard}
    if lost == "shard":
        shard.unlink()
    elif lost == "part of a shard":
        os.truncate(shard, shard.stat().st_size - 512)
    else:
        shard.with_suffix(".idx").unlink()
    done = list[tuple[int, int]]()
    again = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path, watch=lambda *numbers: done.append(numbers))
    assert done[0] == (9, 10)
    assert again.manifest == first.manifest
    assert digests(copy) == whole
    assert {path: path.stat().st_ino for path in kept} == kept
    assert not list(copy.glob("*.done")) + list(copy.glob("*.rows"))


@pytest.mark.parametrize("lost", [["index.arrow"], ["index.arrow", "shard-000003.tar"]])
def test_without_its_index_all_of_a_copy_is_made_again(
    packed: Path, whole: dict[str, str], tmp_path: Path, lost: list[str]
) -> None:
    copy = Path(gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path).folder)
    for name in lost:
        (copy / name).unlink()
    assert len(gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path)) == 97
    assert digests(copy) == whole


def test_a_lost_shard_of_what_a_killed_process_left(packed: Path, whole: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    process = start(packed, folder, before=37)
    process.kill()
    process.communicate()
    (begun,) = places.CopiesFolder(folder)
    (begun.folder / "shard-000001.tar").unlink()
    done = list[tuple[int, int]]()
    gpuload.decoded(gpuload.Dataset(packed), folder=folder, watch=lambda *numbers: done.append(numbers))
    assert done[0] == (2, 10)
    assert digests(begun.folder) == whole


def test_room_is_known_before_anything_is_made(packed: Path, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(packed)
    with pytest.raises(gpuload.ArgumentError, match=r"97 samples .* takes [\d.]+ MB \([\d,]+ bytes\).* by its limit"):
        gpuload.decoded(dataset, folder=tmp_path, limit="1MB")
    assert list(places.CopiesFolder(tmp_path)) == []
    for size, most in ((16, 2.0), (None, 1.25)):
        made = gpuload.decoded(dataset, size, folder=tmp_path, limit="6MB")
        copy = list(places.CopiesFolder(tmp_path))[-1]
        assert made.manifest.bytes <= copy.written() <= copy.facts.bytes < most * copy.written()


def test_a_disk_that_is_full(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that others have begun take their room, too."""
    needed = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "first").manifest.bytes
    free = places.shutil.disk_usage(tmp_path)._replace(free=needed // 2)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: free)
    with pytest.raises(gpuload.ArgumentError, match="has room for .*free some of it"):
        gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "second")
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: free._replace(free=3 * needed))
    monkeypatch.setattr(places, "is_in_memory", lambda folder: True)
    monkeypatch.setattr(places, "free_memory", lambda: needed)
    with pytest.raises(gpuload.ArgumentError, match="has room for"):
        gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "second")
    monkeypatch.setattr(places, "free_memory", lambda: 3 * needed)
    assert len(gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "second")) == 97


def test_the_copy_that_was_used_longest_ago_makes_room(packed: Path, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(packed)
    sizes = [30, 31, 32]
    first, second = (Path(gpuload.decoded(dataset, size, folder=tmp_path).folder) for size in sizes[:2])
    used = sum(copy.facts.bytes for copy in places.CopiesFolder(tmp_path))
    limit = int(1.2 * used)
    with pytest.raises(gpuload.ArgumentError, match="has room for"):  # this process uses both
        gpuload.decoded(dataset, sizes[2], folder=tmp_path, limit=limit)
    for path in (first, second):
        places._held.pop(path).close()
    gpuload.decoded(dataset, sizes[0], folder=tmp_path, limit=limit)
    places._held.pop(first).close()
    third = Path(gpuload.decoded(dataset, sizes[2], folder=tmp_path, limit=limit).folder)
    assert [copy.folder for copy in places.CopiesFolder(tmp_path)] == [first, third]


def test_a_removal_that_was_interrupted(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left is no copy, and goes."""
    first = gpuload.decoded(gpuload.Dataset(packed), 20, folder=tmp_path)
    places._held.popitem()[1].close()

    def interrupt(folder: Path) -> None:
        next(folder.glob("*.tar")).unlink()
        raise KeyboardInterrupt

    copies = places.CopiesFolder(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(places.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            copies.remove([])
    assert list(copies) == []
    again = gpuload.decoded(gpuload.Dataset(packed), 20, folder=tmp_path)
    assert again.manifest == first.manifest
    assert sorted(path.name for path in copies.root.iterdir()) == sorted([Path(again.folder).name, "lock"])


def test_command(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--folder", str(tmp_path)]
    assert main(["decoded", str(packed), "--size", "40", *folder]) == 0
    (copy,) = places.CopiesFolder(tmp_path)
    name = copy.folder.name
    assert f"{name}: 97 samples" in capsys.readouterr().out
    assert main(["decoded", *folder]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in (name, "40 shortest", "whole", "in use"))
    assert main(["decoded", "--remove", name, *folder]) == 2
    assert f"{name} is in use" in capsys.readouterr().err
    assert main(["decoded", "--remove", "other", *folder]) == 2
    assert "has no copy 'other'" in capsys.readouterr().err
    places._held.popitem()[1].close()
    assert main(["decoded", "--remove", "all", *folder]) == 0
    assert f"removed {name}" in capsys.readouterr().out
    assert not copy.folder.exists()
    assert main(["decoded", str(packed), "--remove", "all", *folder]) == 2
    assert main(["decoded", "--size", "40", *folder]) == 2


def test_folders_of_others_are_refused(packed: Path, tmp_path: Path) -> None:
    root = places.CopiesFolder(tmp_path).root
    root.chmod(0o777)
    with pytest.raises(gpuload.ArgumentError, match="can be written by other users"):
        gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(gpuload.ArgumentError, match="cannot be written"):
        gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "file")


def files(root: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max", 4_000 << 10), ("3000000", 3_000_000 - 1_200_000), ("1000000", 0)],
)
def test_free_memory(tmp_path: Path, limit: str, expected: int) -> None:
    """Of the machine, and of a control group of version 2, whose cached files count as free."""
    mount = "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
    contents = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n",
        "proc/self/cgroup": "0::/job",
        "proc/self/mountinfo": mount,
        "sys/fs/cgroup/job/memory.max": limit,
        "sys/fs/cgroup/job/memory.stat": "anon 1000000\nfile 700000\nshmem 200000\n",
    }
    files(tmp_path, contents)
    assert free_memory(tmp_path) == expected
    assert free_memory(tmp_path / "nothing") is None


def test_is_in_memory(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for kind in ("tmpfs", "ext4"):
        files(tmp_path, {"proc/self/mountinfo": f"30 20 {number} / /x rw - {kind} {kind} rw\n"})
        assert is_in_memory(tmp_path, tmp_path) is (kind == "tmpfs")
    assert not is_in_memory(tmp_path, tmp_path / "nothing")
    if Path("/dev/shm").is_mount():
        assert is_in_memory(Path("/dev/shm"))
