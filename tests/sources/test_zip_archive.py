"""Zip archives as containers: the names of an unpacked folder, and a reason for whatever is not read."""

import pickle
import re
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from images import write_files
from reading import rejected_of, rows_of
from sources_read import PHOTOS, packed

from gpuload import ArgumentError, DecodeError, SourceError, cli
from gpuload.sources import open_source

IMAGES = {f"{'ab'[n % 2]}/{n}.jpg": PHOTOS[n] for n in range(6)}


def write_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


_PART = st.text(st.sampled_from("ab.-ü%é "), min_size=1, max_size=3).filter(lambda part: part.strip(". ") == part)
_NAME = st.lists(_PART, min_size=1, max_size=4).map("/".join).map(lambda name: f"{name}.jpg")


@settings(max_examples=60)
@given(
    st.dictionaries(_NAME, st.binary(max_size=20), max_size=8), st.sampled_from([0, 8]), st.sampled_from(["", "x/y/"])
)
@example({"a/b.jpg": b"", "a-b/c.jpg": b"", "a.jpg": b"", "a/-.jpg": b""}, 8, "x/")
def test_it_is_read_as_the_unpacked_folder_in_any_process(files: dict[str, bytes], method: int, around: str) -> None:
    """In its order; the folders around everything are not in the names."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        files = {**dict(sorted(files.items(), key=lambda item: item[0][::-1])), "0.jpg": b"0"}
        write_files(folder, files)
        archive = write_zip(Path(place) / "A.ZIP", {f"{around}{name}": data for name, data in files.items()}, method)
        source = open_source(archive, form="unlabeled")
        before = pickle.dumps(source)
        listing = source.list_samples()
        assert listing.samples.column("name").equals(
            open_source(folder, form="unlabeled").list_samples().samples.column("name")
        )
        assert pickle.dumps(source) == before  # without the directory, which may be large
        worker = pickle.loads(before)
        for row in listing.samples.to_pylist():
            assert worker.read(row["where"]) == files[row["name"]] and row["bytes"] == len(files[row["name"]])
        told = f"names and classes start inside {around.rstrip('/')!r}, which holds everything"
        assert (told in listing.notes) == bool(around)


def test_classes_and_tables(tmp_path: Path) -> None:
    more = {"p/": b"", "p/c/": b"", "__MACOSX/p/a/._1.jpg": b"", "p/a/.x.jpg": b"", "README.txt": b""}
    archive = write_zip(tmp_path / "a.zip", {f"p/{name}": data for name, data in IMAGES.items()} | more)
    packed(archive, tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "train")
    assert {(row["source"], row["image"], row["label"]) for row in rows} == {
        (name, data, "ab".index(name[0])) for name, data in IMAGES.items()
    }
    assert open_source(archive).list_samples().classes == ("a", "b", "c")
    for name, works in (
        ("a/0.jpg", True),
        ("./p/a/0.jpg", True),
        ("/a/0.jpg", True),  # of another machine, by the end of its path
        ("a", False),
        (".", False),
        ("../a.zip", False),
    ):
        (tmp_path / "t.csv").write_text(f"path,label\n{name},0\n")
        source = open_source(archive, tmp_path / "t.csv")
        if works:
            assert len(source.list_samples()) == 1
        else:
            with pytest.raises(SourceError, match="names 1 of 1 files that are not in"):
                source.list_samples()


def test_what_is_not_read_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_zip(tmp_path / "a.zip", IMAGES)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_BZIP2) as more:
        more.writestr("a/7.jpg", PHOTOS[0])
        more.writestr("a/8.jpg", PHOTOS[0] + bytes(70_000), zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(archive) as opened:
        places = {info.filename: info.header_offset for info in opened.infolist()}
    data = bytearray(archive.read_bytes())
    data[places["b/1.jpg"] + 200] ^= 1  # in its data
    data[data.rindex(b"b/3.jpg") - 4 : data.rindex(b"b/3.jpg")] = b"\xf0\xff\xff\xff"  # where it begins
    archive.write_bytes(data)
    packed(archive, tmp_path / "out", code=cli.REJECTED)
    rejected = rejected_of(tmp_path / "out" / "train")
    assert rejected.pop("a/7.jpg") == "is compressed by method 12; only stored and deflated members are read"
    assert rejected.keys() == {"b/1.jpg", "b/3.jpg"}
    assert all(reason.startswith("is damaged in the archive") for reason in rejected.values())
    monkeypatch.setattr("gpuload.sources.zip_archive.MAX_MEMBER_BYTES", 60_000)
    source = open_source(archive)
    where = {row["name"]: (row["where"], row["bytes"]) for row in source.list_samples().samples.to_pylist()}
    begin, crc = where["a/0.jpg"][0].rsplit(":", 1)
    assert source.read(f"{begin}:0:{crc}") == PHOTOS[0]  # with the member's flags, as an earlier version addressed it
    address, size = where["a/8.jpg"]
    with pytest.raises(DecodeError, match="is larger than 0 MiB, the most for a member of an archive"):
        source.read(address)
    assert size == 60_000


def test_a_name_that_no_file_could_have(tmp_path: Path) -> None:
    """The folders of such a name, of which each holds the names of all around it, took 2 GB."""
    archive = write_zip(tmp_path / "a.zip", IMAGES | {f"{'a/' * 32_000}1.jpg": b""})
    with pytest.raises(SourceError, match=r"cannot be read as a zip archive \(a name of 64,005 characters\)"):
        open_source(archive).list_samples()


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 1000])
def test_what_is_no_archive(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    for path, message in (("a.zip", r"a\.zip: cannot be read as a zip archive \(.+\)"), ("b.zip", "no such file")):
        with pytest.raises(SourceError, match=message):
            open_source(tmp_path / path).list_samples()


CLASSES = {"小猫": "gbk", "子犬": "shift_jis", "кот": "cp866", "größe": "cp437"}


def write_names(path: Path, encoding: str, extra: bool = False) -> Path:
    """An archive of a class for each of two names, written in an encoding without the flag of UTF-8, as macOS' Finder,
    7-Zip and Explorer do; perhaps with Info-ZIP's field of the same name in UTF-8."""
    names = [f"{name}/1.jpg" for name in CLASSES if encoding in ("utf-8", CLASSES[name])]
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            data = name.encode(encoding)
            info = zipfile.ZipInfo("ABCD"[number] * len(data))
            info.create_system = 3 if encoding == "utf-8" else 0
            if extra:
                field = struct.pack("<BI", 1, zlib.crc32(data)) + name.encode()
                info.extra = struct.pack("<HH", 0x7075, len(field)) + field
            archive.writestr(info, PHOTOS[number])
        archive.writestr("ant/1.jpg", PHOTOS[4])
    content = path.read_bytes()
    for number, name in enumerate(names):
        data = name.encode(encoding)
        content = content.replace(b"ABCD"[number : number + 1] * len(data), data)
    path.write_bytes(content)
    return path


def test_names_in_utf_8_without_its_flag(tmp_path: Path) -> None:
    manifests = packed(write_names(tmp_path / "a.zip", "utf-8"), tmp_path / "out")
    assert manifests["train"].classes == tuple(sorted(["ant", *CLASSES]))
    rows = rows_of(tmp_path / "out" / "train")
    assert {row["source"] for row in rows} == {f"{name}/1.jpg" for name in ["ant", *CLASSES]}


@pytest.mark.parametrize("name", CLASSES)
def test_names_in_a_code_page(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    archive = write_names(tmp_path / "a.zip", CLASSES[name])
    assert cli.main(["pack", str(archive), str(tmp_path / "out")]) == cli.WRONG
    said = capsys.readouterr().err
    assert re.search(
        "a.zip: has names in an unknown code page; in cp437 they would be .*--zip-encoding, such as gbk", said
    )
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()
    manifests = packed(archive, tmp_path / "out", "--zip-encoding", CLASSES[name])
    assert manifests["train"].classes == ("ant", name)
    archive = write_names(tmp_path / "b.zip", CLASSES[name], extra=True)
    assert open_source(archive).list_samples().classes == ("ant", name)
    assert pickle.loads(pickle.dumps(open_source(archive))).list_samples().classes == ("ant", name)


@pytest.mark.parametrize(
    ("name", "encoding", "word"),
    [
        ("a.zip", "klingon", "--zip-encoding: expected one that Python has, such as gbk, .*; got 'klingon'"),
        ("photos", "gbk", "--zip-encoding is of the names in a zip archive, and SOURCE is .*photos'. Leave it out"),
    ],
)
def test_encodings_that_are_refused(tmp_path: Path, name: str, encoding: str, word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        open_source(tmp_path / name, zip_encoding=encoding)
    with pytest.raises(SourceError, match="cannot be read as a zip archive .*can't decode byte"):
        open_source(write_names(tmp_path / "x.zip", "gbk"), zip_encoding="ascii").list_samples()
