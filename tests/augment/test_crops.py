"""Crops and flips: their distributions and arithmetic against torchvision's and TensorFlow's, what views have in common,
and what an Augment refuses."""

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from images import photo
from loaders import load
from PIL import Image

import gpuload
from gpuload import (
    Augment,
    CenterCrop,
    Cover,
    Letterbox,
    Normalize,
    PadOrCrop,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ScaleJitter,
    Stretch,
    ZoomOut,
)
from gpuload.augment.crops import Images, source_of, source_range
from gpuload.transforms import Function, RandAugment, RandomApply, RandomErasing, RandomInvert, RandomRotation

SIDES = st.integers(1, 300)
side = st.integers(1, 40)
SIZE = (24, 32)  # height, width


def speckle(sample: Any, rng: np.random.Generator) -> Any:
    return sample["image"]


def view_of(augment: Augment, width: int, height: int, count: int = 1, seed: int = 0, view: int = 0) -> Any:
    """The view of `count` samples of this size."""
    sizes = np.full((2, count), [[width], [height]], np.int32)
    return augment.draw(seed, 0, np.arange(count), *sizes, view)


def draw(augment: Augment, width: int, height: int, count: int = 1, seed: int = 0) -> Any:
    return view_of(augment, width, height, count, seed).crops


def at(crop: Any, width: int, height: int, size: tuple[int, int], share: float) -> Any:
    """The crop of one image, where all random numbers are the same."""
    sides = np.array([float(width)]), np.array([float(height)])
    return crop.draw(Images(np.arange(1), *sides, size, 1, np.full((2, 1), share)))


# ---- random crops and flips


def test_which_filter_is_drawn_depends_on_no_crop_or_flip() -> None:
    views = [view_of(Augment(8, crop, vertical_flip=0.5, interpolation="random"), 40, 30, 2000)
             for crop in ("random", "center", "cover")]  # fmt: skip
    chosen = views[0].cubic
    assert all((view.cubic == chosen).all() for view in views) and abs(chosen.mean() - 0.5) < 0.05
    assert abs(np.mean(chosen == (views[0].crops.mirror_y > 0)) - 0.5) < 0.05


def test_seed_and_epoch_change_the_crops() -> None:
    sides: Any = np.full((2, 4), [[500], [375]], np.int32)
    cases = [(0, 0), (0, 1), (1, 0), (1, 1)]
    drawn = {Augment(8).draw(seed, epoch, np.arange(4), *sides).crops.start.tobytes() for seed, epoch in cases}
    assert len(drawn) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"vertical_flip": 0.3}, 0.3),
        ({}, 0.5),
        ({"crop": "center"}, 0),
        ({"crop": "none"}, 0),
        ({"flip": 0}, 0),
        ({"flip": 1}, 1),
    ],
)
def test_share_of_flips(options: dict[str, Any], expected: float) -> None:
    crops = draw(Augment(8, **options), 50, 50, 20_000)
    mirror = crops.mirror_y if "vertical_flip" in options else crops.mirror
    assert set(mirror.tolist()) <= {0, 1}
    assert abs(mirror.mean() - expected) < (0.015 if 0 < expected < 1 else 1e-9)
    if 0 < expected < 1:
        assert abs(np.corrcoef(crops.mirror, draw(Augment(8, vertical_flip=0.5), 50, 50, 20_000).mirror_y)[0, 1]) < 0.03


# ---- windows, by their formulas


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.01, 1))
def test_a_central_fraction_is_tensorflows(width: int, height: int, fraction: float) -> None:
    crops = draw(Augment(8, crop=CenterCrop(fraction=fraction)), width, height)
    for axis, length in enumerate((height, width)):
        # tf.image.central_crop: bbox_h_start = int((img_hd - img_hd * central_fraction) / 2), and so much at each end
        start = int((length - length * fraction) / 2)
        assert (crops.start[0, axis], crops.shape[0, axis]) == (start, length - 2 * start)
        assert (crops.roi_start[0, axis], crops.roi_end[0, axis]) == (0, crops.shape[0, axis])


def torchvisions_window(
    drawn: np.ndarray, width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params with given random numbers: top, left, height, width."""
    for area_drawn, ratio_drawn in drawn[2:].reshape(-1, 2):
        area = width * height * (scale[0] + area_drawn * (scale[1] - scale[0]))
        aspect = math.exp(math.log(ratio[0]) + ratio_drawn * (math.log(ratio[1]) - math.log(ratio[0])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(drawn[0] * (height - h + 1)), int(drawn[1] * (width - w + 1)), h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.sampled_from([(0.08, 1.0), (0.9, 1.0), (0.001, 0.01)]),
    st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.2, 0.3), (2.0, 5.0)]),
    st.integers(0, 2**32),
)
def test_random_crops_are_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], seed: int
) -> None:
    drawn = np.random.default_rng(seed).random((2 + 2 * 10, 6))  # a position, and ten attempts
    width, height = (np.full(6, float(side)) for side in size)
    crops = RandomResizedCrop(scale, ratio).draw(Images(np.arange(6), width, height, (8, 8), 1, drawn))
    found = np.concatenate([crops.start, crops.shape], axis=1).tolist()
    assert found == [list(torchvisions_window(numbers, *size, scale, ratio)) for numbers in drawn.T]
    assert all(part.flags.c_contiguous for part in crops[:6])


@pytest.mark.parametrize(
    ("image", "resize_px", "size", "reach", "window", "region"),
    [
        # 100 × 50 to 50 × 25; of that 20 × 20 from (2, 15): source pixels (4, 30) to (44, 70), and 2 around for the filter
        ((100, 50), 25, (20, 20), 1, ((2, 28), (46, 72)), ((4, 30), (44, 70))),
        ((100, 50), 25, (20, 20), 2, ((0, 26), (48, 74)), ((4, 30), (44, 70))),
        # 40 × 80 to 10 × 20; of that 8 high, 6 wide from (6, 2)
        ((40, 80), 10, (8, 6), 1, ((20, 4), (60, 36)), ((24, 8), (56, 32))),
        # enlarged from 30 × 20 to 60 × 40: the filter reaches two source pixels, whatever the enlargement
        ((30, 20), 40, (20, 20), 2, ((3, 8), (17, 22)), ((5, 10), (15, 20))),
        # 33 × 20 to 16 × 10: sides are cut off, not rounded, and half pixels go to the even one
        ((33, 20), 10, (5, 5), 1, ((2, 10), (16, 25)), ((4, 12.375), (14, 22.6875))),
    ],
)
def test_center_crops(
    image: tuple[int, int], resize_px: int, size: tuple[int, int], reach: int, window: Any, region: Any
) -> None:
    """Worked out by hand. Two images, so that nothing of one is computed from the other."""
    width, height = np.array([image, (7, 5000)], np.int32).T
    interpolation: Any = {1: "bilinear", 2: "bicubic"}[reach]
    augment = Augment(size, crop=CenterCrop(resize_px), interpolation=interpolation)
    crops = augment.draw(0, 0, np.arange(2), width, height).crops
    assert (crops.start[0].tolist(), (crops.start + crops.shape)[0].tolist()) == tuple(map(list, window))
    np.testing.assert_allclose(crops.start[0] + crops.roi_start[0], region[0], atol=1e-5)
    np.testing.assert_allclose(crops.start[0] + crops.roi_end[0], region[1], atol=1e-5)
    assert not crops.mirror.any() and not crops.mirror_y.any()


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES))
def test_pad_or_crop_is_tensorflows(image: tuple[int, int], size: tuple[int, int]) -> None:
    """tf.image.resize_with_crop_or_pad: crop_to_bounding_box, then pad_to_bounding_box."""
    crops = draw(Augment(size, crop=PadOrCrop()), image[1], image[0])
    cut, before = (
        [max(way * (side - target) // 2, 0) for side, target in zip(image, size, strict=True)] for way in (1, -1)
    )
    assert crops.start[0].tolist() == [lost - padded for lost, padded in zip(cut, before, strict=True)]
    assert (crops.shape == size).all() and (crops.roi_end == size).all() and not crops.roi_start.any()


def test_draws_of_a_sample_are_independent_in_all_views() -> None:
    augment = Augment(8, vertical_flip=0.5, transforms=[RandAugment(1), RandomErasing(p=1)])
    drawn = [view_of(augment, 1000, 1000, 20_000, view=view) for view in range(3)]
    columns: list[np.ndarray] = []
    for view in drawn:
        assert view.steps is not None and len(view.erased) == 1
        height, width = view.crops.shape.T
        columns += [*(view.crops.start / np.maximum(1000 - view.crops.shape, 1)).T, height * width, width / height]
        columns += [view.crops.mirror, view.crops.mirror_y, view.steps.ops[:, 0], view.erased[0].box[:, 0]]
    # A correlation of independent draws has a standard error of 0.007; 276 pairs, so allow four of them.
    assert np.abs(np.corrcoef(columns) - np.eye(24)).max() < 0.028
    keys = [view.erased[0].key for view in drawn]
    assert len(np.unique(np.concatenate(keys))) == 60_000
    first = draw(augment, 1000, 1000, 20_000)
    assert first.start.tobytes() == drawn[0].crops.start.tobytes()


# ---- crops that cover the output


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 99), st.integers(1, 99))
def test_a_crop_covers_the_output_and_keeps_the_ratio(width: int, height: int, high: int, wide: int) -> None:
    size, image = np.array([high, wide]), np.array([height, width])
    for share, crop in ((0.0, Cover()), (1 - 2**-53, Cover()), (0.5, Cover(random=False))):
        crops = at(crop, width, height, (high, wide), share)
        begin, end = crops.start[0] + crops.roi_start[0], crops.start[0] + crops.roi_end[0]
        resized = np.rint(size / (end - begin) * image)
        np.testing.assert_allclose(end - begin, size * image / resized, atol=0.01)
        assert (resized >= size).all() and min(resized - size) == 0  # one side fits exactly
        assert abs(resized[0] * width - resized[1] * height) <= max(width, height)  # rounded to whole pixels
        room = resized - size
        np.testing.assert_allclose(
            begin, (np.rint(room * share) if crop.random else room // 2) * image / resized, atol=0.01
        )
        assert (crops.start >= 0).all() and (crops.start + crops.shape <= image).all()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cover")
    images = [np.asarray(photo(number, 120 - 20 * number, 40 + 30 * number)) for number in range(4)]
    gpuload.pack([{"image": image} for image in images], folder, workers=1, encode="raw", shuffle=False)
    return folder / "train"


@pytest.mark.parametrize("crop", ["cover", "center_cover"])
def test_pixels_are_pillows(packed: Path, decoder: str, crop: Any) -> None:
    augment = gpuload.Augment(SIZE, crop=crop, flip=0.5, dtype="uint8")
    fields = ("image", "original_size", "crop_top_left")
    loader = load(packed, 4, augment=augment, decoder=decoder, shuffle=False, fields=fields)
    seen: set[tuple[int, ...]] = set()
    for _ in range(5):
        for images, sizes, places in loader:
            for number, (image, size, place) in enumerate(zip(images, sizes.tolist(), places.tolist(), strict=True)):
                source = photo(number, 120 - 20 * number, 40 + 30 * number)
                assert size == [source.height, source.width]
                scale = max(SIZE[0] / size[0], SIZE[1] / size[1])
                scaled = source.resize((round(size[1] * scale), round(size[0] * scale)), Image.Resampling.BILINEAR)
                y, x = place
                assert 0 <= y <= scaled.height - SIZE[0] and 0 <= x <= scaled.width - SIZE[1]
                found = image.permute(1, 2, 0).numpy().astype(int)
                both = scaled, scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT)  # the place is in the flipped one
                parts = [np.asarray(whole.crop((x, y, x + SIZE[1], y + SIZE[0]))).astype(int) for whole in both]
                differences = [np.abs(part - found)[1:-1, 1:-1].mean() for part in parts]
                assert min(differences) < 1
                seen.add((number, *place, int(np.argmin(differences))))
    assert len(seen) > 8 if crop == "cover" else 4 < len(seen) <= 8


# ---- crops that scale and pad


@pytest.mark.parametrize(("size", "longest"), [(80, None), (80, 133), (None, 90), (17, 40)])
def test_sizes_are_torchvisions(transforms: ModuleType, size: Any, longest: Any) -> None:
    theirs = transforms.Resize(size, max_size=longest)
    for width, height in [(64, 48), (48, 64), (300, 20), (9, 9), (80, 80), (133, 80), (641, 479), (3, 2)]:
        expected = theirs(torch.zeros(1, height, width, dtype=torch.uint8)).shape[1:]
        view = view_of(Augment(None, Resize(size, longest)), width, height)
        assert (view.crops.sizes == list(expected)).all() and view.size == tuple(expected)


def test_of_several_sizes_each_image_gets_one() -> None:
    sizes = draw(Augment(None, Resize([20, 30, 40], 50)), 100, 80, 3000).sizes
    found, counts = np.unique(sizes, axis=0, return_counts=True)
    assert found.tolist() == [[20, 25], [30, 37], [40, 50]] and (abs(counts - 1000) < 110).all()


@pytest.mark.parametrize(("multiple", "size"), [(1, (90, 75)), (32, (96, 96)), (50, (100, 100))])
def test_a_batch_is_padded_to_its_largest_sides(multiple: int, size: tuple[int, int]) -> None:
    sides = np.array([[60, 75, 20], [90, 10, 30]], np.int32)
    augment = Augment(None, Resize(pad_to_multiple_of=multiple))
    assert augment.draw(0, 0, np.arange(3), *sides).size == size
    assert augment.draw(0, 0, np.arange(0), *sides[:, :0]).size == (multiple, multiple)


@given(
    st.sampled_from(
        ["random", "center", "none", Letterbox(), ScaleJitter((0.01, 9.0)), ZoomOut(), ZoomOut((3, 50), p=1)]
    ),
    st.tuples(SIDES, SIDES),
    SIDES,
    SIDES,
    st.integers(0, 2**62),
    st.sampled_from([0, 1]),
)
@settings(max_examples=200)
def test_images_are_where_their_crops_say(
    crop: Any, size: Any, width: int, height: int, seed: int, flip: float
) -> None:
    view = view_of(Augment(size, crop, flip=flip, vertical_flip=flip), width, height, 8, seed)
    start, shape = view.crops.start, view.crops.shape
    assert (start >= 0).all() and (shape >= 1).all() and (start + shape <= [height, width]).all()
    top, left, bottom, right = places = view.crops.covered(size, np.full((8, 2), [height, width])).T
    assert (places >= 0).all() and (top < bottom).all() and (left < right).all()
    assert (bottom <= size[0]).all() and (right <= size[1]).all()
    if isinstance(crop, Letterbox):  # the whole image, which touches two sides and lies in the middle
        assert ((bottom - top == size[0]) | (right - left == size[1])).all()
        assert (abs(top - (size[0] - bottom)) <= 1).all() and (abs(left - (size[1] - right)) <= 1).all()
    if isinstance(crop, ScaleJitter):  # padded on the right and at the bottom, of an output that is then flipped
        kept = (size[0] - bottom, size[1] - right) if flip else (top, left)
        assert not np.any(kept)


def test_half_of_the_images_are_zoomed_out_to_all_extents() -> None:
    view = view_of(Augment(100, ZoomOut()), 60, 60, 4000)
    top, left, bottom, _ = view.crops.covered((100, 100), np.full((4000, 2), 60)).T
    zoomed = (bottom - top) < 100
    assert abs(zoomed.mean() - 0.5) < 0.035  # four standard errors, and extents that round to 100
    assert min(bottom - top) in (25, 26) and top[zoomed].std() > 10 and left[zoomed].std() > 10
    assert (draw(Augment(100, ZoomOut(p=0)), 60, 60, 50).roi_start == 0).all()


# ---- torchvision's RandomCrop


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@given(size=st.integers(1, 12), start=st.integers(-60, 60), length=st.integers(1, 20))
@settings(max_examples=60)
def test_padding_is_numpys(mode: Any, size: int, start: int, length: int) -> None:
    line, places = np.arange(size), np.arange(start, start + length)
    expected = np.pad(line, 80, mode=mode, **({"constant_values": -1} if mode == "constant" else {}))[places + 80]
    np.testing.assert_array_equal(source_of(places, size, mode), expected)
    low, high = source_range(np.array([start]), np.array([start + length]), np.array([size]), mode)
    assert 0 <= low[0] < high[0] <= size
    shown = expected[expected >= 0]
    assert ((shown >= low[0]) & (shown < high[0])).all()


@pytest.mark.parametrize(
    ("crop", "size", "low", "high"),
    [
        (RandomCrop(), (20, 30), (0, 0), (30, 10)),  # of an image of 40 × 50 pixels
        (RandomCrop(4), (20, 30), (-4, -4), (34, 14)),
        (RandomCrop((3, 5)), (20, 30), (-5, -3), (35, 13)),
        (RandomCrop((1, 2, 3, 4)), (20, 30), (-2, -1), (34, 13)),
        (RandomCrop(5), (60, 50), (-5, -5), (-5, -5)),
        (RandomCrop(pad_if_needed=True), (52, 45), (-2, -5), (0, 0)),
        (RandomCrop((2, 0, 0, 1), pad_if_needed=True), (54, 44), (-3, -4), (0, -2)),
    ],
)
def test_every_position_of_the_padded_image_comes_and_no_other(
    crop: RandomCrop, size: tuple[int, int], low: tuple[int, int], high: tuple[int, int]
) -> None:
    crops = draw(Augment(size, crop=crop), 40, 50, 1500)
    assert (crops.shape == size).all() and (crops.roi_end == size).all() and not crops.roi_start.any()
    for axis in range(2):
        assert set(crops.start[:, axis].tolist()) == set(range(low[axis], high[axis] + 1))
    assert 0.4 < crops.mirror.mean() < 0.6  # flips by default, as "random" does
    assert (draw(Augment(size, crop=crop), 40, 50, 1500).start == crops.start).all()


# ---- what is refused

OWN: dict[str, Any] = {"size": None, "crop": "keep"}
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Augment(224, CenterCrop(resize=200)), r"CenterCrop\(resize=200\): must be at least size, 224"),
    (lambda: Augment(224, normalize=Normalize((123.7, 116.3, 103.5))), "Divide yours by 255"),
    (lambda: Augment(224, mean=(0.5, 0.5, 0.5)), "no argument 'mean'.*normalize"),  # type: ignore[call-arg]
    (lambda: Augment(224, transforms=[RandomInvert(), Function(speckle)]), "speckle .*is not the first"),
    (lambda: Augment(224, transforms=[Function(speckle), Function(speckle)]), "call several in one"),
    (lambda: Augment(32, transforms=[RandomInvert]), "RandomInvert'> is not one of gpuload.transforms"),  # type: ignore[list-item]
    (lambda: Augment(32, transforms=[RandomErasing(), RandomErasing()]), "one RandomErasing"),
    (lambda: Augment(32, normalize="image", dtype="uint8"), "dtype='uint8'"),
    (lambda: Augment(32, transforms=[RandomCrop(4)]), r"RandomCrop\(.*Crops are for Augment\(crop="),
    (lambda: CenterCrop(40, 0.5), "give one of them"),
    (lambda: Normalize((0.5, 0.5)), r"three numbers \(R, G, B\)"),
    (lambda: RandomCrop(fill=7, padding_mode="edge"), "only padding_mode='constant' has a fill"),
    (lambda: draw(Augment(34, RandomCrop()), 30, 40), "sample 0, 30 × 40 pixels.*the crop of 34 × 34.*pad_if_needed"),
    (lambda: draw(Augment(34, RandomCrop(1)), 30, 40), "sample 0, 30 × 40 pixels, is smaller with its padding"),
    (lambda: draw(Augment(None, Resize(80)), 1, 9000), "sample 0, 1 × 9000 pixels.*720,000. Use max_size"),
    (lambda: Augment(8, "keep"), r"size=8, crop=Resize\("),
    (lambda: Augment(None, "random"), r"size=None, crop=RandomResizedCrop\("),
    (lambda: Augment(**OWN, normalize="image"), "normalize='image', size=None"),
    (lambda: Augment(**OWN, transforms=[RandomErasing()]), "RandomErasing: needs images of one size"),
    (lambda: Augment(**OWN, transforms=[RandomRotation(3)]), "RandomRotation: needs images of one size"),
    (lambda: Augment(**OWN, transforms=[RandomApply([RandAugment()])]), "RandAugment: needs images of one size"),
    (lambda: Augment(**OWN, transforms=[Function(speckle)]), "Function: needs images of one size"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_impossible_augments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(gpuload.GpuloadError, match=message):
        call()


def test_a_word_is_the_crop_without_arguments() -> None:
    words = {"random": RandomResizedCrop(), "center": CenterCrop(), "none": Stretch(), "pad_or_crop": PadOrCrop()}
    words |= {"cover": Cover(), "center_cover": Cover(random=False)}
    words |= {"letterbox": Letterbox()}
    assert all(Augment(40, word).crop == crop for word, crop in words.items())  # type: ignore[arg-type]
    assert Augment(None, "keep").crop == Resize()


def test_dtypes_and_filters_of_other_libraries_are_known() -> None:
    for dtype in (torch.float16, np.float16, np.dtype("float16"), "float16"):
        assert Augment(8, dtype=dtype).dtype == "float16"  # type: ignore[arg-type]
    assert Augment(8, dtype=torch.bfloat16).dtype == "bfloat16"  # type: ignore[arg-type]
    assert Augment(8, layout=torch.channels_last).layout == "channels_last"  # type: ignore[arg-type]
    for filter in (Image.Resampling.BICUBIC, "bicubic"):
        assert Augment(8, interpolation=filter).interpolation == "bicubic"  # type: ignore[arg-type]
    for unknown in (torch.float64, np.int8, float, 3, "fp16"):
        with pytest.raises(gpuload.ArgumentError, match=r"dtype=.*expected one of 'float32', 'float16'"):
            Augment(8, dtype=unknown)  # type: ignore[arg-type]
    with pytest.raises(gpuload.ArgumentError, match="expected one of 'bilinear', 'bicubic'"):
        Augment(8, interpolation=Image.Resampling.LANCZOS)  # type: ignore[arg-type]
