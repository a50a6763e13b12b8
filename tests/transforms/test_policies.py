"""AugMix, and the policies of timm: what they draw and do, against torchvision and timm themselves."""

import importlib
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_transforms import COUNT, GAP, assert_alike, draw, largest_gap
from test_transforms_pixels import apart, at_the_edge, picture

from gpuload import ArgumentError, Augment
from gpuload import transforms as own
from gpuload.decode.postprocess import transform, warp_masks
from gpuload.draws import make_key
from gpuload.transforms.apply import apply_steps
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import _CHANGES
from gpuload.transforms.steps import draw_mixture, join, one_step, sample_draws
from gpuload.transforms.warps import affine_of

TEXTS = [
    *("rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.7-mmax12-inc1", "rand", "rand-m15-mmax20-mstd101"),
    *("rand-m9-tweights-n4", "rand-m8-t3a", "rand-m5-mstd1-t3aw-n3"),
    *("augmix-m5-w4-d2", "augmix", "augmix-mstd1-a0.5", "original-mstd0.5", "originalr", "v0", "v0r", "3a"),
]

GOLDEN_OPS = [
    [0, 16, 18, 2, 0, 0, 19, 10, 0, 0, 19, 3, 16, 0, 20],
    [2, 8, 18, 1, 0, 0, 19, 12, 12, 2, 19, 16, 1, 16, 20],
]
GOLDEN_NUMBERS = [[0.0, 0.055351, 0.105892, 0.537703, 0.301054], [0.166388, 0.793447, 0.023021, 0.016725, 0.166807]]


@pytest.fixture(scope="module")
def policies() -> Any:
    """timm's module."""
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("timm.data.auto_augment")


# ---- mixtures


def test_a_mixture_is_what_its_chains_and_shares_say() -> None:
    image = picture(30, 40)
    chains = [
        [(Op.INVERT, 0.0)],
        [(Op.POSTERIZE, 3.0), (Op.SOLARIZE_ADD, 60.0)],
        [(Op.NOTHING, 0.0), (Op.BRIGHTNESS, 2)],
    ]
    shares = np.float32([0.4, 0.3, 0.2, 0.1])
    steps = [one_step(Op.INVERT, 1), one_step(Op.KEEP, 1, shares[0])]
    inverted = transform(image[None], steps[0])
    expected = inverted.numpy().astype(np.float32) * shares[0]
    for number, chain in enumerate(chains, 1):
        own_steps = [one_step(op, 1, value) for op, value in chain]
        steps += [*own_steps, one_step(Op.MIX if number < 3 else Op.MIXED, 1, shares[number])]
        expected += transform(inverted, join(own_steps)).numpy().astype(np.float32) * shares[number]
    steps.append(one_step(Op.INVERT, 1))
    for apply in (transform, apply_steps):
        found = apply(image[None], join(steps)).numpy()
        np.testing.assert_array_equal(255 - found, expected.astype(np.uint8))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 6.0])
def test_shares_are_distributed_as_they_should(alpha: float) -> None:
    draws = sample_draws(make_key(0), np.arange(COUNT))
    steps = draw_mixture(3, 1, alpha, draws, lambda own: one_step(Op.INVERT, 3 * COUNT))
    shares = np.stack([steps.args[:, column, 0] for column in (0, 2, 4, 6)], axis=1).astype(np.float64)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
    rng = np.random.default_rng(0)
    assert largest_gap(shares[:, 0], rng.beta(alpha, alpha, COUNT)) < GAP
    of_chains = shares[:, 1:] / np.maximum(shares[:, 1:].sum(axis=1, keepdims=True), 1e-30)
    sound = shares[:, 0] < 0.999  # else float32 has not much left of the chains'
    for column, theirs in zip(of_chains[sound].T, rng.dirichlet([alpha] * 3, COUNT).T, strict=True):
        assert largest_gap(column, theirs) < 1.3 * GAP


def test_changes_of_augmix_are_torchvisions(transforms: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    done: list[tuple[str, float]] = []

    def record(self: Any, image: Any, change: str, magnitude: float, **_: Any) -> Any:
        done.append((change, round(magnitude, 3)))
        return image

    reference = transforms.AugMix(severity=4, mixture_width=2)
    monkeypatch.setattr(type(reference), "_apply_image_or_video_transform", record)
    for _ in range(3000):
        reference(torch.empty((3, 60, 90), dtype=torch.uint8))
    steps = draw(own.AugMix(severity=4, mixture_width=2), samples=3000, height=60, width=90)
    codes = {"Posterize": Op.POSTERIZE, "Solarize": Op.SOLARIZE, "Contrast": Op.CONTRAST, "Equalize": Op.EQUALIZE}
    for name, code in codes.items():
        theirs = sorted(value for change, value in done if change == name)
        ours = np.sort(steps.args[:, :, 0][steps.ops == code].astype(np.float64))
        assert abs(len(ours) - len(theirs)) < 5 * np.sqrt(2 * len(theirs)), name
        ours = {"Contrast": ours - 1, "Solarize": ours / 255}.get(name, ours)
        assert sorted(set(np.round(ours, 2))) == sorted(set(np.round(theirs, 2))), name
    lengths = (steps.ops[:, 1:4] > 0).sum(axis=1)
    assert_alike(dict_of(lengths), {1: 1000, 2: 1000, 3: 1000})


def dict_of(values: Any) -> Any:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def test_what_marks_an_image_stays_where_it_is_in_a_mixture() -> None:
    steps = draw(own.AugMix(mixture_width=1, all_ops=False), samples=8, height=30, width=40)
    assert (steps.ops == Op.AFFINE_BILINEAR).any() and affine_of(steps, 30, 40) is None
    masks = torch.randint(0, 5, (8, 30, 40), dtype=torch.uint8)
    assert torch.equal(warp_masks(masks, steps, 0), masks)
    turned = own.RandomRotation((90, 90)).draw(sample_draws(0, np.arange(8)), 30, 40)
    after = affine_of(join([steps, turned]), 30, 40)
    assert after is not None and np.allclose(after, affine_of(turned, 30, 40))


# ---- timm's


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_timm_are_read_as_timm_reads_them(policies: Any, text: str) -> None:
    size: Any = {"input_size": (3, 64, 64), "mean": (0.5, 0.4, 0.25), "is_training": True}
    augment = Augment.timm(size, auto_augment=text)
    found = augment.transforms[0]
    assert isinstance(found, own.TimmAutoAugment) and found.fill == (128, 102, 64)
    assert found.config == text


@pytest.mark.parametrize("text", [one for one in TEXTS if one.startswith(("rand", "v0", "3a"))])
def test_they_draw_what_timm_draws(policies: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002, which timm uses
    done: list[tuple[str, float]] = []
    names = {function: name for name, function in policies.NAME_TO_OP.items()}
    made = (policies.rand_augment_transform if text.startswith("rand") else policies.auto_augment_transform)(text)
    for op in made.ops if hasattr(made, "ops") else [op for pair in made.policy for op in pair]:
        function = op.aug_fn
        op.aug_fn = lambda image, *level, function=function, **_: done.append((names[function], *level))
    for _ in range(4000):
        made(None)
    steps = draw(own.TimmAutoAugment(text), samples=4000)
    ours = {
        "Invert": Op.INVERT,
        "Equalize": Op.EQUALIZE,
        "AutoContrast": Op.AUTOCONTRAST,
        "PosterizeOriginal": Op.POSTERIZE,
        "SolarizeIncreasing": Op.SOLARIZE,
        "SolarizeAdd": Op.SOLARIZE_ADD,
        "ContrastIncreasing": Op.CONTRAST,
        "BrightnessIncreasing": Op.BRIGHTNESS,
        "SharpnessIncreasing": Op.SHARPNESS,
    }
    found = {name: steps.args[:, :, 0][steps.ops == op].astype(np.float64) for name, op in ours.items()}
    theirs = {name: np.array([level[0] if level else 0 for one, *level in done if one == name]) for name in ours}
    number = {name: len(values) for name, values in theirs.items()}
    assert sum(number.values()) > 300 or text == "3a"
    counted = [name for name in ours if number[name] or len(found[name])]
    assert_alike({one: len(found[one]) for one in counted}, {one: number[one] for one in counted})  # type: ignore[arg-type]
    for name in counted:
        assert largest_gap(found[name].round(5), theirs[name].round(5)) < 2.2 / np.sqrt(number[name]), name
    moved = np.isin(steps.ops, [Op.AFFINE_BILINEAR]).sum()
    theirs_moved = sum(name.startswith(("Shear", "Translate", "Rotate")) for name, *_ in done)
    assert abs(int(moved) - theirs_moved) < 5 * np.sqrt(2 * theirs_moved + 1)


# Of Pillow, the largest and mean difference in levels; a blur of Pillow's is three averages.
LIMITS = {"GaussianBlur": (22, 1.5), "GaussianBlurRand": (22, 1.5)}


@pytest.mark.parametrize("magnitude", [0, 3, 7.3, 10])
@pytest.mark.parametrize("name", list(_CHANGES))
def test_a_change_does_what_timms_does(
    policies: Any, monkeypatch: pytest.MonkeyPatch, name: str, magnitude: float
) -> None:
    size = 61, 47
    image, policy = picture(*size), own.TimmAutoAugment("rand", fill=(12, 200, 77))
    monkeypatch.setattr(random, "random", lambda: 0.4)  # both take the positive sign, and no other number
    monkeypatch.setattr(random, "uniform", lambda low, high: low + 0.6 * (high - low))
    hparams = {"img_mean": (12, 200, 77), "interpolation": Image.Resampling.BILINEAR}
    which, strength = np.array([list(_CHANGES).index(name)]), np.array([magnitude / 10])
    steps = policy._changes(which, strength, np.array([0.6]), 0.45, *size)  # type: ignore[attr-defined]
    found = transform(image[None], steps)[0]
    if name.startswith("Posterize") and not steps.args[0, 0, 0]:  # which newer versions of Pillow refuse
        assert not found.any()
        return
    op = policies.AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=hparams)
    theirs = np.array(op(Image.fromarray(image.permute(1, 2, 0).numpy())))
    expected = torch.from_numpy(theirs).permute(2, 0, 1)
    if steps.ops[0, 0] == Op.AFFINE_BILINEAR:  # Pillow weights no fill
        sure = ~at_the_edge(steps, *size)
        found, expected = found[:, sure], expected[:, sure]
        assert sure.float().mean() > 0.3
    largest, mean = apart(found, expected)
    most = LIMITS.get(name, (1, 0.6))
    assert largest <= most[0] and mean <= most[1], (largest, mean)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: own.TimmAutoAugment("rand-x3"), "TimmAutoAugment(config='rand-x3'): expected one of timm's rand, augmix"),
    (lambda: own.TimmAutoAugment("augmix-b1"), "TimmAutoAugment(config='augmix-b1')"),
    (lambda: own.TimmAutoAugment("v1"), "TimmAutoAugment(config='v1')"),
    (lambda: own.TimmAutoAugment("rand-p1.5"), "TimmAutoAugment(config='rand-p1.5')"),
    (lambda: own.TimmAutoAugment("rand-n65"), "TimmAutoAugment(config='rand-n65')"),
    (lambda: own.TimmAutoAugment("rand-tx"), "TimmAutoAugment(config='rand-tx')"),
    (lambda: own.AugMix(severity=11), "AugMix(severity=11)"),
    (lambda: own.AugMix(chain_depth=0), "AugMix(chain_depth=0): expected a whole number in 1..16, or -1"),
    (lambda: own.AugMix(alpha=0), "AugMix(alpha=0)"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        make()
    assert str(raised.value).startswith(message)


def test_policies_without_their_text_are_refused(policies: Any) -> None:
    theirs = importlib.import_module("torchvision.transforms")
    for step in (policies.rand_augment_transform("rand-m9"), policies.auto_augment_transform("v0")):
        with pytest.raises(ArgumentError, match=r"known by its text alone: Augment.timm\("):
            Augment.torchvision(theirs.Compose([theirs.RandomResizedCrop(32), step]))


def test_steps_are_those_that_they_always_were() -> None:
    """A change of these numbers gives other images for the same seed: it belongs in the changelog."""
    steps = draw(own.TimmAutoAugment("rand-m9-mstd0.5-inc1"), own.AugMix(), samples=2)
    assert steps.ops.tolist() == GOLDEN_OPS
    np.testing.assert_allclose(steps.args[:, [0, 2, 6, 10, 14], 0], GOLDEN_NUMBERS, atol=1e-6)
