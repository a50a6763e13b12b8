"""A function of the user's for each sample: where it is called, with what, and that nothing but the sample decides."""

import dataclasses
import math
import traceback
from pathlib import Path
from typing import Any

import global_draws
import numpy as np
import pytest
import torch
from damaged import damage
from loaders import drain, load
from opened import pretend_gpu
from painted import FIELDS, KEYPOINTS, check_boxes, check_keypoints, check_masks
from sample_functions import refuse_seven, speckle, swap_sides, turn

import gpuload
from gpuload import ArgumentError, Augment, FunctionError, RandomResizedCrop
from gpuload.transforms import ColorJitter, Function, RandomErasing

NOISY = Augment(12, dtype="uint8", transforms=[Function(speckle)])
NOISY_BEFORE = Augment(12, dtype="uint8", transforms=[Function(speckle, before_crop=True)])


@pytest.fixture(params=["native", "dali", "both"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Batches of one such as "native-uploading" go the way of a GPU, on the CPU."""
    name, _, uploads = str(request.param).partition("-")
    if uploads:
        pretend_gpu(monkeypatch)
    return name


@pytest.mark.parametrize(
    ("decoder", "function"),
    [
        ("native", Function(swap_sides)),
        ("dali", Function(swap_sides)),
        ("both-uploading", Function(swap_sides)),
        ("native", Function(turn, before_crop=True)),
        ("dali-uploading", Function(turn, before_crop=True)),
    ],
    indirect=["decoder"],
)
def test_masks_boxes_and_keypoints_go_with_the_image(
    painted: Path, tmp_path: Path, decoder: str, function: Function
) -> None:
    """Also those of a sample that takes the place of one that does not decode."""
    crop = RandomResizedCrop(scale=(0.5, 1))
    augment = Augment(64, dtype="uint8", crop=crop, vertical_flip=0.3, transforms=[function])
    bad = damage(painted, tmp_path / "train", (1, 7, 8))
    options: dict[str, Any] = {"fields": (*FIELDS, KEYPOINTS), "on_corrupt": gpuload.OnCorrupt("skip", most=1.0)}
    with load(bad, 5, augment=augment, decoder=decoder, drop_last=False, **options) as loader:
        boxes = points = 0
        for batch in (batch._asdict() for _ in range(2) for batch in loader):  # type: ignore[attr-defined]
            assert not {1, 7, 8} & set(batch["index"].tolist())
            check_masks(batch["image"], batch["mask"])
            boxes += check_boxes(batch["image"], batch["boxes"])
            points += check_keypoints(batch["image"], batch["keypoints"], upright=False)
    assert boxes > 50 and points > 100 and loader.report().corrupt == 6


def test_what_a_function_gets(painted: Path, decoder: str) -> None:
    seen: dict[str, Any] = {}

    def look(sample: Any, rng: np.random.Generator) -> Any:
        seen[sample["key"]] = {name: getattr(value, "shape", value) for name, value in sample.items()}
        assert sample["image"].flags.writeable and sample["image"].dtype == np.uint8
        return sample

    for at in ("after_crop", "before_crop"):
        augment = Augment((20, 30), crop="none", transforms=[Function(look, before_crop=at == "before_crop")])
        with load(painted, 4, augment=augment, fields=(*FIELDS, KEYPOINTS, "label"), decoder=decoder) as loader:
            list(loader)
        size = (20, 30) if at == "after_crop" else (100, 100)
        first = next(one for one in seen.values() if one["index"] == 0)
        assert set(first) == {"image", "mask", "boxes", "boxes_class", "keypoints", "key", "index"}
        assert (first["image"], first["mask"], first["boxes"], first["boxes_class"], first["keypoints"]) == (
            (*size, 3), size, (3, 4), (3,), (3, 3, 3),
        )  # fmt: skip


def plain(packed: Path, augment: Augment, decoder: str = "native", **options: Any) -> torch.Tensor:
    with load(packed, augment=augment, decoder=decoder, shuffle=False, fields=("image",), **options) as loader:
        return torch.cat([images for (images,) in loader])


@pytest.mark.parametrize(
    ("decoder", "dtype", "layout"),
    [
        ("native", "float32", "NCHW"),
        ("native", "float16", "channels_last"),
        ("native-uploading", "bfloat16", "NCHW"),
        ("dali", "float32", "channels_last"),
        ("dali-uploading", "float16", "NCHW"),
        ("both", "bfloat16", "NCHW"),
    ],
    indirect=["decoder"],
)
def test_a_function_that_changes_nothing_changes_nothing(packed: Path, decoder: str, dtype: Any, layout: Any) -> None:
    """What follows it is what follows the crop without it: flips, transforms, normalisation, erasing, layout."""
    steps = (ColorJitter(0.4, hue=0.1), RandomErasing(0.5, value="random"))
    options: dict[str, Any] = {"dtype": dtype, "layout": layout, "vertical_flip": 0.5}
    expected = plain(packed, Augment(12, transforms=steps, **options), decoder)
    same = Function(lambda sample, rng: sample["image"])
    found = plain(packed, Augment(12, transforms=[same, *steps], **options), decoder)
    assert found.dtype == expected.dtype and found.stride() == expected.stride()
    assert torch.equal(found, expected)


def test_a_function_before_the_crop_that_changes_nothing_changes_nothing(packed: Path) -> None:
    augment = Augment(12, crop=RandomResizedCrop(scale=(0.9, 1)), vertical_flip=0.5)
    same = [Function(lambda s, _: s, before_crop=True)]
    expected, found = (plain(packed, one) for one in (augment, dataclasses.replace(augment, transforms=same)))
    assert (found - expected).abs().mean() < 0.01  # large images are decoded in a part of their size without it


@pytest.mark.parametrize("decoder", ["native", "both"])
def test_threads_and_batches_ahead_change_nothing(packed: Path, decoder: str) -> None:
    """As ranks, batch size and a resume, see tests/iterator/test_ways.py."""
    options: dict[str, Any] = {"augment": NOISY, "decoder": decoder, "drop_last": False}
    with load(packed, 8, **options) as loader:
        epochs = [drain([loader]) for _ in range(2)]
    assert len({pixels for epoch in epochs for _, pixels in epoch}) == 2 * 97
    with load(packed, 5, num_threads=3, prefetch=3, **options) as loader:
        assert [drain([loader]) for _ in range(2)] == epochs


def test_each_repeat_has_random_numbers_of_its_own(packed: Path) -> None:
    weights = np.ones(97)
    weights[5] = 200
    with load(packed, augment=NOISY, drop_last=False) as loader:
        expected = dict(drain([loader]))
    with load(packed, augment=NOISY, sampling=gpuload.Weights(weights), drop_last=False) as loader:
        again = [pixels for index, pixels in drain([loader]) if index == 5]
    assert len(set(again)) == len(again) > 10 and expected[5] in again


@pytest.mark.parametrize("decoder", ["native", "dali", "both", "native-uploading"], indirect=True)
def test_views_have_functions_of_their_own(packed: Path, decoder: str) -> None:
    options: dict[str, Any] = {"crop": RandomResizedCrop((0.5, 1))}  # decoded in their full size
    plainly = Augment(40, **options)
    noisy = Augment(40, transforms=[Function(speckle)], **options)
    augments = [noisy, plainly, Augment(40, transforms=[Function(speckle, before_crop=True)], **options), noisy]
    with load(packed, augment=augments, decoder=decoder, shuffle=False, fields=("image",)) as loader:
        views = [torch.cat(images) for images in zip(*(views for (views,) in loader), strict=True)]
    assert torch.equal(views[0], plain(packed, noisy, decoder))
    assert len({view.numpy().tobytes() for view in views}) == 4
    with load(packed, augment=[plainly, plainly], decoder=decoder, shuffle=False, fields=("image",)) as loader:
        without = torch.cat([second for ((_, second),) in loader])
    assert torch.equal(views[1], without)


@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
@pytest.mark.parametrize(
    ("decoder", "augment"), [("native", NOISY), ("dali", NOISY), ("both", NOISY), ("native", NOISY_BEFORE)]
)
def test_samples_that_do_not_decode(
    packed: Path, tmp_path: Path, decoder: str, on_corrupt: Any, augment: Augment
) -> None:
    """They are not given to the function; what takes their place, or is marked, is as it is without it."""
    broken = (0, 15, 25, 26, *range(40, 48), 96)
    bad = damage(packed, tmp_path / "train", broken)
    report_all = gpuload.OnCorrupt(on_corrupt, most=1.0)
    options: dict[str, Any] = {"decoder": decoder, "shuffle": False, "on_corrupt": report_all}
    fields = ("index", "image", "label")
    with load(bad, augment=augment, fields=fields, drop_last=False, **options) as loader:
        found = [(index.clone(), images.clone()) for index, images, *_ in loader]
        report = loader.report()
    with load(bad, fields=fields, drop_last=False, **options) as loader:
        assert [index.tolist() for index, *_ in loader] == [index.tolist() for index, _ in found]
        assert loader.report().corrupt == report.corrupt == 13
    clean = plain(packed, augment, "native", drop_last=False) if decoder == "native" else None
    last = -1 if on_corrupt == "skip" else None  # in place of the last one comes one of the next pass
    for index, images in found[:last]:
        for sample, image in zip(index.tolist(), images, strict=True):
            if on_corrupt == "mark" and sample in broken:
                assert not image.any()
            elif clean is not None:
                assert torch.equal(image, clean[sample])


def test_the_generator_is_well_defined(packed: Path) -> None:
    """The numbers of a key never change, and are those of NumPy's own Philox with that key."""
    drawn: dict[int, list[int]] = {}

    def draw(sample: Any, rng: np.random.Generator) -> Any:
        drawn[sample["index"]] = rng.integers(0, 1 << 63, 3).tolist()
        rng.normal(size=7)
        with pytest.raises(TypeError, match="does not implement spawning"):
            rng.spawn(2)
        return sample

    views = [Augment(12), Augment(12, transforms=[Function(draw)])]
    with load(packed, augment=views, seed=7, drop_last=False) as loader:
        loader.set_epoch(3)
        list(loader)
    philox = np.random.Philox(key=np.array(GOLDEN[0], np.uint64))
    assert drawn[0] == np.random.Generator(philox).integers(0, 1 << 63, 3).tolist()
    assert len(set(map(tuple, drawn.values()))) == 97
    view = NOISY.draw(7, 3, np.array([0, 5]), *np.full((2, 2), 40, np.int32), 1, np.array([0, 2]))
    assert view.function is not None
    assert view.function.keys.tolist() == GOLDEN
    for row, sample in enumerate((0, 5)):  # drawn again where a function comes before the crop
        again = view.function.crop(row, sample, 40, 40)
        assert [part.tolist() for part in again[:6]] == [part[row : row + 1].tolist() for part in view.crops[:6]]
    one = NOISY.draw(7, 3, np.array([0]), *np.full((2, 1), 40, np.int32), 1)
    assert one.function is not None and one.function.keys.tolist() == GOLDEN[:1]


GOLDEN = [[9581030684215792379, 5234189398341145004], [15070054850686972695, 13984747787447326408]]


def without_boxes(sample: Any) -> Any:
    del sample["boxes"]
    return sample["image"]


def failing(message: str, at: str = "after_crop", **returned: Any) -> Any:
    return pytest.param(returned, at, message, id=message)


@pytest.mark.parametrize(
    ("returned", "at", "message"),
    [
        failing(r"returned None: expected the image as a NumPy array, or a dict", it=None),
        failing(r"returned an object of type torch.Tensor: expected the image as a NumPy", it=torch.zeros(12, 12, 3)),
        failing(r"float64 \(12, 12, 3\) as 'image': expected uint8 .* Leave conversion", it=np.zeros((12, 12, 3))),
        failing(r"uint8 \(3, 12, 12\) as 'image': expected uint8 \(12, 12, 3\)", it=np.zeros((3, 12, 12), np.uint8)),
        failing(r"uint8 \(11, 12, 3\) as .*: expected uint8 \(12, .*before_crop", it=np.zeros((11, 12, 3), np.uint8)),
        failing(r"returned an object of type list as 'image': expected uint8", image=[1]),
        failing(r"\(0, 9, 3\) as 'image': expected uint8 \(height, width, 3\)", "before_crop", it=np.zeros((0, 9, 3), np.uint8)),
        failing(r"returned an entry 'bboxes': the entries are 'image', 'boxes', 'mask', 'keypoints'", bboxes=1),
        failing(r"list as 'boxes_class': expected finite int64 \(2\)", boxes=np.eye(2, 4).cumsum(1), boxes_class=[1]),
        failing(r"\(1, 5\) as 'boxes': expected finite float32 \(M, 4\)", boxes=np.ones((1, 5)), boxes_class=[1]),
        failing(r"'boxes' with x1 < x0 or y1 < y0", boxes=[[5, 5, 4, 9]], boxes_class=[1]),
        failing(r"list as 'boxes': expected finite float32", boxes=[[math.nan] * 4], boxes_class=[1]),
        failing(r"returned 'x' as 'boxes': expected finite float32 \(M, 4\)", boxes="x"),
        failing(r"list as 'boxes_class': expected finite int64", boxes=[[1, 1, 2, 2]], boxes_class=[0.5]),
        failing(r"list as 'boxes': expected finite float32", boxes=[[1, 1, 1e39, 2]], boxes_class=[1]),
        failing(r"float32 \(12, 12\) as 'mask': expected finite uint8", mask=np.zeros((12, 12), np.float32)),
        failing(r"uint16 \(12, 12\) as 'mask': expected finite uint8", mask=np.full((12, 12), 300, np.uint16)),
        failing(r"\(2, 3\) as 'keypoints': expected finite float32 \(M, 3, 3\)", keypoints=np.ones((2, 3))),
        failing(r"removed 'boxes' from the sample and did not return it: return it", it=without_boxes),
        failing(r"size from 1\d\d×1\d\d to 9×9 without returning 'boxes'", "before_crop", it=np.zeros((9, 9, 3), np.uint8)),
    ],
)  # fmt: skip
def test_wrong_results_are_told_by_name(painted: Path, returned: Any, at: Any, message: str) -> None:
    def function(sample: Any, rng: np.random.Generator) -> Any:
        given = returned.get("it", returned) if sample["index"] == 3 else sample
        return given(sample) if callable(given) else given

    augment = Augment(12, transforms=[Function(function, before_crop=at == "before_crop")])
    with (
        load(painted, 3, augment=augment, fields=(*FIELDS, KEYPOINTS), shuffle=False) as loader,
        pytest.raises(
            FunctionError, match=rf"shard-000000.tar: sample '0*3[^']*': the function .*function .*{message}"
        ),
    ):
        list(loader)


def test_what_is_done_to_the_sample_itself(painted: Path) -> None:
    """Its arrays may be changed, and entries replaced."""

    def change(sample: Any, rng: np.random.Generator) -> Any:
        sample["image"] //= 2
        sample["boxes"], sample["boxes_class"] = sample["boxes"][:1], sample["boxes_class"][:1]
        return sample["image"]

    options: dict[str, Any] = {"fields": ("image", FIELDS[2]), "shuffle": False}
    plainly = Augment(40, dtype="uint8", crop="none")
    with load(painted, 3, augment=plainly, **options) as loader:
        expected = [(images // 2, boxes.boxes[:, :1]) for images, boxes in loader]
    with load(painted, 3, augment=dataclasses.replace(plainly, transforms=[Function(change)]), **options) as loader:
        for (images, boxes), (half, first) in zip(loader, expected, strict=True):
            assert torch.equal(images, half) and torch.equal(boxes.boxes, first)


def test_global_generators_are_told_of(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads, once a process. Functions that draw from rng are not blamed, as all other tests here show."""
    monkeypatch.setattr("gpuload.functions.function._TOLD", set())
    message = "speckle draws from the global generator of random and np.random and torch, which threads share, .*"
    with load(packed, augment=Augment(12, transforms=[Function(global_draws.speckle)])) as loader:
        with pytest.warns(UserWarning, match=f"{message}Draw from rng, or use Func") as told:
            list(loader)
        assert len(told) == 1
    with load(packed, augment=Augment(12, transforms=[Function(global_draws.speckle)])) as loader:
        list(loader)  # warnings are errors here


@pytest.mark.parametrize("processes", [0, 1])
def test_what_a_function_raises_is_the_cause(packed: Path, decoder: str, processes: int) -> None:
    augment = Augment(12, transforms=[Function(refuse_seven, processes=processes)])
    with load(packed, 4, augment=augment, decoder=decoder, shuffle=False) as loader:
        batches = 0
        with pytest.raises(FunctionError, match=r"the function refuse_seven raised ValueError: seven is ref") as raised:
            for _ in loader:
                batches += 1
        cause = raised.value.__cause__
        assert isinstance(cause, ValueError) and batches == 1
        assert "in refuse_seven" in "".join(traceback.format_exception(cause))
        assert loader.state_dict()["samples"] == 4
        with pytest.raises(FunctionError):  # the next loop is as good
            list(loader)


def test_a_function_takes_a_sample_and_a_generator() -> None:
    with pytest.raises(ArgumentError, match=r"must accept \(sample, rng\), but takes \(image\)"):
        Function(lambda image: image)  # type: ignore[misc, arg-type]


def test_fields_without_images(painted: Path) -> None:
    """Boxes alone are those that come with the images."""
    augment = Augment(40, transforms=[Function(swap_sides)])
    boxes: list[list[Any]] = []
    for fields in ((FIELDS[2],), ("image", FIELDS[2])):
        with load(painted, 6, augment=augment, fields=fields) as loader:
            boxes.append([batch[-1].boxes for batch in loader])
    assert all(torch.equal(one, other) for one, other in zip(*boxes, strict=True))


def test_without_a_function_none_takes_time(packed: Path) -> None:
    with load(packed) as loader:
        list(loader)
        assert loader.metrics().function_s == 0 < loader.metrics().decode_s
