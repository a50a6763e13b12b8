"""`TimmMixup` beside timm's own Mixup, which gets the same draws: the same images and targets."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpuload
from gpuload.batchwise import TimmMixup
from gpuload.batchwise.mixers import symmetric_beta


def load(packed: Path, *transforms: Any) -> gpuload.DaliIterator:
    augment = gpuload.Augment(20)
    return gpuload.DaliIterator(
        packed, 12, augment=augment, device="cpu", decoder="native", batch_transforms=transforms
    )


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_same_draws_give_timms_images_and_targets(
    packed: Path, mode: Any, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("torchvision_anywhere")
    timm = importlib.import_module("timm.data.mixup")
    options: dict[str, Any] = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "prob": 0.8, "mode": mode}
    plans: list[Any] = []

    class Noted(TimmMixup):
        def plan(self, *given: Any) -> Any:
            plans.append(super().plan(*given))
            return plans[-1]

    ours = Noted(**options, label_smoothing=smoothing)
    theirs = timm.Mixup(**options, label_smoothing=smoothing, num_classes=3)

    kinds, epochs = set(), 3
    mixed = (batch for loader in [load(packed, ours)] for _ in range(epochs) for batch in loader)
    plain = (batch for loader in [load(packed)] for _ in range(epochs) for batch in loader)
    for (images, targets), (own, labels) in zip(mixed, plain, strict=True):
        plan = plans.pop(0)
        cut = (plan.in_box == 0) & (plan.label < 1)
        boxes: Iterator[Any] = (
            ((top, bottom, left, right), share)
            for (top, left, bottom, right), share, is_cut in zip(plan.box.tolist(), plan.label, cut, strict=True)
            if is_cut
        )
        monkeypatch.setattr(theirs, "_params_per_batch", lambda p=plan, c=cut: (float(p.label[0]), c[0]))
        monkeypatch.setattr(
            theirs, "_params_per_elem", lambda n, p=plan, c=cut: (p.label[:n].astype(np.float32), c[:n])
        )
        monkeypatch.setattr(timm, "cutmix_bbox_and_lam", lambda *_, b=boxes, **__: next(b))
        expected, expected_targets = theirs(own, labels)
        torch.testing.assert_close(images, expected, atol=2e-6, rtol=0)
        torch.testing.assert_close(targets, expected_targets.float(), atol=2e-6, rtol=0)
        kinds |= set(zip(cut.tolist(), (plan.label < 1).tolist(), strict=True))
        same = {"batch": [0] * 12, "pair": [*range(6), *range(5, -1, -1)], "elem": range(12)}[mode]
        assert (plan.box == plan.box[same]).all() and (plan.label == plan.label[same]).all()
    assert kinds == {(True, True), (False, True), (False, False)}


def test_boxes_are_those_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lambda and a centre, also where the box reaches out of the image."""
    importlib.import_module("torchvision_anywhere")
    timm = importlib.import_module("timm.data.mixup")
    rng = np.random.default_rng(0)
    numbers = rng.random((5, 200))
    plan = TimmMixup(0.0, 1.0, mode="elem").plan(lambda number: numbers[number], 20, 31)
    shares = symmetric_beta(1.0, numbers[1], numbers[2])
    for box, share, y, x, label in zip(plan.box, shares, numbers[3], numbers[4], plan.label, strict=True):
        centre = iter((int(y * 20), int(x * 31)))
        monkeypatch.setattr(timm.np.random, "randint", lambda *_, c=centre, **__: next(c))
        (top, bottom, left, right), corrected = timm.cutmix_bbox_and_lam((3, 20, 31), share)
        assert box.tolist() == [top, left, bottom, right]
        assert label == pytest.approx(corrected)


def test_it_is_switched_off_as_timm_does(packed: Path) -> None:
    """Labels stay smooth; a last batch of an odd number of samples is mixed, too, the middle one with itself."""
    loader = load(packed, TimmMixup())
    loader.mixup_enabled = False
    images, labels = next(iter(loader))
    own, classes = next(iter(load(packed)))
    assert torch.equal(images, own)
    torch.testing.assert_close(labels, torch.eye(3)[classes] * 0.9 + 0.1 / 3)
    odd = gpuload.DaliIterator(
        packed, 7, augment=gpuload.Augment(8), device="cpu", batch_transforms=[TimmMixup(mode="elem")], drop_last=False
    )
    for _, labels in odd:
        torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
    for wrong in ({"mixup_alpha": 0.0}, {"mode": "half"}, {"label_smoothing": 2}):
        with pytest.raises(gpuload.ArgumentError, match=next(iter(wrong))):
            TimmMixup(**wrong)  # type: ignore[arg-type]
