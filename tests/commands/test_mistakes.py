"""A command that is given something wrong says so in one line, and does nothing."""

from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo

from gpuload import cli

# SET: a packed folder. PHOTOS: a folder of images. Each with the words that name what is wrong.
MISTAKES = {
    "pack nowhere out": "nowhere: no such folder. Give a folder of class folders, as in photos/cat/1.jpg",
    "pack PHOTOS out --maxsize big": "--maxsize: expected a positive number of bytes, such as 1GB, or None; got 'big'",
    "pack PHOTOS out --val 2": "--val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got '2'",
    "pack PHOTOS out --label-column x": "--column, --path-column and --label-column: ",
    "pack PHOTOS out --no-labels --labels t.csv": "--no-labels packs images alone; --labels and --column say what belongs to them. Give one",
    "pack PHOTOS out --from zip": "--from is one of folder, sidecar, unlabeled, voc, coco, yolo, hdf5, lmdb, npy, tar, ",
    "pack PHOTOS out --from tar --labels t.csv": "is packed as 'tar', which takes none",
    "pack PHOTOS EMPTY": "OUT: is empty, expected a value",
    "pack PHOTOS out --labels EMPTY": "--labels: is empty, expected a value",
    "pack PHOTOS PHOTOS": "or lies in it. Give another OUT",
    "report EMPTY": "SHARDS: is empty, expected a value",
    "info SET --window 0": "--window 0: expected a whole number of at least 1",
    "info SET --batch-size -1": "--batch-size -1: expected a whole number of at least 1",
    "report SET --images 0": "--images 0: expected a whole number of at least 1",
    "report SET --size 0": "--size 0: expected a whole number in 1..4096",
    "report SET -o nowhere/x.html": "nowhere/x.html: its folder does not exist. Give another file by -o",
    "report SET -o .": ".: is a folder. Give another file by -o",
    "report SET -o x.json": "x.json: is named for the page and for the facts. Give two names",
    "show SET nothing": "has no sample of this key or source",
    "show SET 97": "has samples 0 to 96",
    "show SET 0 -o nowhere": "nowhere: no such folder. Make it, or give another -o",
    "show SET 0 --epochs -1": "--epochs -1: expected",
    "show SET 0 --size 0": "--size 0: expected",
    "doctor .": "no manifest.json",
    "doctor --seconds 0": "--seconds 0.0: expected seconds, above 0",
    "tune nowhere": "no such folder",
    "tune SET --seconds 0": "--seconds 0.0: expected seconds, above 0 and up to 1e6",
    "tune SET --seconds nan": "--seconds nan: expected seconds, above 0 and up to 1e6",
    "tune SET --size 0": "--size 0: expected pixels in 1..65,535",
    "tune SET --batch-size 0": "--batch-size 0: expected a whole number of at least 1",
    "tune SET --batch-size 5000 --device cpu": "a batch of all ranks is larger than",
    "tune SET --json .": ".: is a folder. Give another file by --json",
    "tune SET --json none/figures.json": "none/figures.json: its folder does not exist. Give another file by --json",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(command: Any, make_folder: Folder, packed: Path, tmp_path: Path, mistake: str) -> None:
    photos = make_folder({"a/1.jpg": encode(photo())})
    places, before = {"SET": packed, "PHOTOS": photos, "EMPTY": ""}, sorted(tmp_path.iterdir())
    code, out, err = command(*(places.get(word, word) for word in mistake.split()))
    assert (code, out, err.count("\n")) == (cli.WRONG, "", 1)
    assert err.startswith("gpuload: ") and MISTAKES[mistake] in err
    assert sorted(tmp_path.iterdir()) == before
