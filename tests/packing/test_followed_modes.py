"""Without `--mode`, the mode of a set follows from its files, whichever way they come, or the packer asks."""

import csv
import hashlib
import io
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from images import encode, photo, write_files
from PIL import Image
from reading import rows_of

import gpuload
from gpuload import cli
from gpuload.errors import ArgumentError, OutputError, SourceError
from gpuload.packing import plan
from gpuload.packing.run import PackReport
from gpuload.types import Array

tifffile = pytest.importorskip("tifffile", reason="needs the extra 'codecs'")
imagecodecs = pytest.importorskip("imagecodecs", reason="needs the extra 'codecs'")

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 65_536, (20, 24)).astype(np.uint16)
COLORS = RNG.integers(0, 65_536, (20, 24, 3)).astype(np.uint16)
BANDS = RNG.integers(0, 65_536, (20, 24, 13)).astype(np.uint16)
FLOATS = RNG.normal(0, 100, (20, 24)).astype(np.float32)
SIGNED = RNG.integers(-500, 500, (20, 24)).astype(np.int16)
LEVELS = (GRAY >> 8).astype(np.uint8)


def tiff(values: Array, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


# Files by the extension, their values, and the mode and the member that they have in a set.
FOLLOWED: dict[str, tuple[str, bytes, Array, str, str]] = {
    "gray of 16 bits": ("png", imagecodecs.png_encode(GRAY), GRAY, "I;16", "png"),
    "colours of 16 bits": ("png", imagecodecs.png_encode(COLORS), COLORS, "uint16x3", "npy"),
    "13 bands": ("tif", tiff(BANDS, photometric="minisblack", planarconfig="contig"), BANDS, "uint16x13", "npy"),
    "13 planes": (
        "tif", tiff(np.moveaxis(BANDS, 2, 0), photometric="minisblack", planarconfig="separate"), BANDS, "uint16x13",
        "npy",
    ),
    "near infrared": (
        "tif", tiff(BANDS[..., :4], photometric="rgb", extrasamples=["unspecified"]), BANDS[..., :4], "uint16x4", "npy",
    ),
    "channels of OME": (
        "ome.tif", tiff(np.moveaxis(BANDS[..., :5], 2, 0), photometric="minisblack", metadata={"axes": "CYX"}, ome=True),
        BANDS[..., :5], "uint16x5", "npy",
    ),
    "5 bands of 8 bits": (
        "tif", tiff((BANDS[..., :5] >> 8).astype(np.uint8), photometric="minisblack", planarconfig="contig"),
        BANDS[..., :5] >> 8, "uint8x5", "npy",
    ),
    "floats": ("tif", tiff(FLOATS), FLOATS, "F", "npy"),
    "floats in 0..1": ("tif", tiff(abs(FLOATS) / 1_000), abs(FLOATS) / 1_000, "F", "npy"),
    "with a sign": ("tif", tiff(SIGNED), SIGNED, "F", "npy"),
    "10 bits": ("pgm", b"P5 24 20 1023\n" + (GRAY >> 6).astype(">u2").tobytes(), GRAY >> 6, "I;16", "png"),
    "JPEG XL": ("jxl", imagecodecs.jpegxl_encode(GRAY, lossless=True), GRAY, "I;16", "png"),
}  # fmt: skip
PLAIN: dict[str, tuple[str, bytes]] = {
    "colours": ("jpg", encode(photo())),
    "gray JPEGs": ("jpg", encode(photo().convert("L"))),
    "gray PNGs": ("png", encode(Image.fromarray(LEVELS), "PNG")),
    "a palette": ("png", encode(photo().quantize(16), "PNG")),
    "transparency": ("png", encode(photo().convert("RGBA"), "PNG")),
    "an opaque TIFF": ("tif", tiff(np.dstack([LEVELS] * 3), photometric="rgb")),
    "AVIF of 10 bits": ("avif", imagecodecs.avif_encode(COLORS >> 6, bitspersample=10)),
}


def pack(source: Any, out: Path, **settings: Any) -> PackReport:
    return gpuload.pack(source, out, workers=1, progress=False, **settings)


def stored(folder: Path) -> list[Array]:
    """The values of all images of a split, as float64."""
    pixels = gpuload.Dataset(folder).manifest.pixels
    images = list[Array]()
    for row in rows_of(folder):
        data = row["image"]
        if data.startswith((b"\x89PNG", b"\xff\xd8")):
            values = np.asarray(Image.open(io.BytesIO(data)))
        else:  # the pixels of an .npy
            values = np.frombuffer(data, pixels.stored).reshape(row["height"], row["width"], pixels.channels)
        images.append(values.astype(np.float64).squeeze())
    return images


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a set, by its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def as_folder(root: Path, name: str, data: bytes) -> Path:
    write_files(root, {f"cat/1.{name}": data, f"dog/2.{name}": data})
    return root


def as_table(root: Path, name: str, data: bytes) -> Path:
    write_files(as_folder(root, name, data), {"empty": b""})
    (root / "empty").unlink()
    with (root.parent / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), (f"cat/1.{name}", "cat"), (f"dog/2.{name}", "dog")])
    return root


def as_parquet(root: Path, name: str, data: bytes) -> Path:
    root.mkdir()
    images = [{"bytes": data, "path": f"{number}.{name}"} for number in range(2)]
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), root / "rows.parquet")
    return root


@pytest.mark.parametrize("kind", FOLLOWED)
def test_a_folder_keeps_all_its_values(tmp_path: Path, kind: str) -> None:
    name, data, values, mode, member = FOLLOWED[kind]
    report = pack(as_folder(tmp_path / "in", name, data), tmp_path / "out")
    manifest = report.manifests["train"]
    assert (manifest.pixels.mode, manifest.image.member, manifest.samples) == (mode, member, 2)
    for image in stored(tmp_path / "out" / "train"):
        np.testing.assert_array_equal(image, values)
    assert any(note.startswith(f"the set has mode {mode} (") and "--mode RGB" in note for note in report.notes)


@pytest.mark.parametrize("door", [as_table, as_parquet])
def test_rows_of_tables_keep_all_their_values(tmp_path: Path, door: Callable[[Path, str, bytes], Path]) -> None:
    name, data, values, mode, _ = FOLLOWED["gray of 16 bits"]
    source = door(tmp_path / "in", name, data)
    labels = tmp_path / "labels.csv"
    report = pack(source, tmp_path / "out", labels=labels if labels.exists() else None)
    assert report.manifests["train"].pixels.mode == mode
    for image in stored(tmp_path / "out" / "train"):
        np.testing.assert_array_equal(image, values)


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        (GRAY, "I;16"), (COLORS, "uint16x3"), (COLORS.transpose(2, 0, 1), "uint16x3"), (BANDS, "uint16x13"),
        (FLOATS, "F"), (SIGNED, "F"), (BANDS[..., :5].astype(np.float64), "float32x5"), (Image.fromarray(GRAY), "I;16"),
        (Image.fromarray(FLOATS), "F"),
    ],
)  # fmt: skip
def test_arrays_and_pil_images_keep_all_their_values(tmp_path: Path, values: Any, mode: str) -> None:
    report = pack([{"image": values}] * 2, tmp_path / "out")
    assert report.manifests["train"].pixels.mode == mode
    array = np.asarray(values)
    is_first = array.ndim == 3 and array.shape[0] == 3
    for image in stored(tmp_path / "out" / "train"):
        np.testing.assert_array_equal(image, array.transpose(1, 2, 0) if is_first else array)


def test_floats_in_0_to_1_of_a_program_are_levels(tmp_path: Path) -> None:
    """As those of scikit-image and of tensors; numbers of unknown range are refused as before."""
    shares = LEVELS / 255
    pack([{"image": shares}, {"image": Image.fromarray(shares.astype(np.float32))}], tmp_path / "out", lossless=True)
    for image in stored(tmp_path / "out" / "train"):
        np.testing.assert_array_equal(image, LEVELS)
    with pytest.raises(SourceError, match="of int64; for mode RGB"):
        pack([{"image": GRAY.astype(np.int64)}], tmp_path / "refused")


LOADED: dict[str, tuple[Image.Image, str]] = {
    "gray": (Image.fromarray(LEVELS), "PNG"),
    "colours": (photo(), "PNG"),
    "a palette": (photo().quantize(16), "PNG"),
    "two colours": (photo().convert("1"), "PNG"),
    "transparency": (photo().resize((24, 20)).convert("RGBA").rotate(45), "PNG"),
    "gray of 16 bits": (Image.fromarray(GRAY), "TIFF"),
    "floats": (Image.fromarray(FLOATS), "TIFF"),
    "integers": (Image.fromarray(SIGNED.astype(np.int32)), "TIFF"),
}
SETS = {"I;16": Image.fromarray(GRAY), "RGB": photo(), "RGBA": photo().convert("RGBA"), "F": Image.fromarray(FLOATS)}


def outcome(folder: Path, report: PackReport) -> tuple[Any, ...]:
    """What a user can tell of a set that was packed."""
    rejected = sorted((rejection.source, rejection.reason) for rejection in report.rejected)
    samples = gpuload.Dataset(folder / "train")
    images = [np.asarray(samples[row]["image"]).tolist() for row in range(len(samples))]
    return rejected, images, [note for note in report.notes if "Ray Data" not in note]


@pytest.mark.parametrize("mode", SETS)
def test_loaded_images_that_are_appended_mean_what_their_files_do(tmp_path: Path, mode: str) -> None:
    of_set = SETS[mode]
    lossless = mode != "F"
    pack([{"image": of_set}], tmp_path / "loaded", mode=mode, lossless=lossless, encode="keep" if lossless else "raw")
    shutil.copytree(tmp_path / "loaded", tmp_path / "files")
    appended = {
        "loaded": [image for image, _ in LOADED.values()],
        "files": [encode(image, form) for image, form in LOADED.values()],
    }
    outcomes = list[Any]()
    for name, images in appended.items():
        rows = [{"image": image} for image in [encode(of_set, "PNG" if lossless else "TIFF"), *images]]
        report = pack(rows, tmp_path / name, append=True, lossless=lossless, max_rejected=1)
        outcomes.append(outcome(tmp_path / name, report))
    assert outcomes[0] == outcomes[1]
    assert 0 < len(outcomes[0][0]) < len(LOADED)


@pytest.mark.parametrize(("most", "rare"), [("I;16", "gray"), ("I;16", "colours"), ("RGB", "gray of 16 bits")])
def test_a_rare_loaded_image_means_what_its_file_does(tmp_path: Path, most: str, rare: str) -> None:
    image, form = LOADED[rare]
    outcomes = list[Any]()
    for number, given in enumerate((image, encode(image, form))):
        rows = [{"image": SETS[most]}] * 40
        rows[21] = {"image": given}  # is not looked at
        folder = tmp_path / str(number)
        report = pack(rows, folder, lossless=True, max_rejected=1)
        outcomes.append((report.manifests["train"].pixels.mode, *outcome(folder, report)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == most


def test_floats_in_0_to_1_among_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """Rare ones, and those that are appended; a set of whole numbers does not take them."""
    shares = np.full((20, 24), 0.25, np.float32)
    rows = [{"image": FLOATS + 300}] * 40
    rows[21] = {"image": shares}  # is not looked at
    out = tmp_path / "out"
    pack(rows, out)
    pack([{"image": shares}, {"image": Image.fromarray(shares)}], out, append=True)
    flat = [image for image in stored(out / "train") if np.ptp(image) == 0]
    assert [float(image.max()) for image in flat] == [0.25] * 3
    pack([{"image": GRAY}], tmp_path / "whole")
    with pytest.raises(SourceError, match="of float32; for mode I;16"):
        pack([{"image": shares}], tmp_path / "whole", append=True)


@pytest.mark.parametrize("kind", PLAIN)
def test_what_8_bits_hold_is_packed_as_ever(tmp_path: Path, kind: str) -> None:
    folder = as_folder(tmp_path / "in", *PLAIN[kind])
    pack(folder, tmp_path / "out")
    pack(folder, tmp_path / "asked", mode="RGB")
    assert digests(tmp_path / "out") == digests(tmp_path / "asked")


def test_gray_and_colours_are_one_set(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {f"a/{kind}.{name}": data for kind, (name, data) in PLAIN.items()})
    report = pack(tmp_path / "in", tmp_path / "out")
    assert report.manifests["train"].pixels.mode == "RGB" and report.images == len(PLAIN)
    assert not any("mode" in note and "the set" in note for note in report.notes)


MIXED = {
    "8 and 16 bits": {"a/plain.jpg": PLAIN["colours"][1], "b/deep.png": FOLLOWED["gray of 16 bits"][1]},
    "16 bits and floats": {"a/deep.tif": tiff(GRAY), "b/floats.tif": tiff(FLOATS)},
    "13 and 5 bands": {"a/many.tif": FOLLOWED["13 bands"][1], "b/few.tif": FOLLOWED["5 bands of 8 bits"][1]},
    "a few among many": {
        **{f"a/{number}.jpg": PLAIN["colours"][1] for number in range(400)},
        "b/deep.png": FOLLOWED["gray of 16 bits"][1],
    },
}


@pytest.mark.parametrize("kind", MIXED)
def test_what_disagrees_is_a_question_whose_answers_pack(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "in", MIXED[kind])
    source = str(tmp_path / "in")
    assert cli.main(["pack", source, str(tmp_path / "out"), "--workers", "1"]) == cli.WRONG
    asked = capsys.readouterr().err
    assert "a set has one mode" in asked and not (tmp_path / "out").exists()
    answers = re.findall("--mode .*?(?= keeps| makes)", asked)
    assert len(answers) >= 2
    for number, answer in enumerate(answers):
        out = tmp_path / f"out{number}"
        words = shlex.split(answer.replace(" LOW:HIGH", "=-1000:70000"))
        code = cli.main(["pack", source, str(out), *words, "--workers", "1"])
        assert code in (cli.DONE, cli.REJECTED), answer
        assert gpuload.Dataset(out / "train").manifest.pixels.mode == words[1]


def test_splits_share_one_mode(tmp_path: Path) -> None:
    data = FOLLOWED["gray of 16 bits"][1]
    write_files(tmp_path / "in", {f"{split}/cat/{split}.png": data for split in ("train", "val", "test")})
    report = pack(tmp_path / "in", tmp_path / "out")
    assert {name: manifest.pixels.mode for name, manifest in report.manifests.items()} == dict.fromkeys(
        ("train", "val", "test"), "I;16"
    )


def test_an_interrupted_run_keeps_the_mode_that_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_folder(tmp_path / "in", *FOLLOWED["floats"][:2])
    pack(folder, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("gpuload.packing.packer.PackingRun.describe_splits", lambda run: _stop())
        with pytest.raises(OutputError, match="continue with --resume"):
            pack(folder, tmp_path / "out")
    with pytest.raises(ArgumentError, match="the interrupted run"):
        pack(folder, tmp_path / "out", mode="RGB", resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "mode_of_set", lambda *_: pytest.fail("it is decided"))
        pack(folder, tmp_path / "out", resume=True)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert "the set was complete already" in pack(folder, tmp_path / "out", resume=True).notes
    with pytest.raises(ArgumentError, match="the complete set"):
        pack(folder, tmp_path / "out", mode="RGB", resume=True)


def _stop() -> None:
    raise OutputError("the disk is full")


def test_a_set_that_is_extended_keeps_its_mode(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "in", *FOLLOWED["floats"][:2])
    pack(folder, tmp_path / "out")
    report = pack(folder, tmp_path / "out", append=True)
    assert (report.images, report.manifests["train"].pixels.mode) == (4, "F")


def test_bands_that_are_asked_for_keep_their_type(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "in", *FOLLOWED["13 bands"][:2])
    pack(folder, tmp_path / "out", bands="4,3,2")
    for image in stored(tmp_path / "out" / "train"):
        np.testing.assert_array_equal(image, BANDS[..., [3, 2, 1]])
    with pytest.raises(ArgumentError, match="--bands names 2"):
        pack(folder, tmp_path / "refused", bands="4,3", scale="0:100")


@pytest.mark.parametrize("settings", [{"encode": "jpeg"}, {"scale": "0:65535"}, {"depth": 16}])
def test_options_of_8_bits_answer_the_question(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = as_folder(tmp_path / "in", *FOLLOWED["gray of 16 bits"][:2])
    assert pack(folder, tmp_path / "out", **settings).manifests["train"].pixels.mode == "RGB"


def test_a_dry_run_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = as_folder(tmp_path / "in", *FOLLOWED["13 bands"][:2])
    assert cli.main(["pack", str(folder), str(tmp_path / "out"), "--dry-run"]) == cli.DONE
    assert "note: the set has mode uint16x13 (13 channels of uint16), stored as pixels" in capsys.readouterr().out


def test_lost_transparency_is_counted(tmp_path: Path) -> None:
    clear = photo().convert("RGBA")
    clear.putalpha(100)
    images = {"a/clear.png": encode(clear, "PNG"), "a/opaque.png": PLAIN["transparency"][1]}
    write_files(tmp_path / "in", images)
    report = pack(tmp_path / "in", tmp_path / "out")
    assert any(note.startswith("transparency laid over white: in 1;") for note in report.notes)
    assert not any("transparency" in note for note in pack(tmp_path / "in", tmp_path / "drop", alpha="drop").notes)
