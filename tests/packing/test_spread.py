"""Mean, std and percentiles of sets of 16 bits, floats and many bands."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, write_files
from PIL import Image
from reading import rows_of
from rich.filesize import decimal

import gpuload
from gpuload import cli
from gpuload.packing.spread import Spread, spread_of
from gpuload.types import Array

RANDOM = np.random.default_rng(0)
PERCENTILES = (0.1, 1, 2, 50, 98, 99, 99.9)


def packed(arrays: list[Array], out: Path, mode: str, **settings: Any) -> gpuload.disk.manifest.Manifest:
    encode = "keep" if mode == "I;16" else "raw"
    samples = ({"image": array, "label": number % 2} for number, array in enumerate(arrays))
    settings = {"workers": 1, **settings}
    gpuload.pack(samples, out, mode=mode, encode=encode, progress=False, **settings)
    return gpuload.Dataset(out / "train").manifest


def make(mode: str) -> list[Array]:
    """Images of different sizes, of which one has values that are no numbers, if there can be any."""
    if mode == "uint16x5":
        return [RANDOM.integers(0, 4_000, (20 + n, 30, 5)).astype(np.uint16) for n in range(9)]
    if mode == "I;16":
        return [RANDOM.integers(0, 60_000, (20, 30 + n)).astype(np.uint16) for n in range(9)]
    arrays = [RANDOM.normal(1e4, 3, (20 + n, 30, 2)).astype(np.float32) for n in range(9)]
    arrays[3][0, :5] = (np.nan, np.inf)
    return arrays


@pytest.mark.parametrize("mode", ["uint16x5", "I;16", "float32x2"])
def test_they_are_those_of_all_values(mode: str, tmp_path: Path) -> None:
    """However the images are divided: mean and std as NumPy has them, percentiles to 8 bits."""
    arrays = make(mode)
    manifest = packed(arrays, tmp_path / "one", mode)
    divided = packed(arrays, tmp_path / "three", mode, maxcount=3, workers=2)
    for name in ("mean", "std", "percentiles", "pixels_from"):
        assert getattr(manifest, name) == getattr(divided, name)
    assert manifest.pixels_from == 9
    assert manifest.mean is not None and manifest.std is not None and manifest.percentiles is not None
    channels = manifest.pixels.channels
    values = np.concatenate([array.reshape(-1, channels) for array in arrays]).astype(np.float64)
    values[~np.isfinite(values)] = np.nan
    peak = 1 if mode == "float32x2" else 65_535
    np.testing.assert_allclose(manifest.mean, np.nanmean(values, axis=0) / peak, rtol=2e-7)
    np.testing.assert_allclose(manifest.std, np.nanstd(values, axis=0) / peak, rtol=2e-6)
    np.testing.assert_allclose(manifest.percentiles["0"], np.nanmin(values, axis=0), rtol=1e-6)
    np.testing.assert_allclose(manifest.percentiles["100"], np.nanmax(values, axis=0), rtol=1e-6)
    for percentile in PERCENTILES:
        exact = np.nanpercentile(values, percentile, axis=0)
        np.testing.assert_allclose(manifest.percentiles[f"{percentile:g}"], exact, rtol=0.012, atol=2)


def test_they_normalise_batches(tmp_path: Path) -> None:
    arrays = [RANDOM.integers(0, 4_000, (32, 32, 5)).astype(np.uint16) for _ in range(8)]
    manifest = packed(arrays, tmp_path / "set", "uint16x5")
    assert manifest.mean is not None and manifest.std is not None
    augment = gpuload.Augment(
        32, mode="uint16x5", crop="none", normalize=gpuload.Normalize(manifest.mean, manifest.std)
    )
    with gpuload.DaliIterator(
        tmp_path / "set" / "train", 8, augment=augment, device="cpu", output="numpy", shuffle=False
    ) as loader:
        images = next(iter(loader))[0].astype(np.float64)
    np.testing.assert_allclose(images.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(images.std(axis=(0, 2, 3)), 1, atol=1e-4)


def test_sets_that_grow_have_no_percentiles(tmp_path: Path) -> None:
    """Their mean and std are those of all images."""
    arrays = [RANDOM.normal(5, 1, (20, 20, 2)).astype(np.float32) for _ in range(8)]
    packed(arrays[:4], tmp_path / "set", "float32x2")
    manifest = packed(arrays[4:], tmp_path / "set", "float32x2", append=True)
    values = np.stack(arrays).astype(np.float64)
    assert manifest.percentiles is None and manifest.pixels_from == 8
    assert manifest.mean is not None and manifest.std is not None
    np.testing.assert_allclose(manifest.mean, values.mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(manifest.std, values.std(axis=(0, 1, 2)), rtol=1e-5)


def test_a_channel_without_numbers_is_not_measured() -> None:
    spread = Spread(2)
    pixels = np.zeros((4, 4, 2), np.float32)
    pixels[..., 1] = np.nan
    spread.add(pixels)
    parts = [json.loads(json.dumps(spread.as_json()))]
    assert spread_of(parts, 1) is None
    assert spread_of([], 1) is None
    spread.add(np.ones((4, 4, 2), np.float32))
    measured = spread_of([spread.as_json()], 1)
    assert measured is not None
    assert measured.mean == (0.5, 1.0) and measured.std == (0.5, 0.0)
    assert measured.percentiles["0"] == (0.0, 1.0) and measured.percentiles["99"] == (1.0, 1.0)


def test_negative_numbers_are_in_order() -> None:
    spread = Spread(1)
    spread.add(np.arange(-500, 500, dtype=np.float32).reshape(10, 100, 1))
    measured = spread_of([spread.as_json()], 1)
    assert measured is not None
    values = [numbers[0] for numbers in measured.percentiles.values()]
    assert values == sorted(values) and values[0] == -500 and values[-1] == 499
    np.testing.assert_allclose(values[2], -490, rtol=0.01)


def test_the_summary_says_what_became_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into what they were encoded, their bytes before and after, and the time of each."""
    pixels = RANDOM.integers(0, 256, (60, 80, 3)).astype(np.uint8)
    files = {f"in/a/{number}.bmp": encode(Image.fromarray(pixels), "BMP") for number in range(3)}
    write_files(tmp_path, {**files, "in/a/3.png": encode(Image.fromarray(pixels), "PNG")})
    settings = ("--lossless", "--workers", "1", "--maxcount", "2")
    assert cli.main(["pack", str(tmp_path / "in"), str(tmp_path / "out"), *settings]) == 0
    said = capsys.readouterr().out
    assert "re-encoded: 3 × bmp; 1 kept unchanged" in said
    (line,) = (line for line in said.splitlines() if "→ .png" in line)
    before = 3 * len(files["in/a/0.bmp"])
    after = sum(row["image_bytes"] for row in rows_of(tmp_path / "out" / "train") if row["source"].endswith("bmp"))
    assert f"3 × bmp → .png: {decimal(before)} became {decimal(after)}, " in line
    assert re.search(r", [\d.e+-]+ ms of a core each$", line)


def test_info_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = [np.full((20, 20, 2), value, np.uint16) for value in (1_000, 3_000)]
    packed(arrays, tmp_path / "set", "uint16x2")
    assert cli.main(["info", str(tmp_path / "set" / "train")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(0.03052, 0.03052), (0.01526, 0.01526), from 2 images" in said
    assert "1000 to 3000, but for 2 % at each end 1000 to 2992, over all channels" in said


def test_a_manifest_with_other_percentiles_is_refused(tmp_path: Path) -> None:
    packed([np.zeros((9, 9, 2), np.float32)] * 2, tmp_path / "set", "float32x2")
    path = tmp_path / "set" / "train" / "manifest.json"
    document = json.loads(path.read_text())
    for percentiles in ({"0": [1.0]}, {"0": ["1", "2"]}, [1.0, 2.0], {"0": 5}):
        path.write_text(json.dumps({**document, "percentiles": percentiles}))
        with pytest.raises(gpuload.FormatError, match="percentile"):
            gpuload.Dataset(path.parent)
