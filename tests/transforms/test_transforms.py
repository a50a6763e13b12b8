"""What the transforms draw: the distributions against torchvision's, tables, arguments, and what randomness hangs on."""

import subprocess
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaders import largest_gap

import gpuload
from gpuload import transforms as own
from gpuload.draws import make_key
from gpuload.transforms import RandomErasing
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import POLICIES, step_of
from gpuload.transforms.steps import Steps, draw_steps, join, sample_draws

COUNT = 10_000
# Two samples of 10,000 from one distribution are further apart than this once in 1,000 draws.
GAP = 0.0276

# Of transforms, the codes of steps, and the first numbers of some.
GOLDEN: list[tuple[list[Any], list[list[int]], list[int], list[list[float]]]] = [
    (
        [own.ColorJitter(0.4, 0.4, 0.4, 0.1), own.RandAugment()],
        [[3, 2, 4, 1, 3, 13], [2, 4, 1, 3, 13, 12], [4, 3, 2, 1, 13, 13]],
        [0, 1, 2, 3],
        [
            [0.978195, 0.889432, -0.029296, 1.027836],
            [0.631901, 0.060456, 1.290858, 0.717082],
            [0.07991, 1.146221, 1.044549, 0.830225],
        ],
    ),
    (
        [own.TimmAutoAugment("rand-m9-mstd0.5-inc1"), own.AugMix()],
        [
            [0, 16, 18, 2, 0, 0, 19, 10, 0, 0, 19, 3, 16, 0, 20],
            [2, 8, 18, 1, 0, 0, 19, 12, 12, 2, 19, 16, 1, 16, 20],
        ],
        [0, 2, 6, 10, 14],
        [[0.0, 0.055351, 0.105892, 0.537703, 0.301054], [0.166388, 0.793447, 0.023021, 0.016725, 0.166807]],
    ),
]

SOME = [
    own.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    own.GaussianBlur(5, p=0.5),
    own.RandomGrayscale(0.2),
    own.RandomSolarize(128, 0.3),
    own.RandAugment(3, fill=(1, 2, 3)),
    own.TrivialAugmentWide(),
    own.AutoAugment("svhn"),
    own.RandomApply((own.RandomPosterize(3), own.RandomEqualize()), 0.5),
    own.RandomAdjustSharpness(2),
]


def draw(*transforms: Any, samples: Any = COUNT, height: int = 224, width: int = 224, seed: int = 0) -> Steps:
    numbers = np.arange(samples) if isinstance(samples, int) else np.asarray(samples)
    return draw_steps(transforms, lambda i: sample_draws(make_key(seed, i), numbers), height, width)


def assert_alike(first: Counter[Any], second: Counter[Any]) -> None:
    """Two samples of a kind each, compared by chi-square: beyond this once in more than 30,000 draws."""
    assert first.keys() == second.keys()
    pairs = np.array([(first[key], second[key]) for key in first], np.float64)
    total = pairs.sum(axis=0)
    expected = pairs.sum(axis=1, keepdims=True) * total / total.sum()
    freedom = len(pairs) - 1
    assert ((pairs - expected) ** 2 / expected).sum() < freedom + 4 * np.sqrt(2 * freedom) + 8


# ---- the distributions


@pytest.mark.parametrize(
    "options",
    [
        {"brightness": 0.4, "contrast": 0.3, "saturation": 0.2, "hue": 0.1},
        {"brightness": (0.5, 2.0), "contrast": 1.7, "hue": (-0.2, 0.5)},
        {"saturation": [0.9, 1.1]},
    ],
)
def test_color_jitter_is_distributed_as_torchvisions(transforms: ModuleType, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    reference = transforms.ColorJitter(**options)
    params = [reference.make_params([]) for _ in range(COUNT)]
    steps = draw(own.ColorJitter(**options))
    names = {"brightness": Op.BRIGHTNESS, "contrast": Op.CONTRAST, "saturation": Op.SATURATION, "hue": Op.HUE}
    codes = list(names.values())
    assert set(np.unique(steps.ops)) == {names[name] for name in options}
    for name in options:
        found = steps.args[:, :, 0][steps.ops == names[name]]
        assert len(found) == COUNT
        assert largest_gap(found, np.array([p[f"{name}_factor"] for p in params])) < GAP
    used = [codes.index(names[name]) for name in options]
    assert_alike(
        Counter(tuple(row) for row in steps.ops.tolist()),
        Counter(tuple(codes[i] for i in p["fn_idx"].tolist() if i in used) for p in params),
    )


def test_order_and_factors_of_color_jitter_are_independent() -> None:
    steps = draw(own.ColorJitter(0.5, 0.5, 0.5, 0.5), samples=20_000)
    place = np.argsort(steps.ops, axis=1)
    factors = np.take_along_axis(steps.args[:, :, 0], place, axis=1)
    columns = [*factors.T, *place.T[:3].astype(float)]
    together = np.corrcoef(columns)
    for i, j in [(i, j) for i in range(4) for j in range(7) if i != j]:
        assert abs(together[i, j]) < 0.03  # four standard errors
    assert largest_gap(factors[:, 0], factors[:, 1]) < GAP


def test_p_is_the_share_of_images_that_are_changed() -> None:
    for p in (0.0, 0.1, 0.8, 1.0):
        both = own.RandomApply((own.RandomInvert(1), own.RandomEqualize(1)), p)
        for transform in (own.ColorJitter(0.4, hue=0.2, p=p), own.GaussianBlur(3, p=p), own.RandomEqualize(p), both):
            steps = draw(transform, samples=20_000)
            changed = (steps.ops != Op.NOTHING).any(axis=1)
            assert ((steps.ops != Op.NOTHING).all(axis=1) == changed).all()
            assert abs(changed.mean() - p) < (0.014 if 0 < p < 1 else 1e-9)


def test_sigma_of_blur_is_distributed_as_torchvisions(transforms: ModuleType) -> None:
    torch.manual_seed(0)
    reference = transforms.GaussianBlur((5, 9), (0.3, 1.5))
    steps = draw(own.GaussianBlur((5, 9), (0.3, 1.5)))
    expected = np.array([reference.make_params([])["sigma"][0] for _ in range(COUNT)])
    assert largest_gap(steps.args[:, 0, 0], expected) < GAP
    assert (steps.args[:, 0, 1:3] == [5, 9]).all()
    assert (draw(own.GaussianBlur(5, 0.7), samples=3).args[:, 0, 0] == np.float32(0.7)).all()


@pytest.mark.parametrize(("height", "width"), [(224, 224), (40, 300)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": (0.3, 0.9), "ratio": (0.2, 5.0)},
        {"scale": (0.001, 0.01), "ratio": (0.4, 0.7)},
        {"scale": (0.9, 1.0)},
    ],
)
def test_erased_regions_are_distributed_as_torchvisions(
    transforms: ModuleType, height: int, width: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    image = torch.empty((3, height, width), device="meta")
    reference = transforms.RandomErasing(p=1, **options)
    params = [reference.make_params([image]) for _ in range(3000)]
    expected = np.array([[p["i"], p["j"], p["h"], p["w"]] for p in params if p["v"] is not None])
    (regions,) = RandomErasing(p=1, **options).draw(sample_draws(3, np.arange(COUNT)), height, width)
    found = regions.box[regions.box[:, 2] > 0]
    assert abs(len(found) / COUNT - len(expected) / 3000) < 0.035  # the share that any fitted
    if not len(expected):
        assert (height, width, options) == (40, 300, {"scale": (0.9, 1.0)}) and not len(found)
        return
    assert len(expected) > 300
    # Further apart than this once in 8,000 draws, of which there are 40 here.
    gap = 2.2 * np.sqrt(1 / len(expected) + 1 / len(found))
    for column in range(4):
        assert largest_gap(expected[:, column], found[:, column]) < gap
    assert largest_gap(expected[:, 2] * expected[:, 3], found[:, 2] * found[:, 3]) < gap
    assert (found[:, :2] >= 0).all() and (found[:, :2] + found[:, 2:] <= [height, width]).all()


def test_erased_values() -> None:
    def of(value: Any, p: float = 0.5) -> Any:
        return RandomErasing(p=p, value=value).draw(sample_draws(3, np.arange(5000)), 50, 50)[0]

    assert abs((of(0).box[:, 2] > 0).mean() - 0.5) < 0.03
    assert (of(0, p=0).box == 0).all()
    assert (of(0).value == 0).all() and (of(0).noise == 0).all()
    assert (of((1, 2, 3)).value == [1, 2, 3]).all() and (of((1, 2, 3)).noise == 0).all()
    assert (of("random").value == 0).all() and (of("random").noise == 1).all()
    assert len(np.unique(of("random").key)) == 5000
    levels = of("random").in_levels((0.5, 0.4, 0.2), (0.2, 0.1, 0.4))
    np.testing.assert_allclose(levels.value[0], [127.5, 102, 51], rtol=1e-6)
    np.testing.assert_allclose(levels.noise[0], [51, 25.5, 102], rtol=1e-6)


# ---- the automatic policies


@pytest.mark.parametrize(("height", "width"), [(224, 224), (32, 32), (331, 97)])
@pytest.mark.parametrize("bins", [2, 10, 11, 30, 31, 100])
def test_tables_of_magnitudes_are_torchvisions(transforms: ModuleType, bins: int, height: int, width: int) -> None:
    for ours, theirs, count in (
        (own.RandAugment(magnitude=0, num_magnitude_bins=bins), transforms.RandAugment, bins),
        (own.TrivialAugmentWide(bins), transforms.TrivialAugmentWide, bins),
        (own.AutoAugment(), transforms.AutoAugment, 10),
    ):
        space = ours._space(height, width)  # type: ignore[attr-defined]
        assert {*space} >= {*theirs._AUGMENTATION_SPACE}
        for name, (table, _) in theirs._AUGMENTATION_SPACE.items():
            expected = table(count, height, width)
            assert (space[name] is None and expected is None) or space[name].tolist() == expected.tolist()


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_policies_are_torchvisions(transforms: ModuleType, policy: Any) -> None:
    reference = transforms.AutoAugment(transforms.AutoAugmentPolicy(policy))
    assert [tuple(tuple(change) for change in pair) for pair in POLICIES[policy]] == reference._policies


MOVES = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]


def kind_of_torchvisions(name: str, magnitude: float) -> tuple[Any, ...]:
    """Which change, and in which direction."""
    if name in MOVES:
        still = int(magnitude) == 0 if name.startswith("Translate") else magnitude == 0
        return ("still",) if still else (name, magnitude > 0)
    signed = name in ("Brightness", "Color", "Contrast", "Sharpness")
    op = Op(step_of(name, np.ones(1), 8, 8, None).ops[0, 0])
    return (op, np.sign(magnitude)) if signed else (op,)


def kind_of_step(op: int, args: np.ndarray) -> tuple[Any, ...]:
    if op not in (Op.AFFINE, Op.AFFINE_BILINEAR):
        signed = op in (Op.BRIGHTNESS, Op.SATURATION, Op.CONTRAST, Op.SHARPNESS)
        return (Op(op), np.sign(np.round(args[0] - 1, 6))) if signed else (Op(op),)
    _, b, c, d, _, f = args[:6].tolist()
    if b and d:
        return ("Rotate", d > 0)
    if b or d:
        return ("ShearX", b > 0) if b else ("ShearY", d > 0)
    if c or f:
        return ("TranslateX", c < 0) if c else ("TranslateY", f < 0)
    return ("still",)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RandAugment", {}),
        ("RandAugment", {"num_ops": 1, "magnitude": 0}),
        ("TrivialAugmentWide", {}),
        ("AutoAugment", {"policy": "imagenet"}),
        ("AutoAugment", {"policy": "cifar10"}),
        ("AutoAugment", {"policy": "svhn"}),
        ("AugMix", {"severity": 4, "mixture_width": 2}),
    ],
)
def test_changes_are_distributed_as_torchvisions(
    transforms: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    done: list[tuple[Any, ...]] = []

    def record(self: Any, image: Any, change: str, magnitude: float, **_: Any) -> Any:
        done.append(kind_of_torchvisions(change, magnitude))
        return image

    theirs = dict(options)
    if name == "AutoAugment":
        theirs["policy"] = transforms.AutoAugmentPolicy(options["policy"])
    reference = getattr(transforms, name)(**theirs)
    monkeypatch.setattr(type(reference), "_apply_image_or_video_transform", record)
    image = torch.empty((3, 224, 224), dtype=torch.uint8)
    count = 3000
    changes_each = []
    for _ in range(count):
        before = len(done)
        reference(image)
        changes_each.append(len(done) - before)
    steps = draw(getattr(own, name)(**options), samples=count)
    found = [
        kind_of_step(op, args)
        for op, args in zip(steps.ops.ravel().tolist(), steps.args.reshape(-1, steps.args.shape[-1]), strict=True)
        if (op or name in ("RandAugment", "TrivialAugmentWide")) and op not in (Op.KEEP, Op.MIX, Op.MIXED)
    ]
    assert abs(len(found) - len(done)) < 4 * np.sqrt(2 * count)
    assert_alike(Counter(found), Counter(done))
    if name in ("AutoAugment", "AugMix"):  # which leave changes out, and have chains of one to three
        some = ((steps.ops > 0) & ~np.isin(steps.ops, [Op.KEEP, Op.MIX, Op.MIXED])).sum(axis=1)
        assert_alike(Counter(some.tolist()), Counter(changes_each))


@pytest.mark.parametrize(
    ("policy", "magnitudes"), [(own.TrivialAugmentWide(), 31), (own.AugMix(severity=4, mixture_width=1), 4)]
)
def test_every_magnitude_is_drawn_alike(policy: Any, magnitudes: int) -> None:
    steps = draw(policy, samples=60_000)
    counts = Counter(np.round(steps.args[steps.ops == Op.CONTRAST][:, 0].astype(float), 4).tolist())
    assert len(counts) == 2 * magnitudes - 1  # of either sign, and none
    assert_alike(counts, Counter({factor: 1000 if factor == 1 else 500 for factor in counts}))


# ---- what randomness hangs on


@given(st.integers(0, 2**62), st.permutations(range(12)))
def test_a_sample_has_the_same_steps_and_is_erased_alike_in_any_company(seed: int, samples: list[int]) -> None:
    def of(numbers: Any) -> Any:
        (regions,) = RandomErasing(value="random").draw(sample_draws(seed, np.asarray(numbers)), 30, 40)
        return (*draw(*SOME, samples=numbers, seed=seed), *regions)

    for apart, together in zip(of(samples[:5]), of(range(12)), strict=True):
        np.testing.assert_array_equal(apart, together[samples[:5]])


def test_another_seed_or_place_draws_other_steps() -> None:
    twice = draw(own.RandAugment(), own.RandAugment(), samples=500)
    assert (twice.ops[:, :2] == twice.ops[:, 2:]).mean() < 0.3
    other = draw(own.RandAugment(), samples=500, seed=1)
    assert (twice.ops[:, :2] == other.ops).mean() < 0.3


@pytest.mark.parametrize(("transforms", "ops", "columns", "numbers"), GOLDEN)
def test_steps_are_those_that_they_always_were(transforms: Any, ops: Any, columns: Any, numbers: Any) -> None:
    """A change of these numbers gives other images for the same seed: it belongs in the changelog."""
    steps = draw(*transforms, samples=len(ops))
    assert steps.ops.tolist() == ops
    np.testing.assert_allclose(steps.args[:, columns, 0], numbers, atol=1e-6)


def test_parts_of_a_whole_have_numbers_of_their_own() -> None:
    """Or the second blur of RandomApply would be as strong as the first."""
    pair = own.RandomApply((own.GaussianBlur(3), own.GaussianBlur(3)), p=1)
    sigmas = draw(pair, samples=2000).args[:, :, 0]
    assert abs(np.corrcoef(sigmas.T)[0, 1]) < 0.1
    numbers: list[int] = []

    def recorded(number: int) -> np.ndarray:
        numbers.append(number)
        return np.full(4, 0.4)

    nested = own.RandomApply((pair, own.RandAugment(64), own.ColorJitter(1, 1, 1, 0.5), pair), p=1)
    nested.draw(recorded, 32, 32)
    assert len(set(numbers)) == len(numbers) > 130
    assert max(numbers) < 4096


def test_a_transform_that_needs_more_random_numbers_than_it_has_is_refused() -> None:
    gpuload.Augment(8, transforms=[own.RandomApply((own.RandAugment(64),) * 31)])
    with pytest.raises(
        gpuload.ArgumentError, match=r"Augment\(transforms\): a transform: asks for draw number 4\d+, expected 0..4095"
    ):
        gpuload.Augment(8, transforms=[own.RandomApply((own.RandAugment(64),) * 33)])


@pytest.mark.parametrize("transform", [*SOME, own.AugMix(), own.RandomErasing(), None])
def test_a_form_tells_which_operations_are_to_be_compiled(transform: Any) -> None:
    augment = gpuload.Augment(24, transforms=[transform] if transform else [])
    steps = augment.draw(7, 3, np.arange(500), *np.full((2, 500), 30, np.int32)).steps
    assert set(augment.form.ops) == (set() if steps is None else set(np.unique(steps.ops)))


def test_no_transforms_are_no_steps() -> None:
    steps = draw(samples=7)
    assert steps.ops.shape == (7, 0) and steps.args.shape[:2] == (7, 0)
    assert join([steps, draw(own.RandomInvert(), samples=7)]).ops.shape == (7, 1)
    assert draw(own.ColorJitter(), samples=7).ops.shape == (7, 0)


def test_importing_them_loads_no_torch() -> None:
    code = "import sys, gpuload.transforms; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gpuload.transforms.policies" in loaded and "torch" not in loaded


def test_a_blur_that_reaches_beyond_the_image_is_refused() -> None:
    message = (
        r"GaussianBlur\(kernel_size=23\): reflects 11 × 11 pixels at the edges, and the image is 30 × 11. Use a smaller"
    )
    with pytest.raises(gpuload.ArgumentError, match=message):
        draw(own.GaussianBlur(23), height=30, width=11)
