"""Sets of other pixels than RGB, from the source to the batch: the same contract for both decoders."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import load
from mode_sets import CASES, COUNT, HEIGHT, WIDTH, bands, constants, images_of, peak, pixels_of
from opened import pretend_gpu
from PIL import Image

import gpuload
from gpuload import Augment, Normalize, PadOrCrop, transforms
from gpuload.batchwise import CutMix, MixUp, RandomChoice
from gpuload.disk.tar import read_members
from gpuload.packing.verify import verify
from gpuload.transforms import (
    ColorJitter,
    RandAugment,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomRotation,
    RandomSolarize,
)


@pytest.mark.parametrize("name", CASES)
def test_the_manifest_tells_the_mode_and_verify_agrees(sets: dict[str, Path], name: str) -> None:
    manifest, pixels = gpuload.Dataset(sets[name]).manifest, CASES[name].pixels(0)
    assert (manifest.pixels.mode, manifest.version) == (name, 2)
    assert (manifest.fields[0].kind, manifest.fields[0].size) == (CASES[name].kind, pixels.shape[2])
    assert np.dtype(manifest.fields[0].dtype) == pixels.dtype
    if pixels.dtype == np.uint8:
        whole = np.stack([CASES[name].pixels(n) for n in range(COUNT)])
        np.testing.assert_allclose(manifest.mean, whole.mean(axis=(0, 1, 2)) / 255, atol=1e-6)
        np.testing.assert_allclose(manifest.std, whole.std(axis=(0, 1, 2)) / 255, atol=1e-6)
    assert verify(sets[name], workers=1) == []


@pytest.mark.parametrize("decoder", ["native", "dali", "both", "uploading"])
@pytest.mark.parametrize("name", CASES)
def test_pixels_come_out_as_they_were_packed(
    sets: dict[str, Path], name: str, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pixels_of(name)
    if decoder == "uploading":
        pretend_gpu(monkeypatch)
        decoder = "native"
    augment = Augment((HEIGHT, WIDTH), crop="none", **constants(name))
    found = images_of(sets[name], augment, decoder)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.rint(found * peak(name)) if peak(name) > 1 else found, expected)


@pytest.mark.parametrize("name", CASES)
def test_decoders_agree_on_crops_flips_and_layouts(sets: dict[str, Path], name: str) -> None:
    """Inside; along the edges DALI filters differently, see docs/lab/decode.md."""
    for settings in (
        {"crop": "random", "vertical_flip": 0.5},
        {"crop": PadOrCrop(51), "layout": "channels_last"},
        {"crop": "center", "normalize": "image", "interpolation": "bicubic"},
    ):
        pads = settings["crop"] == PadOrCrop(51)
        size = (HEIGHT + 6, WIDTH - 6) if pads else 12
        augment = Augment(size, **{**constants(name), **settings})
        native, dali = (images_of(sets[name], augment, decoder)[..., 1:-1, 1:-1] for decoder in ("native", "dali"))
        if pads:
            np.testing.assert_allclose(native, dali, rtol=1e-6)
            np.testing.assert_allclose(native[0, :, 0, 0], 0.2, rtol=1e-5)
        else:
            scale = 4 if "normalize" in settings else np.abs(native).max()
            assert np.abs(native - dali).max() <= 0.04 * scale
            assert np.abs(native - dali).mean() <= 0.004 * scale


@pytest.mark.parametrize("name", ["RGBA", "I;16"])
def test_a_damaged_image_is_marked_whatever_its_mode(
    sets: dict[str, Path], tmp_path: Path, name: str, decoder: str
) -> None:
    """DALI gets a black image of the same mode in its place."""
    folder = Path(shutil.copytree(sets[name], tmp_path / "set"))
    shard = folder / "shard-000000.tar"
    damaged = next(member for member in read_members(shard) if member.name.endswith(".png"))
    with shard.open("r+b") as file:
        file.seek(damaged.offset + 60)
        file.write(bytes(30))
    augment = Augment((HEIGHT, WIDTH), crop="none", **constants(name))
    found = images_of(folder, augment, decoder, on_corrupt=gpuload.OnCorrupt("mark", most=1), fields=("image", "index"))
    expected = images_of(sets[name], augment, decoder)
    row = int(damaged.name.partition("-")[0])
    assert not found[row].any() and expected[row].any()
    np.testing.assert_array_equal(np.delete(found, row, axis=0), np.delete(expected, row, axis=0))


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_subsets_and_mixtures_keep_the_mode(sets: dict[str, Path], decoder: str) -> None:
    augment = Augment((HEIGHT, WIDTH), crop="none", **constants("float32x5"))
    part = gpuload.Dataset(sets["float32x5"]).subset([2, 7])
    found = images_of(part, augment, decoder)
    np.testing.assert_array_equal(found, np.stack([bands("float32")(n) for n in (2, 7)]).transpose(0, 3, 1, 2))
    both = gpuload.mix([(sets["float32x5"], 1), (sets["float32x5"], 1)])
    loader = load(both, 4, augment=augment, decoder=decoder, steps_per_epoch=4)
    assert [images.shape[1:] for _, images, _ in loader] == [(5, HEIGHT, WIDTH)] * 4
    with pytest.raises(gpuload.ArgumentError, match="mode"):
        load(gpuload.mix([(sets["float32x5"], 1), (sets["uint16x5"], 1)]), augment=augment)


def test_transforms_of_each_channel_and_erasing_work_on_gray_and_rgba(sets: dict[str, Path]) -> None:
    for name in ("L", "RGBA"):
        erasing = RandomErasing(p=1, value=0.5)
        augment = Augment(12, **constants(name), transforms=[RandomSolarize(p=1, threshold=0), erasing], crop="none")
        found = images_of(sets[name], augment, "native")
        plain = images_of(sets[name], Augment(12, **constants(name), crop="none"), "native")
        erased = found == 0.5
        assert erased.any() and (erased.all(axis=1) == erased.any(axis=1)).all()
        np.testing.assert_allclose(found[~erased], (1 - plain)[~erased], atol=1e-6)
        np.testing.assert_allclose(found, images_of(sets[name], augment, "dali"), atol=0.03)
    levels = images_of(sets["I;16"], Augment(12, **constants("I;16"), transforms=[RandomErasing(p=1)]), "native")
    assert (levels == 0).any()


def test_mixing_images_of_a_batch_works_on_any_channels(sets: dict[str, Path]) -> None:
    augment = Augment(12, **constants("float32x5"))
    with load(
        sets["float32x5"],
        4,
        augment=augment,
        batch_transforms=[RandomChoice([MixUp(num_classes=2), CutMix(num_classes=2)])],
    ) as loader:
        assert next(iter(loader))[1].shape == (4, 5, 12, 12)


def test_rgb_becomes_gray_and_gray_rgb(packed: Path, sets: dict[str, Path], decoder: str) -> None:
    size = {"size": 20, "crop": "pad_or_crop", "dtype": "uint8"}
    rgb = images_of(packed, Augment(**size), decoder)
    found = images_of(packed, Augment(**size, mode="L"), decoder)
    expected = np.stack(
        [np.asarray(Image.fromarray(one.transpose(1, 2, 0).astype(np.uint8)).convert("L")) for one in rgb]
    )
    assert found.shape == (len(rgb), 1, 20, 20) and np.abs(found[:, 0] - expected).max() <= (
        0 if decoder == "native" else 1
    )
    one = images_of(sets["L"], Augment(**size), decoder)
    np.testing.assert_array_equal(images_of(sets["L"], Augment(**size, mode="RGB"), decoder), one.repeat(3, axis=1))


UINT8: dict[str, Any] = {"dtype": "uint8"}
MISFITS: list[tuple[str, dict[str, Any], str]] = [
    ("L", {}, "Give 1 of each"),
    ("I;16", {"normalize": Normalize((0.5, 0.5), (1, 1))}, "Give 1 of each"),
    ("I;16", UINT8, "dtype='uint8'"),
    ("I;16", {"normalize": Normalize((300,), (300,)), "mode": "I;16"}, "Divide yours by 65535"),
    ("L", {"transforms": [RandAugment(fill=(1, 2, 3))], **UINT8}, "RandAugment"),
    ("RGBA", {"transforms": [ColorJitter(saturation=1)], **UINT8}, "ColorJitter"),
    ("RGBA", {"transforms": [RandAugment()], **UINT8}, "RandAugment"),
    ("RGBA", {"transforms": [RandomApply([RandomGrayscale()])], **UINT8}, "RandomGrayscale"),
    ("I;16", {"transforms": [RandomSolarize()], "normalize": Normalize((0,), (1,))}, "RandomSolarize"),
    ("L", {"transforms": [RandomErasing(value="random")], "normalize": Normalize((0,), (1,))}, "RandomErasing"),
    ("L", {"transforms": [RandomRotation(9, fill=(1, 2, 3))], **UINT8}, "RandomRotation"),
    ("L", {"crop": gpuload.RandomCrop(2, fill=(1, 2, 3))}, "RandomCrop"),
    ("RGBA", {"mode": "RGB"}, "mode='RGB'"),
]


@pytest.mark.parametrize(("name", "settings", "word"), MISFITS)
def test_what_does_not_fit_is_an_error_at_construction(
    sets: dict[str, Path], name: str, settings: dict[str, Any], word: str
) -> None:
    usual = {} if "mode" in settings or not settings else constants(name)
    with pytest.raises(gpuload.ArgumentError, match=word):
        load(sets[name], augment=Augment(12, **{**usual, **settings}))
    if "transforms" in settings:  # with a mode, the Augment itself says it
        with pytest.raises(gpuload.ArgumentError, match=word):
            Augment(12, **{**usual, **settings, "mode": name})


def test_constants_of_floats_may_be_above_1(sets: dict[str, Path]) -> None:
    augment = Augment((HEIGHT, WIDTH), crop="none", mode="float32x5", normalize=Normalize((150,) * 5, (30,) * 5))
    for decoder in ("native", "dali"):
        expected = (np.stack([bands("float32")(n) for n in range(COUNT)]).transpose(0, 3, 1, 2) - 150) / 30
        np.testing.assert_allclose(images_of(sets["float32x5"], augment, decoder), expected, atol=1e-4)


def test_an_older_version_refuses_a_set_of_another_mode(sets: dict[str, Path], packed: Path) -> None:
    """Which compares the version with 1. RGB sets in the old encodings are still of that version."""
    assert '"version": 1,' in (packed / "manifest.json").read_text()
    assert all('"version": 2,' in (folder / "manifest.json").read_text() for folder in sets.values())


@pytest.mark.parametrize("mode", ["I;16", "float32x7"])
def test_colours_of_other_than_8_bits_are_refused_by_name(mode: str) -> None:
    """All that `gpuload.transforms` has but for those that are defined for them."""
    defined = {"Function", "PixelTransform", "RandomAffine", "RandomErasing", "RandomPerspective", "RandomRotation"}
    colours = set(transforms.__all__) - defined - {"RandomApply", "RandomChoice", "RandomOrder"}
    needed = {"GaussianBlur": 5, "RandomAdjustSharpness": 2, "RandomPosterize": 4, "TimmAutoAugment": "rand-m9"}
    for name in colours:
        one = getattr(transforms, name)(*([needed[name]] if name in needed else []))
        for listed in (one, RandomApply([one])):
            with pytest.raises(gpuload.ArgumentError, match=f"{name}: is not defined"):
                Augment(32, mode=mode, normalize=None, transforms=[listed])
    assert len(colours) == 14
