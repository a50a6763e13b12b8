"""Splits that a source itself has: recognised, packed with one list of classes, and never guessed in silence."""

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from images import Folder
from pyarrow import parquet
from reading import files_of, rows_of
from sources_read import PHOTOS, coco, inside, listed, names_of, packed, reasons_of, splits_of
from tars import tar_bytes, write_tar

import gpuload
from gpuload import ArgumentError, SourceError, cli
from gpuload.sources import open_source

SPLIT_OF = {0: "train", 1: "train", 2: "train", 3: "train", 4: "train", 5: "val", 6: "val", 7: "test"}
NEST = {f"{split}/{'ab'[n % 2]}/{n}.jpg": PHOTOS[n] for n, split in SPLIT_OF.items()}
FLAT = {f"{split}/{n}.jpg": PHOTOS[n] for n, split in SPLIT_OF.items()}
OWN = "note: the splits are the source's own, "


ROWS = {split: [n for n in SPLIT_OF if SPLIT_OF[n] == split] for split in ("train", "val", "test")}


def parquet_bytes(rows: list[int], **more: Any) -> bytes:
    images = [{"bytes": PHOTOS[n], "path": f"{n}.jpg"} for n in rows]
    file = io.BytesIO()
    parquet.write_table(pa.table({"image": images, "label": [n % 2 for n in rows], **more}), file)
    return file.getvalue()


def tar_of(rows: list[int]) -> bytes:
    return tar_bytes(
        (name, data) for n in rows for name, data in ((f"{n}.jpg", PHOTOS[n]), (f"{n}.cls", b"%d" % (n % 2)))
    )


def table_of(column: str, *splits: str) -> dict[str, bytes]:
    """Images, and a table with a column of splits."""
    lines = "".join(f"{n}.jpg,0,{split}\n" for n, split in enumerate(splits))
    return {**{f"{n}.jpg": PHOTOS[n] for n in range(len(splits))}, "t.csv": f"path,label,{column}\n{lines}".encode()}


def coco_of(train: list[str], val: list[str], *folders: str) -> dict[str, bytes]:
    """COCO's files of both splits, beside the folders of their images."""
    both = [inside(folder, dict.fromkeys(names, b"")) for folder, names in zip(folders, (train, val), strict=True)]
    files = {"instances_train2017": coco(train), "instances_val2017": coco(val), "captions_val2017": b"{}"}
    return {**{f"annotations/{name}.json": data for name, data in files.items()}, **both[0], **both[1]}


def called(files: Mapping[str, bytes], *names: str) -> dict[str, bytes]:
    """The same files with other names of splits in their names."""
    found = dict(files)
    for split, name in zip(ROWS, names, strict=True):
        found = {old.replace(split, name): data for old, data in found.items()}
    return found


def of_each(make: Callable[[list[int]], bytes], pattern: str) -> dict[str, bytes]:
    """A file for each split, by a pattern of their names."""
    return {pattern.format(split): make(rows) for split, rows in ROWS.items()}


HUGGING_FACE = {
    "train-00000-of-00002.parquet": parquet_bytes([0, 1, 2]),
    "train-00001-of-00002.parquet": parquet_bytes([3, 4]),
    "validation-00000-of-00001.parquet": parquet_bytes([5, 6]),
    "test-00000-of-00001.parquet": parquet_bytes([7]),
}
TRAIN = {name: data for name, data in HUGGING_FACE.items() if name.startswith("train")}
ALL, TABLE = sorted(SPLIT_OF.values()), {"labels": "t.csv"}
FOLDERS, FILES = "by its folders", "by the names of its files or their folders"


@pytest.mark.parametrize(
    ("files", "options", "splits", "origin"),
    [
        (inside("deep/imagenet", NEST), {}, ALL, "by its folders 'test', 'train', 'val'"),
        *((called(NEST, "Training", name, "testing"), {}, ALL, FOLDERS) for name in ("val", "valid", "Validation", "dev", "VAL")),
        (FLAT, {"no_labels": True}, ALL, FOLDERS),
        ({"x/y/train/1.jpg": b"", "x/y/train/val/2.jpg": b""}, {"no_labels": True}, None, ""),  # in the first that images do not share
        ({"x/y/test/1.jpg": b"", "x/y/train/val/2.jpg": b""}, {"no_labels": True}, ["test", "train"], FOLDERS),
        ({**FLAT, **{name.replace("jpg", "txt"): b"a" for name in FLAT}}, {"form": "sidecar"}, ALL, FOLDERS),
        ({**inside("Data/DET", FLAT), **{f"Annotations/DET/{name[:-3]}xml": b"<annotation/>" for name in FLAT}}, {}, ALL, FOLDERS),
        ({**FLAT, "t.csv": b"id,label\n" + b"".join(b"%s,0\n" % name[:-4].encode() for name in FLAT)}, TABLE, ALL, FOLDERS),
        *((table_of(name, "train", "Train", "train ", "test", "valid"), TABLE, ["test", *["train"] * 3, "val"], f"by its column '{name}'")
          for name in ("split", "Subset", "partition", "fold", "set")),
        (table_of("fold", "0", "1", "2"), TABLE, None, ""),
        *(({**dict.fromkeys(names, b""), "t.csv": "\n".join(["path,label", *(f"{name},0" for name in names)]).encode()}, TABLE, None, "")
          for names in (["val/0.jpg", "val/1.jpg"], ["train/0.jpg", "val/1.jpg", "other/2.jpg"])),
        *((coco_of(train, val, *folders), {}, ["train", "train", "val"], "by the names of the files in 'annotations'") for train, val, *folders in
          ((["0.jpg", "1.jpg"], ["3.jpg"], "train2017", "val2017"), (["0.jpg", "1.jpg"], ["0.jpg"], "train2017", "val2017"),
           (["0.jpg", "1.jpg"], ["3.jpg"], "images", "images"))),
        *(({**inside(place, files), **more}, {}, ALL, FILES) for place, more in ((".", {}), ("default", {}), ("data", {"docs/a.md": b""}))
          for files in (HUGGING_FACE, of_each(parquet_bytes, "{}/0.parquet"))),
        (TRAIN, {}, None, ""),
        *((of_each(tar_of, names), {}, ALL, FILES) for names in ("set-{}-000.tar", "{}/000.tar")),
        (called(of_each(tar_of, "{}-1.tar"), "training", "dev", "testing"), {}, ALL, FILES),
        *(({name: tar_of([n]) for n, name in enumerate(names)}, {}, None, "") for names in
          (["a.tar", "latest.tar"], ["trainval.tar", "latest.tar"], ["train-0.tar", "train-1.tar"])),
    ],
)  # fmt: skip
def test_where_splits_are_found(
    make_folder: Folder, tmp_path: Path, files: dict[str, bytes], options: Any, splits: Any, origin: str
) -> None:
    folder = make_folder(files)
    if "labels" in options:
        options = {**options, "labels": folder / "t.csv"}
    listing = listed(folder, **options)
    assert (listing.splits and sorted(splits_of(listing) or ())) == splits
    assert not any("left out" in note for note in listing.notes)
    are_trained = ["train" in name.lower() for name in names_of(listing)]
    assert not (splits and any(are_trained)) or [split == "train" for split in splits_of(listing) or ()] == are_trained
    assert origin in (listing.splits.origin if listing.splits else "")
    assert listed(folder, no_splits=True, **options).splits is None


def images_of(out: Path) -> dict[str, set[bytes]]:
    return {
        folder.name: {row["image"] for row in rows_of(folder)} for folder in sorted(out.iterdir()) if folder.is_dir()
    }


def expected(splits: Mapping[int, str] = SPLIT_OF) -> dict[str, set[bytes]]:
    return {name: {PHOTOS[n] for n in splits if splits[n] == name} for name in sorted(set(splits.values()))}


def refused(source: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: object) -> str:
    assert cli.main(["pack", str(source), str(tmp_path / "refused"), *map(str, options)]) == cli.WRONG
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not (tmp_path / "refused").exists()
    return said


def test_folders_of_splits(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = packed(make_folder(NEST), tmp_path / "out")
    assert f"{OWN}by its folders 'test', 'train', 'val'; --no-splits packs it as one set" in capsys.readouterr().out
    assert images_of(tmp_path / "out") == expected()
    assert {manifest.classes for manifest in manifests.values()} == {("a", "b")}
    assert {manifest.packing["splits"] for manifest in manifests.values()} == {"the source's own"}
    for split, numbers in (("train", [0, 1, 2, 3, 4]), ("val", [5, 6]), ("test", [7])):
        rows = rows_of(tmp_path / "out" / split)
        assert {row["source"]: row["label"] for row in rows} == {
            f"{split}/{'ab'[n % 2]}/{n}.jpg": n % 2 for n in numbers
        }


def test_no_splits_packs_as_before(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = packed(make_folder(NEST), tmp_path / "out", "--no-splits")
    assert OWN not in capsys.readouterr().out
    assert list(manifests) == ["train"]
    assert manifests["train"].classes == ("test", "train", "val")


def test_train_alone_may_be_divided(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a set like any other: the same bytes as from the folder itself, but for the names of the files."""
    train = {name: data for name, data in NEST.items() if name.startswith("train/")}
    folder = make_folder(train)
    packed(folder, tmp_path / "1", "--val", "20%")
    assert "note: 'train' is taken as a split and not as a class; --no-splits takes it as a class" in (
        capsys.readouterr().out
    )
    packed(folder / "train", tmp_path / "2", "--val", "0.2")
    shards = [{name: data for name, data in files_of(out).items() if name.endswith(".tar")} for out in
              (tmp_path / "1", tmp_path / "2")]  # fmt: skip
    assert shards[0] == shards[1]


def test_appending_to_each_split(make_folder: Folder, tmp_path: Path) -> None:
    """A split alone keeps its name, so that adding it to a set does not put test images into train."""
    parts = [{name: data for name, data in NEST.items() if name.startswith(split)} for split in ("t", "val")]
    assert splits_of(listed(make_folder(parts[1]))) == ["val", "val"]
    more = {"train/c/8.jpg": PHOTOS[8], "val/a/9.jpg": PHOTOS[9], **parts[1]}
    packed(make_folder(parts[0]), tmp_path / "out")
    manifests = packed(make_folder(more), tmp_path / "out", "--append")
    assert images_of(tmp_path / "out") == expected({**SPLIT_OF, 8: "train", 9: "val"})
    assert manifests["train"].classes == ("a", "b", "c")


def test_resume_keeps_the_splits(make_folder: Folder, tmp_path: Path) -> None:
    folder = make_folder({f"top/{name}": data for name, data in NEST.items()})
    packed(folder, tmp_path / "whole", "--maxcount", "1")

    def stop(progress: Any) -> None:
        if progress.images >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpuload.pack(open_source(folder), tmp_path / "out", maxcount=1, workers=1, watch=stop)
    with pytest.raises(ArgumentError, match="had options None, this run has {'no_splits': True}"):
        gpuload.pack(open_source(folder, no_splits=True), tmp_path / "out", maxcount=1, resume=True)
    packed(folder, tmp_path / "out", "--maxcount", "1", "--resume")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_copies_stay_in_their_splits_unless_dropped(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder({**NEST, "val/b/0.jpg": PHOTOS[0]})
    packed(folder, tmp_path / "1")
    assert images_of(tmp_path / "1")["val"] == {PHOTOS[0], PHOTOS[5], PHOTOS[6]}
    packed(folder, tmp_path / "2", "--dedup")
    assert images_of(tmp_path / "2") == expected()
    folder = make_folder({"train/a/0.jpg": PHOTOS[0], "val/a/0.jpg": PHOTOS[0]})
    assert "--dedup: no image of 2 is left for 'val'" in (refused(folder, tmp_path, capsys, "--dedup"))


@pytest.mark.parametrize("option", [("--val", "0.1"), ("--splits", "train=0.5,val=0.5")])
def test_splits_are_not_drawn_from_such_a_source(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    said = refused(make_folder(NEST), tmp_path, capsys, *option)
    assert f"{option[0]} draws splits, but the source has its own (train, val, test, by its folders" in said
    assert f"Leave out {option[0]} to keep these, or give --no-splits" in said


TWO = {"a/0.jpg": PHOTOS[0], "b/1.jpg": PHOTOS[1]}


@pytest.mark.parametrize(
    ("more", "notes", "rejected"),
    [
        ({"meta/x.txt": b"", "val/x.txt": b""}, ["passed over, by extension: 2 × .txt"], []),
        ({"val/c/1.jpg": b""}, ["classes without an image in 'train': 'c'"], []),
        ({"val/A/1.jpg": b""}, ["classes without an image in 'train': 'A'", "classes that differ only in case are different classes: 'A', 'a'"], []),
        ({"1.jpg": b"", "test/2.jpg": b""}, [], ["1.jpg", "test/2.jpg"]),
    ],
)  # fmt: skip
def test_what_is_told_of_folders_of_splits(
    make_folder: Folder, more: dict[str, bytes], notes: list[str], rejected: list[str]
) -> None:
    listing = listed(make_folder({**inside("train", TWO), **inside("test", TWO), **more}))
    assert (list(listing.notes), listing.splits is not None) == (notes, True)
    assert reasons_of(listing) == [(name, "lies in no class folder") for name in rejected]


def test_a_column_of_splits_in_parquet(tmp_path: Path) -> None:
    """Of one file, whose own name does not count."""
    (tmp_path / "val.parquet").write_bytes(parquet_bytes(list(SPLIT_OF), part=list(SPLIT_OF.values())))
    packed(tmp_path / "val.parquet", tmp_path / "1", "--column", "split=part")
    assert images_of(tmp_path / "1") == expected()
    listing = listed(tmp_path / "val.parquet")
    assert ([field.name for field in listing.fields], listing.splits) == (["label", "part"], None)


@pytest.mark.parametrize(
    ("members", "notes"),
    [
        (["1.jpg", "2.jpg"], ["no sample has more than its image, so that the set has no labels"]),
        (["1.jpg", "1.txt", "1.xyz", "2.jpg", "2.txt", "2.json"],
         ["members that are not packed: 1 × .json, 1 × .xyz; fields are what most samples have"]),
    ],
)  # fmt: skip
def test_what_is_told_of_tars(tmp_path: Path, members: list[str], notes: list[str]) -> None:
    write_tar(tmp_path / "x.tar", dict.fromkeys(members, b"1"))
    assert list(open_source(tmp_path / "x.tar").list_samples().notes) == notes


def test_a_packed_set_is_packed_again_with_its_splits(make_folder: Folder, tmp_path: Path) -> None:
    packed(make_folder(NEST), tmp_path / "1")
    manifests = packed(tmp_path / "1", tmp_path / "2")
    assert images_of(tmp_path / "2") == expected()
    assert manifests["val"].classes == ("a", "b")
    shutil.rmtree(tmp_path / "1" / "val")
    packed(make_folder({"c/1.jpg": PHOTOS[8]}), tmp_path / "other")
    shutil.move(tmp_path / "other" / "train", tmp_path / "1" / "val")
    with pytest.raises(SourceError, match="its folders .* differ in fields or classes"):
        open_source(tmp_path / "1").list_samples()


def test_dicts_with_a_split(tmp_path: Path) -> None:
    def samples() -> list[dict[str, Any]]:
        return [{"image": PHOTOS[n], "label": n % 2, "split": split} for n, split in SPLIT_OF.items()]

    report = gpuload.pack(samples(), tmp_path / "out", workers=1)
    assert list(report.manifests) == ["train", "val", "test"]
    assert images_of(tmp_path / "out") == expected()
    with pytest.raises(ArgumentError, match=r"--val draws splits, but the source has its own .*by its column 'split'"):
        gpuload.pack(samples(), tmp_path / "2", workers=1, val=0.1)
    report = gpuload.pack(samples(), tmp_path / "3", workers=1, own_splits=False)
    assert [field.name for field in report.manifests["train"].fields] == ["image", "label", "split"]


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_arrays_with_a_split(tmp_path: Path, dtype: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 16, 3), np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, part=np.array(list(SPLIT_OF.values()), dtype))
    assert splits_of(listed(tmp_path / "x.npz", columns={"split": ("part",)})) == list(SPLIT_OF.values())


def commands(path: Path, members: Any) -> list[list[str]]:
    """Those that read a tar of somebody else."""
    tar, out = str(write_tar(path / "x.tar", members)), str(path / "out")
    return [["pack", tar, out], ["index", tar, "--out", out]]


@pytest.mark.parametrize("number", [0, 1])
def test_captions_beside_boxes_stay_captions(tmp_path: Path, number: int) -> None:
    members = {"0.jpg": PHOTOS[0], "0.txt": b"0 0.5 0.5 0.2 0.4\n", "1.jpg": PHOTOS[0], "1.txt": b"a cat"}
    assert cli.main(commands(tmp_path, members)[number]) == cli.DONE


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("end", ["txt", "jpg", "xyz"])
def test_two_members_of_one_extension_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, end: str
) -> None:
    """Which of them is meant nobody knows."""
    members = [("1.jpg", PHOTOS[0]), ("1.txt", b"1"), ("2.jpg", PHOTOS[0]), ("2.txt", b"1"), ("2.xyz", b"")]
    assert cli.main(commands(tmp_path, [*members, (f"2.{end}", b"2")])[number]) == cli.WRONG
    said = capsys.readouterr().err
    assert f"sample '2' has two members of one extension ('2.jpg', '2.txt', '2.xyz', '2.{end}')" in said
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_images_that_lie_in_several_splits_are_told(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name and bytes; `report` finds the others. Images of one name and size alone are different ones."""
    ends = {"same": PHOTOS[1] + b"ab", "other": PHOTOS[1] + b"cd"}
    train = {"train/a/1.jpg": PHOTOS[0], "train/b/2.jpg": ends["same"], "train/a/3.jpg": ends["same"]}
    val = {"val/a/4.jpg": PHOTOS[2], "val/b/2.jpg": ends["same"], "val/a/3.jpg": ends["other"]}
    root = make_folder(train | val)
    assert cli.main(["pack", str(root), str(tmp_path / "out"), "--workers", "1"]) == cli.DONE
    assert "note: 1 image lies in another split, too: 'val/b/2.jpg'. --dedup" in capsys.readouterr().out
    assert cli.main(["pack", str(root), str(tmp_path / "once"), "--workers", "1", "--dedup"]) == cli.DONE
    assert "another split" not in capsys.readouterr().out
