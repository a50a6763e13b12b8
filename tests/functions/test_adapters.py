"""Transforms of torchvision and of Albumentations, given as they are."""

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import albumentations as A
import numpy as np
import pytest
import torch
from loaders import load
from painted import FIELDS, check_boxes, check_masks

import gpuload
from gpuload import ArgumentError, Augment, FunctionError, RandomResizedCrop
from gpuload.functions import Albumentations, Torchvision
from gpuload.transforms import Function


def of_one(painted: Path, augment: Augment, threads: int, fields: Any = ("image",)) -> list[Any]:
    with load(painted, 4, augment=augment, fields=fields, num_threads=threads) as loader:
        return [batch for _ in range(2) for batch in loader]


def test_torchvisions_are_exact_in_any_number_of_threads(painted: Path, transforms: ModuleType) -> None:
    def noise(image: Any) -> Any:
        return (image + 20 * (torch.rand_like(image.float()) + torch.randn_like(image.float()))).clamp(0, 255).byte()

    transform = transforms.Compose(
        [
            noise,
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
            transforms.RandomApply([transforms.GaussianBlur(3)], 0.5),
            transforms.RandAugment(),
            transforms.RandomErasing(0.5),
        ]
    )
    augment = Augment(24, transforms=[Function(transform)], dtype="uint8")
    assert isinstance(augment.transforms[0].function, Torchvision)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = of_one(painted, augment, 1)
    assert torch.equal(torch.get_rng_state(), before)  # the user's own numbers go on as they were
    torch.manual_seed(1)
    other = of_one(painted, augment, 4)
    assert all(torch.equal(a, b) for (a,), (b,) in zip(one, other, strict=True))
    assert not torch.equal(one[0][0], of_one(painted, Augment(24, dtype="uint8"), 1)[0][0])


def test_torchvisions_move_boxes_and_masks(painted: Path, transforms: ModuleType) -> None:
    transform = transforms.Compose([transforms.RandomHorizontalFlip(1), transforms.RandomVerticalFlip(1)])
    augment = Augment(64, dtype="uint8", crop=RandomResizedCrop(scale=(0.5, 1)), transforms=[Function(transform)])
    compared = 0
    for image, mask, boxes, *_ in of_one(painted, augment, 2, FIELDS):
        check_masks(image, mask)
        compared += check_boxes(image, boxes)
    assert compared > 50


def test_albumentations_are_exact_and_move_all_fields(painted: Path) -> None:
    transform = A.Compose(
        [A.HorizontalFlip(p=0.5), A.Transpose(p=0.5), A.CoarseDropout(p=0.0)],
        bbox_params=A.BboxParams("pascal_voc", label_fields=["classes"]),
        keypoint_params=A.KeypointParams("xy", remove_invisible=False),
    )
    augment = Augment(64, dtype="uint8", crop="none", transforms=[Function(transform, before_crop=True)])
    assert isinstance(augment.transforms[0].function, Albumentations)
    one, other = (of_one(painted, augment, threads, (*FIELDS, "keypoints")) for threads in (1, 4))
    compared = 0
    for (image, mask, boxes, *_, points), (again, *_) in zip(one, other, strict=True):
        assert torch.equal(image, again)
        check_masks(image, mask)
        compared += check_boxes(image, boxes)
        assert points.keypoints.shape[-2:] == (3, 3)
    assert compared > 50


def test_what_is_refused(painted: Path, transforms: ModuleType) -> None:
    """Conversions, which are left to `Augment`, and other parameters, with which Albumentations returns other units, or
    other points, and no error."""
    boxes, names, coco = (
        {"bbox_params": A.BboxParams(form, label_fields=[name])}
        for form, name in (("pascal_voc", "classes"), ("pascal_voc", "names"), ("coco", "classes"))
    )
    fewer, turned = ({"keypoint_params": A.KeypointParams(form)} for form in ("xy", "yx"))
    expected = r"expected A.Compose\(\[...\], bbox_params=A.BboxParams\('pascal_voc'"
    cases: list[tuple[Any, Any, str]] = [
        (transforms.ToDtype(torch.float32, scale=True), "index", "made torch.float32 of the image, .* leave ToDtype, To"),
        (A.Compose([A.Normalize()]), "index", "Albumentations returned float32 .24, 24, 3. as 'image': expected uint8"),
        (A.Compose([A.CenterCrop(4, 4), A.Resize(24, 24)], **fewer), "keypoints", r"into the transform, and \d+ came out: use"),
        (A.HorizontalFlip(p=1), FIELDS[2], expected),
        (A.Compose([A.HorizontalFlip(p=1)]), FIELDS[2], expected),
        (A.Compose([A.HorizontalFlip()], **coco), FIELDS[2], expected),
        (A.Compose([A.HorizontalFlip()], **names), FIELDS[2], expected),
        (A.Compose([A.HorizontalFlip()], **boxes), "keypoints", expected),
        (A.Compose([A.HorizontalFlip()], **turned), "keypoints", expected),
    ]  # fmt: skip
    for transform, field, message in cases:
        with pytest.raises(FunctionError, match=message):
            of_one(painted, Augment(24, transforms=[Function(transform)]), 1, ("image", field))
    assert of_one(painted, Augment(24, transforms=[Function(A.Compose([A.HorizontalFlip(p=1)], **boxes))]), 1)


def test_arguments_and_pickles(transforms: ModuleType) -> None:
    with pytest.raises(ArgumentError, match=r"Albumentations\(int\): expected a transform, such as A.Compose"):
        Albumentations(3)
    with pytest.raises(ArgumentError, match=r"Torchvision\(int\): expected a transform, such as v2.Compose"):
        Torchvision(3)
    sample = {"image": np.zeros((8, 8, 3), np.uint8)}
    for one in (Albumentations(A.Compose([A.GaussNoise(p=1)])), Torchvision(transforms.ColorJitter(0.5))):
        again = pickle.loads(pickle.dumps(one))
        first, second = (each(dict(sample), np.random.default_rng(0))["image"] for each in (one, again))
        assert np.array_equal(first, second) and repr(one) == repr(again)
    assert gpuload.functions.__all__ == sorted(gpuload.functions.__all__)
