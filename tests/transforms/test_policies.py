"""AugMix, and the policies of timm: what they draw and do, against torchvision and timm themselves."""

import importlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loaders import largest_gap
from PIL import Image
from test_transforms import COUNT, GAP, assert_alike, draw
from test_transforms_pixels import apart, far_apart, picture

from gpuload import ArgumentError, Augment
from gpuload import transforms as own
from gpuload.decode.postprocess import transform, warp_masks
from gpuload.draws import make_key
from gpuload.transforms.apply import apply_steps
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import step_of
from gpuload.transforms.steps import draw_mixture, join, one_step, sample_draws
from gpuload.transforms.timm import _CHANGES
from gpuload.transforms.warps import affine_of

TEXTS = [
    *("rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.7-mmax12-inc1", "rand", "rand-m15-mmax20-mstd101"),
    *("rand-m9-tweights-n4", "rand-m8-t3a", "rand-m5-mstd1-t3aw-n3"),
    *("augmix-m5-w4-d2", "augmix", "augmix-mstd1-a0.5", "original-mstd0.5", "originalr", "v0", "v0r", "3a"),
    *("rand-m9-mstd0-mmax10", "augmix-mstd150", "rand-m9-mstd0.5-t3aw-inc1"),
]


@pytest.fixture(scope="module")
def policies() -> Any:
    """timm's module."""
    importlib.import_module("torchvision_anywhere")
    return pytest.importorskip("timm.data.auto_augment", reason="needs the extra 'frameworks'")


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
def test_what_timms_factory_makes_of_a_text_is_that_policy(policies: Any, text: str) -> None:
    """`Augment.torchvision` reads the objects, in which the text is no more."""
    options: dict[str, Any] = {"input_size": (3, 64, 64), "mean": (0.5, 0.4, 0.25), "is_training": True}
    made = importlib.import_module("timm.data").create_transform(**options, auto_augment=text, interpolation="bicubic")
    for augment in (Augment.timm(options, auto_augment=text), Augment.torchvision(made)):
        found = augment.transforms[0]
        assert isinstance(found, own.TimmAutoAugment) and found.fill == (128, 102, 64)
        pairs = zip(draw(found, samples=500), draw(own.TimmAutoAugment(text, found.fill), samples=500), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)


BY_HAND: list[Callable[[Any], Any]] = [
    lambda policies: policies.rand_augment_transform("rand-m9", {"interpolation": Image.Resampling.NEAREST}),
    lambda policies: policies.rand_augment_transform("rand-m9", {"translate_pct": 0.2}),
    lambda policies: policies.rand_augment_transform("rand-m9", transforms=["Invert", "Rotate"]),
    lambda policies: policies.RandAugment(policies.rand_augment_ops(9.5)),
    lambda policies: policies.RandAugment(policies.rand_augment_ops(-1)),
    lambda policies: policies.RandAugment(policies.rand_augment_ops(9), choice_weights=[0.03, *[0.97 / 14] * 14]),
    lambda policies: policies.AutoAugment([[policies.AugmentOp("Invert", 0.5, 3)]]),
    lambda policies: policies.augment_and_mix_transform("augmix-b1", {"translate_pct": 0.3}),
    lambda policies: policies.augment_and_mix_transform("augmix-m3"),  # which moves farther than create_transform's
]


@pytest.mark.parametrize("make", BY_HAND)
def test_policies_that_no_text_makes_are_refused(policies: Any, make: Callable[[Any], Any]) -> None:
    theirs = importlib.import_module("torchvision.transforms")
    with pytest.raises(ArgumentError, match=r"timm's \w+ has no counterpart: .* Use one such as auto_augment="):
        Augment.torchvision(theirs.Compose([theirs.RandomResizedCrop(32), make(policies)]))


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
    unlike = ["Invert", "Equalize", "AutoContrast", "PosterizeOriginal", "SolarizeIncreasing", "SolarizeAdd"]
    unlike += [f"{name}Increasing" for name in ("Contrast", "Brightness", "Sharpness")]
    ours = {name: step_of(_CHANGES[name][0], np.zeros(1), 8, 8, None).ops[0, 0] for name in unlike}
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
        assert far_apart(found, expected) < 0.1
        return
    largest, mean = apart(found, expected)
    most = LIMITS.get(name, (1, 0.6))
    assert largest <= most[0] and mean <= most[1], (largest, mean)
