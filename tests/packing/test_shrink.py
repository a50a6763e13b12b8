"""JPEGs shrunk by torch: compared with Pillow's, the same bytes with any number of workers, and choosing the resizer."""

import importlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_images import BASE, ODD
from hypothesis import given, settings
from hypothesis import strategies as st
from images import Folder, encode, smooth_image
from PIL import Image
from reading import files_of

import gpuload
from gpuload import ArgumentError, DecodeError, MissingPackageError, cli
from gpuload.disk import Manifest
from gpuload.fields.motion import place
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding
from gpuload.sources import FolderSource

TESTS = Path(__file__).parents[1]

pytest.importorskip("simplejpeg")
pytest.importorskip("torch")
resizer = importlib.import_module("gpuload.packing.image")  # imports both

FITS = ("shortest", "longest", "center-crop", "stretch", "pad")
LARGE = smooth_image(np.random.default_rng(1), 500, 375)


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


@settings(max_examples=60)
@given(st.tuples(*[st.integers(1, 90)] * 4), st.booleans(), st.integers(0, 99))
def test_resizes_as_pillow_does(sides: tuple[int, int, int, int], gray: bool, seed: int) -> None:
    source, size = (max(sides[0], sides[1]), max(sides[2], sides[3])), (min(sides[:2]), min(sides[2:]))
    # Values away from black and white: the two libraries clip differently where the first of the two passes overshoots.
    noise = np.random.default_rng(seed).integers(64, 192, (*source[::-1], 3), np.uint8)
    image = Image.fromarray(noise).convert("L" if gray else "RGB")
    found = resizer.resize(np.array(image), size)
    wanted = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    assert (found.shape, found.dtype, found.flags["C_CONTIGUOUS"]) == (wanted.shape, np.uint8, True)
    assert np.abs(found.astype(int) - wanted).max() <= 2  # of 255: the libraries round their weights differently


@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from(FITS))
def test_draft_factor_follows_pillows_rule(width: int, height: int, fit: str) -> None:
    placement = place((width, height), (256, 256), fit, False)
    factor = resizer.draft_factor(placement)
    gap = [side / wanted for side, wanted in zip(placement.source, placement.resized, strict=True)]
    assert factor == 1 or min(gap) >= 2 * factor
    assert factor == 8 or min(gap) < 4 * factor


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(256, 256), (60, 40)])  # for the second the image is decoded at a reduced size
def test_result_matches_pillows(size: tuple[int, int], fit: str, mode: str, measured: bool) -> None:
    data = encode(LARGE.convert(mode))
    found, wanted = (
        prepare_image(data, measured, Encoding("jpeg", size, fit, resizer=name)) for name in ("torch", "pillow")
    )
    assert (found.width, found.height, found.kind, found.member) == (wanted.width, wanted.height, "resized", "jpg")
    assert found.placement == wanted.placement
    assert (found.histogram is not None) == measured
    image = Image.open(io.BytesIO(found.data))
    assert (image.mode, dict(image.getexif()), "progressive" in image.info) == (mode, {}, False)
    assert psnr(pixels_of(found.data), pixels_of(wanted.data)) > 38
    if measured:
        counts = np.array(found.histogram).reshape(3, 256)
        assert counts.sum(axis=1).tolist() == [found.width * found.height] * 3
        mean = pixels_of(found.data).mean(axis=(0, 1))
        np.testing.assert_allclose(counts @ np.arange(256) / counts.sum(axis=1), mean, atol=1)


def outcome(data: bytes, encoding: Encoding) -> tuple[object, ...]:
    try:
        stored = prepare_image(data, encoding=encoding)
    except Exception as error:
        return type(error), str(error)
    return stored.kind, stored.member, stored.width, stored.height, stored.placement


@pytest.mark.parametrize("name", ODD)
def test_judges_odd_images_as_pillow_does(name: str) -> None:
    for more in ({}, {"drop_gray": True}, {"min_size": 33}, {"max_pixels": 1000}, {"quality": 30, "fit": "pad"}):
        one, other = (outcome(ODD[name][0], Encoding("jpeg", (20, 20), resizer=r, **more)) for r in ("torch", "pillow"))
        assert one == other


@pytest.mark.parametrize("cut", range(200, len(BASE), 37))
def test_judges_damage_as_pillow_does(cut: int) -> None:
    encodings = [Encoding("jpeg", (20, 20), resizer=name) for name in ("torch", "pillow")]
    # Truncated, but with an end marker: if Pillow accepts it despite a warning, Pillow must have encoded the result.
    one, other = (outcome(BASE[:cut] + BASE[-2:], encoding) for encoding in encodings)
    assert one == other
    if one[0] is not DecodeError:
        one, other = (prepare_image(BASE[:cut] + BASE[-2:], encoding=encoding).data for encoding in encodings)
        assert one == other
    one, other = (outcome(BASE[:cut], encoding) for encoding in encodings)
    assert one == other and one[0] is DecodeError


def test_images_that_do_not_shrink_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizer, "decode_jpeg", lambda *_: pytest.fail("decoded without Pillow"))
    for format, size, fit, enlarge in (
        ("JPEG", (500, 500), "longest", False), ("JPEG", (900, 900), "longest", True),
        ("JPEG", (300, 900), "stretch", True), ("PNG", (64, 64), "shortest", False),
    ):  # fmt: skip
        prepare_image(encode(LARGE, format), encoding=Encoding("jpeg", size, fit, enlarge, resizer="torch"))


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes these packages appear not to be installed."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def photos(make_folder: Folder) -> Path:
    rng = np.random.default_rng(5)
    return make_folder({f"{'ab'[n % 2]}/{n}.jpg": encode(smooth_image(rng, 90 + n, 70)) for n in range(12)})


def options(name: str = "auto", **more: Any) -> dict[str, Any]:
    return {"maxcount": 4, "encode": "jpeg", "size": (32, 32), "resizer": name, **more}


def test_the_same_bytes_by_the_same_resizer(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more workers, and in a run that is resumed where the other one would be chosen."""
    source, out, wanted = FolderSource(photos), tmp_path / "out", dict[str, dict[str, bytes]]()
    for name in ("torch", "pillow"):
        gpuload.pack(source, tmp_path / name, **options(name, workers=1))
        wanted[name] = files_of(tmp_path / name)
        assert Manifest.read(tmp_path / name / "train").packing["resizer"] == name
    assert wanted["torch"]["train/shard-000000.tar"] != wanted["pillow"]["train/shard-000000.tar"]
    for before, other in (("pillow", "torch"), ("torch", "pillow")):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(Manifest, "write", stop)
            gpuload.pack(source, out / before, **options(before, workers=2))
        (out / before / "train" / "shard-000001.tar").unlink()
        with pytest.raises(ArgumentError, match=f"had resizer '{before}', this run has '{other}'. Give the same"):
            gpuload.pack(source, out / before, **options(other, workers=1, resume=True))
    without(monkeypatch, "simplejpeg")
    with pytest.raises(MissingPackageError, match="--resizer torch needs simplejpeg, not installed here"):
        gpuload.pack(source, out / "torch", **options(workers=1, resume=True))
    gpuload.pack(source, tmp_path / "lacking", **options(workers=1))
    assert files_of(tmp_path / "lacking") == wanted["pillow"]
    monkeypatch.undo()
    for before in ("pillow", "torch"):
        gpuload.pack(source, out / before, **options(workers=1, resume=True))
        assert files_of(out / before) == wanted[before]


def stop(*_: object) -> None:
    raise RuntimeError


def test_missing_packages_leave_no_output(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a worker alone lacks reject no image."""
    without(monkeypatch, "torch")
    with pytest.raises(MissingPackageError, match="--resizer torch needs torch, not installed here"):
        gpuload.pack(FolderSource(photos), tmp_path / "out", **options("torch"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(MissingPackageError, match="--resizer torch: torch is not installed"):
        resizer.use_one_thread()


def test_fork_server_imports_torch_once_for_workers_that_resize() -> None:
    code = """
from gpuload.packing.workers import Workers
from stand_ins import resizes
with Workers(2, resizes, False, ("torch",)) as workers:
    for name, found in workers.run(["torch", "PIL.JpegImagePlugin"], None):
        print(name, *found)
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TESTS,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
    )
    assert (sorted(found.stdout.splitlines()), found.stderr) == (["PIL.JpegImagePlugin True 1", "torch True 1"], "")


def test_the_command_line_guesses_what_workers_import(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr("gpuload.packing.workers.start_server", seen.append)
    monkeypatch.setattr("gpuload.commands.pack.Pack.run", lambda _: cli.DONE)
    for arguments in ("--size 256 --enc=jpeg", "--encode jpeg --size 256 --resizer pillow", "--encode raw"):
        cli.main(["pack", "photos", "out", *arguments.split()])
    assert seen == [("torch",), (), ()]
