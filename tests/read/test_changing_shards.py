"""Shards that are truncated, deleted, replaced or overwritten while an epoch is read, or whose disk fails: correct samples
or an error that names the shard, never the end of the process.
"""

import ctypes
import errno
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import prepared
import pytest
from loaders import drain, load

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.read import mapped_file
from gpuload.read.reader import Reader
from gpuload.sources import FolderSource
from gpuload.store import Lease

Row = tuple[int, bytes]
WHOLE, PARTS = 20, 2  # windows: all shards are mapped from the start, or two and the next two


def rows_of(batches: Iterator[tuple[object, ...]]) -> Iterator[list[Row]]:
    for index, images, _ in batches:  # type: ignore[misc]
        yield [(int(i), image.numpy().tobytes()) for i, image in zip(index, images, strict=True)]  # type: ignore[call-overload]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


def truncate(path: Path) -> None:
    os.truncate(path, 4096)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x55" * 700)


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    shutil.copy(path, other)
    overwrite(other)
    other.replace(path)


def renew(path: Path) -> None:
    """The same content in another file, or in the same one with another time."""
    other = path.with_suffix(".new")
    shutil.copyfile(path, other)
    if path.name.endswith("3.tar"):
        os.utime(path)
    else:
        other.replace(path)


@pytest.fixture(scope="session")
def raw(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images stored as pixels: those that are missing decode as well as any others."""
    out = tmp_path_factory.mktemp("raw")
    gpuload.pack(FolderSource(photos), out, encode="raw", size=(32, 32), maxcount=10, workers=1)
    return out / "train"


CUT = r"(was truncated to 4,096 bytes while it was being read|is 4,096 bytes, )"


@pytest.mark.parametrize(
    ("kind", "damage", "window", "message"),
    [
        ("packed", truncate, WHOLE, CUT),
        ("packed", truncate, PARTS, CUT),
        ("raw", truncate, WHOLE, CUT),
        ("packed", overwrite, WHOLE, r"was changed while it was being read: its SHA-256 is .*Copy it again"),
        ("packed", overwrite, PARTS, r"was (changed while it|replaced since)"),
        ("packed", replace, PARTS, r"was replaced since the data set was opened: its SHA-256 is"),
        ("packed", Path.unlink, PARTS, r"cannot be read \(No such file or directory\). Check the disk"),
        ("packed", replace, WHOLE, None),
        ("packed", Path.unlink, WHOLE, None),
        ("packed", renew, WHOLE, None),
        ("packed", renew, PARTS, None),
    ],
)
def test_a_shard_changes_during_an_epoch(
    kind: str, damage: Callable[[Path], None], window: int, message: str | None,
    request: pytest.FixtureRequest, tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole = request.getfixturevalue(kind)
    copy = Path(shutil.copytree(whole, tmp_path / "train"))
    monkeypatch.setattr("gpuload.read.reader._LOOK_S", 0)
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    with load(copy, decoder=decoder, prefetch=1, shuffle=gpuload.Shuffle(window=window)) as loader:
        expected = drain([load(whole, decoder=decoder, shuffle=gpuload.Shuffle(window=window))])
        batches = rows_of(iter(loader))
        found = next(batches) + next(batches)
        for path in shards(copy):
            damage(path)
        if message is None:
            assert found + [row for rows in batches for row in rows] == expected
            return
        with pytest.raises(gpuload.ShardError, match=rf"shard-00000\d.tar: {message}") as raised:
            for rows in batches:
                found += rows
        assert "\n" not in str(raised.value)
        state = loader.state_dict()
        assert state["samples"] == len(found)
        if damage is not overwrite:  # which shows before it is noticed
            assert found == expected[: len(found)]
        # Repaired, it goes on where it was.
        for path in shards(whole):
            shutil.copy(path, copy)
        loader.load_state_dict(state)
        rest = [row for rows in rows_of(iter(loader)) for row in rows]
        assert rest == expected[len(found) :]


def test_a_shard_that_changes_at_the_end_of_an_epoch_is_noticed(copy: Path, decoder: str) -> None:
    """Batches are read ahead, so nothing reads the shards any more; a batch that was handed out may be wrong."""
    with (
        load(copy, decoder=decoder, prefetch=4, shuffle=gpuload.Shuffle(window=WHOLE)) as loader,
        pytest.raises(gpuload.ShardError, match="was changed while it was being read"),
    ):
        for number, _ in enumerate(loader):
            if number == 10:
                overwrite(shards(copy)[4])


def test_a_truncated_index_is_named(copy: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    with load(copy, decoder=decoder, prefetch=1, shuffle=gpuload.Shuffle(window=1)) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(copy / "index.arrow", 100)
        message = "index.arrow: was truncated to 100 bytes while it was being read. .*, and open the data set again"
        with pytest.raises(gpuload.ShardError, match=message):
            list(batches)
        with pytest.raises(gpuload.ShardError, match=message):
            list(loader)


SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from gpuload.read import mapped_file
from gpuload.read.mapped_file import MappedFile
from gpuload.store import Lease

ours, other, end = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
mapped_file.install()
mapped_file.install()
mine, yours = object(), object()
mapped = [MappedFile(Lease(path), owner) for path, owner in ((ours, mine), (ours, yours), (other, yours))]
assert not [name for name in os.listdir("/proc/self/fd") if "data" in os.path.realpath("/proc/self/fd/" + name)]
assert all(file.data.sum() for file in mapped)
os.truncate(ours, 5000)
found = []
threads = [threading.Thread(target=lambda: found.append(int(mapped[0].data[5000:].sum()))) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found == [0] * 8 and mapped[2].data.sum() and not mapped[0].data.flags.writeable
assert mapped[1].data[9000] == 0  # another mapping of the same file
assert 2 <= mapped_file.count() < 20
assert mapped_file.find_fault(mine) == (ours, 8192) and mapped_file.find_fault(yours)[0] == ours
free = len(mapped_file._free_slots)
del mapped, threads
assert mapped_file.find_fault(mine) is None
assert len(mapped_file._free_slots) == free + 3 and not mapped_file._files and "data" not in Path("/proc/self/maps").read_text()
print("fine", flush=True)
if end == "sent":
    os.kill(os.getpid(), signal.SIGBUS)
if end == "other":
    import mmap
    with other.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(other, 10)
    print(whole[9000])
"""


REPLACED = """
import faulthandler, os, sys
import gpuload
from gpuload.read import mapped_file
folder, order = sys.argv[1:]
loader = gpuload.DaliIterator(folder, 4, augment=gpuload.Augment(8), device="cpu", num_threads=1, prefetch=1)
faulthandler.enable()  # as `ray.init` does, it takes the place of the handler
batches = iter(loader)
next(batches)
for shard in os.scandir(folder):
    if shard.name.endswith(".tar"):
        os.truncate(shard.path, 4096)
try:
    for _ in batches:
        pass
except gpuload.ShardError:
    print("fine", flush=True)
if order == "other":
    import mmap
    loader.close()  # no thread is at work on a truncated shard, whose SIGBUS would end the process before the message
    with open(folder + "/index.arrow", "rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for slot in list(mapped_file._files):
        mapped_file.release(slot)  # nothing is protected any more
    os.truncate(folder + "/index.arrow", 10)
    print(whole[5000])
"""


@pytest.mark.parametrize("order", ["", "other"])
def test_a_handler_that_was_installed_later_does_not_end_the_process(copy: Path, order: str) -> None:
    command = [*prepared.python(), "-c", REPLACED, str(copy), order]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
    assert done.returncode == (-7 if order else 0)
    assert done.stderr.count("Fatal Python error: Bus error") == bool(order)


def test_files_are_released_while_a_fault_is_looked_for(packed: Path) -> None:
    """By the garbage collector, which any allocation may start."""

    class Cycle:
        def __init__(self) -> None:
            self.file, self.itself = mapped_file.MappedFile(Lease(packed / "index.arrow"), owner), self

    owner, before = object(), gc.get_threshold()
    try:
        gc.disable()
        for _ in range(100):
            Cycle()
        pairs = [(number, number) for number in range(5000)]  # Python keeps 2,000 freed ones, which start nothing
        gc.set_threshold(gc.get_count()[0] + 50)
        gc.enable()
        assert mapped_file.find_fault(owner) is None and len(pairs) == 5000
    finally:
        gc.enable()
        gc.set_threshold(*before)


@pytest.mark.parametrize("end", ["", "sent", "other"])
@pytest.mark.parametrize("options", [[], ["-X", "faulthandler"]])
def test_a_fault_in_a_protected_file_is_noted_and_any_other_one_ends_the_process(
    tmp_path: Path, end: str, options: list[str]
) -> None:
    for name in ("data0", "data1"):
        (tmp_path / name).write_bytes(b"\1" * 100_000)
    command = [sys.executable, *options, "-c", SCRIPT, str(tmp_path / "data0"), str(tmp_path / "data1"), end]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
    assert done.returncode == (-7 if end else 0)
    assert bool(re.search("Fatal Python error: Bus error", done.stderr)) == bool(end and options)


def test_a_shard_that_is_overwritten_just_before_it_is_released(copy: Path) -> None:
    dataset = gpuload.Dataset(copy)
    order, read_from = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=2), Reader(dataset)
    first = order.window_shards(0)
    read_from.read(order, 0, 4)
    overwrite(shards(copy)[int(first[0])])
    with pytest.raises(gpuload.ShardError, match=r"was changed while it was being read: its SHA-256 is"):
        read_from.read(order, int(dataset.shard_sizes[first].sum()), int(dataset.shard_sizes[first].sum()) + 4)
    read_from.close()


@pytest.fixture
def disk(packed: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The file of an ext2 file system that holds a packed set, which can lose its end, and where it is mounted."""
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    commands = ["mke2fs", "-q", "-t", "ext2", "-d", packed, image, "4M"], ["mount", "-o", "loop,ro", image, folder]
    if any(subprocess.run(command, capture_output=True).returncode for command in commands):
        pytest.skip("needs mke2fs and the right to mount a file system (root, or in a container --privileged)")
    try:
        yield image, folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("verify", [None, "sha256"])
def test_a_disk_that_fails_is_named_and_a_repaired_one_is_read_on(
    packed: Path, disk: tuple[Path, Path], decoder: str, verify: str | None
) -> None:
    """It answers EIO, which a memory map turns into SIGBUS."""
    image, folder = disk
    content = image.read_bytes()
    message = r"shard-\d+.tar: cannot be read at byte [\d,]+ \(Input/output error\). Check the disk, or copy it"
    with (
        load(gpuload.Dataset(folder, verify=verify), decoder=decoder) as loader,
        load(packed, decoder=decoder) as undisturbed,
    ):
        for name in ("index.arrow", "manifest.json"):
            (folder / name).read_bytes()  # stays in memory
        os.truncate(image, len(content) // 8)
        for _ in range(2):
            with pytest.raises(gpuload.ShardError, match=message):
                list(loader)
        assert loader.state_dict()["samples"] == 0
        image.write_bytes(content)
        loader.set_epoch(0)
        assert drain([loader]) == drain([undisturbed])


def test_more_files_than_can_be_protected(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "_free_slots", [])
    file = mapped_file.MappedFile(Lease(packed / "index.arrow"), None)
    assert file.data.tobytes() == (packed / "index.arrow").read_bytes()
    del file
    assert mapped_file._free_slots == []  # it had no slot that could be used again


def test_a_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mmap(*_: object) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return 2**64 - 1  # MAP_FAILED, -1

    (tmp_path / "file").write_bytes(b"abc")
    monkeypatch.setattr(mapped_file, "_libc", SimpleNamespace(mmap=mmap))
    with pytest.raises(OSError, match="Cannot allocate memory") as raised:
        mapped_file.MappedFile(Lease(tmp_path / "file"), None)
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert raised.value.errno == errno.ENOMEM and str(tmp_path / "file") not in opened
