"""`graph=`: the user's DALI operators, and the random numbers that they get."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import fn, types

import gpuload
from gpuload import Augment, batchwise
from gpuload.draws import EACH_GRAPH_VIEW
from gpuload.transforms import RandomInvert


def load(packed: Path, graph: Any, batch_size: int = 8, **options: Any) -> gpuload.DaliIterator:
    usual = {
        "augment": Augment(12, dtype="uint8"),
        "fields": ("index", "image"),
        "device": "cpu",
        "decoder": "dali",
        "num_threads": 2,
        "window": 3,
        "drop_last": False,
    }
    return gpuload.DaliIterator(packed, batch_size, graph=graph, **{**usual, **options})  # type: ignore[arg-type]


def darken_and_turn(images: Any, draws: Any) -> Any:
    darker = fn.brightness(images, brightness=0.3 + 0.7 * draws[0])
    return fn.rotate(darker, angle=360 * draws[15], keep_size=True, fill_value=0, interp_type=types.INTERP_LINEAR)


def show_draws(images: Any, draws: Any) -> Any:
    """Level 255 × draw: draws 0, 1, 2, … in rows, draw 0 in the first."""
    rows = fn.expand_dims(fn.expand_dims(fn.slice(draws, 0, 12, axes=[0]), axes=[1]), axes=[2])
    return fn.cast(fn.cast(images, dtype=types.FLOAT) * 0.0 + rows * 255.0, dtype=types.UINT8)


def drain(loaders: list[gpuload.DaliIterator], steps: int | None = None) -> list[tuple[int, bytes]]:
    rows = []
    for number, batches in enumerate(zip(*loaders, strict=True), start=1):
        for index, images in batches:
            rows += [(int(i), image.numpy().tobytes()) for i, image in zip(index, images, strict=True)]
        if number == steps:
            break
    return rows


def test_the_same_after_a_resume_and_on_other_ranks(packed: Path) -> None:
    with load(packed, darken_and_turn) as loader:
        epochs = [drain([loader]) for _ in range(2)]
    with load(packed, None) as plain:
        assert not set(epochs[0]) & set(drain([plain]))  # each image was changed
    assert not set(epochs[0]) & set(epochs[1])
    three = [load(packed, darken_and_turn, 5, rank=rank, world_size=3) for rank in range(3)]
    assert drain(three) == epochs[0]
    begun = drain(three, 2)
    two = [load(packed, darken_and_turn, 7, rank=rank, world_size=2, prefetch=1) for rank in range(2)]
    for loader in two:
        loader.load_state_dict(three[0].state_dict())
    assert begun + drain(two) == epochs[1]
    for loader in (*three, *two):
        loader.close()


def test_draws_are_uniform_and_independent(packed: Path) -> None:
    columns: list[Any] = []
    augment = Augment(12, flip=0, dtype="uint8")
    with load(packed, show_draws, augment=[augment, augment]) as loader:
        for _ in range(10):
            epoch = np.empty((97, 24))
            for index, images in loader:
                assert all((view == view[:, :1, :, :1]).all() for view in images)
                epoch[index] = torch.cat([view[:, 0, :, 0] for view in images], dim=1).numpy() / 255
            columns.append(epoch)
    assert all((np.abs(one - other) > 0.01).mean() > 0.9 for one, other in pairwise(columns))  # in each epoch others
    drawn = np.concatenate(columns)  # (970, 12 draws of each of two views)
    assert drawn.shape == (970, 24) and EACH_GRAPH_VIEW == 16
    # Of 970 uniform numbers the mean has a standard error of 0.0093, a correlation one of 0.032; four of each.
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 0.038
    assert np.abs(np.corrcoef(drawn.T) - np.eye(24)).max() < 0.13
    assert drawn.min() < 0.01 and drawn.max() > 0.98


def black_left(images: Any, draws: Any) -> Any:
    return fn.erase(images, anchor=0.0, shape=0.5, axis_names="W", normalized=True, fill_value=0)


@pytest.mark.parametrize("transforms", [[], [RandomInvert(p=1.0)]])
def test_it_comes_before_flips_transforms_and_normalisation(packed: Path, transforms: list[Any]) -> None:
    augment = Augment(12, flip=1.0, vertical_flip=0.5, transforms=transforms, mean=(0.0,) * 3, std=(0.5,) * 3)
    with load(packed, black_left, augment=augment) as loader, load(packed, None, augment=augment) as plain:
        for (_, images), (_, expected) in zip(loader, plain, strict=True):
            assert (images[..., 6:] == (2 if transforms else 0)).all()
            torch.testing.assert_close(images[..., :6], expected[..., :6])
            assert expected[..., 6:].std() > 0.1


def test_it_goes_with_batch_transforms_which_draw_apart(packed: Path) -> None:
    seen: list[np.ndarray] = []

    def look(batch: batchwise.FieldBatch) -> None:
        seen.extend(np.stack([batch.draws(number) for number in range(12)], axis=1))

    with load(packed, show_draws, augment=Augment(12, flip=0, dtype="uint8"), batch_transforms=[look]) as loader:
        shown = np.concatenate([images[:, 0, :, 0].numpy() / 255 for _, images in loader])
    assert shown.shape == np.shape(seen) == (97, 12)
    assert (np.abs(shown - np.array(seen)) > 0.01).mean() > 0.9


def test_no_more_views_than_there_are_random_numbers_for(packed: Path) -> None:
    views = [Augment(12, dtype="uint8")] * 513
    with pytest.raises(gpuload.ArgumentError, match="graph: augment makes 513 views, expected at most 512. Use fewer"):
        load(packed, darken_and_turn, augment=views)
    load(packed, darken_and_turn, augment=views[1:])
    load(packed, None, augment=views)


def test_it_needs_dali(packed: Path) -> None:
    with pytest.raises(gpuload.ArgumentError, match="graph: DALI operators need decoder='dali'"):
        load(packed, darken_and_turn, decoder="native")
    assert load(packed, darken_and_turn, decoder="auto").decoder == "dali"
