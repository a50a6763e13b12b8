"""What is not decoded, the resources of a decoder, and what a batch takes of the training's thread."""

import threading
from pathlib import Path
from typing import Any

import loaders
import pytest
import torch
from damaged import damage
from painted import pack_painted

import gpuload
from gpuload import Augment
from gpuload.batchwise import CenterHole, CutMix, MixUp, RandomMixer
from gpuload.machine.ranks import count_threads, find_ranks
from gpuload.transforms import RandAugment, RandomRotation


def load(folder: Any, decoder: str, **options: Any) -> gpuload.DaliIterator:
    usual = {"fields": ("image", "label"), "shuffle": gpuload.Shuffle(window=3)}
    return loaders.load(folder, decoder=decoder, **{**usual, **options})


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple):
        return all(same(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def test_without_images_nothing_is_decoded_and_all_else_is_the_same(tmp_path: Path, decoder: str) -> None:
    folder = pack_painted(tmp_path, count=21)
    rest = ("label", "caption", gpuload.Boxes("boxes"), gpuload.Target("angle", negate_on_flip=True), "key", "index")
    augment = Augment(32, vertical_flip=0.5)
    with load(folder, decoder, fields=("image", *rest), augment=augment) as loader:
        expected = [[batch[1:] for batch in loader] for _ in range(2)]
    folder = damage(folder, tmp_path / "blank", range(21))
    with load(folder, decoder, fields=rest, augment=augment) as loader:
        batches = iter(loader)
        begun = [next(batches)]
        state = loader.state_dict()
        found = [begun + list(batches), list(loader)]
        assert loader.metrics().decode_s == 0
        loader.load_state_dict(state)
        assert all(same(one, other) for one, other in zip(loader, expected[0][1:], strict=True))
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other) == 2
        assert all(same(a, b) for a, b in zip(one, other, strict=True))
    with load(folder, decoder, fields=("image", *rest)) as loader, pytest.raises(gpuload.DecodeError, match="does not"):
        next(iter(loader))


def test_without_images_a_mask_alone_still_follows_its_crop(tmp_path: Path, decoder: str) -> None:
    folder = pack_painted(tmp_path, count=9)
    with load(folder, decoder, fields=("mask",)) as alone, load(folder, decoder, fields=("image", "mask")) as both:
        for (masks,), (_, expected) in zip(alone, both, strict=True):
            assert torch.equal(masks, expected)


def forms_of(values: Any) -> Any:
    """The dtype and the shape of each array of a batch, but for the number of samples and of boxes."""
    if isinstance(values, tuple):
        return [forms_of(one) for one in values]
    return (values.dtype, values.shape[2:]) if hasattr(values, "shape") else type(values)


MIXED = {"batch_transforms": [RandomMixer([MixUp(), CutMix()]), CenterHole(4)]}


@pytest.mark.parametrize(
    ("label", "more"),
    [
        (gpuload.OneHot("label"), {"augment": [Augment(16), Augment((12, 10))]}),
        (gpuload.OneHot("label"), {"augment": Augment(16)}),
        ("label", {"augment": Augment(16), **MIXED}),
        ("label", {"augment": Augment(16), **MIXED, "output": "numpy"}),
    ],
)
def test_a_rank_without_samples_has_empty_fields_of_each_kind(
    tmp_path: Path, decoder: str, label: Any, more: dict[str, Any]
) -> None:
    folder = pack_painted(tmp_path, count=9)
    fields = ("image", "mask", "boxes", gpuload.Target("angle", True), label, "caption", "key", "dataset")
    options: dict[str, Any] = {"fields": fields, "drop_last": "exact", "rank": 3, "world_size": 4, **more}
    few = gpuload.Dataset(folder).subset(range(2))
    with load(folder, decoder, **options) as full, load(few, decoder, **options) as empty:
        *_, last = full
        (none,) = empty
        assert (len(last.key), len(none.dataset), none.key) == (2, 0, [])  # nine over four ranks
        views = none.image, none.mask
        for images, masks in zip(*views, strict=True) if isinstance(none.image, tuple) else [views]:
            assert images.shape[:2] == (0, 3) and len(masks) == 0
        assert empty.padding == 0 and empty.drop_last is False
        assert empty.metrics(1).wait_decode_s == 0 < empty.metrics(1).wait_read_s
        assert forms_of(last) == forms_of(none)


def inner(stage: Any) -> Any:
    """What a stage of a part does."""
    return getattr(stage, "_stage", stage)


def settings_of(loader: gpuload.DaliIterator) -> tuple[int, int]:
    """Threads and batches ahead that the decoder works with."""
    runner: Any = loader._pipeline.decoder.decoder
    stage = runner.stages[-1]
    return stage.threads if loader.decoder == "native" else stage.settings["num_threads"], runner.prefetch


def test_resources_are_as_given_or_the_defaults(tmp_path: Path, decoder: str) -> None:
    folder = pack_painted(tmp_path, count=9)
    with load(folder, decoder, num_threads=None) as loader:
        assert settings_of(loader) == (count_threads(find_ranks(None, None)), 2)
    with load(folder, decoder, num_threads=1, prefetch=4) as loader:
        assert settings_of(loader) == (1, 4) and loader.num_threads == 1 and loader.cpu_share is None


def test_shares_are_as_given_or_the_defaults(tmp_path: Path) -> None:
    folder = pack_painted(tmp_path, count=9)
    shares: list[tuple[Any, Any, float | None]] = [
        ("dali", None, None),
        (gpuload.Dali(hardware=0.3), None, 0.3),
        (gpuload.Dali(deterministic=True), None, 0.0),
        ("both", 0.25, None),
        (gpuload.Both(deterministic=True), 0.25, 0.0),
        (gpuload.Both(cpu=0.5, hardware=0.3), 0.5, 0.3),
    ]
    for decoder, cpu, hardware in shares:
        with load(folder, decoder) as loader:
            runner: Any = loader._pipeline.decoder.decoder
            loads = [stage._load for stage in map(inner, runner.stages) if hasattr(stage, "_load")]
            assert (loader.cpu_share, loads) == (cpu, [hardware]), decoder


def test_boxes_and_keypoints_are_moved_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training's takes finished values."""
    threads: list[threading.Thread] = []
    real = gpuload.fields.motion.Motion.crop_and_flip

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*given)

    monkeypatch.setattr(gpuload.fields.motion.Motion, "crop_and_flip", noted)
    augment = Augment(24, transforms=[RandomRotation(30), RandAugment()])
    with loaders.load(pack_painted(tmp_path, 12), 2, augment=augment, fields=("image", "boxes", "keypoints")) as loader:
        assert len(list(loader)) == 6
    assert len(threads) >= 12 and threading.current_thread() not in threads
