"""What the steps do to pixels: against torchvision's own functions, alone and in batches, with masks, boxes and noise."""

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpuload import transforms as own
from gpuload.augment import Augment, View
from gpuload.decode.postprocess import Postprocess, transform, warp_masks
from gpuload.draws import make_key, random_bits
from gpuload.fields.rows import take
from gpuload.transforms import RandomErasing
from gpuload.transforms.apply import _erase_at_once, _erase_each, apply_steps, erase
from gpuload.transforms.apply import random_bits as torch_bits
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import step_of
from gpuload.transforms.steps import Steps, draw_steps, join, one_step, sample_draws

SIZES = [(64, 96), (61, 47), (50, 50)]


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """uint8 (3, height, width): waves with noise, a gray corner, a black and a white one, and one of few levels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 29), np.cos(x / 11 + seed), np.sin(y / 7 + x / 40)]
    image = np.clip(128 + 110 * np.stack(waves) + rng.normal(0, 12, (3, height, width)), 0, 255)
    h, w = height // 4, width // 4
    image[:, :h, :w] = image[:1, :h, :w]
    image[:, -h:, :w], image[:, -h:, -w:] = 0, 255
    image[:, :h, -w:] = image[:, :h, -w:] // 64 * 64
    return torch.from_numpy(image.astype(np.uint8))


def batch(count: int, height: int = 40, width: int = 56) -> torch.Tensor:
    return torch.stack([picture(height, width, seed) for seed in range(count)])


def apart(found: torch.Tensor, expected: torch.Tensor) -> tuple[int, float]:
    """Largest and mean difference in levels."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == torch.uint8
    difference = (found.int() - expected.int()).abs()
    return int(difference.max()), float(difference.float().mean())


def applied(image: torch.Tensor, op: Op, *args: float) -> torch.Tensor:
    return transform(image[None], one_step(op, 1, *args))[0]


# ---- each operation

# Floats: with a whole number torchvision multiplies uint8 by it, which wraps.
FACTORS = [0.0, 0.25, 0.77, 1.0, 1.37, 1.9, 3.0]
# What leaves nothing to chance.
CASES = [
    *[own.ColorJitter(**{name: (f, f)}) for name in ("brightness", "contrast", "saturation") for f in FACTORS],
    *[own.ColorJitter(hue=(f, f)) for f in (-0.5, -0.21, -0.1, 0, 0.07, 1 / 6, 0.33, 0.5)],
    *[own.RandomAdjustSharpness(f, p=1) for f in FACTORS],
    *[own.GaussianBlur(k, s) for s in (0.1, 0.5, 1.3, 2, 9) for k in ((1, 1), (3, 3), (23, 23), (5, 11))],
    *[own.RandomSolarize(level, p=1) for level in (0, 1, 127.5, 128, 254.1, 255)],
    *[own.RandomPosterize(bits, p=1) for bits in range(9)],
    *[kind(p=1) for kind in (own.RandomGrayscale, own.RandomAutocontrast, own.RandomEqualize, own.RandomInvert)],
]


def few(*levels: int) -> torch.Tensor:
    """uint8 (3, 40, 30) of these levels, and a channel of one."""
    image = torch.from_numpy(np.random.default_rng(0).choice(np.array(levels, np.uint8), (3, 40, 30)))
    image[1] = 9
    return image


IMAGES = [*(picture(*size) for size in SIZES), few(7), few(0, 255), few(100, 101), few(0), few(255)]


@pytest.mark.parametrize("image", IMAGES, ids=range(len(IMAGES)))
@pytest.mark.parametrize("change", CASES, ids=str)
def test_colors_are_torchvisions(transforms: ModuleType, change: Any, image: torch.Tensor) -> None:
    name, steps = type(change).__name__, draw(change, count=1)
    given = {key: value for key, value in vars(change).items() if key != "p" or name.startswith("Random")}
    largest, mean = apart(transform(image[None], steps)[0], getattr(transforms, name)(**given)(image))
    assert largest <= 1
    assert mean <= (0.005 if {Op.SATURATION, Op.CONTRAST, Op.HUE, Op.GAUSSIAN_BLUR} & {*steps.ops[0]} else 0)


@given(st.integers(3, 20), st.integers(3, 20), st.integers(0, 2**32 - 1), st.floats(-0.5, 0.5))
@settings(max_examples=30)
def test_hue_of_random_pixels(transforms: ModuleType, height: int, width: int, seed: int, factor: float) -> None:
    image = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, height, width), np.uint8))
    assert apart(applied(image, Op.HUE, factor), transforms.functional.adjust_hue(image, factor))[0] <= 1


def test_sharpness_of_images_without_an_inside(transforms: ModuleType) -> None:
    image = picture(50, 50)[:, :2]
    assert torch.equal(applied(image, Op.SHARPNESS, 2), transforms.functional.adjust_sharpness(image, 2))


# ---- the automatic policies, by the names and magnitudes that torchvision would draw


def far_apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The share of levels that differ by more than one: of warps those at edges, which others weight twice, or never, and
    those that come from halfway between two pixels."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == torch.uint8
    return float(((found.int() - expected.int()).abs() > 1).float().mean())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("which", ["RandAugment", "TrivialAugmentWide", "AutoAugment", "AugMix"])
def test_policies_change_images_as_torchvisions(
    transforms: ModuleType, which: str, interpolation: str, size: tuple[int, int]
) -> None:
    image, fill, bins = picture(*size), (12.0, 200.0, 77.0), 10 if which in ("AutoAugment", "AugMix") else 31
    reference, policy = getattr(transforms, which)(), getattr(own, which)(fill=fill, interpolation=interpolation)
    mode = transforms.InterpolationMode(interpolation)
    for place, (name, table) in enumerate(policy._space(*size).items()):
        at = [0, 4, 9, 15, 20, bins - 1] if table is not None else [0]
        for index in {min(i, bins - 1) for i in at}:
            for negative in (False, True)[: 1 + reference._AUGMENTATION_SPACE.get(name, (None, False))[1]]:
                steps = policy._step(size, np.array([place]), np.array([index]), np.array([negative]))
                level = (-1) ** negative * (0.0 if table is None else float(table[index]))
                expected = reference._apply_image_or_video_transform(
                    image, name, level, interpolation=mode, fill={"others": list(fill)}
                )
                share = far_apart(transform(image[None], steps)[0], expected)
                assert share <= {Op.AFFINE: 0.05, Op.AFFINE_BILINEAR: 0.1}.get(steps.ops[0, 0], 0), (name, level, share)


# ---- batches

MANY = [
    own.ColorJitter(0.4, 0.4, 0.4, 0.2, p=0.8),
    own.GaussianBlur(9, p=0.5),
    own.RandAugment(2),
    own.TrivialAugmentWide(fill=(3, 2, 1)),
    own.AutoAugment("svhn", fill=9),
    own.AugMix(mixture_width=2, interpolation="nearest"),
    own.RandomChoice([own.RandomGrayscale(1), own.RandomSolarize(128, 1), own.GaussianBlur(9)]),
    own.RandomGrayscale(0.3),
    own.RandomSolarize(100, 0.3),
    own.RandomAdjustSharpness(2, 0.3),
]


def draw(*transforms: Any, count: int, height: int = 40, width: int = 56, seed: int = 0) -> Steps:
    return draw_steps(transforms, lambda i: sample_draws(make_key(seed, i), np.arange(count)), height, width)


def test_a_batch_is_its_images_one_by_one() -> None:
    images, steps = batch(12), draw(*MANY, count=12)
    assert set(np.unique(steps.ops)) > {Op.HUE, Op.AFFINE, Op.GAUSSIAN_BLUR, Op.EQUALIZE, Op.SHARPNESS}
    together = transform(images, steps)
    for i in range(12):
        alone = transform(images[i : i + 1], take(steps, slice(i, i + 1)))
        assert torch.equal(alone[0], together[i])
    assert len({image.numpy().tobytes() for image in together}) == 12


def test_grouped_as_on_a_gpu_it_is_the_same() -> None:
    images = batch(24)
    bilinear = own.RandAugment(1, interpolation="bilinear", fill=30), own.TimmAutoAugment("v0"), own.AugMix(alpha=0.3)
    warps = own.RandomPerspective(fill=(1, 2, 3)), own.RandomRotation(40), own.RandomAffine(5)
    for one in (*MANY, *bilinear, own.RandomApply(warps)):
        steps = draw(one, one, count=24)
        largest, mean = apart(apply_steps(images, steps), transform(images, steps))
        assert (largest <= 1 and mean < 1e-3) or (one not in MANY and mean < 0.05), one
    # A blur's kernel is as large as those need that are blurred, wherever they are.
    half = np.arange(24) < 12
    mixed = join([one_step(Op.INVERT, 24).only(half), one_step(Op.GAUSSIAN_BLUR, 24, 3, 9, 9).only(~half)])
    mixed = Steps(mixed.ops.max(axis=1, keepdims=True), np.where(half[:, None, None], 0, mixed.args[:, 1:]))
    assert apart(apply_steps(images, mixed), transform(images, mixed))[0] <= 1
    # Kernels of several sizes in one group.
    sizes = np.resize([1, 3, 5, 9], 24)
    blurs = one_step(Op.GAUSSIAN_BLUR, 24, np.linspace(0.2, 4, 24), sizes, sizes[::-1])
    assert apart(apply_steps(images, blurs), transform(images, blurs))[0] <= 1


@pytest.mark.parametrize("apply", [transform, apply_steps])
@pytest.mark.parametrize("count", [1, 6])
def test_input_stays_as_it_is(apply: Any, count: int) -> None:
    images = batch(count) // 2 + 40  # or autocontrast has nothing to stretch
    before = images.clone()
    for op in set(Op) - {Op.KEEP, Op.MIX, Op.MIXED}:  # which come together
        args = {
            Op.GAUSSIAN_BLUR: (1, 5, 5),
            Op.POSTERIZE: (3,),
            Op.SOLARIZE: (90,),
            Op.HUE: (0.3,),
            Op.AFFINE: (0, 1, 0, 1),
        }
        steps = one_step(op, count, *args.get(op, (1.7,)))
        changed = apply(images, steps)
        some = apply(images, steps.only(np.arange(count) % 2 == 1))
        assert torch.equal(images, before), op
        assert torch.equal(changed, images) == (op is Op.NOTHING), op
        assert torch.equal(some[::2], images[::2])


def test_any_layout_of_memory() -> None:
    images, steps = batch(6), draw(*MANY, count=6)
    expected = transform(images, steps)
    last = images.contiguous(memory_format=torch.channels_last)
    wide = torch.zeros((6, 3, 40, 80), dtype=torch.uint8)
    wide[..., 3:59] = images
    for view in (last, wide[..., 3:59], images.flip(3).flip(3)):
        assert torch.equal(transform(view, steps), expected)
        assert torch.equal(apply_steps(view, steps), apply_steps(images, steps))


def test_nothing_to_do_is_no_work() -> None:
    images = batch(3)
    for steps in (draw(count=3), one_step(Op.NOTHING, 3), draw(own.RandomInvert(0), own.RandomEqualize(0), count=3)):
        assert transform(images, steps) is images
    assert transform(images[:0], one_step(Op.INVERT, 0)).shape == (0, 3, 40, 56)


@pytest.mark.parametrize("apply", [transform, apply_steps])
def test_results_can_be_trained_on(apply: Any) -> None:
    """Autograd keeps no tensor that was made in inference mode."""
    images = apply(batch(2), one_step(Op.BRIGHTNESS, 2, 1.5))
    assert not images.is_inference() and not images.requires_grad


@pytest.mark.parametrize("apply", [transform, apply_steps])
def test_gray_images(transforms: ModuleType, apply: Any) -> None:
    """What mixes channels leaves them as they are; their contrast is about their own mean."""
    gray, functional = picture(40, 56)[:1], transforms.functional
    for op in (Op.SATURATION, Op.HUE, Op.GRAYSCALE):
        assert torch.equal(apply(gray[None], one_step(op, 1, 0.4))[0], gray)
    assert apart(apply(gray[None], one_step(Op.CONTRAST, 1, 0.4))[0], functional.adjust_contrast(gray, 0.4))[0] <= 1
    assert torch.equal(apply(gray[None], one_step(Op.EQUALIZE, 1))[0], functional.equalize(gray))
    steps = draw(own.RandAugment(4, interpolation="bilinear", fill=90), own.ColorJitter(0.4, 0.4, 0.4, 0.1), count=1)
    assert apply(gray[None], steps).shape == (1, 1, 40, 56)


# ---- masks and boxes


@given(st.integers(0, 2**40))
@settings(max_examples=30)
def test_masks_move_with_their_images(seed: int) -> None:
    """A mask that is a channel of its image stays that."""
    images = batch(6)
    steps = draw(own.RandAugment(3, magnitude=20, fill=17), own.TrivialAugmentWide(fill=17), count=6, seed=seed)
    moves = steps._replace(ops=np.where(steps.ops == Op.AFFINE, steps.ops, np.int8(0)))
    before = images.clone()
    moved = warp_masks(images[:, 1], steps, fill=17)
    assert torch.equal(moved, transform(images, moves)[:, 1])
    assert torch.equal(images, before)


def test_fill_of_masks_is_their_own() -> None:
    masks = torch.full((2, 10, 12), 3, dtype=torch.uint8)
    steps = step_of("TranslateX", np.array([4.0, -2.0]), 10, 12, (1, 2, 3), "nearest")
    moved = warp_masks(masks, steps, fill=255)
    assert (steps.args[:, 0, 6:9] == [1, 2, 3]).all()
    assert (moved[0, :, :4] == 255).all() and (moved[0, :, 4:] == 3).all()
    assert (moved[1, :, -2:] == 255).all() and (moved[1, :, :-2] == 3).all()


# ---- erasing


def test_noise_is_normal_and_each_pixels_own() -> None:
    values = torch.full((60, 3, 40, 50), 100.0)
    (regions,) = RandomErasing(p=1, value="random").draw(sample_draws(1, np.arange(60)), 40, 50)
    erase(values, regions)
    noise = values[values != 100].double().numpy()
    assert len(noise) == 3 * (regions.box[:, 2] * regions.box[:, 3]).sum() > 30_000
    below = np.arange(len(noise)) / len(noise)
    normal = np.array([0.5 + 0.5 * math.erf(value / math.sqrt(2)) for value in np.sort(noise)])
    # Kolmogorov–Smirnov: further apart than this once in 1,000 draws.
    assert np.abs(below - normal).max() < 1.95 / np.sqrt(len(noise))
    assert len(np.unique(noise)) > 0.95 * len(noise)
    top, left, height, width = regions.box[np.argmax(regions.box[:, 2])]
    planes = values[np.argmax(regions.box[:, 2]), :, top : top + height, left : left + width].reshape(3, -1).numpy()
    assert np.abs(np.corrcoef(planes) - np.eye(3)).max() < 5 / np.sqrt(planes.shape[1])
    shifted = np.corrcoef(planes[0, 1:], planes[0, :-1])[0, 1]
    assert abs(shifted) < 5 / np.sqrt(planes.shape[1])


def test_noise_of_levels_is_rounded_and_cut_off() -> None:
    values = torch.full((30, 3, 40, 50), 7, dtype=torch.uint8)
    (regions,) = RandomErasing(p=1, scale=(0.3, 0.6), value="random").draw(sample_draws(1, np.arange(30)), 40, 50)
    erase(values, regions.in_levels((0.5, 0.5, 0.1), (0.2, 0.1, 0.2)))
    top, left, height, width = regions.box[0]
    inside = values[0, :, top : top + height, left : left + width].double()
    assert abs(inside[0].mean() - 127.5) < 6 and abs(inside[0].std() - 51) < 5
    assert abs(inside[1].std() - 25.5) < 3
    # A normal distribution of mean 25.5 and deviation 51, cut off below 0.
    assert inside[2].min() == 0 and abs(inside[2].mean() - 35.6) < 5
    flat = torch.zeros((1, 3, 40, 50), dtype=torch.uint8)
    erase(
        flat,
        take(regions, slice(0, 1))._replace(value=np.full((1, 3), 2.6, np.float32), noise=np.zeros((1, 3), np.float32)),
    )
    assert sorted(flat.unique().tolist()) == [0, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("value", [(1.0, 2.0, 3.0), "random"])
def test_regions_are_overwritten_and_nothing_else(dtype: torch.dtype, memory: torch.memory_format, value: Any) -> None:
    """One by one, all at once as on a GPU, and in any company: the same values, to the bit."""
    (regions,) = RandomErasing(p=0.7, value=value).draw(sample_draws(2, np.arange(20)), 24, 30)
    chosen = np.flatnonzero(regions.box[:, 2])
    each, at_once, alone = (torch.full((20, 3, 24, 30), 50).to(dtype, memory_format=memory) for _ in range(3))
    _erase_each(each, chosen, take(regions, chosen))
    _erase_at_once(at_once, chosen, take(regions, chosen))
    for row in range(20):
        assert erase(alone[row : row + 1], take(regions, slice(row, row + 1))) is None
    assert torch.equal(each, at_once) and torch.equal(each, alone) and 5 < len(chosen) < 20
    assert (each != 50).flatten(1).any(1).nonzero().flatten().tolist() == chosen.tolist()
    for image, (top, left, height, width) in zip(each, regions.box.tolist(), strict=True):
        inside = torch.zeros((24, 30), dtype=torch.bool)
        inside[top : top + height, left : left + width] = True
        assert (image[:, ~inside] == 50).all()
        assert value == "random" or (torch.tensor(value) == image[:, inside].T).all()


class Counting(TorchDispatchMode):
    """Counts the operations that torch executes."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_regions_at_once_take_as_many_operations_for_many_images_as_for_few() -> None:
    counts = []
    for images in (2, 30):
        (regions,) = RandomErasing(p=1, value="random").draw(sample_draws(2, np.arange(images)), 24, 30)
        with Counting() as counting:
            _erase_at_once(torch.zeros(images, 3, 24, 30), np.arange(images), regions)
        counts.append(counting.count)
    assert counts[0] == counts[1] > 10


@given(st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_bits_of_torch_are_those_of_draws(key: int, counters: list[int]) -> None:
    found = torch_bits(torch.tensor(key), torch.tensor(counters))
    expected = random_bits(key % 2**64, np.array(counters))
    assert found.numpy().view(np.uint64).tolist() == expected.tolist()


class NoWaits(TorchFunctionMode):
    """Refuses what would make a thread wait for the GPU, if the tensors were there: values from the host that are not
    copied from pinned memory, and to the host."""

    _WAITS = frozenset({"new_tensor", "tensor", "as_tensor", "item", "tolist", "cpu", "cuda", "nonzero", "numpy"})

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function.__name__
        places = [value for value in (*args[1:], kwargs.get("device")) if isinstance(value, str | torch.device)]
        moves = name == "to" and bool(places) and not kwargs.get("non_blocking")
        assert name not in self._WAITS and not moves, f"{name} waits for the GPU"
        return function(*args, **kwargs)


def test_no_kernel_copies_in_a_way_that_waits() -> None:
    images = batch(6)
    warps = (own.RandomAffine(5, interpolation="bilinear"), own.RandomPerspective(1), own.RandomRotation(40))
    several = [draw(*MANY, count=6), draw(own.AugMix(), count=6), draw(own.TimmAutoAugment("v0"), count=6)]
    several += [draw(warp, count=6) for warp in warps]
    several += [one_step(op, 6, 1, 0, 0, 0, 1, 0) for op in (Op.AFFINE_BILINEAR, Op.WARP_BILINEAR)]
    with NoWaits():
        for steps in several:
            assert apply_steps(images, steps).shape == images.shape
    assert {Op.AFFINE_BILINEAR, Op.MIXED, Op.EQUALIZE} <= {int(code) for steps in several for code in steps.ops.flat}


def test_the_constants_are_copied_in_a_way_that_does_not_wait() -> None:
    form = Augment(8, dtype="float16").form
    out = torch.empty(6, 3, 40, 56, dtype=torch.float16)
    images = batch(6)
    view = View((40, 56), SimpleNamespace(sizes=None), None, None)  # type: ignore[arg-type]
    with NoWaits():
        Postprocess(form, "cpu")(images, out, view)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (form.mean, form.std))
    assert torch.allclose(out.float(), (images / 255 - mean) / std, atol=2e-3)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and torch built for it (extra cuda13 or cuda12)"
)
def test_a_gpu_does_the_same_and_is_not_waited_for() -> None:
    images, steps = batch(24), draw(*MANY, count=24)
    (regions,) = RandomErasing(p=0.5, value="random").draw(sample_draws(1, np.arange(24)), 40, 56)
    masks = images[:, 0].contiguous()
    on_gpu = [tensor.cuda() for tensor in (images, masks, torch.zeros(24, 3, 40, 56))]
    transform(on_gpu[0], steps)  # what has to be loaded first is
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [transform(on_gpu[0], steps), warp_masks(on_gpu[1], steps, 5)]
        erase(on_gpu[2], regions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # One level off before a step can be many after it (equalize): few pixels may be.
    apart_share = (found[0].cpu() != transform(images, steps)).float().mean()
    assert apart_share < 0.05
    assert (found[1].cpu() != warp_masks(masks, steps, 5)).float().mean() < 0.01
    noise = torch.zeros(24, 3, 40, 56)
    erase(noise, regions)
    torch.testing.assert_close(on_gpu[2].cpu(), noise, rtol=1e-4, atol=1e-5)
