"""Detection: what torchvision's models take, and evaluation by pycocotools."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from small import load

import gpuload
from gpuload.sources import open_source

SIDES = [(60, 45), (40, 80), (64, 64), (33, 47), (90, 30)]  # (width, height), of one image after another
COUNT = 20


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COCO's folder of images with a file of instances, whose class numbers have gaps, and its packed set.

    An instance is an octagon in its box; every other image has a crowd, by its runs.
    """
    out, rng = tmp_path_factory.mktemp("coco"), np.random.default_rng(0)
    (out / "images").mkdir()
    images, annotations = [], []
    for number in range(COUNT):
        width, height = SIDES[number % 5]
        name = f"{number + 100:012d}.jpg"
        (out / "images" / name).write_bytes(encode(smooth_image(rng, width, height)))
        images.append({"id": number + 100, "file_name": name, "width": width, "height": height})
        same: dict[str, Any] = {"image_id": number + 100, "iscrowd": 0}
        for _ in range(number % 4):
            x, y = (int(at) for at in rng.integers(0, 15, 2))
            w, h = int(rng.integers(6, width - x)), int(rng.integers(6, height - y))
            octagon = [(0.3, 0), (0.7, 0), (1, 0.3), (1, 0.7), (0.7, 1), (0.3, 1), (0, 0.7), (0, 0.3)]
            polygon = [at for left, top in octagon for at in (x + left * w, y + top * h)]
            shape = {"category_id": int(rng.choice([3, 7])), "segmentation": [polygon]}
            annotations.append({**same, "bbox": [x, y, w, h], "area": w * h, **shape})
        if number % 2:
            runs = {"size": [height, width], "counts": [0, 8 * height, (width - 8) * height]}
            crowd = {"category_id": 7, "iscrowd": 1, "segmentation": runs}
            annotations.append({**same, "bbox": [0, 0, 8, height], "area": 8 * height, **crowd})
    annotations = [{"id": number, **one} for number, one in enumerate(annotations, 1)]
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (out / "instances.json").write_text(json.dumps(document))
    gpuload.pack(open_source(out / "images", out / "instances.json"), out / "set", workers=1)
    return out


def evaluated(truth: Any, found: list[Any], what: str) -> Any:
    """COCO's figures, by pycocotools."""
    evaluation = importlib.import_module("pycocotools.cocoeval").COCOeval(truth, truth.loadRes(found), what)
    for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
        step()
    return evaluation.stats


def coco_boxes(target: Any) -> torch.Tensor:
    """As COCO has them: x, y, width, height."""
    corners = target["boxes"]
    return torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], dim=1)


@pytest.mark.parametrize("crop", [gpuload.Resize(), gpuload.Resize([50, 90], 100), gpuload.Resize(70, None, 32)])
def test_what_it_shows_is_what_pycocotools_expects(coco: Path, crop: Any, capsys: Any) -> None:
    """A model that finds each object of the batches where they show it reaches the best score, once its boxes are those
    of the stored image again."""
    truth = importlib.import_module("pycocotools.coco").COCO(str(coco / "instances.json"))
    fields = (
        "image",
        gpuload.Boxes(as_targets=True, numbers="coco", min_visible=0),
        "key",
        "original_size",
        "pixel_mask",
    )
    found, augment = [], gpuload.Augment(None, crop, normalize=None)
    with load(coco / "set/train", 4, augment=augment, fields=fields) as loader:
        for images, targets, keys, original, real in loader:
            for image, target, key, (height, _), mask in zip(images, targets, keys, original, real, strict=True):
                assert target["image_id"] == int(key.split("-")[-1])
                assert mask.shape[0] >= image.shape[1] and (crop.size != 70 or mask.shape == image.shape[1:])
                scale = float(height) / int(mask.any(1).sum())
                same = {"image_id": target["image_id"], "score": 1.0}
                for box, label in zip(coco_boxes(target) * scale, target["labels"], strict=True):
                    found.append({**same, "category_id": int(label), "bbox": box.tolist()})
    assert len(found) == len(truth.getAnnIds(iscrowd=False)) < len(truth.anns)
    stats = evaluated(truth, found, "bbox")
    assert "Average Precision" in capsys.readouterr().out
    best = 1.0 if crop.size is None else 0.95  # sides are whole numbers of pixels
    assert stats[0] >= best and stats[1] == 1.0


DTYPES = {"boxes": "float32", "labels": "int64", "area": "float32", "iscrowd": "int64", "masks": "uint8"}


@pytest.mark.filterwarnings("ignore")
def test_torchvisions_retinanet_resizes_images_boxes_and_masks_alike_and_trains(coco: Path) -> None:
    """The types and shapes that its models document, the transform that is the first thing that they do with a batch,
    and a step of torchvision's references: of a model whose training needs no compiled operators."""
    importlib.import_module("torchvision_anywhere")
    models = importlib.import_module("torchvision.models.detection")
    anchors = importlib.import_module("torchvision.models.detection.anchor_utils").AnchorGenerator(((16,),), ((1.0,),))
    backbone: Any = torch.nn.Conv2d(3, 16, 8, 8)
    backbone.out_channels = 16
    model = models.RetinaNet(backbone, 3, min_size=48, max_size=96, anchor_generator=anchors)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    fields = ("image", gpuload.Boxes(as_targets=True, masks=True))
    augment = gpuload.Augment(None, gpuload.Resize([48, 60], 90), flip=0.5, normalize=None)
    loader, shown = load(coco / "set/train", 4, augment=augment, fields=fields, drop_last=False), 0
    for images, found in loader:
        assert all(image.dtype == torch.float32 and 0 <= image.min() <= image.max() <= 1 for image in images)
        loss = sum(model(images, found).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
        for target in found:
            assert isinstance(target.pop("image_id"), int) and (target["labels"] >= 1).all()
            torch.testing.assert_close(target["area"], (target["boxes"][:, 2:] - target["boxes"][:, :2]).prod(1))
            assert {name: str(value.dtype).removeprefix("torch.") for name, value in target.items()} == DTYPES
        resized, moved = model.transform(images, found)
        sizes = [*(image.shape[1:] for image in images), *resized.image_sizes]
        for size, target in zip(sizes, (*found, *moved), strict=True):
            masks, boxes = target["masks"], target["boxes"]
            assert masks.dtype == torch.uint8 and masks.shape == (len(boxes), *size) and boxes.shape == (len(masks), 4)
            assert len(target["labels"]) == len(target["area"]) == len(target["iscrowd"]) == len(boxes)
            for mask, box in zip(masks, boxes, strict=True):
                (top, left), (bottom, right) = (ends.tolist() for ends in torch.nonzero(mask).aminmax(dim=0))
                torch.testing.assert_close(box, torch.tensor([left, top, right + 1.0, bottom + 1]), atol=2, rtol=0)
                shown += 1
    assert shown > 40 and len(loader) == 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["bbox", "segm"])
def test_evaluation_with_crowds_is_that_of_the_original(coco: Path, what: str, capsys: Any) -> None:
    """torchvision's references make the truth of what the loader gives; detections that lie in crowds count for
    neither."""
    tools, masks_of = (importlib.import_module(f"pycocotools.{name}") for name in ("coco", "mask"))
    original, given = tools.COCO(str(coco / "instances.json")), tools.COCO()
    spec = gpuload.Boxes(as_targets=True, masks=True, crowds=True, min_visible=0)
    document: dict[str, Any] = {"images": [], "annotations": [], "categories": original.dataset["categories"]}
    augment = gpuload.Augment(None, "keep", normalize=None)
    for images, targets in load(coco / "set/train", 4, augment=augment, fields=("image", spec), shuffle=False):
        for image, target in zip(images, targets, strict=True):
            height, width = image.shape[1:]
            document["images"].append({"id": target["image_id"], "height": height, "width": width})
            kinds = (target[name].tolist() for name in ("labels", "area", "iscrowd"))
            for box, label, area, crowd, mask in zip(coco_boxes(target).tolist(), *kinds, target["masks"], strict=True):
                same = {"id": len(document["annotations"]) + 1, "image_id": target["image_id"], "bbox": box}
                same |= {"area": area, "iscrowd": crowd, "category_id": [0, 3, 7][label]}
                runs = masks_of.encode(np.asfortranarray(mask.numpy()))
                document["annotations"].append({**same, "segmentation": runs})
    given.dataset = document
    given.createIndex()
    rng, detections = np.random.default_rng(2), []
    for one in original.anns.values():
        box = (np.array(one["bbox"]) + rng.normal(0, 1.5, 4)).clip(1).tolist()
        x, y, w, h = box
        image = original.imgs[one["image_id"]]
        (runs,) = masks_of.frPyObjects([[x, y, x + w, y, x + w, y + h, x, y + h]], image["height"], image["width"])
        shape = {"bbox": box} if what == "bbox" else {"segmentation": runs}
        same = {"image_id": one["image_id"], "category_id": one["category_id"], "score": float(rng.random())}
        detections.append({**same, **shape})

    def stats(truth: Any) -> Any:
        truth.createIndex()
        return evaluated(truth, [{**one} for one in detections], what).tolist()

    expected = stats(original)
    assert stats(given) == pytest.approx(expected) and 0.2 < expected[0] < 0.95
    document["annotations"] = [one for one in document["annotations"] if not one["iscrowd"]]
    assert stats(given)[0] < expected[0]  # detections in crowds are then false
    capsys.readouterr()
