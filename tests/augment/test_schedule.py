"""Several views of each sample, and what changes from epoch to epoch, on both decoders."""

import importlib
from pathlib import Path
from typing import Any

import loaders
import numpy as np
import pytest
from loaders import same

import gpuload
from gpuload import Augment, Buckets, CenterCrop, Normalize, RandomCrop, Resize
from gpuload.transforms import Function, RandomGrayscale, RandomInvert


def load(packed: Path, decoder: str, augment: Any, **options: Any) -> gpuload.DaliIterator:
    usual: dict[str, Any] = {"fields": ("image", "index"), "shuffle": gpuload.Shuffle(window=3)}
    return loaders.load(packed, 16, augment=augment, decoder=decoder, **{**usual, **options})


def sized(size: Any, **options: Any) -> Augment:
    return Augment(size, **{"dtype": "uint8", **options})


def calling(**options: Any) -> Augment:
    return sized(8, transforms=[Function(unchanged, **options)])


def unchanged(sample: Any, rng: Any) -> Any:
    return sample


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each DALI pipeline that is built."""
    built: list[Any] = []
    if not loaders.HAS_DALI:
        return built
    pipeline_def = importlib.import_module("nvidia.dali").pipeline_def

    def counted(operators: Any) -> Any:
        def make(*args: Any, **options: Any) -> Any:
            built.append(operators)
            return pipeline_def(operators)(*args, **options)

        return make

    monkeypatch.setattr("gpuload.decode.dali.graph.pipeline_def", counted)
    return built


def test_sizes_change_from_their_epoch_on_and_no_pipeline_is_built_again(
    packed: Path, decoder: str, builds: list[Any]
) -> None:
    with load(packed, decoder, {3: sized((20, 28)), 0: sized(16), 1: sized(24, crop=CenterCrop(30))}) as loader:
        epochs = [list(loader) for _ in range(5)]
        loader.set_epoch(0)
        again = list(loader)
    assert len(builds) == (decoder == "dali")
    shapes = [{tuple(images.shape[2:]) for images, _ in epoch} for epoch in epochs]
    assert shapes == [{(16, 16)}, {(24, 24)}, {(24, 24)}, {(20, 28)}, {(20, 28)}]
    assert same(again, epochs[0])
    for number, augment in ((1, sized(24, crop=CenterCrop(30))), (4, sized((20, 28)))):
        with load(packed, decoder, augment) as plain:
            plain.set_epoch(number)
            assert same(plain, epochs[number])


@pytest.mark.parametrize("invert", [RandomInvert(p=1.0), Function(lambda sample, rng: 255 - sample["image"])])
def test_flips_transforms_and_functions_may_begin_later(
    packed: Path, decoder: str, builds: list[Any], invert: Any
) -> None:
    changed = sized(16, vertical_flip=1.0, flip=0, transforms=[invert])
    with load(packed, decoder, {0: sized(16, flip=0), 1: changed}) as loader:
        first, second = list(loader), list(loader)
    assert len(builds) == (decoder == "dali")
    with load(packed, decoder, sized(16, flip=0)) as plain:
        assert same(plain, first)
        assert same([(255 - images.flip(2), index) for images, index in plain], second)


def test_views_are_a_tuple_and_the_first_does_not_depend_on_the_others(packed: Path, decoder: str) -> None:
    first, second = sized((16, 20)), sized(12, crop=CenterCrop(14), transforms=[RandomGrayscale(p=1.0)])
    with load(packed, decoder, [first, second, first]) as several, load(packed, decoder, first) as alone:
        batches, expected = list(several), list(alone)
    assert len(batches) == 6 and type(batches[0][0]) is tuple
    assert same([(views[0], index) for views, index in batches], expected)
    for views, _ in batches:
        assert [tuple(view.shape) for view in views] == [(16, 3, 16, 20), (16, 3, 12, 12), (16, 3, 16, 20)]
        assert (views[1][:, 0] == views[1][:, 1]).all()
        assert not (views[0] == views[2]).flatten(1).all(dim=1).any()
    with load(packed, decoder, [second]) as one, load(packed, decoder, second) as plain:
        assert same(one, plain)  # one in a list is one


def test_views_by_epoch_as_numpy_arrays_and_in_a_dict(packed: Path, decoder: str) -> None:
    augment = {0: [sized(16), sized(8)], 1: [sized(20), sized(10)]}
    with load(packed, decoder, augment, output="numpy") as loader:
        for size in (16, 20):
            for batch in (one._asdict() for one in loader):
                assert list(batch) == ["image", "index"] and type(batch["image"]) is tuple
                assert [view.shape for view in batch["image"]] == [(16, 3, size, size), (16, 3, size // 2, size // 2)]
                assert all(type(view) is np.ndarray for view in batch["image"])


def test_views_of_different_normalisation(packed: Path, decoder: str) -> None:
    views = [Augment(16), Augment(16, normalize=Normalize((0, 0, 0), (1, 1, 1))), Augment(16, normalize="image")]
    with load(packed, decoder, views) as loader:
        images, _ = next(iter(loader))
    assert images[0].min() < -1 and images[1].min() >= 0 and images[1].max() <= 1
    assert images[2].flatten(1).mean(dim=1).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({1: sized(8), 3: sized(9)}, r"has epochs \[1, 3\], but none for epoch 0, the first"),
        ({}, r"has epochs \[\], but none for epoch 0"),
        ({0: sized(8), -1: sized(9)}, r"augment\(epoch=-1\): expected a whole number of at least 0"),
        ({0: [], 1: []}, r"augment=\[\]: expected a gpuload.Augment, at least one"),
        ({0: sized(8), 1: [sized(8), sized(8)]}, "the number of views differs, 1 and 2"),
        ({0: sized(8), 1: Augment(8)}, "dtype differs, 'uint8' and 'float32'"),
        ({0: Augment(8), 4: Augment(8, normalize=Normalize((0, 0, 0)))}, "mean differs"),
        ({0: sized(8), 1: sized(8, crop="pad_or_crop")}, "pads differs, False and True.*crops that do not pad"),
        ({0: sized(8), 1: sized(8, interpolation="bicubic")}, "interpolation differs"),
        ({0: sized(8, crop=RandomCrop()), 1: sized(8, crop=RandomCrop(padding_mode="edge"))}, "padding_mode differs"),
        ({0: sized(None, crop="keep"), 1: sized(None, crop=Resize(pad_to_multiple_of=8))}, "sizes differs"),
        ([sized(8), Augment(8)], "dtype differs"),
        ([calling(), calling(processes=2)], "0 and 2. Use"),
        ({0: calling(), 2: calling(before_crop=True)}, "before_crop.*"),
        ([sized(8), sized(Buckets([(8, 8)]))], "Buckets differs"),
        ([sized(8), sized(8, layout="channels_last")], "layout differs"),
    ],
)
def test_schedules_that_cannot_be_are_refused(packed: Path, augment: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(packed, "auto", augment)
