"""What the transforms draw: the distributions against torchvision's, tables, arguments, and what randomness hangs on."""

import math
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_transforms_pixels import MANY

import gpuload
from gpuload import transforms as own
from gpuload.draws import make_key
from gpuload.transforms import RandomErasing
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import POLICIES, _levels, step_of
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
    (
        [
            own.RandomInvert(0.5),
            own.RandomChoice([own.RandomInvert(1), own.RandomEqualize(1), own.GaussianBlur(3)], [0.2, 0.3, 0.5]),
        ],
        [[11, 0, 0, 6], [0, 0, 10, 0], [11, 11, 0, 0], [0, 0, 0, 6]],
        [3],
        [[1.502479], [1.574158], [1.429927], [0.254961]],
    ),
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
def test_color_jitter_has_torchvisions_factors_in_every_order(transforms: ModuleType, options: dict[str, Any]) -> None:
    """Of each random number one thing is made."""
    reference, orders = transforms.ColorJitter(**options), math.factorial(len(options))
    numbers = np.random.default_rng(0).random((6, orders))
    numbers[1] = (np.arange(orders) + 0.5) / orders
    steps = own.ColorJitter(**options).draw(lambda number: numbers[number], 8, 8)
    assert steps.ops.shape == np.unique(steps.ops, axis=0).shape == (orders, len(options))
    for place, name in enumerate(["brightness", "contrast", "saturation", "hue"], 2):
        if name in options:
            low, high = getattr(reference, name)
            found = steps.args[:, :, 0][steps.ops == Op[name.upper()]]
            np.testing.assert_allclose(found, low + numbers[place] * (high - low), atol=1e-6)


def test_p_is_the_share_of_images_that_are_changed() -> None:
    for p in (0.0, 0.1, 0.8, 1.0):
        both = own.RandomApply((own.RandomInvert(1), own.RandomEqualize(1)), p)
        jitter = own.ColorJitter(0.4, hue=0.2, p=p)
        for transform in (jitter, own.GaussianBlur(3, p=p), own.RandomEqualize(p), own.RandomPerspective(p=p), both):
            steps = draw(transform, samples=20_000)
            changed = (steps.ops != Op.NOTHING).any(axis=1)
            assert ((steps.ops != Op.NOTHING).all(axis=1) == changed).all()
            assert abs(changed.mean() - p) < (0.014 if 0 < p < 1 else 1e-9)


def test_sigma_of_blur_is_uniform() -> None:
    numbers = np.linspace(0, 0.99, 5)
    steps = own.GaussianBlur((5, 9), (0.3, 1.5)).draw(lambda number: numbers if number == 1 else 0 * numbers, 30, 30)
    np.testing.assert_allclose(steps.args[:, 0, 0], 0.3 + 1.2 * numbers, rtol=1e-6)
    assert (steps.args[:, 0, 1:3] == [5, 9]).all()
    assert (draw(own.GaussianBlur(5, 0.7), samples=3).args[:, 0, 0] == np.float32(0.7)).all()


def torchvisions_rectangle(drawn: np.ndarray, height: int, width: int, scale: Any, ratio: Any) -> list[int]:
    """RandomErasing.make_params with given random numbers: top, left, height, width; zeros where no attempt fits."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area_drawn, ratio_drawn in drawn[4:24].reshape(-1, 2):
        area = height * width * (scale[0] + area_drawn * (scale[1] - scale[0]))
        aspect = math.exp(low + ratio_drawn * (high - low))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            return [int(drawn[1] * (height - h + 1)), int(drawn[2] * (width - w + 1)), h, w]
    return [0] * 4


@pytest.mark.parametrize("size", [(224, 224), (40, 300)])
@pytest.mark.parametrize("scale", [(0.02, 0.33), (0.3, 0.9), (0.001, 0.01), (0.9, 1.0)])
@pytest.mark.parametrize("ratio", [(0.3, 3.3), (0.2, 5.0), (0.4, 0.7)])
def test_erased_regions_are_torchvisions(size: tuple[int, int], scale: Any, ratio: Any) -> None:
    drawn = np.random.default_rng(0).random((24, 1000))
    (regions,) = RandomErasing(1, scale, ratio).draw(lambda number: drawn[number], *size)
    assert regions.box.tolist() == [torchvisions_rectangle(numbers, *size, scale, ratio) for numbers in drawn.T]


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


def kind_of(op: int, args: np.ndarray) -> tuple[float, ...]:
    """Which change, and in which direction: of a factor whether it is above 1, of a map of pixels where it leads."""
    return op, *np.sign(np.round(args[:6] - [1, 0, 0, 0, 1, 0], 4)).tolist()


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
    done: list[tuple[float, ...]] = []

    def record(self: Any, image: Any, change: str, magnitude: float, **_: Any) -> Any:
        (level, _), *_ = _levels(change, np.array([magnitude]))
        step = step_of(change, np.array([level]), 224, 224, None, policy.interpolation)
        done.append(kind_of(int(step.ops[0, 0]), step.args[0, 0]))
        return image

    theirs = dict(options)
    if name == "AutoAugment":
        theirs["policy"] = transforms.AutoAugmentPolicy(options["policy"])
    reference, policy = getattr(transforms, name)(**theirs), getattr(own, name)(**options)
    monkeypatch.setattr(type(reference), "_apply_image_or_video_transform", record)
    image = torch.empty((3, 224, 224), dtype=torch.uint8)
    count = 3000
    changes_each = []
    for _ in range(count):
        before = len(done)
        reference(image)
        changes_each.append(len(done) - before)
    steps = draw(policy, samples=count)
    found = [
        kind_of(op, args)
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
        return (*draw(*MANY, samples=numbers, seed=seed), *regions)

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
    with pytest.raises(gpuload.ArgumentError, match=r"a transform: asks for draw number 4\d+, expected 0..4095"):
        gpuload.Augment(8, transforms=[own.RandomApply((own.RandAugment(64),) * 33)])


@pytest.mark.parametrize("transform", [*MANY, own.RandomErasing(), None])
def test_a_form_tells_which_operations_are_to_be_compiled(transform: Any) -> None:
    augment = gpuload.Augment(24, transforms=[transform] if transform else [])
    steps = augment.draw(7, 3, np.arange(500), *np.full((2, 500), 30, np.int32)).steps
    assert set(augment.form.ops) == (set() if steps is None else set(np.unique(steps.ops)))


def test_no_transforms_are_no_steps() -> None:
    steps = draw(samples=7)
    assert steps.ops.shape == (7, 0) and steps.args.shape[:2] == (7, 0)
    assert join([steps, draw(own.RandomInvert(), samples=7)]).ops.shape == (7, 1)
    assert draw(own.ColorJitter(), samples=7).ops.shape == (7, 0)


def test_a_blur_that_reaches_beyond_the_image_is_refused() -> None:
    with pytest.raises(gpuload.ArgumentError, match="reflects 11 × 11 pixels at the edges, and the image is 30 × 11"):
        draw(own.GaussianBlur(23), height=30, width=11)
    with pytest.raises(gpuload.ArgumentError, match="reflects 11 × 2 pixels at the edges, and the image is 11 × 30"):
        draw(own.GaussianBlur((5, 23)), height=11, width=30)
    assert draw(own.GaussianBlur(23), height=12, width=12).ops.size
