"""The CPU decoder: against DALI on the same crops, odd images, and its memory and threads."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from loaders import load
from made_batches import make_batch, no_spare
from opened import open_guard
from PIL import Image, ImageOps

import gpuload
from gpuload import Augment
from gpuload.decode.interface import BatchDecodeError, Fault, Stored
from gpuload.decode.native import cuts as resizing

UINT8_HWC: Any = {"dtype": "uint8", "layout": "channels_last"}


def jpeg(image: Image.Image, **options: Any) -> np.ndarray:
    return np.frombuffer(encode(image, quality=92, **options), np.uint8)


def decode(
    augment: Augment, images: list[np.ndarray], sizes: list[tuple[int, int]], upright: bool = True
) -> np.ndarray:
    batch = make_batch(augment, images, sizes)
    guard = open_guard("native", [augment.form], Stored(plain=upright), len(images))
    [found] = guard.decode(iter([batch]), no_spare)
    guard.close()
    return np.array(found.pictures["image"][0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_of_rotated_jpegs_are_those_of_what_is_shown(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(smooth_image(np.random.default_rng(1), 90, 60), exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data.tobytes())))
    augment = Augment((30, 40), flip=0, **UINT8_HWC)
    found = decode(augment, [data], [upright.size], upright=False)[0]
    crops = make_batch(augment, [data], [upright.size]).image_views[0].crops
    (top, left), (height, width) = crops.start[0].tolist(), crops.shape[0].tolist()
    expected = upright.crop((left, top, left + width, top + height)).resize((40, 30), Image.Resampling.BILINEAR)
    assert np.abs(found.astype(int) - np.asarray(expected)).max() <= 3


@pytest.mark.parametrize("turned", [1, 6])
@pytest.mark.parametrize("progressive", [False, True])
def test_an_orientation_in_xmp_counts_and_one_that_turns_nothing_costs_no_full_decode(
    turned: int, progressive: bool
) -> None:
    plain = jpeg(smooth_image(np.random.default_rng(3), 512, 512), progressive=progressive)
    text = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="%d"/>' % turned
    other = np.insert(plain, 2, np.frombuffer(b"\xff\xe1" + (len(text) + 2).to_bytes(2, "big") + text, np.uint8))
    augment = Augment(32, crop="none", **UINT8_HWC)
    found = decode(augment, [other], [(512, 512)], upright=False)
    expected = decode(augment, [plain], [(512, 512)])  # at a quarter of its size
    if turned == 1:
        assert np.array_equal(found, expected)
    else:
        assert np.abs(found.astype(int) - np.rot90(expected, -1, axes=(1, 2))).max() <= 3


@pytest.mark.parametrize("crop", ["none", gpuload.RandomResizedCrop((0.5, 1)), "center"])
def test_decoding_at_a_reduced_size_hardly_shows(monkeypatch: pytest.MonkeyPatch, crop: Any) -> None:
    """Sizes that 8 does not divide, so that the scale is not quite 1/2, 1/4 or 1/8."""
    rng = np.random.default_rng(3)
    sizes = [(1203, 901), (997, 1500), (701, 703)]
    images = [jpeg(smooth_image(rng, *size)) for size in sizes]
    augment = Augment(36, crop=crop, flip=0, **UINT8_HWC)
    reduced = decode(augment, images, sizes).astype(int)
    monkeypatch.setattr(resizing, "REDUCING_GAP", 1e9)
    whole = decode(augment, images, sizes).astype(int)
    assert (reduced != whole).any()
    # These colours are harsher than a photo's, on which it is 0.14 (gpuload/decode/native/decoder.py). Half a pixel's shift makes 4.
    assert np.abs(reduced - whole).mean() < 1
    assert np.abs(reduced - whole).max() <= 8


def test_torch_keeps_its_threads(packed: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loader = load(packed, 8, decoder="native", num_threads=3)
        next(iter(loader))
        assert torch.get_num_threads() == 2
        [inside] = {loader._pipeline.decoder.decoder._pools[0].submit(torch.get_num_threads).result() for _ in range(9)}  # type: ignore[attr-defined]
        assert inside == 1
    finally:
        torch.set_num_threads(before)


def test_an_image_of_another_size_than_its_index_says_is_none() -> None:
    """It has no room in the memory that it shares with the next image, and its crop was drawn for the other size."""
    rng = np.random.default_rng(6)
    larger, next_one = jpeg(smooth_image(rng, 90, 60)), jpeg(smooth_image(rng, 45, 30))
    augment = Augment((30, 45), crop="none", flip=0, **UINT8_HWC)
    with pytest.raises(BatchDecodeError) as caught:
        decode(augment, [*[next_one] * 3, larger, *[next_one] * 12], [(45, 30)] * 16)
    assert caught.value.faults == {3: Fault("it is not of the size that the index says", "image")}


def test_of_an_image_and_its_mask_that_do_not_decode_the_image_is_named() -> None:
    """Whichever of the two a thread finds first: the image takes long, and another thread goes on to the masks."""
    rng = np.random.default_rng(7)
    broken = jpeg(smooth_image(rng, 2000, 2000), progressive=True)
    images = [broken[: len(broken) * 9 // 10], jpeg(smooth_image(rng, 30, 30))]
    masks = [np.frombuffer(encode(Image.new("L", (30, 30)), "PNG"), np.uint8)[:size] for size in (20, None)]
    augment = Augment(8, **UINT8_HWC)
    batch = make_batch(augment, images, [(2000, 2000), (30, 30)], masks={"mask": masks})
    guard = open_guard("native", [augment.form], Stored(), 2, "mark", fills={"mask": 0})
    for handled in guard.decode(iter([batch] * 5), no_spare):
        assert {row: fault.picture for row, fault in handled.faults.items()} == {0: "image"}
    guard.close()
