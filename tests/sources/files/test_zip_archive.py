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
from zips import FLAGS, METHOD, SIZE, patched, write_zip, zip_bytes

from gpuload import DecodeError, SourceError
from gpuload.sources import zip_archive
from gpuload.sources.at_path import open_files
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Findings
from gpuload.sources.local_folder import Folder
from gpuload.sources.zip_archive import ZipArchive

IMAGES = {"cat/1.jpg": b"one", "cat/deep/2.PNG": b"zwei" * 100, "dog/10.webp": b"", "dog/9.jpg": b"\0" * 5000}

needs_zip = pytest.mark.skipif(shutil.which("zip") is None, reason="needs Info-ZIP's zip (apt install zip)")


def archive_of(tmp_path: Path, data: bytes) -> ZipArchive:
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    return ZipArchive(path)


def listed(files: Files) -> dict[str, int]:
    return {found.name: found.size for found in files.walk(IMAGE_EXTENSIONS, Findings())}


def rejected(files: Files) -> list[tuple[str, str]]:
    findings = Findings()
    list(files.walk(IMAGE_EXTENSIONS, findings))
    return [(rejection.source, rejection.reason) for rejection in findings.rejected]


def notes(files: Files) -> list[str]:
    findings = Findings()
    list(files.walk(IMAGE_EXTENSIONS, findings))
    return findings.notes


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read_in_any_process(tmp_path: Path, method: int) -> None:
    archive = open_files(write_zip(tmp_path / "A.ZIP", IMAGES, method))
    assert isinstance(archive, ZipArchive)
    assert listed(archive) == {name: len(data) for name, data in IMAGES.items()}
    assert archive.folders() == ["cat", "dog"]
    descriptors = len(os.listdir("/proc/self/fd"))
    copy = pickle.loads(pickle.dumps(archive))
    assert vars(copy) == {"path": tmp_path / "A.ZIP"}  # without the directory, which may be large
    for name, data in IMAGES.items():
        assert copy.read(archive.find(name).address) == data
    assert vars(copy) == {"path": tmp_path / "A.ZIP"}  # nor is it parsed to read a member
    assert len(os.listdir("/proc/self/fd")) == descriptors


_PART = st.text(st.sampled_from("ab.-ü%é "), min_size=1, max_size=3).filter(lambda part: part.strip(". ") == part)
_NAME = st.lists(_PART, min_size=1, max_size=4).map("/".join).map(lambda name: f"{name}.jpg")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_NAME, st.binary(max_size=20), max_size=8))
@example({"a/b.jpg": b"", "a-b/c.jpg": b"", "a.jpg": b"", "a/-.jpg": b""})
def test_the_order_is_that_of_the_unpacked_folder(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        folder.mkdir(exist_ok=True)
        shuffled = dict(sorted(files.items(), key=lambda item: item[0][::-1]))
        # An image at the top, so that no folder holds everything.
        (folder / "0.jpg").write_bytes(b"0")
        archive = ZipArchive(write_zip(Path(place) / "a.zip", {**shuffled, "0.jpg": b"0"}))
        assert list(listed(archive).items()) == list(listed(Folder(folder)).items())
        assert archive.folders() == Folder(folder).folders()


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
        ([], "", []),
    ],
)
def test_one_folder_around_everything(tmp_path: Path, names: list[str], top: str, left: list[str]) -> None:
    archive = ZipArchive(write_zip(tmp_path / "a.zip", dict.fromkeys(names, b"")))
    assert list(listed(archive)) == left
    assert notes(archive) == (
        [f"names and classes start inside {top!r}, which holds everything in the archive"] if top else []
    )
    for name in left:
        assert archive.find(name).address == archive.find(f"{top}/{name}".lstrip("/")).address
        assert archive.find(f"./{name}").name == f"./{name}"


def test_what_is_not_there(tmp_path: Path) -> None:
    archive = ZipArchive(write_zip(tmp_path / "a.zip", IMAGES))
    for name in ("cat/2.jpg", "cat", "", "/cat/1.jpg", "../a.zip", "cat/../cat/1.jpg"):
        with pytest.raises(FileNotFoundError):
            archive.find(name)
    assert ZipArchive(tmp_path / "b.zip").fault() == "no such file"


def test_hidden_files_and_nested_archives_are_passed_over(tmp_path: Path) -> None:
    inner = zip_bytes({"x.jpg": b"x"})
    members = {
        "a/1.jpg": b"1",
        "a/.x/2.jpg": b"",
        "__MACOSX/a/._1.jpg": b"",
        "a/.jpg": b"",
        "a/in.zip": inner,
        "b/": b"",
    }
    findings = Findings()
    archive = ZipArchive(write_zip(tmp_path / "a.zip", members))
    assert [found.name for found in archive.walk(IMAGE_EXTENSIONS, findings)] == ["a/1.jpg"]
    assert findings.all_notes() == ("passed over, by extension: 1 × .zip",)
    assert findings.rejected == []


@pytest.mark.parametrize("name", ["../1.jpg", "a/../../1.jpg", "/etc/1.jpg", "C:/1.jpg", "C:\\1.jpg", "a/../1.jpg"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    archive = archive_of(tmp_path, zip_bytes({"a/1.jpg": b"1", "b/1.jpg": b"1", name: b"2"}))
    assert list(listed(archive)) == ["a/1.jpg", "b/1.jpg"]
    assert rejected(archive) == [(name, "its name leads out of the archive")]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_last_of_a_name_counts(tmp_path: Path) -> None:
    data = zip_bytes([("a/1.jpg", b"old"), ("b/1.jpg", b"b"), ("a/1.jpg", b"newer"), ("./a//1.jpg", b"newest")])
    archive = archive_of(tmp_path, data)
    assert archive.read(archive.find("a/1.jpg").address) == b"newest"
    reason = "its name comes again in the archive, where the last one counts"
    assert rejected(archive) == [("a/1.jpg", reason), ("a/1.jpg", reason)]


def test_links_are_not_followed(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a/link.jpg")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = archive_of(tmp_path, zip_bytes([("a/1.jpg", b""), ("a/2.jpg", b""), (link, b"/etc/passwd")]))
    assert rejected(archive) == [("link.jpg", "is a link, which is not followed in an archive")]
    with pytest.raises(FileNotFoundError):
        archive.find("a/link.jpg")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (FLAGS, 1, "is encrypted"),
        (METHOD, 12, "is compressed by bzip2; only stored and deflated members are read"),
        (METHOD, 99, "is compressed by method 99; only stored and deflated members are read"),
        (SIZE, (1 << 30) + 1, "is larger than 1,024 MiB, the most for a member of an archive"),
    ],
)
def test_members_that_are_not_read(tmp_path: Path, field: tuple[int, int, str], value: int, reason: str) -> None:
    archive = archive_of(tmp_path, patched(zip_bytes(IMAGES), "cat/1.jpg", field, value))
    assert rejected(archive) == [("cat/1.jpg", reason)]
    assert list(listed(archive)) == [name for name in IMAGES if name != "cat/1.jpg"]
    with pytest.raises(DecodeError, match=reason):  # where a table names it, the packer rejects it
        archive.read(archive.find("cat/1.jpg").address)


@pytest.mark.parametrize("method", ["bzip2", "LZMA"])
def test_other_compressions(tmp_path: Path, method: str) -> None:
    number = {"bzip2": zipfile.ZIP_BZIP2, "LZMA": zipfile.ZIP_LZMA}[method]
    archive = ZipArchive(write_zip(tmp_path / "a.zip", IMAGES, number))
    assert {reason for _, reason in rejected(archive)} == {
        f"is compressed by {method}; only stored and deflated members are read"
    }


@needs_zip
def test_encrypted_by_zip(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"1" * 100)
    subprocess.run(["zip", "-q", "-P", "secret", "a.zip", "1.jpg"], cwd=tmp_path, check=True)
    assert rejected(ZipArchive(tmp_path / "a.zip")) == [("1.jpg", "is encrypted")]


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """300 MB of zeros that claim to be 1,000: no more than that is unpacked."""
    data = zip_bytes({"1.jpg": bytes(300_000_000)}, zipfile.ZIP_DEFLATED)
    archive = archive_of(tmp_path, patched(data, "1.jpg", SIZE, 1000))
    address = archive.find("1.jpg").address
    tracemalloc.start()
    with pytest.raises(
        DecodeError, match="is damaged in the archive: its size or checksum is not that in the directory"
    ):
        archive.read(address)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_stored_member_has_the_size_it_claims(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, patched(zip_bytes({"1.jpg": b"12345"}), "1.jpg", SIZE, 4))
    with pytest.raises(DecodeError, match="its size or checksum"):
        archive.read(archive.find("1.jpg").address)


def test_the_limit_counts_unpacked_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = ZipArchive(
        write_zip(tmp_path / "a.zip", {"1.jpg": bytes(1001), "2.jpg": bytes(1000)}, zipfile.ZIP_DEFLATED)
    )
    monkeypatch.setattr(zip_archive, "MAX_MEMBER_BYTES", 1000)
    assert list(listed(archive)) == ["2.jpg"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_members(tmp_path: Path, method: int) -> None:
    whole = zip_bytes(IMAGES, method)
    archive = archive_of(tmp_path, whole)
    address = archive.find("dog/9.jpg").address
    start = int(address.partition(":")[0])
    for at in range(start, start + 4):
        archive_of(tmp_path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DecodeError, match="damaged in the archive: nothing begins where the directory says"):
            archive.read(address)
    for at in (start + 39, start + 41, start + 43):
        archive_of(tmp_path, whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(DecodeError, match="is damaged in the archive: "):
            archive.read(address)
    for end in (0, start, start + 20, start + 40, start + 45):  # cut short by a copy while it was packed
        archive_of(tmp_path, whole[:end])
        with pytest.raises(DecodeError, match="is damaged in the archive: "):
            archive.read(address)
    (tmp_path / "a.zip").unlink()
    with pytest.raises(FileNotFoundError):
        archive.read(address)


@pytest.mark.parametrize("data", [b"", b"no zip", zip_bytes(IMAGES)[:-30]])
def test_archives_that_are_none(tmp_path: Path, data: bytes) -> None:
    archive = archive_of(tmp_path, data)
    for call in (archive.folders, lambda: listed(archive), lambda: archive.find("cat/1.jpg")):
        with pytest.raises(SourceError, match=r"a\.zip: cannot be read as a zip archive \(.*\)\. Copy it again"):
            call()


def test_bytes_before_the_archive(tmp_path: Path) -> None:
    """More of them, as in one that unpacks itself, or fewer: offsets in the directory count from elsewhere."""
    archive = archive_of(tmp_path, b"#!/bin/sh\n" * 9 + zip_bytes(IMAGES))
    assert [archive.read(archive.find(name).address) for name in IMAGES] == list(IMAGES.values())
    archive = archive_of(tmp_path, zip_bytes(IMAGES)[20:])
    try:
        address = archive.find("cat/1.jpg").address
    except SourceError:
        return  # some versions of Python do not open it
    with pytest.raises((DecodeError, OSError)):
        archive.read(address)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6), st.booleans())
def test_no_damage_is_a_crash(tmp_path: Path, changes: list[tuple[int, int]], deflated: bool) -> None:
    """Any bytes may differ: what is read is either as it was packed, or an error that the packer expects."""
    small = {name: data[:40] for name, data in IMAGES.items()}
    data = bytearray(zip_bytes(small, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED))
    for at, value in changes:
        data[at % len(data)] = value
    archive = archive_of(tmp_path, bytes(data))
    try:
        found = list(archive.walk(IMAGE_EXTENSIONS, Findings()))
    except SourceError:
        return
    for file in found:
        try:
            content = archive.read(file.address)
        except (DecodeError, OSError):
            continue
        assert content in small.values()


def test_a_place_that_no_file_has(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, zip_bytes(IMAGES))
    with pytest.raises(DecodeError, match="nothing begins where the directory says"):
        archive.read(f"{1 << 63}:3:3:0:0:0")


def renamed(name: bytes, flags: int = 0, system: int = 3) -> bytes:
    """An archive with a member of this name, byte by byte, beside cat/1.jpg and dog/1.jpg."""
    stand_in = "N" * len(name)
    data = zip_bytes({"cat/1.jpg": b"1", "dog/1.jpg": b"2", stand_in: b"3"})
    data = patched(data, stand_in, FLAGS, flags)
    at = data.rindex(b"PK\1\2")
    return (data[: at + 5] + bytes([system]) + data[at + 6 :]).replace(stand_in.encode(), name)


def test_names_in_other_encodings(tmp_path: Path) -> None:
    for flags in (0, 0x800):  # marked as UTF-8 or not: zip marks them in a field of its own, which not all readers know
        assert "cat/ü.jpg" in listed(archive_of(tmp_path, renamed("cat/ü.jpg".encode(), flags)))
    archive = archive_of(tmp_path, renamed("cat/ü.jpg".encode("cp437")))
    assert list(listed(archive)) == ["cat/1.jpg", "dog/1.jpg"]
    assert rejected(archive) == [("cat/\ufffd.jpg", "its name is not UTF-8")]
    archive = archive_of(tmp_path, renamed("ü/1.jpg".encode("latin-1")))
    assert archive.folders() == ["cat", "dog", "\udcfc"]  # as a folder's names are
    with pytest.raises(SourceError, match="cannot be read as a zip archive"):
        listed(archive_of(tmp_path, renamed("ü/1.jpg".encode("latin-1"), 0x800)))


def test_names_from_windows(tmp_path: Path) -> None:
    assert "cat/2.jpg" in listed(archive_of(tmp_path, renamed(b"cat\\2.jpg", system=0)))
    assert "cat\\2.jpg" in listed(archive_of(tmp_path, renamed(b"cat\\2.jpg", system=3)))  # a name like any other
    archive = archive_of(tmp_path, renamed(b"..\\2.jpg", system=0))
    assert rejected(archive) == [("../2.jpg", "its name leads out of the archive")]


def test_names_with_a_zero_byte(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, renamed(b"cat/2\0.jpg"))
    assert rejected(archive) == [("cat/2\ufffd.jpg", "its name has a zero byte")]


@needs_zip
def test_what_info_zip_packs(tmp_path: Path) -> None:
    """Its names that are not ASCII, its folders, its links: as they are on the disk."""
    folder = tmp_path / "photos"
    for name, data in {**IMAGES, "ünï/日.jpg": b"day"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "empty").mkdir()
    subprocess.run(["zip", "-q", "-r", "../plain.zip", "."], cwd=folder, check=True)
    subprocess.run(["zip", "-q", "-r", "wrapped.zip", "photos"], cwd=tmp_path, check=True)
    for name in ("plain.zip", "wrapped.zip"):
        archive = ZipArchive(tmp_path / name)
        assert list(listed(archive).items()) == list(listed(Folder(folder)).items())
        assert archive.folders() == Folder(folder).folders()
        for found in Folder(folder).walk(IMAGE_EXTENSIONS, Findings()):
            assert archive.read(archive.find(found.name).address) == Folder(folder).read(found.address)
