"""Zip archives, and images without labels, through the real packer: what comes out is what a folder gives."""

import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from images import Folder, encode, photo
from PIL import Image
from reading import files_of, rejected_of, rows_of
from zips import FLAGS, METHOD, SIZE, patched, write_zip, zip_bytes

from gpuload import cli
from gpuload.disk import Manifest
from gpuload.packing.options import PackOptions
from gpuload.packing.run import packer
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


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("wrap", ["", "photos/", "x/photos/"])
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


def test_what_the_packer_says_and_tar_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = write_zip(tmp_path / "photos.zip", {f"photos/{name}": data for name, data in CLASSES.items()})
    pack(archive, tmp_path / "out", "--no-shuffle")
    assert (
        "note: names and classes start inside 'photos', which holds everything in the archive"
        in capsys.readouterr().out
    )
    shard = tmp_path / "out" / "train" / "shard-000000.tar"
    names = subprocess.run(["tar", "tf", shard], capture_output=True, text=True, check=True).stdout.split()
    ordered = sorted(CLASSES, key=lambda name: name.split("/"))
    keys = [f"{number:08d}-{Path(name).stem}" for number, name in enumerate(ordered)]
    assert names == [f"{key}.{extension}" for key in keys for extension in ("jpg", "cls")]
    with tarfile.open(shard) as tar:
        contents = [tar.extractfile(f"{key}.jpg").read() for key in keys]  # type: ignore[union-attr]
    assert contents == [CLASSES[name] for name in ordered]
    assert {row["source"] for row in rows_of(tmp_path / "out" / "train")} == set(CLASSES)


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
@pytest.mark.parametrize("wrap", ["", "top/"])
def test_annotations_of_an_archive(
    make_folder: Folder, tmp_path: Path, kind: Callable[[Path], tuple[Files, list[object]]], wrap: str
) -> None:
    files, options = kind(tmp_path)
    code = cli.REJECTED if kind is with_sidecars else cli.DONE  # one image has no mask
    archive = write_zip(tmp_path / "a.zip", {f"{wrap}{name}": data for name, data in files.items()})
    expected = pack(make_folder(files), tmp_path / "1", *options, code=code)
    assert pack(archive, tmp_path / "2", *options, code=code) == expected
    assert Manifest.read(tmp_path / "2" / "train").samples >= 6


def test_a_table_may_name_the_folder_around_everything(make_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"train/{n}.jpg,{n % 2}\n" for n in range(8)))
    files = {f"train/{name}": data for name, data in FLAT.items()}
    expected = pack(make_folder(files), tmp_path / "1", "--labels", tmp_path / "t.csv")
    assert pack(write_zip(tmp_path / "train.zip", files), tmp_path / "2", "--labels", tmp_path / "t.csv") == expected


def test_images_without_labels(make_folder: Folder, tmp_path: Path) -> None:
    folder = make_folder({**CLASSES, "top.jpg": PHOTOS[0], "x.txt": b"", ".hidden.jpg": b""})
    pack(folder, tmp_path / "out", "--no-labels", "--no-shuffle")
    manifest = Manifest.read(tmp_path / "out" / "train")
    assert [field.name for field in manifest.fields] == ["image"]
    assert manifest.classes is None
    rows = rows_of(tmp_path / "out" / "train")
    assert [row["source"] for row in rows] == sorted([*CLASSES, "top.jpg"], key=lambda name: name.split("/"))
    assert "label" not in rows[0]
    assert {row["source"]: row["image"] for row in rows} == {**CLASSES, "top.jpg": PHOTOS[0]}


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
        "b/1.jpg": "is compressed by deflate64; only stored and deflated members are read",
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
        "b/1.jpg": "is compressed by deflate64; only stored and deflated members are read",
    }


def test_a_run_with_an_archive_is_resumed(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {f"top/{name}": data for name, data in CLASSES.items()})
    options = ("--maxcount", "2")
    expected = pack(archive, tmp_path / "whole", *options)

    def stop(progress: packer.Progress) -> None:
        if progress.images >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packer.pack(open_source(archive), tmp_path / "out", PackOptions(maxcount=2, workers=1), stop)
    assert (tmp_path / "out" / ".packing").exists()
    assert pack(archive, tmp_path / "out", *options, "--resume") == expected


def test_copies_in_an_archive(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {**CLASSES, "a/copy.jpg": CLASSES["a/1.jpg"]})
    pack(archive, tmp_path / "out", "--dedup", "drop")
    assert rejected_of(tmp_path / "out" / "train") == {"a/copy.jpg": "has the same bytes as 'a/1.jpg'"}


@pytest.mark.parametrize(
    ("members", "options", "message"),
    [
        (FLAT, [], r"a.zip: holds no class folders (8 images lie in it directly). Put each image into a folder named after its class, or give --labels table.csv, or --no-labels"),
        ({f"x/{name}": b"" for name in FLAT}, [], "(8 images lie in it directly; names and classes start inside 'x', which holds everything in the archive). Put"),
        ({"a/x.txt": b"", "b/y.zip": b""}, [], "no image in its 2 class folders ('a', 'b'). Images are known by their extension, such as .jpg, .png or .webp, found: 1 × .txt, 1 × .zip"),
        ({"a/x.txt": b""}, ["--no-labels"], "holds no image. Images are known by their extension, such as .jpg, .png or .webp, found: 1 × .txt"),
        (None, [], "a.zip: no such file. Give a folder of class folders, as in photos/cat/1.jpg"),
        (None, ["--no-labels"], "a.zip: no such file. Give a folder of images"),
    ],
)  # fmt: skip
def test_archives_that_cannot_be_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], members: Files | None, options: list[str], message: str
) -> None:
    if members is not None:
        write_zip(tmp_path / "a.zip", members)
    assert cli.main(["pack", str(tmp_path / "a.zip"), str(tmp_path / "out"), *options]) == cli.WRONG
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(
    shutil.which("zip") is None or shutil.which("unzip") is None, reason="needs Info-ZIP (apt install zip unzip)"
)
def test_an_archive_by_info_zip(make_folder: Folder, tmp_path: Path) -> None:
    folder = make_folder({**CLASSES, "ünï/日本.jpg": PHOTOS[1]})
    subprocess.run(["zip", "-q", "-r", tmp_path / "a.zip", folder.name], cwd=folder.parent, check=True)
    subprocess.run(["unzip", "-q", "a.zip", "-d", "unpacked"], cwd=tmp_path, check=True)
    expected = pack(tmp_path / "unpacked" / folder.name, tmp_path / "1")
    assert pack(tmp_path / "a.zip", tmp_path / "2") == expected
