"""Zip archives, and images without labels, through the real packer: what comes out is what a folder gives."""

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo
from PIL import Image
from reading import files_of, rejected_of, rows_of
from zips import FLAGS, METHOD, SIZE, patched, write_zip, zip_bytes

import gpuload
from gpuload import SourceError, cli
from gpuload.disk import Manifest
from gpuload.packing.verify import verify
from gpuload.sources import open_source

PHOTOS = [encode(photo(number, 40 + number, 30)) for number in range(8)]
CLASSES = {f"{'ba'[n % 2]}/{'deep/' * (n % 3 == 0)}{n}.jpg": data for n, data in enumerate(PHOTOS)}
FLAT = {f"{n}.jpg": data for n, data in enumerate(PHOTOS)}


def mask(number: int) -> bytes:
    return encode(Image.new("L", (40 + number, 30), number), "PNG")


def pack(source: Path, out: Path, *options: object, code: int = cli.DONE) -> dict[str, bytes]:
    """Every file that packing makes."""
    assert cli.main(["pack", str(source), str(out), "--workers", "2", *map(str, options)]) == code
    assert verify(out, workers=1) == []
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
    expected = pack(folder, tmp_path / "1", *options, code=cli.REJECTED)
    assert pack(archive, tmp_path / "2", *options, code=cli.REJECTED) == expected
    assert Manifest.read(tmp_path / "2" / "train").classes == ("a", "b", "empty", "ü")
    assert "train/shard-000001.tar" in expected


Files = Mapping[str, bytes]


def with_table(folder: Path) -> tuple[Files, list[object]]:
    (folder / "t.csv").write_text("path,label,mask\n" + "".join(f"{n}.jpg,c{n % 3},m{n}.png\n" for n in range(8)))
    return {**FLAT, **{f"m{n}.png": mask(n) for n in range(8)}}, ["--labels", folder / "t.csv"]


def with_coco(folder: Path) -> tuple[Files, list[object]]:
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(8)]
    boxes = [{"id": n, "image_id": n, "bbox": [1, 2, 3, 4 + n], "category_id": n % 2} for n in range(8)]
    categories = [{"id": 0, "name": "x"}, {"id": 1, "name": "y"}]
    (folder / "c.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    return FLAT, ["--labels", folder / "c.json"]


def with_sidecars(folder: Path) -> tuple[Files, list[object]]:
    texts = {f"{n}.txt": f"text {n}\r\n".encode() for n in range(8)}
    return {**FLAT, **texts, **{f"{n}.png": mask(n) for n in range(7)}}, ["--from", "sidecar"]


def with_xml(folder: Path) -> tuple[Files, list[object]]:
    box = b"<object><name>c%d</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    found = {f"Annotations/{n}.xml": b"<annotation>%b</annotation>" % (box % (n % 3)) for n in range(8)}
    return {**found, **{f"Data/{name}": data for name, data in FLAT.items()}}, ["--from", "voc"]


def without_labels(folder: Path) -> tuple[Files, list[object]]:
    return CLASSES, ["--no-labels", "--val", "0.25"]


@pytest.mark.parametrize("kind", [with_table, with_coco, with_sidecars, with_xml, without_labels])
def test_annotations_of_an_archive(
    make_folder: Folder, tmp_path: Path, kind: Callable[[Path], tuple[Files, list[object]]]
) -> None:
    files, options = kind(tmp_path)
    code = cli.REJECTED if kind is with_sidecars else cli.DONE  # one image has no mask
    archive = write_zip(tmp_path / "a.zip", {f"top/{name}": data for name, data in files.items()})
    expected = pack(make_folder(files), tmp_path / "1", *options, code=code)
    assert pack(archive, tmp_path / "2", *options, code=code) == expected
    assert Manifest.read(tmp_path / "2" / "train").samples >= 6


def test_a_table_may_name_the_folder_around_everything(make_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"train/{n}.jpg,{n % 2}\n" for n in range(8)))
    files = {f"train/{name}": data for name, data in FLAT.items()}
    expected = pack(make_folder(files), tmp_path / "1", "--labels", tmp_path / "t.csv")
    assert pack(write_zip(tmp_path / "train.zip", files), tmp_path / "2", "--labels", tmp_path / "t.csv") == expected


def test_members_that_are_not_read_are_named(make_folder: Folder, tmp_path: Path) -> None:
    """Each in `rejected.jsonl` with its reason; the rest is packed."""
    files = {f"{'ab'[n % 2]}/{n}.jpg": data for n, data in enumerate(PHOTOS)}
    data = zip_bytes({**files, "../out.jpg": PHOTOS[0], "a/in.zip": zip_bytes(FLAT)})
    data = patched(data, "a/0.jpg", FLAGS, 1)
    data = patched(data, "b/1.jpg", METHOD, 9)
    data = patched(data, "a/2.jpg", SIZE, 0xFFFF_FFF0)
    data = data.replace(PHOTOS[3], PHOTOS[3][:-9] + b"X" + PHOTOS[3][-8:])
    (tmp_path / "a.zip").write_bytes(data)
    pack(tmp_path / "a.zip", tmp_path / "out", code=cli.REJECTED)
    assert rejected_of(tmp_path / "out" / "train") == {
        "../out.jpg": "its name leads out of the archive",
        "a/0.jpg": "is encrypted",
        "b/1.jpg": "is compressed by method 9; only stored and deflated members are read",
        "a/2.jpg": "is larger than 1,024 MiB, the most for a member of an archive",
        "b/3.jpg": "is damaged in the archive: its size or checksum is not that in the directory",
    }
    assert sorted(row["source"] for row in rows_of(tmp_path / "out" / "train")) == sorted(list(files)[4:])
    assert not (tmp_path / "out.jpg").exists()
    # A table names members as well; those that are not read are rejected in the same words.
    (tmp_path / "t.csv").write_text("path,label\na/0.jpg,0\nb/1.jpg,0\na/4.jpg,0\n")
    pack(tmp_path / "a.zip", tmp_path / "out2", "--labels", tmp_path / "t.csv", code=cli.REJECTED)
    assert rejected_of(tmp_path / "out2" / "train") == {
        "a/0.jpg": "is encrypted",
        "b/1.jpg": "is compressed by method 9; only stored and deflated members are read",
    }


def test_a_run_with_an_archive_is_resumed(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {f"top/{name}": data for name, data in CLASSES.items()})
    options = ("--maxcount", "2")
    expected = pack(archive, tmp_path / "whole", *options)

    def stop(progress: Any) -> None:
        if progress.images >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpuload.pack(open_source(archive), tmp_path / "out", maxcount=2, workers=1, watch=stop)
    assert (tmp_path / "out" / ".packing").exists()
    assert pack(archive, tmp_path / "out", *options, "--resume") == expected


def test_texts_are_read_as_text_files_are(make_folder: Folder, tmp_path: Path) -> None:
    files = {"1.jpg": b"", "1.txt": "ü\r\nb\rc\n".encode()}
    for root in (make_folder(files), write_zip(tmp_path / "a.zip", files)):
        assert open_source(root, form="sidecar").list_samples().samples.column("caption").to_pylist() == ["ü\nb\nc"]
    wrong = write_zip(tmp_path / "a.zip", {"1.jpg": b"", "1.txt": b"\xff"})
    with pytest.raises(SourceError, match=r"a\.zip/1\.txt: cannot be read as UTF-8 text"):
        open_source(wrong, form="sidecar").list_samples()


def test_the_identity_of_a_source_names_its_container(tmp_path: Path) -> None:
    """As it has been before there were containers, so that a run begun then can be resumed."""
    assert open_source(tmp_path).identity == f"FolderSource(root={tmp_path})"
    assert open_source("a.zip", "t.csv").identity == "TableSource(columns={}, root=a.zip, table=t.csv)"


def test_a_folder_may_have_an_archives_name(make_folder: Folder, tmp_path: Path) -> None:
    make_folder(CLASSES).rename(tmp_path / "a.zip")
    assert len(open_source(tmp_path / "a.zip").list_samples()) == len(CLASSES)
