"""Lists and documents that say which images are for training: followed as the tools that write them do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo
from reading import rejected_of, rows_of
from sources_read import listed, names_of, reasons_of, splits_of

import gpuload
from gpuload import SourceError, cli

SMALL = [encode(photo(number, 40, 20)) for number in range(4)]
TEXT = b"0 0.5 0.5 0.2 0.4\n"
ALTERNATING = ["train", "val", "train", "val"]
NAMES = b"names: [ant]\n"


def images_in(*folders: str) -> dict[str, bytes]:
    """Image and text of each number, in the folder of that place."""
    files = {}
    for number, folder in enumerate(folders):
        labels = folder.replace("images", "labels")
        files[f"{folder}/{number}.jpg"] = SMALL[number]
        files[f"{labels}/{number}.txt"] = TEXT
    return files


def lists(pattern: str, train: Sequence[int] = (0, 2), val: Sequence[int] = (1, 3)) -> dict[str, bytes]:
    """The lines of both lists, by the split."""
    lines = {"train": train, "val": val}
    return {name: "".join(f"{pattern.format(number)}\n" for number in one).encode() for name, one in lines.items()}


def cvat(train: Sequence[int] = (0, 2), val: Sequence[int] = (1, 3), end: str = "valid") -> dict[str, bytes]:
    """CVAT's "YOLO 1.1", and Datumaro's "yolo", where validation images lie in a folder of their own."""
    texts = lists("data/obj_train_data/{}.jpg", train, val)
    data = f"classes = 1\ntrain = data/train.txt\n{end} = data/{end}.txt\nnames = data/obj.names\nbackup = backup/\n"
    return {"obj.data": data.encode(), "obj.names": b"ant\n", "train.txt": texts["train"], f"{end}.txt": texts["val"]}


ONE = images_in(*["obj_train_data"] * 4)
DATUMARO = images_in(*["obj_train_data", "obj_val_data"] * 2)
FLAT = images_in(*["images"] * 4)
COCO = images_in(*["images/train2017", "images/val2017"] * 2)
FLAT_LISTS, AUTOSPLIT = lists("./images/{}.jpg"), lists("./images/{}.jpg")
ABSOLUTE = lists("C:\\\\data\\\\set\\\\images\\\\{}.jpg")

LAYOUTS: dict[str, tuple[dict[str, bytes], str]] = {
    "CVAT": ({**ONE, **cvat()}, "by 'train.txt', 'valid.txt'"),
    "CVAT, data missing": ({**ONE, **cvat(), "obj.data": b"classes = 1\n"}, "by 'train.txt', 'valid.txt'"),
    "Datumaro": ({**DATUMARO, **{name: text.replace(b"train_data/1", b"val_data/1").replace(b"train_data/3", b"val_data/3")
                                 for name, text in cvat(end="val").items()}}, "by 'train.txt', 'val.txt'"),
    "Datumaro without lists": ({**DATUMARO, "obj.names": b"ant\n"}, "by words in the names of its folders"),
    "Ultralytics' COCO": (
        {**COCO, "train2017.txt": b"./images/train2017/0.jpg\n./images/train2017/2.jpg\n",
         "val2017.txt": b"./images/val2017/1.jpg\n./images/val2017/3.jpg"}, "by 'train2017.txt', 'val2017.txt'"),
    "Ultralytics' COCO without lists": (COCO, "by its folders 'train2017', 'val2017'"),
    "autosplit": ({**FLAT, "autosplit_train.txt": AUTOSPLIT["train"], "autosplit_val.txt": AUTOSPLIT["val"]},
                  "by 'autosplit_train.txt', 'autosplit_val.txt'"),
    "lists of a document": ({**FLAT, "data.yaml": NAMES + b"train: a.txt\nval: lists/b.txt\n", "a.txt": FLAT_LISTS["train"],
                             "lists/b.txt": ABSOLUTE["val"]}, "by 'a.txt', 'b.txt'"),
    "folders of a document": ({**images_in(*["one/images", "two/images"] * 2), "data.yaml": NAMES + b"train: ../one/images\nval: /else/two\n"},
                              "by 'data.yaml'"),
    "several folders of a split": ({**images_in("a/images", "b/images", "c/images", "b/images"), "data.yaml": NAMES + b"train: [a, c]\nval: [b]\n"},
                                   "by 'data.yaml'"),
    "a list and a folder": ({**images_in("images/x", "images/val", "images/x", "images/val"), "data.yaml": NAMES + b"train: x.txt\nval: images/val\n",
                             "x.txt": b"images/x/0.jpg\nimages/x/2.jpg\n"}, "by 'data.yaml', 'x.txt'"),
    "a split that the document lacks": ({**images_in("images/train", "images/val", "images/train", "images/val"),
                                         "data.yaml": NAMES + b"train: images/train\n"}, "by 'data.yaml'"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_validation_images_are_not_packed_for_training(make_folder: Folder, tmp_path: Path, name: str) -> None:
    files, origin = LAYOUTS[name]
    listing = listed(make_folder(files))
    by_number = sorted(zip(names_of(listing), splits_of(listing) or (), strict=True), key=lambda pair: pair[0][-5:])
    assert [split for _, split in by_number] == ALTERNATING
    assert listing.splits and listing.splits.origin == origin
    assert (reasons_of(listing), [note for note in listing.notes if "passed over" not in note]) == ([], [])
    assert splits_of(listed(make_folder(files), no_splits=True)) is None
    assert cli.main(["pack", str(make_folder(files)), str(tmp_path / "out"), "--workers", "1"]) == cli.DONE
    found = {split: {row["image"] for row in rows_of(tmp_path / "out" / split)} for split in ("train", "val")}
    assert found == {"train": {SMALL[0], SMALL[2]}, "val": {SMALL[1], SMALL[3]}}


def test_images_that_the_lists_leave_out(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({**ONE, **cvat(train=[0], val=[3])})
    assert cli.main(["pack", str(root), str(tmp_path / "out"), "--workers", "1"]) == cli.DONE
    reason = "is in no split of 'train.txt', 'valid.txt'"
    rejected = rejected_of(tmp_path / "out" / "train") | rejected_of(tmp_path / "out" / "val")
    assert rejected == {f"obj_train_data/{number}.jpg": reason for number in (1, 2)}


def test_images_that_lists_name_and_that_are_not_there(make_folder: Folder) -> None:
    listing = listed(make_folder({**ONE, **cvat(train=[0, 2, 7])}))
    assert "'train.txt' names 1 image that is not there: 'data/obj_train_data/7.jpg'" in listing.notes
    assert len(listing) == 4


@pytest.mark.parametrize("pair", ["train: images\nval: images\n", "train: [images]\nval: all.txt\n"])
def test_the_same_images_for_both_are_no_splits(make_folder: Folder, pair: str) -> None:
    """As coco128.yaml has them."""
    every = b"".join(f"images/{number}.jpg\n".encode() for number in range(4))
    listing = listed(make_folder({**FLAT, "all.txt": every, "data.yaml": NAMES + pair.encode()}))
    assert (len(listing), listing.splits) == (4, None)
    assert "'data.yaml' gives the same images to every split: they are packed without splits" in listing.notes


def test_a_list_for_training_alone(make_folder: Folder) -> None:
    files = {**ONE, **cvat()}
    del files["valid.txt"]
    listing = listed(make_folder({**files, "obj.data": b"train = data/train.txt\n"}))
    assert (len(listing), listing.splits) == (2, None)
    assert [reason for _, reason in reasons_of(listing)] == ["is in no split of 'train.txt'"] * 2


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({**ONE, **cvat(val=[1, 2, 3])}, "'train.txt' puts 'obj_train_data/2.jpg' into 'train' and 'valid.txt' into 'val'. Correct it, or give --no-splits"),
        ({**COCO, "data.yaml": b"train: images/train2017\nval: images/val2017\n", "val.txt": b"images/train2017/0.jpg\n"},
         "'data.yaml' puts .* into 'train' and 'val.txt' into 'val'"),
        ({**ONE, "val.txt": b"obj_train_data/1.jpg\n"}, "'val.txt' names no images for training, and 3 images are in no split, such as 'obj_train_data/0.jpg'"),
        ({**FLAT, "data.yaml": b"train: images/0.jpg\nval: valid.txt\n"}, "'valid.txt' names 'valid.txt' for the split 'val', which is not there, and 3 images"),
        ({**FLAT, "train.txt": b"elsewhere/7.jpg\n"}, "none of the images that 'train.txt' names is there"),
    ],
)  # fmt: skip
def test_lists_that_contradict_each_other(make_folder: Folder, files: dict[str, bytes], word: str) -> None:
    with pytest.raises(SourceError, match=word) as caught:
        listed(make_folder(files))
    assert "\n" not in str(caught.value)


def test_texts_that_are_no_lists(make_folder: Folder) -> None:
    files: dict[str, Any] = {**FLAT, "train_notes.txt": b"taken in spring", "test.txt": b"\n"}
    assert splits_of(listed(make_folder(files))) is None


def test_a_set_whose_folders_have_a_year(make_folder: Folder, tmp_path: Path) -> None:
    """`train2017` is a split wherever `train` is one."""
    root = make_folder({f"{split}2017/{name}/1.jpg": SMALL[0] for split in ("train", "val") for name in "ab"})
    listing = listed(root)
    assert (splits_of(listing), listing.classes) == (["train"] * 2 + ["val"] * 2, ("a", "b"))
    twice = make_folder({f"train{year}/a/1.jpg": SMALL[0] for year in (2014, 2017)})
    with pytest.raises(gpuload.SourceError, match="'train2014', 'train2017' would both be the split 'train'"):
        listed(twice)
