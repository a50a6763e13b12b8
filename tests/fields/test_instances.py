"""Instance masks: COCO's polygons and runs through every geometry, beside what pycocotools draws of them."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import loaders
import numpy as np
import pytest
import torch
from fuzzing.loader import write_value
from images import encode, smooth_image

import gpuload
from gpuload.packing.verify import verify
from gpuload.sources import open_source
from gpuload.transforms import RandomAffine, RandomPerspective, RandomRotation

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools
SIDES = [(60, 45), (40, 80), (64, 64), (33, 47), (90, 30)]  # (width, height), of one image after another
TARGETS = gpuload.Boxes(as_targets=True, masks=True, crowds=True, min_visible=0)
KEEP = gpuload.Augment(None, "keep", normalize=None)


def star(rng: np.random.Generator, x: float, y: float, reach: float) -> list[float]:
    """A polygon around a point, flat."""
    angles = np.sort(rng.random(9)) * 2 * np.pi
    length = reach * (0.5 + rng.random(9) / 2)
    points = np.stack([x + length * np.cos(angles), y + length * np.sin(angles)], axis=1)
    return [float(value) for value in points.round(2).reshape(-1)]


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with polygons of one part and of two, compressed runs, and crowds of plain ones; and their packed set.

    Each mask is also a gray image of its own, packed as a mask in `masks`.
    """
    tools = importlib.import_module("pycocotools.mask")
    out, rng = tmp_path_factory.mktemp("coco"), np.random.default_rng(5)
    (out / "images").mkdir()
    images, annotations = [], []
    for number in range(10):
        width, height = SIDES[number % 5]
        (out / "images" / f"{number}.png").write_bytes(encode(smooth_image(rng, width, height), "PNG"))
        images.append({"id": number + 7, "file_name": f"{number}.png", "width": width, "height": height})
        for kind in range(4 if number else 0):
            parts = [star(rng, *(rng.random(2) * [width, height]), 14) for _ in range(1 + kind % 2)]
            runs = tools.merge(tools.frPyObjects(parts, height, width))
            pixels = tools.decode(runs)
            if not pixels.any():
                continue
            area, box = float(tools.area(runs)), tools.toBbox(runs).tolist()
            segmentation: Any = parts
            if kind == 2:
                segmentation = {"size": [height, width], "counts": runs["counts"].decode()}
            if kind == 3:
                changes = np.flatnonzero(np.diff(pixels.T.reshape(-1), prepend=0))
                counts = np.diff(changes, prepend=0, append=width * height).tolist()
                segmentation = {"size": [height, width], "counts": counts}
            one = {"id": len(annotations) + 1, "image_id": number + 7, "bbox": box, "area": area}
            annotations.append(
                {**one, "category_id": 3 + kind % 2, "iscrowd": int(kind == 3), "segmentation": segmentation}
            )
    categories = [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (out / "instances.json").write_text(json.dumps(document))
    source = open_source(out / "images", out / "instances.json")
    gpuload.pack(source, out / "set", workers=1, shuffle=False)
    return out


def truth(coco: Path) -> Any:
    return importlib.import_module("pycocotools.coco").COCO(str(coco / "instances.json"))


def load(data: Any, batch_size: int, augment: Any = KEEP, fields: Any = (TARGETS,)) -> gpuload.DaliIterator:
    return loaders.load(data, batch_size, augment=augment, fields=fields, shuffle=False)


def targets(coco: Path, augment: gpuload.Augment, spec: Any = TARGETS) -> list[Any]:
    with load(coco / "set/train", 4, augment, ("image", spec)) as loader:
        return [(image, target) for images, some in loader for image, target in zip(images, some, strict=True)]


def test_masks_areas_and_crowds_are_those_of_pycocotools(coco: Path) -> None:
    api = truth(coco)
    seen = 0
    for image, target in targets(coco, KEEP):
        entries = api.loadAnns(api.getAnnIds(target["image_id"]))
        assert target["masks"].shape == (len(entries), *image.shape[1:]) and str(target["masks"].dtype) == "torch.uint8"
        for entry, mask in zip(entries, target["masks"].numpy(), strict=True):
            np.testing.assert_array_equal(mask, api.annToMask(entry))
        assert target["area"].tolist() == pytest.approx([entry["area"] for entry in entries])
        assert target["iscrowd"].tolist() == [entry["iscrowd"] for entry in entries]
        seen += len(entries)
    assert seen == len(api.anns) > 30 and sum(entry["iscrowd"] for entry in api.anns.values()) > 5


def test_crowds_are_for_evaluation_alone(coco: Path) -> None:
    api = truth(coco)
    usual = [target for _, target in targets(coco, KEEP, gpuload.Boxes(as_targets=True, masks=True, min_visible=0))]
    expected = [[e["area"] for e in api.loadAnns(api.getAnnIds(t["image_id"], iscrowd=0))] for t in usual]
    assert [target["area"].tolist() for target in usual] == [pytest.approx(areas) for areas in expected]
    assert [len(target["masks"]) for target in usual] == list(map(len, expected))
    first = targets(coco, KEEP, gpuload.Boxes(as_targets=True, masks=True, min_visible=0, max_boxes=1))
    for (_, target), whole in zip(first, usual, strict=True):
        assert torch.equal(target["masks"], whole["masks"][:1]) and torch.equal(target["boxes"], whole["boxes"][:1])


GEOMETRIES: dict[str, gpuload.Augment] = {
    "crop": gpuload.Augment(48, flip=0.5, vertical_flip=0.5, normalize=None),
    "letterbox": gpuload.Augment(70, "letterbox", flip=0.5, normalize=None),
    "jitter": gpuload.Augment(64, gpuload.ScaleJitter((0.5, 2.0)), normalize=None),
    "zoom": gpuload.Augment(64, gpuload.ZoomOut((1.0, 2.0), p=1.0), normalize=None),
    "resize": gpuload.Augment(None, gpuload.Resize([40, 70], 90), flip=0.5, normalize=None),
    "padded": gpuload.Augment(None, gpuload.Resize([40, 70], 90, 32), flip=0.5, normalize=None),
    "pad_or_crop": gpuload.Augment(56, "pad_or_crop", flip=0.5, normalize=None),
    "rotated": gpuload.Augment(64, flip=0.5, transforms=[RandomRotation(40)], normalize=None),
    "affine": gpuload.Augment(64, transforms=[RandomAffine(20, (0.2, 0.2), (0.6, 1.4), 10)], normalize=None),
    "perspective": gpuload.Augment(64, transforms=[RandomPerspective(0.4, p=1.0)], normalize=None),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each sample has one instance, a polygon or runs, and its mask as a field of its own."""
    tools = importlib.import_module("pycocotools.mask")
    folder, rng = tmp_path_factory.mktemp("pairs"), np.random.default_rng(3)

    def samples() -> Any:
        for number in range(40):
            width, height = SIDES[number % 5]
            polygon = star(rng, *(rng.random(2) * [width, height]), 25)
            (runs,) = tools.frPyObjects([polygon], height, width)
            mask, (x, y, w, h) = tools.decode(runs), tools.toBbox(runs).tolist()
            image = np.asarray(smooth_image(rng, width, height))
            masks = [[polygon], runs, mask][number % 3]
            yield {"image": image, "mask": mask, "boxes": [(x, y, x + w, y + h)], "boxes_masks": [masks]}

    gpuload.pack(samples(), folder, workers=1, encode="raw", shuffle=False)
    return folder / "train"


@pytest.mark.parametrize("name", GEOMETRIES)
def test_masks_move_with_their_images(pairs: Path, name: str) -> None:
    """Runs as masks do, to the last pixel where pixels are not warped (these once, masks after they were resized);
    polygons are drawn after they moved."""
    differing = {True: [0, 0, 0], False: [0, 0, 0]}  # of polygons or not: pixels that differ, and both counts
    with load(pairs, 40, GEOMETRIES[name], ("image", "mask", TARGETS)) as loader:
        [(images, masks, found)] = loader
    for number, (image, mask, target) in enumerate(zip(images, masks, found, strict=True)):
        assert tuple(target["masks"].shape[1:]) == tuple(image.shape[1:]) == tuple(mask.shape)
        one = target["masks"][0] if len(target["masks"]) else mask * 0
        counts = int((one != mask).sum()), int(one.sum()), int(mask.sum())
        differing[number % 3 == 0] = [a + b for a, b in zip(differing[number % 3 == 0], counts, strict=True)]
    runs, polygons = differing[False], differing[True]
    assert runs[0] <= (0.025 * runs[2] if GEOMETRIES[name].transforms else 0)
    assert polygons[0] < 0.06 * polygons[2] and abs(polygons[1] / polygons[2] - 1) < 0.02


def test_the_packer_moves_them(coco: Path, tmp_path: Path) -> None:
    source = open_source(coco / "images", coco / "instances.json")
    gpuload.pack(source, tmp_path, workers=1, shuffle=False, size=(50, 40), fit="stretch", enlarge=True, encode="raw")
    assert verify(tmp_path) == []
    augment = gpuload.Augment((40, 50), "none", normalize=None)
    with load(tmp_path / "train", 10, augment, ("image", TARGETS)) as loader:
        [(_, packed)] = loader
    for (_, target), other in zip(targets(coco, augment), packed, strict=True):
        assert target["area"].tolist() == pytest.approx(other["area"].tolist(), rel=1e-3)
        assert (target["masks"] != other["masks"]).sum() <= 0.05 * target["masks"].sum()


def test_what_is_wrong_is_named(pairs: Path, coco: Path, tmp_path: Path) -> None:
    def pack(**entries: Any) -> None:
        sample = {"image": np.zeros((8, 10, 3), np.uint8), "boxes": [(0, 0, 5, 5)], **entries}
        gpuload.pack([sample], tmp_path / "out", workers=1, overwrite=True)

    with pytest.raises(gpuload.GpuloadError, match="the runs of a mask of 'boxes' are of 8 x 10 pixels"):
        pack(boxes_masks=[{"size": [10, 8], "counts": [80]}])
    pack(boxes_masks=[[]])
    with (
        pytest.raises(gpuload.DecodeError, match="masks of its 'boxes' cannot be drawn .an instance has none"),
        load(tmp_path / "out/train", 1) as loader,
    ):
        next(iter(loader))
    with pytest.raises(gpuload.ArgumentError, match="Use as_targets=True"):
        gpuload.Boxes(masks=True)
    function = gpuload.Augment(8, transforms=[gpuload.transforms.Function(lambda sample, rng: sample["image"])])
    with pytest.raises(gpuload.ArgumentError, match="functions of samples do not move masks"):
        load(pairs, 1, function, ("image", TARGETS))


def test_functions_get_the_boxes_without_crowds(coco: Path) -> None:
    def drop_first(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**sample, "boxes": sample["boxes"][1:], "boxes_class": sample["boxes_class"][1:]}

    augment = gpuload.Augment(64, "none", normalize=None, transforms=[gpuload.transforms.Function(drop_first)])
    spec = gpuload.Boxes(as_targets=True, min_visible=0)
    before = [len(target["boxes"]) for _, target in targets(coco, gpuload.Augment(64, "none"), spec)]
    after = [target for _, target in targets(coco, augment, spec)]
    assert [len(target["boxes"]) for target in after] == [max(count - 1, 0) for count in before]
    for target in after:
        sides = target["boxes"][:, 2:] - target["boxes"][:, :2]
        assert target["area"].tolist() == pytest.approx(sides.prod(1).tolist(), rel=1e-4)
        assert not target["iscrowd"].any()


def test_they_are_shown(pairs: Path) -> None:
    data = gpuload.Dataset(pairs)
    sample = data[1]
    assert sample["boxes_masks"].shape == (1, *SIDES[1][::-1])
    augment = gpuload.Augment(64, "none", normalize=None)
    with load(data, 4, augment, ("image", TARGETS)) as loader:
        plain, drawn = next(iter(loader)), loader.preview(4)
        with load(data, 4, augment, ("image",)) as bare:
            assert drawn.tobytes() != bare.preview(4).tobytes() and len(plain[1][0]["masks"]) == 1


def with_value(pairs: Path, folder: Path, column: str, value: Any) -> Path:
    """The set with another value in a row of its index."""
    shutil.copytree(pairs, folder)
    write_value(folder, (folder / "index.arrow").read_bytes(), column, 1, value)
    return folder


@pytest.mark.parametrize(
    ("outline", "message"),
    [
        ({"size": [10**6, 10**6], "counts": [10**12]}, r"its size is \[1000000, 1000000\], its image's"),
        ({"size": [-8, -10], "counts": [80]}, r"its size is \[-8, -10\]"),
        ({"size": "no", "counts": [80]}, "not enough|too many|its size"),
        ({"counts": [80]}, "size"),
        ([[10**400, 2, 3, 4, 5, 6]], "too large"),
        ([[0, 0, 5, 1e300, 5, 6]], "a polygon is a flat list"),
        ([[0, 0, 10**5, 1] * 30_000], "cross [0-9,]+ columns"),
        ([{}], "has none|must be a string"),
        (7, "not iterable"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_outline_that_would_take_all_memory_is_none(pairs: Path, tmp_path: Path, outline: Any, message: str) -> None:
    folder = with_value(pairs, tmp_path / "set", "boxes_masks", json.dumps([outline]))
    with (
        load(folder, 40, gpuload.Augment(256)) as loader,
        pytest.raises(gpuload.DecodeError, match=f"the masks of its 'boxes' .*({message})"),
    ):
        next(iter(loader))
    if "cross" not in message:  # in the image as it is stored, which is smaller
        with pytest.raises(gpuload.GpuloadError, match="boxes"):
            gpuload.Dataset(folder)[1]


def test_masks_of_one_image_take_a_gigabyte_at_most(pairs: Path, tmp_path: Path) -> None:
    folder = with_value(pairs, tmp_path / "one", "boxes_masks", json.dumps([[[0, 0, 5, 0, 5, 5]]] * 20_000))
    for column, value in [("boxes", [0, 0, 5, 5]), ("boxes_class", 0), ("boxes_area", 25), ("boxes_crowd", 0)]:
        many = [value] * 20_000
        folder = with_value(folder, tmp_path / column, column, many)
    with (
        load(folder, 40, gpuload.Augment(256, "none")) as loader,
        pytest.raises(gpuload.DecodeError, match="20,000 masks of 256 x 256 pixels take more than a gigabyte"),
    ):
        next(iter(loader))
