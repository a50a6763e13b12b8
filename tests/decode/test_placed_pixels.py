"""Batches of images that are scaled and padded: pixels, what is around them, and the fields that move along."""

from pathlib import Path
from typing import Any

import loaders
import numpy as np
import pytest
import torch
from damaged import damage
from opened import pretend_gpu
from painted import FIELDS, KEYPOINTS, check_boxes, check_keypoints, check_masks
from PIL import Image

import gpuload
from gpuload import Augment, Letterbox, Resize, ScaleJitter, ZoomOut, transforms

CROPS: dict[str, dict[str, Any]] = {
    "letterbox": {"size": (120, 140), "crop": "letterbox", "flip": 0.5, "vertical_flip": 0.5},
    "jitter": {"size": (110, 130), "crop": ScaleJitter((0.7, 2.0), fill=(0, 0, 0)), "vertical_flip": 0.5},
    "zoom out": {"size": 200, "crop": ZoomOut((1.0, 1.7))},
    "padded": {"size": None, "crop": Resize(90, 130, pad_to_multiple_of=32), "flip": 0.5, "vertical_flip": 0.5},
    "random": {"size": None, "crop": Resize([70, 120], pad_to_multiple_of=1), "interpolation": "random", "flip": 0.5},
}


def load(data: Any, augment: Any, batch_size: int = 7, **options: Any) -> gpuload.DaliIterator:
    usual: dict[str, Any] = {"fields": FIELDS, "num_threads": 2, "drop_last": False}
    return loaders.load(data, batch_size, augment=augment, **{**usual, **options})


def shown(which: str, **options: Any) -> Augment:
    chosen = CROPS[which]
    crop = chosen["crop"] if which != "letterbox" else Letterbox(fill=0)  # black, as what painted images lack
    return Augment(**{"dtype": "uint8", **chosen, "crop": crop, **options})


@pytest.mark.parametrize("which", CROPS)
def test_masks_boxes_and_keypoints_follow_their_images(painted: Path, which: str, decoder: str) -> None:
    bounded = compared = 0
    with load(painted, shown(which), fields=(*FIELDS[:3], KEYPOINTS, "pixel_mask"), decoder=decoder) as loader:
        for _epoch in range(2):
            for images, masks, boxes, keypoints, real in loader:
                check_masks(images, masks)
                bounded += check_boxes(images, boxes)
                compared += check_keypoints(images, keypoints, upright=True)
                assert torch.equal(masks > 0, real)  # painted classes start at 1
                assert not images.permute(0, 2, 3, 1)[~real].any() and images.permute(0, 2, 3, 1)[real].any(1).all()
    assert bounded > 60 and compared > 150


@pytest.mark.parametrize("which", CROPS)
@pytest.mark.parametrize("steps", [(), (transforms.RandomAutocontrast(1.0), transforms.ColorJitter(0.4, 0.4))])
def test_all_show_what_the_native_decoder_shows(
    painted: Path, which: str, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI within a level or two; autocontrast, and a bicubic filter at the hard edges here, spread these. Masks differ
    where two pixels are equally near. For a GPU the native decoder gives levels, and torch transforms them."""
    options: Any = {"dtype": "float32", "transforms": steps, "layout": "NCHW"}
    std = torch.tensor(gpuload.Normalize().std).view(3, 1, 1)

    def batches(decoder: str) -> list[Any]:
        return list(load(painted, shown(which, **options), fields=("image", "mask", "index"), decoder=decoder))

    native, dali = batches("native"), batches("dali")
    pretend_gpu(monkeypatch)
    for (one, mask, index), (other, other_mask, other_index), uploaded in zip(
        native, dali, batches("native"), strict=True
    ):
        torch.testing.assert_close(uploaded[0], one, atol=1e-5, rtol=0)
        assert torch.equal(uploaded[1], mask) and torch.equal(uploaded[2], index)
        assert torch.equal(index, other_index) and one.shape == other.shape
        assert torch.equal(mask == 0, other_mask == 0) and (mask != other_mask).float().mean() < 0.02
        gap = (one - other).abs() * std * 255
        assert gap.mean() < 0.3 and gap.max() <= (12 if steps or which == "random" else 3)


def test_a_list_has_what_the_padded_batch_shows(painted: Path, decoder: str) -> None:
    fields = ("image", gpuload.Mask(fill=255), gpuload.Boxes(min_visible=0), "pixel_mask", "index")
    flips: Any = {"flip": 0.5, "transforms": [transforms.RandomAutocontrast(0.5), transforms.RandomEqualize(0.5)]}
    padded = load(painted, Augment(None, Resize(60, 80, 16), **flips), fields=fields, decoder=decoder)
    lists = load(painted, Augment(None, Resize(60, 80), **flips), fields=fields, decoder=decoder)
    sizes = set()
    for (images, masks, boxes, real, index), (own, own_masks, own_boxes, _, own_index) in zip(
        padded, lists, strict=True
    ):
        assert not images.shape[2] % 16 and not images.shape[3] % 16
        assert torch.equal(index, own_index) and torch.equal(boxes.boxes, own_boxes.boxes)
        assert torch.equal(masks == 255, ~real)  # the classes of segmentation that a loss ignores
        for row, (image, mask) in enumerate(zip(own, own_masks, strict=True)):
            height, width = image.shape[1:]
            assert real[row].sum() == height * width and mask.shape == (height, width)
            assert torch.equal(image, images[row, :, :height, :width])
            assert torch.equal(mask, masks[row, :height, :width])
            sizes.add((height, width))
    assert len(sizes) > 5 and all(max(size) <= 80 and (60 in size or 80 in size) for size in sizes)


@pytest.mark.parametrize("which", ["letterbox", "padded"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_pillows(which: str, interpolation: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    sides = [(61, 48), (40, 90), (120, 100)]
    smooth = [Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8)).resize(side) for side in sides]
    gpuload.pack([{"image": np.asarray(image)} for image in smooth], tmp_path, workers=1, encode="raw", shuffle=False)
    crop: Any = Letterbox() if which == "letterbox" else Resize(40, 50, 8, fill=(9, 200, 30))
    augment = Augment(66 if which == "letterbox" else None, crop, interpolation=interpolation, dtype="uint8")
    with load(tmp_path / "train", augment, fields=("image", "pixel_mask"), shuffle=False) as loader:
        [(images, real)] = loader
    fill = torch.tensor([114] * 3 if which == "letterbox" else [9, 200, 30], dtype=torch.uint8)
    for image, found, mask in zip(smooth, images.permute(0, 2, 3, 1), real, strict=True):
        rows, columns = int(mask.any(1).sum()), int(mask.any(0).sum())
        expected = np.asarray(image.resize((columns, rows), getattr(Image.Resampling, interpolation.upper())))
        gap = np.abs(found[mask].numpy().reshape(rows, columns, 3).astype(int) - expected)
        assert gap.max() <= 2 and (found[~mask] == fill).all()
        assert min(rows, columns) == 40 or max(rows, columns) == (66 if which == "letterbox" else 50)


@pytest.mark.parametrize("before_crop", [False, True])
def test_functions_of_samples_are_padded_and_flipped_as_without(painted: Path, before_crop: bool) -> None:
    function = transforms.Function(lambda sample, rng: {"image": sample["image"]}, before_crop=before_crop)
    plain, called = (load(painted, shown("letterbox", transforms=own), shuffle=False) for own in ((), [function]))
    for one, other in zip(plain, called, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        torch.testing.assert_close(one[2].boxes, other[2].boxes, atol=1e-3, rtol=0)


@pytest.mark.parametrize("multiple", [None, 1])
def test_samples_that_do_not_decode(painted: Path, tmp_path: Path, multiple: Any, decoder: str) -> None:
    """The widest image of the first batch."""
    augment = Augment(None, Resize(pad_to_multiple_of=multiple), dtype="uint8")
    fields = ("image", "mask", "index", "pixel_mask", "original_size", gpuload.Boxes(as_targets=True))
    options: dict[str, Any] = {"batch_size": 5, "fields": fields, "shuffle": False, "decoder": decoder}
    data = gpuload.Dataset(damage(painted, tmp_path / "damaged", [4]), verify=None)
    skipped = next(iter(load(data, augment, on_corrupt=gpuload.OnCorrupt("skip", most=1.0), **options)))
    assert skipped.index.tolist() == [0, 1, 2, 3, 0]
    marked = next(iter(load(data, augment, on_corrupt=gpuload.OnCorrupt("mark", most=1.0), **options)))
    assert marked.corrupt.tolist() == [False] * 4 + [True] and not marked.image[4].any()
    for batch in (skipped, marked):
        for image, mask, real, (height, width) in zip(
            batch.image, batch.mask, batch.pixel_mask, batch.original_size.tolist(), strict=True
        ):
            assert image.shape[1:] == mask.shape and real[:height, :width].all() and real.sum() == height * width
            if multiple is None:
                assert mask.shape == (height, width)
    assert np.array_equal(skipped.image[4][:, :90, :90], skipped.image[0][:, :90, :90])
    assert skipped.boxes[4]["image_id"] == 0 and torch.equal(skipped.boxes[4]["boxes"], skipped.boxes[0]["boxes"])


def test_ranks_have_the_same_images(painted: Path) -> None:
    def images(rank: int, world: int) -> Any:
        augment = Augment(None, Resize([40, 60], 80), dtype="uint8", flip=0.5)
        loader = load(painted, augment, 6 // world, fields=("image", "index"), rank=rank, world_size=world)
        return {int(i): image.numpy().tobytes() for batch in loader for image, i in zip(*batch, strict=True)}

    whole = images(0, 1)
    assert len(whole) == 40 and images(0, 2) | images(1, 2) == whole


def test_a_preview_shows_images_of_their_own_sizes(painted: Path) -> None:
    fields = ("image", "mask", gpuload.Boxes(as_targets=True))
    for multiple in (None, 16):
        with load(painted, Augment(None, Resize(60, None, multiple)), 4, fields=fields) as loader:
            before, batch = loader.preview(4), next(iter(loader))
            assert loader.preview(4, batch=batch).tobytes() == before.tobytes()
        assert len({pixels.shape for pixels in batch.image}) == (4 if multiple is None else 1)


def test_what_has_no_equal_is_refused_by_name(painted: Path) -> None:
    with pytest.raises(gpuload.ArgumentError, match="decoder='both': does not scale and pad.*'native' or 'dali'"):
        load(painted, Augment(32, "letterbox"), decoder="both")
    with pytest.raises(gpuload.ArgumentError, match="batch_transforms: change one view .*pad_to_multiple_of=1"):
        load(painted, Augment(None, "keep"), fields=("image", "label"), batch_transforms=[gpuload.batchwise.MixUp()])
