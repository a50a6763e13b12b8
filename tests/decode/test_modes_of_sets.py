"""Sets of other pixels than RGB, from the source to the batch: what all decoders make of them is plain arithmetic on the
pixels that were packed."""

import importlib
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from damaged import damage
from images import encode, photo
from loaders import load
from opened import pretend_gpu
from PIL import Image

import gpuload
from gpuload import Augment, Letterbox, Normalize, PadOrCrop, RandomCrop
from gpuload.batchwise import CutMix, MixUp, RandomMixer
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

COUNT, WIDTH, HEIGHT = 9, 24, 18
WHOLE: dict[str, Any] = {"size": (HEIGHT, WIDTH), "crop": "none"}
DECODERS = ["native", "dali", "both", "uploading"]
SHARE = 51  # of 255: a fifth of the largest level


def rgb(number: int) -> Image.Image:
    return photo(number, WIDTH, HEIGHT)


def gray(number: int) -> Image.Image:
    return rgb(number).convert("L")


def rgba(number: int) -> Image.Image:
    image = rgb(number)
    image.putalpha(gray(number + 50))
    return image


def sixteen(number: int) -> Image.Image:
    return Image.fromarray(np.asarray(gray(number)).astype(np.uint16) * 250 + np.uint16(number))


def bands(dtype: str, largest: int, number: int) -> np.ndarray:
    random = np.random.default_rng(number)
    channels = [Image.fromarray(random.random((4, 5)).astype(np.float32)).resize((WIDTH, HEIGHT)) for _ in range(5)]
    return np.asarray((np.stack([np.asarray(one) for one in channels], axis=2) * largest).astype(dtype))


# By mode: the pictures by their numbers, and the formats of their files in turn; those without any are packed as pixels.
CASES: dict[str, tuple[Callable[[int], Any], list[str]]] = {
    "RGB": (rgb, []),
    "L": (gray, ["PNG", "TIFF"]),
    "RGBA": (rgba, ["WEBP", "PNG"]),
    "I;16": (sixteen, ["PNG", "TIFF"]),
    "uint16x5": (partial(bands, "uint16", 65_535), []),
    "float32x5": (partial(bands, "float32", 300), []),
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each mode, with its number as the first level of 16 bits."""
    root = tmp_path_factory.mktemp("modes")
    for name, (make, formats) in CASES.items():
        images = [make(number) for number in range(COUNT)]
        if formats:
            images = [encode(image, formats[n % 2], lossless=True, exact=True) for n, image in enumerate(images)]
        settings: dict[str, Any] = {"keep": ("webp", "tiff")} if formats else {"encode": "raw"}
        samples = [{"image": image, "label": n % 2, "name": f"{n}."} for n, image in enumerate(images)]
        gpuload.pack(samples, root / name, workers=1, maxcount=4, shuffle=False, mode=name, progress=False, **settings)
    return {name: root / name / "train" for name in CASES}


def pixels_of(name: str) -> np.ndarray:
    """All that was packed, (N, C, height, width)."""
    pixels = [np.asarray(CASES[name][0](number)).reshape(HEIGHT, WIDTH, -1) for number in range(COUNT)]
    return np.stack(pixels).transpose(0, 3, 1, 2)


def constants(name: str) -> dict[str, Any]:
    """Values of 0..1, or floats as they are."""
    channels = pixels_of(name).shape[1]
    return {"normalize": Normalize((0.0,) * channels, (1.0,) * channels)}


def peak(name: str) -> float:
    return {"uint8": 255, "uint16": 65_535, "float32": 1}[pixels_of(name).dtype.name]


def images_of(folder: Any, augment: Augment, decoder: str, **options: Any) -> np.ndarray:
    """(N, C, height, width), float32, by the number of the sample."""
    options = {"fields": ("image", "index"), "shuffle": False, "drop_last": False, **options}
    rows = {}
    with load(folder, 4, augment=augment, decoder=decoder, **options) as loader:
        for images, index, *_ in loader:
            rows.update(zip(index.tolist(), images.float().numpy(), strict=True))
    return np.stack([rows[number] for number in sorted(rows)])


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"RGB"}))  # which version 1 of the format has, too
def test_the_manifest_tells_the_mode_and_verify_agrees(sets: dict[str, Path], name: str) -> None:
    manifest, pixels = gpuload.Dataset(sets[name]).manifest, pixels_of(name)
    (field, *_), kind = manifest.fields, "image" if CASES[name][1] else "raw"
    assert (manifest.pixels.mode, manifest.version) == (name, 2)
    assert (field.kind, field.size, np.dtype(field.dtype)) == (kind, pixels.shape[1], pixels.dtype)
    if pixels.dtype == np.uint8:
        np.testing.assert_allclose(manifest.mean, pixels.mean(axis=(0, 2, 3)) / 255, atol=1e-6)
        np.testing.assert_allclose(manifest.std, pixels.std(axis=(0, 2, 3)) / 255, atol=1e-6)
    assert verify(sets[name], workers=1) == []


class Way(NamedTuple):
    """settings: of the augment. expected: what comes of the pixels, given a fifth of their peak."""

    settings: dict[str, Any]
    expected: Callable[[np.ndarray, float], np.ndarray]


def changed(*steps: Any, **settings: Any) -> dict[str, Any]:
    return {**WHOLE, "transforms": steps, **settings}


def padded(crop: Any, mode: Any = "constant") -> Way:
    def expected(pixels: np.ndarray, level: float) -> np.ndarray:
        value = {"constant_values": level} if mode == "constant" else {}
        return np.pad(pixels.astype(np.float64), [(0, 0), (0, 0), (40, 40), (5, 5)], mode, **value)[..., ::-1]

    return Way({"size": (HEIGHT + 80, WIDTH + 10), "crop": crop, "flip": 1}, expected)


def turned(pixels: np.ndarray, level: float) -> np.ndarray:
    """By a quarter, about the middle."""
    found = np.full(pixels.shape, level)
    found[..., 3:-3] = np.rot90(pixels[..., 3:-3], axes=(2, 3))
    return found


def upended(sample: Any, rng: np.random.Generator) -> Any:
    image = sample["image"]
    assert image.dtype != np.float32 or (image % 1).any()  # whole levels come as whole numbers
    return image[::-1]


WAYS = {
    "as packed": Way(WHOLE, lambda pixels, level: pixels),
    "filled": padded(RandomCrop((5, 40), fill=SHARE)),
    "filled on all sides": padded(PadOrCrop(SHARE)),
    **{mode: padded(RandomCrop((5, 40), padding_mode=mode), mode) for mode in ("edge", "reflect", "symmetric")},
    "turned": Way(changed(RandomRotation((90, 90), fill=SHARE)), turned),
    "a function": Way(changed(Function(upended), flip=1), lambda pixels, level: pixels[..., ::-1, ::-1]),
    "a function before": Way(changed(Function(upended, before_crop=True)), lambda pixels, level: pixels[:, :, ::-1]),
}
INVERTED = Way(changed(RandomSolarize(p=1, threshold=0)), lambda pixels, level: 5 * level - pixels)  # of 8 bits alone


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, way) for name in CASES for way in WAYS.values()), *((name, INVERTED) for name in ("RGB", "L", "RGBA"))],
)
def test_what_comes_out_follows_from_what_was_packed(
    sets: dict[str, Path], name: str, way: Way, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "uploading":
        pretend_gpu(monkeypatch)
        decoder = "native"
    augment = Augment(**way.settings, **constants(name))
    if augment.form.padding_mode != "constant" and decoder != "native":
        with pytest.raises(gpuload.ArgumentError, match=f"decoder='{decoder}': does not pad with pixels of the image"):
            load(sets[name], augment=augment, decoder=decoder)
        return
    found = images_of(sets[name], augment, decoder)
    levels = np.rint(found * peak(name)) if peak(name) > 1 else found
    np.testing.assert_allclose(levels, way.expected(pixels_of(name), peak(name) / 5), rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_decoders_agree_on_crops_flips_and_layouts(sets: dict[str, Path], name: str) -> None:
    """Inside; along the edges DALI filters differently, see docs/lab/decode.md."""
    for settings in (
        {"crop": "random", "vertical_flip": 0.5, "layout": "channels_last"},
        {"crop": Letterbox(fill=SHARE)},
        {"crop": "center", "normalize": "image", "interpolation": "bicubic"},
    ):
        fills = isinstance(settings["crop"], Letterbox)
        augment = Augment((HEIGHT + 6, WIDTH - 6) if fills else 12, **{**constants(name), **settings})
        native, dali = (images_of(sets[name], augment, decoder)[..., 1:-1, 1:-1] for decoder in ("native", "dali"))
        if fills:
            np.testing.assert_allclose([native[0, :, 0, 0], dali[0, :, 0, 0]], 0.2, rtol=1e-5)
        scale = 4 if "normalize" in settings else np.abs(native).max()
        gap = np.abs(native - dali) / scale
        assert gap.max() <= 0.04 and gap.mean() <= 0.004


@pytest.mark.parametrize("name", ["RGBA", "I;16"])
def test_a_damaged_image_is_marked_whatever_its_mode(
    sets: dict[str, Path], tmp_path: Path, name: str, decoder: str
) -> None:
    """DALI gets a black image of the same mode in its place."""
    row = CASES[name][1].index("PNG")
    folder = damage(sets[name], tmp_path / "set", [row], lambda data: data[:60] + bytes(30) + data[90:])
    augment = Augment(**WHOLE, **constants(name))
    found = images_of(folder, augment, decoder, on_corrupt=gpuload.OnCorrupt("mark", most=1))
    expected = images_of(sets[name], augment, decoder)
    assert not found[row].any() and expected[row].any()
    np.testing.assert_array_equal(np.delete(found, row, axis=0), np.delete(expected, row, axis=0))


@pytest.mark.parametrize("decoder", DECODERS[:3])
def test_subsets_and_mixtures_keep_the_mode(sets: dict[str, Path], decoder: str) -> None:
    augment, mixing = Augment(**WHOLE, **constants("float32x5")), [MixUp(num_classes=2), CutMix(num_classes=2)]
    part = gpuload.Dataset(sets["float32x5"]).subset([2, 7])
    np.testing.assert_array_equal(images_of(part, augment, decoder), pixels_of("float32x5")[[2, 7]])
    options: dict[str, Any] = {"augment": augment, "decoder": decoder, "steps_per_epoch": 4}
    both = gpuload.mix([(sets["float32x5"], 1), (part, 1)])
    with load(both, 4, **options, batch_transforms=[RandomMixer(mixing)]) as loader:
        assert [images.shape for _, images, *_ in loader] == [(4, 5, HEIGHT, WIDTH)] * 4
    with pytest.raises(gpuload.ArgumentError, match="mode"):
        load(gpuload.mix([(sets["float32x5"], 1), (sets["uint16x5"], 1)]), augment=augment)


@pytest.mark.parametrize("name", ["L", "RGBA", "I;16"])
def test_a_rectangle_is_erased_in_all_channels(sets: dict[str, Path], name: str, decoder: str) -> None:
    found = images_of(sets[name], Augment(**changed(RandomErasing(p=1, value=0.5)), **constants(name)), decoder)
    whole = images_of(sets[name], Augment(**WHOLE, **constants(name)), decoder)
    erased = found == 0.5
    assert erased.any() and (erased.all(axis=1) == erased.any(axis=1)).all()
    np.testing.assert_array_equal(found[~erased], whole[~erased])


def test_rgb_becomes_gray_and_gray_rgb(packed: Path, sets: dict[str, Path], decoder: str) -> None:
    size = {"size": 20, "crop": "pad_or_crop", "dtype": "uint8"}
    rgb = images_of(packed, Augment(**size), decoder)
    found = images_of(packed, Augment(**size, mode="L"), decoder)
    expected = [np.asarray(Image.fromarray(one.transpose(1, 2, 0).astype(np.uint8)).convert("L")) for one in rgb]
    assert found.shape == (len(rgb), 1, 20, 20)
    np.testing.assert_allclose(found[:, 0], np.stack(expected), atol=0 if decoder == "native" else 1)
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


@pytest.mark.parametrize("mode", ["I;16", "float32x7"])
def test_colours_of_other_than_8_bits_are_refused_by_name(mode: str) -> None:
    """All that `gpuload.transforms` has but for those that are defined for them."""
    defined = {"Function", "PixelTransform", "RandomAffine", "RandomErasing", "RandomPerspective", "RandomRotation"}
    colours = set(gpuload.transforms.__all__) - defined - {"RandomApply", "RandomChoice", "RandomOrder"}
    needed = {"GaussianBlur": 5, "RandomAdjustSharpness": 2, "RandomPosterize": 4, "TimmAutoAugment": "rand-m9"}
    for name in colours:
        one = getattr(gpuload.transforms, name)(*([needed[name]] if name in needed else []))
        for listed in (one, RandomApply([one])):
            with pytest.raises(gpuload.ArgumentError, match=f"{name}: is not defined"):
                Augment(32, mode=mode, normalize=None, transforms=[listed])
    assert len(colours) == 14


def test_mirrored_padding_of_a_part_of_a_gray_jpeg(tmp_path: Path) -> None:
    """Of which the native decoder decodes no more than what is shown."""
    jpegs = [encode(photo(number, 180, 150).convert("L"), "JPEG") for number in range(6)]
    pngs = [encode(Image.open(io.BytesIO(data)), "PNG") for data in jpegs]  # which are decoded as a whole
    for name, images in (("parts", jpegs), ("whole", pngs)):
        gpuload.pack([{"image": data} for data in images], tmp_path / name, workers=1, mode="L", progress=False)
    for mode in ("edge", "reflect", "symmetric"):
        augment = Augment(40, crop=RandomCrop(30, padding_mode=mode), normalize=Normalize((0,), (1,)))
        parts, whole = (images_of(tmp_path / name / "train", augment, "native") for name in ("parts", "whole"))
        np.testing.assert_allclose(parts, whole, atol=1.01 / 255)


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
        assert np.abs(gray * 65_535 - np.rint(gray * 65_535)).max() < 0.01  # rounded


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
        ("float32x5", lambda image: image[:, :, :3], r"\(8, 8, 3\) as 'image': expected float32 \(8, 8, 5\)"),
        ("uint16x5", lambda image: image[:, :, 0], r"\(8, 8\) as 'image': expected uint16 \(8, 8, 5\)"),
    ],
)
def test_what_a_function_may_not_return(sets: dict[str, Path], name: str, change: Any, message: str) -> None:
    augment = Augment(8, transforms=[Function(lambda sample, rng: change(sample["image"]))], **constants(name))
    with pytest.raises(gpuload.FunctionError, match=message):
        list(load(sets[name], 4, augment=augment, fields=("image",)))


@pytest.mark.parametrize("name", ["L", "RGBA", "float32x5"])
def test_libraries_get_other_pixels(sets: dict[str, Path], name: str, transforms: ModuleType) -> None:
    for flip in (transforms.RandomVerticalFlip(1.0), importlib.import_module("albumentations").VerticalFlip(p=1)):
        found = images_of(sets[name], Augment(**changed(Function(flip)), **constants(name)), "native")
        np.testing.assert_allclose(found * peak(name), pixels_of(name)[:, :, ::-1], rtol=1e-6)


def test_encoded_and_raw_gray_sets_are_not_mixed_before_the_crop(sets: dict[str, Path], tmp_path: Path) -> None:
    samples = [{"image": pixels} for pixels in pixels_of("L")[:4, 0]]
    gpuload.pack(samples, tmp_path, workers=1, mode="L", encode="raw", progress=False)
    augment = Augment(8, transforms=[Function(lambda sample, rng: sample, before_crop=True)], **constants("L"))
    message = r"Function\(before_crop=True\): one of the data sets holds encoded gray images and another raw ones"
    with pytest.raises(gpuload.ArgumentError, match=message):
        load(gpuload.mix([(sets["L"], 1), (tmp_path / "train", 1)]), augment=augment, fields=("image",), decoder="dali")
