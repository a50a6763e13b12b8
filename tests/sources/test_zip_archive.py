"""Zip archives as containers: the names of an unpacked folder, and a reason for whatever is not read."""

import os
import pickle
import shutil
import stat
import subprocess
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from images import Folder, write_files
from reading import files_of, rejected_of, rows_of
from sources_read import PHOTOS, packed, reasons_of
from zips import FLAGS, METHOD, SIZE, patched, write_zip, zip_bytes

from gpuload import DecodeError, SourceError, cli
from gpuload.disk import Manifest
from gpuload.sources import open_source

IMAGES = {"cat/1.jpg": b"one", "cat/deep/2.PNG": b"zwei" * 100, "dog/10.webp": b"", "dog/9.jpg": b"\0" * 5000}

needs_zip = pytest.mark.skipif(shutil.which("zip") is None, reason="needs Info-ZIP's zip (apt install zip)")


class Opened:
    """The images of an archive or folder, as a source lists and reads them."""

    def __init__(self, path: Path) -> None:
        self.source = open_source(path, form="unlabeled")
        listing = self.source.list_samples()
        rows = listing.samples.to_pylist()
        self.sizes = {row["name"]: row["bytes"] for row in rows}
        self.addresses = {row["name"]: row.get("where", row["name"]) for row in rows}
        self.rejected = reasons_of(listing)
        self.notes = listing.notes

    def read(self, name: str) -> object:
        return self.source.read(self.addresses[name])


def of_bytes(tmp_path: Path, data: bytes) -> Opened:
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    return Opened(path)


def classes_of(path: Path) -> tuple[str, ...] | None:
    return open_source(path, form="folder").list_samples().classes


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read_in_any_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int) -> None:
    path = write_zip(tmp_path / "A.ZIP", IMAGES, method)
    before = pickle.dumps(open_source(path, form="unlabeled"))
    archive = Opened(path)
    assert archive.sizes == {name: len(data) for name, data in IMAGES.items()}
    assert classes_of(path) == ("cat", "dog")
    assert pickle.dumps(archive.source) == before  # without the directory, which may be large
    archive.source = pickle.loads(before)
    monkeypatch.setattr(zipfile, "ZipFile", None)  # nor is it parsed to read a member
    assert {name: archive.read(name) for name in IMAGES} == IMAGES
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert str(path) not in opened


_PART = st.text(st.sampled_from("ab.-ü%é "), min_size=1, max_size=3).filter(lambda part: part.strip(". ") == part)
_NAME = st.lists(_PART, min_size=1, max_size=4).map("/".join).map(lambda name: f"{name}.jpg")


@settings(max_examples=60)
@given(st.dictionaries(_NAME, st.binary(max_size=20), max_size=8))
@example({"a/b.jpg": b"", "a-b/c.jpg": b"", "a.jpg": b"", "a/-.jpg": b""})
def test_the_order_is_that_of_the_unpacked_folder(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        write_files(folder, files)
        folder.mkdir(exist_ok=True)
        shuffled = dict(sorted(files.items(), key=lambda item: item[0][::-1]))
        # An image at the top, so that no folder holds everything.
        (folder / "0.jpg").write_bytes(b"0")
        archive = write_zip(Path(place) / "a.zip", {**shuffled, "0.jpg": b"0"})
        assert list(Opened(archive).sizes.items()) == list(Opened(folder).sizes.items())
        if any("/" in name for name in files):
            assert classes_of(archive) == classes_of(folder)


@pytest.mark.parametrize(
    ("names", "top", "left"),
    [
        (["photos/cat/1.jpg", "photos/dog/1.jpg"], "photos", ["cat/1.jpg", "dog/1.jpg"]),
        (["x/photos/cat/1.jpg", "x/photos/dog/1.jpg"], "x/photos", ["cat/1.jpg", "dog/1.jpg"]),
        (["photos/1.jpg", "photos/2.jpg"], "photos", ["1.jpg", "2.jpg"]),
        (["photos/", "photos/cat/1.jpg", "photos/dog/"], "photos", ["cat/1.jpg"]),
        (["README.txt", "photos/cat/1.jpg", "photos/dog/1.jpg"], "photos", ["cat/1.jpg", "dog/1.jpg"]),
        (["p/a/1.jpg", "p/b/1.jpg", "__MACOSX/p/a/._1.jpg", ".DS_Store"], "p", ["a/1.jpg", "b/1.jpg"]),
        (["cat/1.jpg", "dog/1.jpg"], "", ["cat/1.jpg", "dog/1.jpg"]),
        (["cat/1.jpg", "dog/"], "", ["cat/1.jpg"]),
        (["cat/1.jpg", "2.jpg"], "", ["2.jpg", "cat/1.jpg"]),
        (["photos/2.jpg", "photos/cat/1.jpg"], "photos", ["2.jpg", "cat/1.jpg"]),
    ],
)
def test_one_folder_around_everything(tmp_path: Path, names: list[str], top: str, left: list[str]) -> None:
    archive = Opened(write_zip(tmp_path / "a.zip", dict.fromkeys(names, b"")))
    assert list(archive.sizes) == left
    told = f"names and classes start inside {top!r}, which holds everything in the archive"
    assert (told in archive.notes) == bool(top)
    assert ("passed over, by extension: 1 × .txt" in archive.notes) == ("README.txt" in names)
    table = tmp_path / "t.csv"
    for name in left:  # tables may name images with the folders around them
        for said in (f"{top}/{name}".lstrip("/"), f"./{name}"):
            table.write_text(f"path,label\n{said},0\n")
            assert len(open_source(tmp_path / "a.zip", table).list_samples()) == 1


def renamed(name: bytes, flags: int = 0, system: int = 3) -> bytes:
    """An archive with a member of this name, byte by byte, beside cat/1.jpg and dog/1.jpg."""
    stand_in = "N" * len(name)
    data = zip_bytes({"cat/1.jpg": b"1", "dog/1.jpg": b"2", stand_in: b"3"})
    data = patched(data, stand_in, FLAGS, flags)
    at = data.rindex(b"PK\1\2")
    return (data[: at + 5] + bytes([system]) + data[at + 6 :]).replace(stand_in.encode(), name)


LINK = zipfile.ZipInfo("a/link.jpg")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16
OTHERS = [(name, b"") for name in ("a/.x/2.jpg", "__MACOSX/a/._1.jpg", "a/.jpg", "a/in.zip", "c/")]
PAIR, RENAMED = [("a/1.jpg", b"1"), ("b/1.jpg", b"2")], ["cat/1.jpg", "dog/1.jpg"]
AGAIN = "its name comes again in the archive, where the last one counts"
OUT = "its name leads out of the archive"


@pytest.mark.parametrize(
    ("data", "names", "rejected"),
    [
        (zip_bytes([*PAIR, *OTHERS]), ["a/1.jpg", "b/1.jpg"], []),  # hidden files and archives
        *((zip_bytes([*PAIR, (name, b"")]), ["a/1.jpg", "b/1.jpg"], [(name, OUT)]) for name in
          ("../1.jpg", "a/../../1.jpg", "/etc/1.jpg", "C:/1.jpg", "C:\\1.jpg", "a/../1.jpg")),
        (zip_bytes([*PAIR, ("./a/1.jpg", b"new"), ("./a//1.jpg", b"newest")]), ["a/1.jpg", "b/1.jpg"], [("a/1.jpg", AGAIN)] * 2),
        (zip_bytes([*PAIR, ("c/1.jpg", b"newest")]).replace(b"c/1", b"a/1"), ["a/1.jpg", "b/1.jpg"], [("a/1.jpg", AGAIN)]),
        (zip_bytes([*PAIR, (LINK, b"/etc/passwd")]), ["a/1.jpg", "b/1.jpg"], [("a/link.jpg", "is a link, which is not followed in an archive")]),
        # Marked as UTF-8 or not: zip marks them in a field of its own, which not all readers know.
        *((renamed("cat/ü.jpg".encode(), flags), ["cat/1.jpg", "cat/ü.jpg", "dog/1.jpg"], []) for flags in (0, 0x800)),
        (renamed("cat/ü.jpg".encode("cp437")), RENAMED, [("cat/\ufffd.jpg", "its name is not UTF-8")]),
        (renamed(b"cat\\2.jpg", system=0), ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"], []),  # from Windows
        (renamed(b"cat\\2.jpg", system=3), ["cat/1.jpg", "cat\\2.jpg", "dog/1.jpg"], []),  # a name like any other
        (renamed(b"..\\2.jpg", system=0), RENAMED, [("../2.jpg", OUT)]),
        (renamed(b"cat/2\0.jpg"), RENAMED, [("cat/2\ufffd.jpg", "its name is none that a file could have")]),
    ],
)  # fmt: skip
def test_names_in_an_archive(tmp_path: Path, data: bytes, names: list[str], rejected: list[tuple[str, str]]) -> None:
    archive = of_bytes(tmp_path, data)
    assert (sorted(archive.sizes), archive.rejected) == (names, rejected)
    assert archive.notes == ("passed over, by extension: 1 × .zip",) * (b"in.zip" in data)
    if AGAIN in dict(rejected).values():
        assert archive.read("a/1.jpg") == b"newest"
    elif rejected:
        (tmp_path / "t.csv").write_text(f"path,label\n{rejected[0][0]},0\n")
        with pytest.raises(SourceError, match="names 1 of 1 files that are not in"):
            open_source(tmp_path / "a.zip", tmp_path / "t.csv").list_samples()


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """50 MB of zeros that claim to be 1,000: no more than that is unpacked."""
    data = zip_bytes({"1.jpg": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    archive = of_bytes(tmp_path, patched(data, "1.jpg", SIZE, 1000))
    tracemalloc.start()
    with pytest.raises(
        DecodeError, match="is damaged in the archive: its size or checksum is not that in the directory"
    ):
        archive.read("1.jpg")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(("size", "message"), [(4, "its size or checksum"), (1001, "is larger than")])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_has_the_size_it_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int, size: int, message: str
) -> None:
    monkeypatch.setattr("gpuload.sources.zip_archive.MAX_MEMBER_BYTES", 1000)
    data = zip_bytes({"1.jpg": bytes(5), "2.jpg": bytes(1000)}, method)
    archive = of_bytes(tmp_path, patched(data, "1.jpg", SIZE, size))
    assert archive.read("2.jpg") == bytes(1000)
    with pytest.raises(DecodeError, match=message):
        archive.read("1.jpg")


def test_a_size_beyond_all_numbers(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as written:
        written.writestr("1.jpg", b"1")
        written.getinfo("1.jpg").file_size = 1 << 63
    with pytest.raises(DecodeError, match="is larger than"):
        Opened(tmp_path / "a.zip").read("1.jpg")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_members(tmp_path: Path, method: int) -> None:
    whole = zip_bytes(IMAGES, method)
    archive = of_bytes(tmp_path, whole)
    start = int(archive.addresses["dog/9.jpg"].partition(":")[0])
    nothing = "damaged in the archive: nothing begins where the directory says"
    changed = [(at, 1, nothing) for at in range(start, start + 4)]
    changed += [(start + at, 255, "is damaged in the archive: ") for at in (39, 41, 43)]
    damaged = [(whole[:at] + bytes([whole[at] ^ by]) + whole[at + 1 :], message) for at, by, message in changed]
    # Cut short by a copy while it was packed.
    damaged += [(whole[: start + at], "is damaged in the archive: ") for at in (-start, 0, 20, 40, 45)]
    for data, message in damaged:
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(DecodeError, match=message):
            archive.read("dog/9.jpg")
    (tmp_path / "a.zip").unlink()
    with pytest.raises(FileNotFoundError):
        archive.read("dog/9.jpg")


def test_bytes_before_the_archive(tmp_path: Path) -> None:
    """More of them, as in one that unpacks itself, or fewer: offsets in the directory count from elsewhere."""
    archive = of_bytes(tmp_path, b"#!/bin/sh\n" * 9 + zip_bytes(IMAGES))
    assert [archive.read(name) for name in IMAGES] == list(IMAGES.values())
    with pytest.raises((SourceError, DecodeError, OSError)):  # some versions of Python do not open it
        of_bytes(tmp_path, zip_bytes(IMAGES)[20:]).read("cat/1.jpg")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6), st.booleans())
def test_no_damage_is_a_crash(tmp_path: Path, changes: list[tuple[int, int]], deflated: bool) -> None:
    """Any bytes may differ: what is read is either as it was packed, or an error that the packer expects."""
    small = {name: data[:40] for name, data in IMAGES.items()}
    data = bytearray(zip_bytes(small, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED))
    for at, value in changes:
        data[at % len(data)] = value
    try:
        archive = of_bytes(tmp_path, bytes(data))
    except SourceError:
        return
    for name in archive.sizes:
        try:
            content = archive.read(name)
        except (DecodeError, OSError):
            continue
        assert content in small.values()


def test_a_place_that_no_file_has(tmp_path: Path) -> None:
    archive = of_bytes(tmp_path, zip_bytes(IMAGES))
    with pytest.raises(DecodeError, match="nothing begins where the directory says"):
        archive.source.read(f"{1 << 63}:3:3:0:0:0")


def test_names_in_other_encodings(tmp_path: Path) -> None:
    of_bytes(tmp_path, renamed("ü/1.jpg".encode("latin-1")))
    with pytest.raises(SourceError, match=r"class folder '\ufffd' has a name that is not UTF-8. Rename it"):
        classes_of(tmp_path / "a.zip")  # as of a folder
    with pytest.raises(SourceError, match="cannot be read as a zip archive"):
        of_bytes(tmp_path, renamed("ü/1.jpg".encode("latin-1"), 0x800))


@needs_zip
def test_what_info_zip_packs(tmp_path: Path) -> None:
    """Its names that are not ASCII, its folders, its links: as they are on the disk."""
    folder = tmp_path / "photos"
    write_files(folder, {**IMAGES, "ünï/日.jpg": b"day"})
    (folder / "empty").mkdir()
    subprocess.run(["zip", "-q", "-r", "../plain.zip", "."], cwd=folder, check=True)
    subprocess.run(["zip", "-q", "-r", "wrapped.zip", "photos"], cwd=tmp_path, check=True)
    unpacked = Opened(folder)
    for name in ("plain.zip", "wrapped.zip"):
        archive = Opened(tmp_path / name)
        assert list(archive.sizes.items()) == list(unpacked.sizes.items())
        assert classes_of(tmp_path / name) == classes_of(folder)
        assert all(archive.read(image) == unpacked.read(image) for image in archive.sizes)


CLASSES = {f"{'ba'[n % 2]}/{'deep/' * (n % 3 == 0)}{n}.jpg": data for n, data in enumerate(PHOTOS[:8])}
FLAT = {f"{n}.jpg": data for n, data in enumerate(PHOTOS[:8])}


def files_packed(source: Path, out: Path, *options: object, code: int = cli.DONE) -> dict[str, bytes]:
    packed(source, out, *options, code=code)
    return files_of(out)


@pytest.mark.parametrize(
    ("method", "wrap"), [(zipfile.ZIP_STORED, ""), (zipfile.ZIP_DEFLATED, "photos/"), (zipfile.ZIP_STORED, "x/photos/")]
)
def test_an_archive_gives_the_bytes_of_the_unpacked_folder(
    make_folder: Folder, tmp_path: Path, method: int, wrap: str
) -> None:
    files = {**CLASSES, "ü/日.jpg": PHOTOS[0], "a/notes.txt": b"", "b/broken.jpg": b"no image", "lone.gif": b"GIF"}
    folder = make_folder(files)
    (folder / "empty").mkdir()
    members = {f"{wrap}{name}": data for name, data in {**files, "empty/": b"", ".hidden/1.jpg": b""}.items()}
    archive = write_zip(tmp_path / "photos.zip", {**members, "__MACOSX/1.jpg": b""}, method)
    options = ("--val", "0.3", "--maxcount", "3")
    expected = files_packed(folder, tmp_path / "1", *options, code=cli.REJECTED)
    assert files_packed(archive, tmp_path / "2", *options, code=cli.REJECTED) == expected
    assert Manifest.read(tmp_path / "2" / "train").classes == ("a", "b", "empty", "ü")
    assert "train/shard-000001.tar" in expected


def test_members_that_are_not_read_are_named(make_folder: Folder, tmp_path: Path) -> None:
    """Each in `rejected.jsonl` with its reason; the rest is packed."""
    files = {f"{'ab'[n % 2]}/{n}.jpg": data for n, data in enumerate(PHOTOS[:8])}
    data = zip_bytes({**files, "../out.jpg": PHOTOS[0], "a/in.zip": zip_bytes(FLAT)})
    data = patched(data, "a/0.jpg", FLAGS, 1)
    data = patched(data, "b/1.jpg", METHOD, 9)
    data = patched(data, "a/2.jpg", SIZE, 0xFFFF_FFF0)
    data = data.replace(PHOTOS[3], PHOTOS[3][:-9] + b"X" + PHOTOS[3][-8:])
    (tmp_path / "a.zip").write_bytes(data)
    packed(tmp_path / "a.zip", tmp_path / "out", code=cli.REJECTED)
    assert rejected_of(tmp_path / "out" / "train") == {
        "../out.jpg": "its name leads out of the archive",
        "a/0.jpg": "is encrypted",
        "b/1.jpg": "is compressed by method 9; only stored and deflated members are read",
        "a/2.jpg": "is larger than 1,024 MiB, the most for a member of an archive",
        "b/3.jpg": "is damaged in the archive: its size or checksum is not that in the directory",
    }
    assert sorted(row["source"] for row in rows_of(tmp_path / "out" / "train")) == sorted(list(files)[4:])
    assert not (tmp_path / "out.jpg").exists()


def test_the_identity_of_a_source_names_its_container(make_folder: Folder, tmp_path: Path) -> None:
    """As it has been before there were containers, so that a run begun then can be resumed."""
    assert open_source(tmp_path).identity == f"FolderSource(root={tmp_path})"
    assert open_source("a.zip", "t.csv").identity == "TableSource(columns={}, root=a.zip, table=t.csv)"
    make_folder(CLASSES).rename(tmp_path / "a.zip")  # a folder may have an archive's name
    assert len(open_source(tmp_path / "a.zip").list_samples()) == len(CLASSES)
