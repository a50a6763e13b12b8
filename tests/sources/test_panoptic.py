"""COCO panoptic: the masks of segments are those of the numbers in their PNGs."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import Folder, encode, photo
from PIL import Image
from sources_read import listed, packed, reasons_of

import gpuload

NUMBERS = (7, 300, 70_000)  # of segments, in one, two and three channels
SIZE = (90, 70)
BOX = [1, 2, 3, 4]


def numbers_of(image: int) -> np.ndarray:
    """The segment of each pixel: blobs of all three, and some without one."""
    rng = np.random.default_rng(image)
    coarse = rng.choice([0, *NUMBERS], (9, 7)).astype(np.int32)
    return np.kron(coarse, np.ones((8, 13), np.int32))[: SIZE[1], : SIZE[0]]


def colors_of(numbers: np.ndarray) -> bytes:
    channels = [numbers % 256, numbers // 256 % 256, numbers // 65536]
    return encode(Image.fromarray(np.stack(channels, -1).astype(np.uint8)), "PNG")


def annotation(image: int) -> dict[str, Any]:
    segments = [
        {"id": number, "category_id": 1 + place % 2, "bbox": BOX, "area": 9, "iscrowd": int(place == 2)}
        for place, number in enumerate(NUMBERS)
    ]
    return {"image_id": image, "file_name": f"{image}.png", "segments_info": segments}


def panoptic(place: str = "annotations/panoptic_train", **pngs: bytes) -> dict[str, bytes]:
    """Two images. pngs: in place of the right ones, by "png0" and "png1"."""
    images = [{"id": n, "file_name": f"{n}.jpg", "width": SIZE[0], "height": SIZE[1]} for n in range(2)]
    categories = [{"id": 1, "name": "cat", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}]
    document = {"images": images, "annotations": [annotation(0), annotation(1)], "categories": categories}
    files = {"annotations/panoptic_train.json": json.dumps(document).encode()}
    for number in range(2):
        files[f"train/{number}.jpg"] = encode(photo(number, *SIZE))
        files[f"{place}/{number}.png"] = pngs.get(f"png{number}", colors_of(numbers_of(number)))
    return files


@pytest.mark.parametrize("place", ["annotations/panoptic_train", "panoptic_train"])
def test_masks_are_the_numbers_of_the_png(make_folder: Folder, tmp_path: Path, place: str) -> None:
    packed(make_folder(panoptic(place)), tmp_path / "out")
    spec = gpuload.Boxes(as_targets=True, masks=True, crowds=True, min_visible=0)
    augment = gpuload.Augment(None, "keep", normalize=None)
    arguments = {"augment": augment, "fields": ("image", spec), "shuffle": False, "device": "cpu", "output": "numpy"}
    with gpuload.DaliIterator(tmp_path / "out" / "train", 1, decoder="native", **arguments) as loader:
        batches = [targets for _, targets in loader]
    assert len(batches) == 2
    for targets in batches:
        (target,) = targets
        numbers = numbers_of(int(target["image_id"]))
        assert len(target["masks"]) == len(NUMBERS)
        for mask, number in zip(target["masks"], NUMBERS, strict=True):
            assert np.array_equal(mask, numbers == number)
        assert target["labels"].tolist() == [1, 2, 1]
        assert target["iscrowd"].tolist() == [0, 0, 1]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools
def test_runs_are_what_pycocotools_reads(make_folder: Folder) -> None:
    tools = importlib.import_module("pycocotools.mask")
    listing = listed(make_folder(panoptic()))
    assert not any("panoptic" in note for note in listing.notes if "annotations are those in" not in note)
    for image, row in enumerate(listing.samples.to_pylist()):
        for outline, number in zip(json.loads(row["boxes_masks"]), NUMBERS, strict=True):
            assert np.array_equal(tools.decode(outline), numbers_of(image) == number)


GRAY = encode(Image.fromarray(np.zeros((70, 90), np.uint8)), "PNG")
FAULTS = {
    "unlisted": (colors_of(np.where(numbers_of(1) == 7, 8, numbers_of(1))), "it holds segments that are not listed: 8"),
    "nowhere": (colors_of(np.where(numbers_of(1) == 7, 0, numbers_of(1))), "segment 7 is nowhere in it"),
    "empty": (GRAY, "segment 7 is nowhere in it"),
    "damaged": (b"\x89PNG\r\n\x1a\n", "its '1.png' cannot be used: "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_image_with_another_png_is_left_out(make_folder: Folder, name: str) -> None:
    png, reason = FAULTS[name]
    listing = listed(make_folder(panoptic(png1=png)))
    ((rejected, told),) = reasons_of(listing)
    assert rejected == "train/1.jpg" and reason in told
    assert len(listing) == 1


def test_a_png_of_another_size_is_left_out(make_folder: Folder, tmp_path: Path) -> None:
    png = colors_of(numbers_of(1)[:, :-1])
    gpuload.pack(make_folder(panoptic(png1=png)), tmp_path / "out", workers=1)
    assert len(gpuload.Dataset(tmp_path / "out" / "train")) == 1
    (line,) = (tmp_path / "out" / "train" / "rejected.jsonl").read_text().splitlines()
    assert "train/1.jpg" in line and "are of 89 x 70 pixels" in line


def test_images_whose_pngs_are_not_there(make_folder: Folder) -> None:
    files = panoptic()
    del files["annotations/panoptic_train/1.png"]
    assert reasons_of(listed(make_folder(files))) == [("train/1.jpg", "its '1.png' is not there")]
    del files["annotations/panoptic_train/0.png"]
    listing = listed(make_folder(files))
    assert len(listing) == 2
    assert any("no PNG is there as '0.png': the boxes of segments are packed" in note for note in listing.notes)
    assert listing.samples.column("boxes").to_pylist() == [[[1, 2, 4, 6]] * 3] * 2
