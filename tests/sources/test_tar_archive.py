"""A plain tar, as `tar -cf` makes it of a folder: packed as that folder is, and told apart from shards."""

import pickle
import subprocess
from pathlib import Path

import pytest
from images import Folder
from reading import rejected_of, rows_of
from sources_read import PHOTOS, coco, inside, listed, names_of, packed, reasons_of, splits_of
from tars import write_tar

from gpuload import ShardError, SourceError, cli
from gpuload.sources import open_source

CLASSES = {f"{'ab'[number % 2]}/{number}.jpg": PHOTOS[number] for number in range(6)}
SPLITS = {f"{split}/{name}/{split}.jpg": PHOTOS[0] for split in ("train", "val") for name in "ab"}


def tar_of(folder: Path, name: str = "x.tar", *options: str, what: str = ".") -> Path:
    """What GNU tar makes of a folder."""
    path = folder.parent / name
    subprocess.run(["tar", *options, "-cf", path, "-C", folder, what], check=True)
    return path


@pytest.mark.parametrize("options", [[], ["--format=ustar"], ["--format=pax"], ["--transform=s,^./,photos/set/,"]])
def test_class_folders(make_folder: Folder, tmp_path: Path, options: list[str]) -> None:
    files = {**CLASSES, "README.md": b"", ".git/x.jpg": b"", "a/.hidden.jpg": b"", "a/猫.JPG": PHOTOS[7]}
    archive = tar_of(make_folder(files), "x.tar", *options)
    manifest = packed(archive, tmp_path / "out")["train"]
    assert manifest.classes == ("a", "b")
    rows = rows_of(tmp_path / "out" / "train")
    expected = {name: (data, "ab".index(name[0])) for name, data in {**CLASSES, "a/猫.JPG": PHOTOS[7]}.items()}
    assert {row["source"]: (row["image"], row["label"]) for row in rows} == expected


def test_other_layouts(make_folder: Folder, tmp_path: Path) -> None:
    """Whatever a folder may hold: splits, COCO's, YOLO's, or a table beside the tar."""
    assert splits_of(listed(tar_of(make_folder(SPLITS)))) == ["train", "train", "val", "val"]
    boxes = listed(tar_of(make_folder({**inside("images"), "annotations/a.json": coco()})))
    assert boxes.samples.column("boxes").to_pylist() == [[[1, 2, 4, 6]], [], []]
    yolo = {**inside("images"), **{f"labels/{number}.txt": b"0 0.5 0.5 0.2 0.4\n" for number in range(3)}}
    assert [field.name for field in listed(tar_of(make_folder(yolo))).fields] == ["boxes", "labels"]
    archive = tar_of(make_folder(CLASSES))
    (tmp_path / "t.csv").write_text("path,label\na/2.jpg,x\n")
    assert names_of(listed(archive, tmp_path / "t.csv")) == ["a/2.jpg"]
    alone = listed(archive, no_labels=True)
    assert (len(alone), alone.fields) == (6, ())
    assert listed(archive, form="folder").classes == ("a", "b")


def test_any_process_reads_it(make_folder: Folder) -> None:
    source = open_source(tar_of(make_folder(CLASSES)))
    listing = source.list_samples()
    worker = pickle.loads(pickle.dumps(source))
    for row in listing.samples.to_pylist():
        assert worker.read(row["where"]) == CLASSES[row["name"]]


@pytest.mark.parametrize(
    "members",
    [
        {"a/1.jpg": PHOTOS[0], "a/1.cls": b"3", "b/2.jpg": PHOTOS[1], "b/2.cls": b"4"},
        {"a/1.jpg": PHOTOS[0], "a/1.seg.png": PHOTOS[0]},
        {"1.jpg": PHOTOS[0], "2.jpg": PHOTOS[1]},
        {"./1.jpg": PHOTOS[0]},
    ],
)
def test_shards_stay_shards(tmp_path: Path, members: dict[str, bytes]) -> None:
    assert type(open_source(write_tar(tmp_path / "x.tar", members))).__name__ == "TarsSource"


def test_images_of_shards_that_lie_in_folders(make_folder: Folder, tmp_path: Path) -> None:
    """Several tars, or one that the user calls a shard."""
    folder = make_folder(CLASSES)
    tars = make_folder({})
    for name in "ab":
        tar_of(folder, f"{tars.name}/{name}.tar", what=name)
    with pytest.raises(SourceError, match="it holds plain folders and no shards. Pack one such tar by its path"):
        listed(tars)
    assert len(listed(tars, form="tar")) == len(listed(tars, no_labels=True)) == 6
    assert listed(tars / "a.tar", form="tar").fields == ()


def test_what_is_no_file_and_what_is_damaged(make_folder: Folder, tmp_path: Path) -> None:
    folder = make_folder(CLASSES)
    (folder / "a" / "link.jpg").symlink_to("0.jpg")
    archive = tar_of(folder)
    assert reasons_of(listed(archive)) == [("a/link.jpg", "is a link, not a regular file")]
    assert cli.main(["pack", str(archive), str(tmp_path / "out"), "--workers", "1"]) == cli.REJECTED
    assert list(rejected_of(tmp_path / "out" / "train")) == ["a/link.jpg"]
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    with pytest.raises(ShardError, match=r"x\.tar: not a complete, uncompressed tar archive"):
        listed(archive)
