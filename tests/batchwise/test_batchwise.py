"""MixUp, CutMix, TimmMixup, RandomMixer and CenterHole: against their models, plain NumPy, and on CuPy with a GPU."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from loaders import largest_gap

import gpuload
from gpuload.batchwise import BatchForm, CenterHole, CutMix, FieldBatch, MixUp, RandomMixer, TimmMixup, mixers
from gpuload.batchwise.mixers import symmetric_beta
from gpuload.batchwise.transforms import apply_transforms, check_transforms
from gpuload.draws import make_key, uniform

CLASSES = 5


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> Any:
    """The array module."""
    if request.param == "cupy" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU, and torch built for it (extra cuda13 or cuda12)")
    return importlib.import_module(request.param)


@pytest.fixture(params=[1, 3, 64])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are mixed at a time: what a GPU does in blocks is arithmetic that NumPy can do, too."""
    monkeypatch.setattr(mixers, "_BLOCK", {"numpy": request.param, "cupy": request.param})


def draws_of(samples: np.ndarray, seed: int = 0) -> Callable[[int], np.ndarray]:
    return lambda number: uniform(make_key(seed, number), samples)


def make_batch(xp: Any, count: int = 7, dtype: str = "float32", size: tuple[int, int] = (12, 17)) -> FieldBatch:
    rng = np.random.default_rng(count)
    values = rng.uniform(0, 255, (count, 3, *size)) if dtype == "uint8" else rng.normal(size=(count, 3, *size))
    fields = {"image": xp.asarray(values.astype(dtype)), "label": xp.asarray(np.arange(count) % CLASSES)}
    return FieldBatch(fields, CLASSES, draws_of(np.arange(count)))


def host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array


def mixed(images: np.ndarray, mix: Any) -> np.ndarray:
    """float64: what mixing is, pixel by pixel."""
    share = np.ones((len(images), 1, *images.shape[2:]))
    for place, (top, left, bottom, right) in enumerate(mix.box.tolist()):
        share[place, 0, top:bottom, left:right] = mix.in_box[place]
    return share * images + (1 - share) * np.roll(images, 1, axis=0)


def soft(labels: np.ndarray, share: np.ndarray) -> np.ndarray:
    one_hot = np.eye(CLASSES)[labels]
    return share[:, None] * one_hot + (1 - share[:, None]) * np.roll(one_hot, 1, axis=0)


MIXERS = (
    MixUp(alpha=1.0),
    MixUp(alpha=0.2, p=0.5),
    CutMix(),
    CutMix(p=0.5),
    RandomMixer([MixUp(alpha=1.0), CutMix(p=0.5)], p=[0.6, 0.6]),
)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize(("count", "turned"), [(7, False), (7, True), (1, False), (0, False)])
@pytest.mark.parametrize("transform", MIXERS, ids=str)
def test_images_and_labels_are_mixed_as_planned(xp: Any, transform: Any, count: int, turned: bool, dtype: str) -> None:
    """In place, in any layout of memory. The partner of a single image is the image itself."""
    batch = make_batch(xp, count, dtype)
    if turned:
        last = xp.ascontiguousarray(batch.fields["image"].transpose(0, 2, 3, 1))
        batch.fields["image"] = last.transpose(0, 3, 1, 2)
    images, labels = host(batch.fields["image"]).copy(), host(batch.fields["label"]).copy()
    mix = transform.plan(batch.draws, 12, 17)
    expected = mixed(images.astype(np.float64), mix)
    memory, strides = batch.fields["image"], batch.fields["image"].strides
    transform(batch)
    assert batch.fields["image"] is memory and (memory.dtype, memory.strides) == (dtype, strides)
    found = host(memory)
    np.testing.assert_allclose(found, expected, atol={"uint8": 0.5001, "float16": 3e-3, "float32": 2e-6}[dtype])
    assert count < 7 or not np.array_equal(found, images)
    assert batch.fields["label"].dtype == np.float32
    np.testing.assert_allclose(host(batch.fields["label"]), soft(labels, mix.label), atol=1e-6)


@pytest.mark.parametrize("size", [(12, 17), (1, 1), (31, 8)])
@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_mixing_is_torchvisions(
    transforms: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: Any, size: tuple[int, int]
) -> None:
    """Which draws once a batch."""
    for seed in range(20):
        draws = [np.full(7, uniform(make_key(seed, number), np.arange(1))[0]) for number in range(5)]
        batch = FieldBatch(make_batch(np, size=size).fields, None, draws.__getitem__)
        middle = iter([int(draws[4][0] * size[1]), int(draws[3][0] * size[0])])
        theirs = getattr(transforms, kind.__name__)(num_classes=CLASSES)
        share = symmetric_beta(1.0, draws[1], draws[2])[0]
        with monkeypatch.context() as patch:
            patch.setattr(theirs._dist, "sample", lambda shape, share=share: torch.tensor(share))
            patch.setattr(torch, "randint", lambda high, size, middle=middle: torch.tensor([next(middle)]))
            images, labels = theirs(torch.tensor(batch.fields["image"]), torch.tensor(batch.fields["label"]))
        kind(alpha=1.0, num_classes=CLASSES)(batch)
        np.testing.assert_allclose(batch.fields["image"], images, atol=1e-6 if kind is MixUp else 0)
        np.testing.assert_allclose(batch.fields["label"], labels, atol=1e-6)


# Of 20,000 and 20,000, a distance above 1.63 * sqrt(2 / 20000) has a probability of 1 %.
DRAWN, FAR = 20_000, 1.63 * np.sqrt(2 / 20_000)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.5, 1.0, 3.0, 200.0])
def test_shares_are_beta_distributed(alpha: float) -> None:
    draws = draws_of(np.arange(DRAWN))
    found = symmetric_beta(alpha, draws(1), draws(2))
    assert ((found >= 0) & (found <= 1)).all()
    for other, far in ((alpha, False), (1.2 * alpha + 0.02, True)):
        theirs = np.random.default_rng(0).beta(other, other, DRAWN)
        # Ours are multiples of 2**-53: a share of 1e-70, likely for a small alpha, is 0.
        assert (largest_gap(found.round(12), theirs.round(12)) > FAR) == far


@pytest.mark.parametrize("first", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("second", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_the_ends_of_the_draws_give_shares_too(first: float, second: float) -> None:
    for alpha in (1e-3, 0.2, 1.0, 1e3):
        [share] = symmetric_beta(alpha, np.array([first]), np.array([second]))
        assert 0 <= share <= 1


@pytest.mark.parametrize("transform", MIXERS, ids=str)
def test_draws_belong_to_the_sample_not_to_its_place(transform: Any) -> None:
    samples = np.array([5, 900, 7, 12, 3])
    whole, part = (transform.plan(draws_of(chosen), 24, 24) for chosen in (samples, samples[[3, 1]]))
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one[[3, 1]], other)
    other_seed = transform.plan(draws_of(samples, seed=1), 24, 24)
    assert any(not np.array_equal(one, other) for one, other in zip(whole, other_seed, strict=True))


def test_p_is_the_share_of_samples_that_are_mixed() -> None:
    for transform in (MixUp(p=0.3), CutMix(p=0.3)):
        mix = transform.plan(draws_of(np.arange(5000)), 200, 200)
        assert np.mean(mix.label < 1) == pytest.approx(0.3, abs=0.02)
    assert (MixUp(p=0).plan(draws_of(np.arange(50)), 9, 9).label == 1).all()


def test_random_choice_draws_for_each_sample() -> None:
    for p, expected in ((None, 0.5), ([3, 1], 0.75), ([0, 1], 0.0)):
        mix = RandomMixer([MixUp(), CutMix()], p).plan(draws_of(np.arange(5000)), 50, 50)
        whole = (mix.box == [0, 0, 50, 50]).all(axis=1) & (mix.in_box > 0)
        assert np.mean(whole) == pytest.approx(expected, abs=0.02)
    # Each has draws of its own, which are not those of the choice.
    alone, choice = (one.plan(draws_of(np.arange(500)), 50, 50) for one in (MixUp(), RandomMixer([MixUp()])))
    assert abs(np.corrcoef(alone.label, choice.label)[0, 1]) < 0.2


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_center_hole(xp: Any, dtype: str) -> None:
    batch = make_batch(xp, dtype=dtype, size=(9, 12))
    image = host(batch.fields["image"]).copy()
    apply_transforms([CenterHole((4, 6), fill=3, target="hidden")], batch)
    np.testing.assert_array_equal(host(batch.fields["hidden"]), image[:, :, 2:6, 3:9])
    image[:, :, 2:6, 3:9] = 3
    np.testing.assert_array_equal(host(batch.fields["image"]), image)
    assert list(batch.fields) == ["image", "label", "hidden"]


def test_a_field_that_was_added_can_be_used_by_the_next() -> None:
    def label(batch: FieldBatch) -> None: ...

    label.adds = ("label",)  # type: ignore[attr-defined]
    assert check_transforms([label, MixUp()], FORM._replace(fields=("image",), class_fields=())) == ("label",)
    batch = make_batch(np)
    del batch.fields["label"]
    with pytest.raises(gpuload.ArgumentError, match="did not set the field 'label', which its adds names"):
        apply_transforms([label], batch)


def test_a_transform_may_say_what_it_needs_and_changes() -> None:
    class Smooth:
        """Label smoothing: the user's own transform that makes soft labels."""

        softens = ("label",)

        def check(self, form: BatchForm) -> None:
            seen.append(form.class_fields)
            if "label" not in form.class_fields:
                raise gpuload.ArgumentError("Smooth: needs class numbers")

        def __call__(self, batch: FieldBatch) -> None: ...

    seen: list[tuple[str, ...]] = []
    check_transforms([Smooth(), CenterHole(2)], FORM)
    assert seen == [("label",)]
    with pytest.raises(gpuload.ArgumentError, match="Smooth: needs class numbers"):
        check_transforms([Smooth()], FORM._replace(class_fields=()))
    batch = make_batch(np)
    batch.fields["index"] = batch.fields["label"].copy()
    assert batch.form.class_fields == ("label",)
    MixUp()(batch)
    assert batch.form.class_fields == ()


def test_each_transform_of_a_list_has_256_random_numbers() -> None:
    def draw(number: int) -> Callable[[FieldBatch], None]:
        return lambda batch: seen.append(batch.draws(number)[0])

    seen: list[float] = []
    batch = make_batch(np)
    counted = FieldBatch(batch.fields, CLASSES, lambda number: np.array([float(number)]))
    apply_transforms([draw(255)] * 32, counted)
    assert seen == [256 * index + 255 for index in range(32)]
    with pytest.raises(gpuload.ArgumentError, match=r"batch_transforms\[32\]: needs draw numbers up to 8447"):
        apply_transforms([draw(0)] * 33, counted)
    for number in (300, 256, -1):
        with pytest.raises(gpuload.ArgumentError, match=rf"\[1\]: asks for draw number {number}, expected 0..255"):
            apply_transforms([draw(0), draw(number)], counted)


def test_a_choice_has_eight_random_numbers_for_each_of_31() -> None:
    class Greedy(MixUp):
        def plan(self, draws: Callable[[int], np.ndarray], height: int, width: int) -> Any:
            draws(8)
            return super().plan(draws, height, width)

    RandomMixer([MixUp()] * 31)
    with pytest.raises(gpuload.ArgumentError, match="has 32, expected at most 31"):
        RandomMixer([MixUp()] * 32)
    with pytest.raises(gpuload.ArgumentError, match="Greedy in a RandomMixer: asks for draw number 8, expected 0..7"):
        RandomMixer([CutMix(), Greedy()]).plan(draws_of(np.arange(3)), 9, 9)


FORM = BatchForm(("image", "label"), (24, 32), "float32", 10, ("label",))


def test_batches_that_cannot_be_mixed(xp: Any) -> None:
    batch = make_batch(xp)
    MixUp()(batch)
    with pytest.raises(gpuload.ArgumentError, match="CutMix.*: makes soft labels .*mix a batch once"):
        CutMix()(batch)
    unknown = FieldBatch(make_batch(xp).fields, None, batch.draws)
    with pytest.raises(gpuload.ArgumentError, match="a label is 4; give num_classes of at least one more"):
        MixUp(num_classes=4)(unknown)
    assert check_transforms([MixUp(num_classes=12)], FORM) == ()
    MixUp(num_classes=12)(unknown)
    assert unknown.fields["label"].shape == (7, 12)


# ---- beside timm's own Mixup, which gets the same draws


def timm_mixup() -> Any:
    importlib.import_module("torchvision_anywhere")
    return pytest.importorskip("timm.data.mixup", reason="needs the extra 'frameworks'")


def loaded(packed: Path, *transforms: Any, batch_size: int = 12, **options: Any) -> gpuload.DaliIterator:
    usual: dict[str, Any] = {"augment": gpuload.Augment(20), "device": "cpu", "decoder": "native"}
    return gpuload.DaliIterator(packed, batch_size, batch_transforms=transforms, **usual, **options)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_same_draws_give_timms_images_and_targets(
    packed: Path, mode: Any, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = timm_mixup()
    options: dict[str, Any] = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "prob": 0.8, "mode": mode}
    plans: list[Any] = []

    class Noted(TimmMixup):
        def plan(self, *given: Any) -> Any:
            plans.append(super().plan(*given))
            return plans[-1]

    ours = Noted(**options, label_smoothing=smoothing)
    theirs = timm.Mixup(**options, label_smoothing=smoothing, num_classes=3)

    kinds, epochs = set(), 3
    mixed = (batch for loader in [loaded(packed, ours)] for _ in range(epochs) for batch in loader)
    plain = (batch for loader in [loaded(packed)] for _ in range(epochs) for batch in loader)
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
    timm = timm_mixup()
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
    loader = loaded(packed, TimmMixup())
    loader.mixup_enabled = False
    images, labels = next(iter(loader))
    own, classes = next(iter(loaded(packed)))
    assert torch.equal(images, own)
    torch.testing.assert_close(labels, torch.eye(3)[classes] * 0.9 + 0.1 / 3)
    plain = loaded(packed, lambda batch: TimmMixup()(batch))  # a function's own is on, and not told
    assert not plain.mixup_enabled
    assert all(map(torch.equal, next(iter(plain)), next(iter(loaded(packed, TimmMixup())))))
    odd = loaded(packed, TimmMixup(mode="elem"), batch_size=7, drop_last=False)
    for _, labels in odd:
        torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
    with pytest.raises(gpuload.ArgumentError, match="mixes nothing"):
        TimmMixup(0.0)
