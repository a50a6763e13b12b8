"""Sets of other pixels than RGB, from the source to the batch, with padding, warps and functions: one contract for all
decoders."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from damaged import damage
from images import encode, photo
from loaders import load
from mode_sets import CASES, COUNT, HEIGHT, WIDTH, bands, constants, images_of, peak, pixels_of
from opened import pretend_gpu
from PIL import Image

import gpuload
from gpuload import Augment, Letterbox, Normalize, PadOrCrop, RandomCrop, transforms
from gpuload.batchwise import CutMix, MixUp, RandomChoice
from gpuload.packing.verify import verify
from gpuload.transforms import (
    ColorJitter,
    Function,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomPerspective,
    RandomRotation,
    RandomSolarize,
)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"RGB"}))  # which version 1 of the format has, too
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
        {"crop": Letterbox(fill=51)},
        {"crop": "center", "normalize": "image", "interpolation": "bicubic"},
    ):
        keeps, pads = isinstance(settings["crop"], PadOrCrop), not isinstance(settings["crop"], str)
        size = (HEIGHT + 6, WIDTH - 6) if pads else 12
        augment = Augment(size, **{**constants(name), **settings})
        native, dali = (images_of(sets[name], augment, decoder)[..., 1:-1, 1:-1] for decoder in ("native", "dali"))
        if pads:
            np.testing.assert_allclose(native[0, :, 0, 0], dali[0, :, 0, 0], rtol=1e-6)
            np.testing.assert_allclose(native[0, :, 0, 0], 0.2, rtol=1e-5)
        if keeps:
            np.testing.assert_allclose(native, dali, rtol=1e-6)
        else:
            scale = 4 if "normalize" in settings else np.abs(native).max()
            assert np.abs(native - dali).max() <= 0.04 * scale
            assert np.abs(native - dali).mean() <= 0.004 * scale


@pytest.mark.parametrize("name", ["RGBA", "I;16"])
def test_a_damaged_image_is_marked_whatever_its_mode(
    sets: dict[str, Path], tmp_path: Path, name: str, decoder: str
) -> None:
    """DALI gets a black image of the same mode in its place."""
    row = next(n for n in range(COUNT) if CASES[name].give(n).startswith(b"\x89PNG"))
    folder = damage(sets[name], tmp_path / "set", [row], lambda data: data[:60] + bytes(30) + data[90:])
    augment = Augment((HEIGHT, WIDTH), crop="none", **constants(name))
    found = images_of(folder, augment, decoder, on_corrupt=gpuload.OnCorrupt("mark", most=1), fields=("image", "index"))
    expected = images_of(sets[name], augment, decoder)
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
    augment, mixing = Augment(12, **constants("float32x5")), RandomChoice([MixUp(num_classes=2), CutMix(num_classes=2)])
    with load(sets["float32x5"], 4, augment=augment, batch_transforms=[mixing]) as loader:
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


OTHERS = ["I;16", "uint16x5", "float32x5"]
WHOLE: dict[str, Any] = {"size": (HEIGHT, WIDTH), "crop": "none"}


def levels_of(name: str, found: np.ndarray) -> np.ndarray:
    """What was normalised to 0..1, as it was packed."""
    return np.rint(found * peak(name)) if peak(name) > 1 else found


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
@pytest.mark.parametrize("name", CASES)
def test_padding_is_numpys_in_each_channel(sets: dict[str, Path], name: str, decoder: str) -> None:
    pixels, share = pixels_of(name), 51
    for mode in ("constant", "edge", "reflect", "symmetric"):
        fill = {"fill": share} if mode == "constant" else {}
        crop = RandomCrop((5, 40), padding_mode=mode, **fill)
        augment = Augment((HEIGHT + 80, WIDTH + 10), crop=crop, flip=1, **constants(name))
        value = {"constant_values": share / 255 * peak(name)} if mode == "constant" else {}
        expected = np.pad(pixels.astype(np.float64), [(0, 0), (0, 0), (40, 40), (5, 5)], mode=mode, **value)
        found = levels_of(name, images_of(sets[name], augment, decoder))
        np.testing.assert_allclose(found[..., ::-1], expected, rtol=1e-6)


def test_mirrored_padding_of_a_part_of_a_gray_jpeg(tmp_path: Path) -> None:
    """Of which the native decoder decodes no more than what is shown."""
    samples = [{"image": encode(photo(number, 180, 150).convert("L"), "JPEG")} for number in range(6)]
    gpuload.pack(samples, tmp_path, workers=1, mode="L", progress=False)
    for mode in ("edge", "reflect", "symmetric"):
        augment = Augment(40, crop=RandomCrop(30, padding_mode=mode), normalize=Normalize((0,), (1,)))
        native, dali = (images_of(tmp_path / "train", augment, decoder) for decoder in ("native", "dali"))
        np.testing.assert_allclose(native, dali, atol=1.01 / 255)


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
@pytest.mark.parametrize("name", OTHERS)
def test_warps_are_torchvisions(sets: dict[str, Path], name: str, decoder: str, transforms: ModuleType) -> None:
    functional = transforms.functional
    pixels = torch.from_numpy(pixels_of(name).astype(np.float32))
    whole = name != "float32x5"
    for mode in ("nearest", "bilinear"):
        rotation = RandomRotation((30, 30), interpolation=mode)  # type: ignore[arg-type]
        augment = Augment(**WHOLE, transforms=[rotation], **constants(name))
        values = images_of(sets[name], augment, decoder)
        found = torch.from_numpy(levels_of(name, values))
        assert not whole or np.abs(values * peak(name) - found.numpy()).max() < 0.01  # rounded
        interpolation = transforms.InterpolationMode(mode)
        expected = functional.rotate(pixels, 30.0, interpolation)
        expected = expected.round() if whole else expected
        apart = (found - expected).abs() / (peak(name) if whole else 300)
        # Ties between two nearest pixels; bilinear, of 16 bits a level.
        assert float((apart > 1e-4).float().mean()) < (0.005 if mode == "nearest" else 1e-9)
        filled = Augment(**WHOLE, transforms=[RandomRotation((30, 30), mode, fill=51)], **constants(name))  # type: ignore[arg-type]
        corners = levels_of(name, images_of(sets[name], filled, decoder))[:, :, [0, -1], [0, -1]]
        np.testing.assert_allclose(corners, 0.2 * peak(name), rtol=1e-6)


@pytest.mark.parametrize("name", ["L", "RGBA"])
def test_half_a_turn_of_8_bits(sets: dict[str, Path], name: str) -> None:
    """What comes out can be told from the pixels that were packed."""
    turned = Augment(**WHOLE, transforms=[RandomRotation((180, 180), fill=9)], dtype="uint8", **constants(name))
    for decoder in ("native", "dali", "both"):
        np.testing.assert_array_equal(images_of(sets[name], turned, decoder), pixels_of(name)[:, :, ::-1, ::-1])


def test_warps_of_several_kinds_move_other_pixels_as_they_move_rgb(sets: dict[str, Path], tmp_path: Path) -> None:
    """Of 16 bits that are 257 times 8 bits, and of the same 8 bits as RGB."""
    samples = [np.asarray(photo(number, WIDTH, HEIGHT).convert("L")) for number in range(COUNT)]
    for name, images, mode in (
        ("gray", [encode(Image.fromarray(one.astype(np.uint16) * 257), "PNG") for one in samples], "I;16"),
        ("rgb", [np.stack([one] * 3, axis=2) for one in samples], "RGB"),
    ):
        pack: dict[str, Any] = {"mode": mode, "lossless": True, "workers": 1, "shuffle": False, "progress": False}
        gpuload.pack([{"image": one, "name": str(n)} for n, one in enumerate(images)], tmp_path / name, **pack)
    chain = (RandomAffine(20, (0.1, 0.1), (0.7, 1.3), 10, "bilinear", fill=80), RandomPerspective(fill=80))
    options: dict[str, Any] = {"crop": "pad_or_crop", "flip": 0.5, "transforms": chain}
    rgb = images_of(tmp_path / "rgb" / "train", Augment(30, normalize=Normalize((0,) * 3, (1,) * 3), **options), "dali")
    for decoder in ("native", "dali"):
        gray = images_of(tmp_path / "gray" / "train", Augment(30, normalize=Normalize((0,), (1,)), **options), decoder)
        np.testing.assert_allclose(gray[:, 0], rgb[:, 1], atol=1.01 / 255)


FUNCTIONS = [(decoder, at) for decoder in ("native", "dali", "both") for at in ("after_crop", "before_crop")]


@pytest.mark.parametrize(("decoder", "at"), FUNCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_function_gets_the_pixels_of_the_set(
    sets: dict[str, Path], name: str, decoder: str, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their own type, with their channels last; it turns them upside down. As on a GPU, too."""
    pixels = pixels_of(name)
    seen: dict[int, tuple[Any, Any]] = {}

    def look(sample: Any, rng: np.random.Generator) -> Any:
        seen[sample["index"]] = sample["image"].copy(), sample["image"].dtype
        return sample["image"][::-1]

    augment = Augment(**WHOLE, transforms=[Function(look, before_crop=at == "before_crop")], flip=1, **constants(name))
    for there in (False, True):
        if there:
            pretend_gpu(monkeypatch)
        found = levels_of(name, images_of(sets[name], augment, decoder))
        np.testing.assert_array_equal(found, pixels[:, :, ::-1, ::-1])
        assert len(seen) == COUNT
        for number, (image, dtype) in seen.items():
            assert dtype == pixels.dtype
            np.testing.assert_array_equal(image, CASES[name].pixels(number))


@pytest.mark.parametrize("at", ["after_crop", "before_crop"])
def test_a_function_gets_gray_that_is_made_of_rgb(packed: Path, decoder: str, at: Any) -> None:
    def half(sample: Any, rng: np.random.Generator) -> Any:
        assert sample["image"].shape[2] == 1 and sample["image"].dtype == np.uint8
        return sample["image"][:, :, 0] // 2  # OpenCV and others leave the only channel out

    gray: dict[str, Any] = {"size": 24, "crop": "pad_or_crop", "dtype": "uint8", "mode": "L"}
    plain = images_of(packed, Augment(**gray), decoder)
    found = images_of(packed, Augment(**gray, transforms=[Function(half, before_crop=at == "before_crop")]), decoder)
    np.testing.assert_allclose(found, plain // 2, atol=0 if decoder == "native" else 1)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("I;16", lambda image: image.astype(np.uint8), r"uint8 \(8, 8, 1\) as 'image': expected uint16 \(8, 8, 1\)"),
        ("float32x5", lambda image: image * np.float64(2), "float64 .* as 'image': expected float32"),
        ("float32x5", lambda image: image[:, :, :3], r"\(8, 8, 3\) as 'image': expected float32 \(8, 8, 5\)"),
        ("uint16x5", lambda image: image[:, :, 0], r"\(8, 8\) as 'image': expected uint16 \(8, 8, 5\)"),
    ],
)
def test_what_a_function_may_not_return(sets: dict[str, Path], name: str, change: Any, message: str) -> None:
    augment = Augment(8, transforms=[Function(lambda sample, rng: change(sample["image"]))], **constants(name))
    with (
        load(sets[name], 4, augment=augment, fields=("image",)) as loader,
        pytest.raises(gpuload.FunctionError, match=message),
    ):
        list(loader)


def test_libraries_get_other_pixels(sets: dict[str, Path], transforms: ModuleType) -> None:
    albumentations = importlib.import_module("albumentations")
    for name in ("L", "RGBA", "float32x5"):
        for function in (
            transforms.RandomVerticalFlip(1.0),
            albumentations.Compose([albumentations.VerticalFlip(p=1)]),
        ):
            augment = Augment(**WHOLE, transforms=[Function(function)], **constants(name))
            found = levels_of(name, images_of(sets[name], augment, "native"))
            np.testing.assert_array_equal(found, pixels_of(name)[:, :, ::-1])


def test_encoded_and_raw_gray_sets_are_not_mixed_before_the_crop(sets: dict[str, Path], tmp_path: Path) -> None:
    gray = [{"image": CASES["L"].pixels(number)} for number in range(4)]
    gpuload.pack(gray, tmp_path, workers=1, mode="L", encode="raw", progress=False)
    augment = Augment(8, transforms=[Function(lambda sample, rng: sample, before_crop=True)], **constants("L"))
    message = r"Function\(before_crop=True\): one of the data sets holds encoded gray images and another raw ones"
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(gpuload.mix([(sets["L"], 1), (tmp_path / "train", 1)]), augment=augment, fields=("image",), decoder="dali")
