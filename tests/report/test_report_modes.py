"""Sets whose images are not 8-bit RGB are shown, too: in a report, a preview, and one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_sets import make_report, textured

import gpuload
from gpuload.pictures import as_rgb

SAMPLES = 6


def pixels_of(mode: str, number: int) -> Any:
    """A dark left half and a bright right one, and a texture in both."""
    levels = np.asarray(textured(number, 64, 48).convert("RGB"))
    levels = np.where(np.arange(64)[None, :, None] < 32, levels // 4, 128 + levels // 2).astype(np.uint8)
    if mode in ("RGB", "L", "RGBA"):
        return Image.fromarray(levels).convert(mode)
    if mode == "I;16":
        return levels[..., 0].astype(np.uint16) * 257
    return np.concatenate([levels, levels], axis=2).astype(np.float32) + 300


def left_and_right(image: Image.Image) -> tuple[float, float]:
    levels = np.asarray(image.convert("L"), np.float64)
    half = levels.shape[1] // 2
    return float(levels[:, :half].mean()), float(levels[:, half:].mean())


@pytest.mark.parametrize(
    ("mode", "encode"),
    [("L", "keep"), ("L", "raw"), ("RGBA", "keep"), ("I;16", "keep"), ("I;16", "raw"), ("float32x6", "raw")],
)
def test_a_set_of_another_mode(tmp_path: Path, mode: str, encode: str) -> None:
    samples = [{"image": pixels_of(mode, number), "label": number % 2} for number in range(SAMPLES)]
    gpuload.pack(samples, tmp_path / "set", mode=mode, encode=encode, workers=1, progress=False)
    dataset = gpuload.Dataset(tmp_path / "set" / "train")
    left, right = left_and_right(dataset[0]["image"])
    assert left < 70 and right > 150

    facts, page = make_report(tmp_path / "set" / "train")
    assert facts["looked_at"]["images"] == SAMPLES and facts["undecodable"][0]["count"] == 0
    assert facts["training"]["height"] > 100 and page.count("no picture") == 0

    channels = dataset.manifest.pixels.channels
    normalize = gpuload.Normalize((0.4,) * channels, (0.2,) * channels)
    augment = gpuload.Augment(32, crop="none", mode=mode, normalize=normalize)
    with gpuload.DaliIterator(dataset, 2, augment=augment, device="cpu", shuffle=False) as loader:
        sheet = np.asarray(loader.preview(1).convert("L"), np.float64)
    assert sheet.max() > 150


def test_what_a_person_sees() -> None:
    gray = np.array([[[7]], [[200]]], np.uint8)
    assert as_rgb(gray).tolist() == [[[7, 7, 7]], [[200, 200, 200]]]
    assert as_rgb(np.array([[[1, 2, 3, 4]]], np.uint8)).tolist() == [[[1, 2, 3]]]
    assert as_rgb(np.array([[[0x1234, 0x5678, 0xFFFF]]], np.uint16)).tolist() == [[[0x12, 0x56, 0xFF]]]
    floats = np.array([[[300.0], [np.nan]], [[-100.0], [100.0]]], np.float32)
    assert as_rgb(floats)[..., 0].tolist() == [[255, 64], [0, 128]]  # nan counts as 0
    many = np.stack([floats, floats * 100])
    assert (as_rgb(many)[0] == as_rgb(many)[1]).all()
