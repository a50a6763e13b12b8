"""Data sets of tiles: each tile once, at its place, over all ranks; put together they are the image again."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from images import encode, photo
from loaders import load

import gpuload
from gpuload import ArgumentError
from gpuload.batchwise import join_tiles

SIZES = [(64, 64), (100, 130), (40, 200), (65, 257), (17, 9)]  # height, width
WHOLE = {"augment": gpuload.Augment(32, crop="pad_or_crop", dtype="uint8")}
FIELDS = ("index", "image", "crop_top_left", "boxes")


def boxes_of(number: int) -> list[list[int]]:
    return [[x, x, x + 8, x + 4] for x in range(0, 9 * number, 9)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    samples = [
        {"image": encode(photo(n, w, h), quality=90), "boxes": boxes_of(n), "boxes_class": [0] * n}
        for n, (h, w) in enumerate(SIZES)
    ]
    out = tmp_path_factory.mktemp("large")
    gpuload.pack(samples, out, workers=1, maxcount=2, shuffle=False)
    return gpuload.Dataset(out / "train")


def tiles_of(loaders: list[gpuload.DaliIterator]) -> list[tuple[int, tuple[int, ...], torch.Tensor]]:
    """Sample, place and pixels of all tiles of an epoch, over all ranks in step."""
    return [
        (int(index), tuple(place.tolist()), image)
        for parts in zip(*loaders, strict=True)
        for batch in parts
        for index, image, place in zip(*batch[:3], strict=True)
    ]


def joined(tiles: list[tuple[int, tuple[int, ...], torch.Tensor]], sample: int) -> torch.Tensor:
    mine = [(place, image) for index, place, image in tiles if index == sample]
    places, images = zip(*mine, strict=True)
    whole: torch.Tensor = join_tiles(torch.stack(images), places, SIZES[sample])
    return whole


@pytest.mark.parametrize(("size", "overlap", "shuffle"), [(32, 0, False), (32, 8, True), ((20, 32), 17, True)])
def test_each_tile_comes_once_over_all_ranks(data: gpuload.Dataset, size: Any, overlap: int, shuffle: bool) -> None:
    tiled = data.tiles(size, overlap)
    usual = {**WHOLE, "augment": gpuload.Augment(size, crop="pad_or_crop", dtype="uint8"), "fields": FIELDS}
    ranks = [load(tiled, 3, shuffle=shuffle, drop_last=False, rank=n, world_size=3, **usual) for n in range(3)]
    tiles = tiles_of(ranks)
    assert len(tiles) == len({(index, place) for index, place, _ in tiles}) == len(tiled)
    for sample in range(len(SIZES)):
        shown = torch.from_numpy(np.array(data[sample]["image"])).permute(2, 0, 1)
        assert torch.equal(joined(tiles, sample), shown.float())


def test_a_state_belongs_to_its_tiles(data: gpuload.Dataset) -> None:
    """By their fingerprint."""
    tiled = data.subset([0]).tiles(32, 8)
    others = data.subset([0]).tiles(32, 9), tiled.subset(range(3)), tiled.subset(range(1, 4)), data.subset([0])
    assert pickle.loads(pickle.dumps(tiled)).fingerprint == tiled.fingerprint
    assert len({one.fingerprint for one in (tiled, *others)}) == 5


def test_tiles_are_augmented_like_images(data: gpuload.Dataset) -> None:
    """Each has draws of its own, crops lie within the tile, and boxes move along."""
    tiled = data.subset([1]).tiles(50)
    augment = gpuload.Augment(16, crop=gpuload.RandomCrop(), flip=0.0, dtype="uint8")
    (batch,) = load(tiled, len(tiled), augment=augment, fields=FIELDS, shuffle=False)
    whole = torch.from_numpy(np.array(data[1]["image"])).permute(2, 0, 1)
    corners = [(top, left) for top in (0, 50) for left in (0, 50, 80)]
    assert len(set(map(tuple, (batch.crop_top_left - torch.tensor(corners)).tolist()))) > 3
    for image, (y, x), corner in zip(batch.image, batch.crop_top_left.tolist(), corners, strict=True):
        assert torch.equal(image, whole[:, y : y + 16, x : x + 16])
        assert 0 <= y - corner[0] <= 34 and 0 <= x - corner[1] <= 34
    (whole_tiles,) = load(tiled, 6, augment=gpuload.Augment(50, crop="none"), fields=FIELDS, shuffle=False)
    assert whole_tiles.boxes.counts.tolist() == [1, 0, 0, 0, 0, 0]
    assert whole_tiles.boxes.boxes[0, 0].tolist() == [0, 0, 8, 4]


BEYOND: dict[str, gpuload.Augment] = {
    "zoomed out": gpuload.Augment(48, gpuload.ZoomOut((1.5, 2.5), p=1), dtype="uint8"),
    "letterbox": gpuload.Augment((48, 80), "letterbox", dtype="uint8"),
    "jittered": gpuload.Augment(48, gpuload.ScaleJitter((0.5, 1.0)), dtype="uint8"),
    "padded": gpuload.Augment(48, gpuload.RandomCrop(padding=12), dtype="uint8"),
}


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize("name", BEYOND)
def test_what_is_beyond_a_tile_is_the_image_around_it(tmp_path: Path, name: str, decoder: str) -> None:
    ramp = np.add.outer(np.arange(100), np.arange(130)).astype(np.uint8)
    image = np.stack([ramp, ramp, np.full_like(ramp, 255)], axis=2)
    gpuload.pack([{"image": image, "mask": ramp}], tmp_path, workers=1, encode="raw")
    tiles = gpuload.Dataset(tmp_path / "train").tiles(24)
    fields = ("image", gpuload.Mask("mask"), "pixel_mask")
    with load(tiles, 30, augment=BEYOND[name], fields=fields, decoder=decoder, shuffle=False) as loader:  # type: ignore[arg-type]
        images, masks, is_image = map(torch.Tensor.numpy, next(iter(loader)))
    assert (images[:, 2][is_image] == 255).all()
    assert not images[:, 2][~is_image].any() or name == "letterbox"
    assert 0.4 < is_image.mean() < 1
    # Both rise by a level from pixel to pixel, and the mask takes the nearest one.
    differences = np.abs(images[:, 0][is_image] - masks[is_image].astype(int))
    assert differences.max() <= 3


def test_sampling_mixtures_and_subsets_are_of_tiles(data: gpuload.Dataset) -> None:
    tiled = data.tiles(32)
    weights = np.zeros(len(tiled))
    weights[[1, 5]] = 1
    fields = ("index", "image", "crop_top_left")
    drawn = tiles_of([load(tiled, 8, **WHOLE, fields=fields, sampling=gpuload.Weights(weights), drop_last=False)])
    chosen = tiles_of([load(tiled.subset([1, 5]), 2, **WHOLE, fields=fields, shuffle=False)])
    assert len(drawn) == len(tiled) and {one[:2] for one in drawn} == {one[:2] for one in chosen}
    assert len(tiled.filter(pc.field("width") > 200)) == 3 * 9
    mixed = gpuload.mix([(tiled.subset([1]), 0.5), (data.tiles(16).subset([0]), 0.5)])
    places = {one[:2] for one in tiles_of([load(mixed, 4, **WHOLE, fields=fields, steps_per_epoch=2)])}
    assert places == {(0, (-8, -8)), (0, (0, 32))}
    assert repr(tiled).endswith(f"{len(tiled)} tiles of 5 samples in 3 shards)")


@pytest.mark.parametrize(("size", "overlap"), [(32, 24), ((20, 32), 7)])
def test_tiles_that_show_boxes_are_chosen_by_a_loader_without_images(
    data: gpuload.Dataset, size: Any, overlap: int
) -> None:
    tiled = data.tiles(size, overlap)
    whole, boxes = gpuload.Augment(size, crop="none"), gpuload.Boxes("boxes", min_visible=0.6)
    shown = load(tiled, 7, augment=whole, fields=[boxes], shuffle=False, drop_last=False)
    held = tiled.subset(np.concatenate([found.counts > 0 for (found,) in shown]))
    height, width = (size, size) if isinstance(size, int) else size
    augment = gpuload.Augment((height, width), crop="pad_or_crop", dtype="uint8")

    def places(tiled: gpuload.Dataset) -> list[tuple[int, int, int]]:
        loader = load(tiled, 64, augment=augment, fields=("index", "image", "crop_top_left"), shuffle=False)
        return [(index, max(y, 0), max(x, 0)) for index, (y, x), _ in tiles_of([loader])]

    def share(box: list[float], top: int, left: int) -> float:
        x0, y0, x1, y1 = box
        wide, high = min(x1, left + width) - max(x0, left), min(y1, top + height) - max(y0, top)
        return max(wide, 0) * max(high, 0) / ((x1 - x0) * (y1 - y0))

    every = places(tiled)
    expected = [
        (index, top, left)
        for index, top, left in every
        if any(share(box, top, left) >= 0.6 for box in data[index]["boxes"].tolist())
    ]
    assert 0 < len(expected) < len(every) and places(held) == expected


def test_what_cannot_be_tiled(data: gpuload.Dataset) -> None:
    tiled = data.tiles(32)
    before = gpuload.transforms.Function(lambda s, r: s, before_crop=True)
    for make, message in [
        (lambda: data.tiles((32, 16), 16), r"overlap=16\): must be smaller than size=\(32, 16\)"),
        (lambda: tiled.tiles(8), "are tiles already"),
        (
            lambda: load(tiled, 2, augment=gpuload.Augment(gpuload.Buckets([(8, 8)]))),
            "Buckets: needs whole images, and tiles have one size",
        ),
        (
            lambda: load(tiled, 2, fields=("image",), augment=gpuload.Augment(8, transforms=[before])),
            "gets whole images, and the samples are tiles",
        ),
    ]:
        with pytest.raises(ArgumentError, match=message):
            make()


def test_joining_scores() -> None:
    """Where tiles overlap, their mean; tensors and arrays, in any number of dimensions."""
    scores = np.stack([np.full((2, 3, 4), level, np.float32) for level in (1, 3)])
    whole = join_tiles(scores, [(0, 0), (0, 2)], (3, 6))
    assert whole.dtype == torch.float32 and whole.shape == (2, 3, 6)
    assert whole[1, 2].tolist() == [1, 1, 2, 2, 3, 3]
    assert join_tiles(torch.ones(1, 4, 4, dtype=torch.float16), torch.tensor([[-1, -1]]), (2, 3)).dtype == torch.float16
    for tiles, corners, message in [
        (scores, [(0, 0)], "a corner for each tile, found 2 and 1"),
        (scores, [(0, 0), (0, 1)], "no tile shows the pixel at row 0, column 5 of 3 × 6"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            join_tiles(tiles, corners, (3, 6))
