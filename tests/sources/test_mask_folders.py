"""Data sets for segmentation as they lie on disk: each is packed by one command, with the numbers of its masks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from images import photo
from PIL import Image
from sources_read import listed, reasons_of

import gpuload
from gpuload import SourceError
from gpuload.cli import main

WIDTH, HEIGHT = 40, 24
CLASSES = 7


def numbers_of(number: int) -> np.ndarray:
    """uint8 (HEIGHT, WIDTH): the classes of the mask of an image."""
    return np.random.default_rng(number).integers(0, CLASSES, (HEIGHT, WIDTH), np.uint8)


class Tree:
    """Images and masks with the same numbers, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def add(self, image: str, mask: str = "", with_palette: bool = False) -> None:
        self.count += 1
        place = self._place(image)
        photo(self.count, WIDTH, HEIGHT).save(place)
        if mask:
            picture = Image.fromarray(numbers_of(self.count))
            if with_palette:
                picture.putpalette([value for color in range(256) for value in (color, 0, 255 - color)])
            picture.save(self._place(mask))

    def write(self, name: str, text: str) -> None:
        self._place(name).write_text(text)

    def _place(self, name: str) -> Path:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def write_cityscapes(tree: Tree) -> None:
    for split in ("train", "val"):
        for city in ("aachen", "bochum"):
            name = f"{split}/{city}/{city}_000000_000019"
            tree.add(f"leftImg8bit/{name}_leftImg8bit.png", f"gtFine/{name}_gtFine_labelIds.png")
            tree.write(f"gtFine/{name}_gtFine_polygons.json", '{"imgHeight": 24, "imgWidth": 40, "objects": []}')
            photo(0, WIDTH, HEIGHT).save(tree.root / f"gtFine/{name}_gtFine_color.png")


def write_camvid(tree: Tree) -> None:
    """As the authors of SegNet gave it away."""
    for split in ("train", "val"):
        names = [f"0001TP_{number:06d}.png" for number in range(2)]
        for name in names:
            tree.add(f"{split}/{name}", f"{split}annot/{name}")
        lines = [f"/SegNet/CamVid/{split}/{name} /SegNet/CamVid/{split}annot/{name}\n" for name in names]
        tree.write(f"{split}.txt", "".join(lines))


def write_camvid_of_fastai(tree: Tree) -> None:
    for number in range(4):
        tree.add(f"images/0001TP_{number:06d}.png", f"labels/0001TP_{number:06d}_P.png")
    tree.write("codes.txt", "Animal\nArchway\n")
    tree.write("valid.txt", "0001TP_000002.png\n0001TP_000003.png\n")


def write_voc(tree: Tree) -> None:
    root = "VOCdevkit/VOC2012"
    for number in range(6):
        mask = f"{root}/SegmentationClass/2007_{number}.png" if number < 4 else ""
        tree.add(f"{root}/JPEGImages/2007_{number}.jpg", mask, with_palette=True)
        tree.write(f"{root}/Annotations/2007_{number}.xml", "<annotation/>")
    for name, numbers in (("train", (0, 1)), ("val", (2, 3)), ("trainval", (0, 1, 2, 3))):
        lines = "".join(f"2007_{number}\n" for number in numbers)
        tree.write(f"{root}/ImageSets/Segmentation/{name}.txt", lines)


def write_ade20k(tree: Tree) -> None:
    for folder in ("training", "validation"):
        for number in range(2):
            name = f"{folder}/ADE_{folder}_{number:08d}"
            tree.add(f"images/{name}.jpg", f"annotations/{name}.png")
    tree.write("objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.16\t11664\t1172\t1\twall\n")
    tree.write("sceneCategories.txt", "ADE_training_00000000 airport_terminal\n")


def write_pets(tree: Tree) -> None:
    """Without the boxes of heads in annotations/xmls, which are a question."""
    for number in range(4):
        tree.add(f"images/beagle_{number}.jpg", f"annotations/trimaps/beagle_{number}.png")
    tree.write("annotations/list.txt", "".join(f"beagle_{number} 2 2 1\n" for number in range(4)))
    tree.write("annotations/trainval.txt", "beagle_0 2 2 1\nbeagle_1 2 2 1\n")
    tree.write("annotations/test.txt", "beagle_2 2 2 1\nbeagle_3 2 2 1\n")


def write_images_and_masks(tree: Tree) -> None:
    for split in ("train", "valid"):
        for number in range(2):
            tree.add(f"images/{split}/{number}.jpg", f"masks/{split}/{number}.png")


def write_masks_by_splits(tree: Tree) -> None:
    for split in ("train", "val"):
        for number in range(2):
            tree.add(f"{split}/images/{number}.jpg", f"{split}/masks/{number}.png")


LAYOUTS = {
    "Cityscapes": (write_cityscapes, []),
    "CamVid": (write_camvid, []),
    "CamVid of fast.ai": (write_camvid_of_fastai, []),
    "Pascal VOC": (write_voc, ["--from", "masks"]),
    "ADE20K": (write_ade20k, []),
    "Oxford-IIIT Pet": (write_pets, []),
    "images and masks": (write_images_and_masks, []),
    "splits of images and masks": (write_masks_by_splits, []),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_packed_by_one_command(name: str, tmp_path: Path) -> None:
    write, options = LAYOUTS[name]
    tree = Tree(tmp_path / "source")
    write(tree)
    out = tmp_path / "out"
    assert main(["pack", str(tree.root), str(out), "--workers", "1", *options]) == 0
    masks = dict[str, np.ndarray]()
    for split in ("train", "val" if (out / "val").exists() else "test"):
        dataset = gpuload.Dataset(out / split)
        assert len(dataset) == 2
        for number in range(2):
            sample = dataset[number]
            masks[sample["source"]] = np.asarray(sample["mask"])
    assert len(masks) == 4
    kept = [mask.tobytes() for mask in masks.values()]
    assert sorted(kept) == sorted(numbers_of(number).tobytes() for number in range(1, 5))


def tree_of(tmp_path: Path, write: Callable[[Tree], None]) -> Tree:
    tree = Tree(tmp_path / "source")
    write(tree)
    return tree


def test_other_layouts_are_given_by_patterns(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "source")
    for split in ("train", "val"):
        tree.add(f"rgb/{split}/1.jpg", f"classes/{split}/1_class.png")
    with pytest.raises(SourceError, match="lie in no known layout. Give --option image=PATTERN"):
        listed(tree.root, form="masks")
    patterns = {"image": "rgb/{split}/*.jpg", "mask": "classes/{split}/*_class.png"}
    listing = listed(tree.root, form="masks", options=patterns)
    assert len(listing) == 2 and listing.splits is not None


def test_other_masks_of_cityscapes(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, write_cityscapes)
    for place in list((tree.root / "gtFine").rglob("*labelIds.png")):
        place.with_name(place.name.replace("labelIds", "labelTrainIds")).write_bytes(place.read_bytes())
    listing = listed(tree.root, options={"mask": "gtFine/{split}/**/*_gtFine_labelTrainIds.png"})
    assert all("labelTrainIds" in mask for mask in listing.samples.column("mask").to_pylist())


def test_an_image_without_a_mask_is_rejected_but_in_voc_left_out(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, write_images_and_masks)
    (tree.root / "masks/train/1.png").unlink()
    assert reasons_of(listed(tree.root)) == [("images/train/1.jpg", "lacks its picture mask")]
    voc = Tree(tmp_path / "voc")
    write_voc(voc)
    listing = listed(voc.root, form="masks")
    assert not listing.rejected
    assert any("2 images without a mask" in note for note in listing.notes)


def test_boxes_beside_masks_are_packed_unless_masks_are_named(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, write_pets)
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    tree.write("annotations/xmls/beagle_0.xml", f"<annotation><object><name>dog</name>{box}</object></annotation>")
    with pytest.raises(SourceError, match="--from masks to pack without it"):
        listed(tree.root)
    assert len(listed(tree.root, form="masks")) == 4


def test_no_splits(tmp_path: Path) -> None:
    for number, write in enumerate((write_cityscapes, write_pets)):
        tree = Tree(tmp_path / str(number))
        write(tree)
        listing = listed(tree.root, no_splits=True)
        assert (listing.splits, len(listing)) == (None, 4)
