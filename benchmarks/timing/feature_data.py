"""The sets that some features are measured on, made out of the images of the set that is measured."""

import io
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops

import gpuload
from timing.lossless import BANDS
from timing.stored import stored_images
from timing.work import Work

_MOST = 1024  # images of a set whose images are encoded anew
_MOST_PIXELS = 400_000_000
_SCENES = 512
_WEBPS = 256  # whose encoding takes long
# Tags of GeoTIFF: pixels of 10 m, and where the first one lies.
_PLACE = [(33550, "d", 3, (10, 10, 0)), (33922, "d", 6, (0, 0, 0, 500_000, 5e6, 0))]
_CAPTIONS = 5
_WORDS = 12


def prepare(work: Work, folder: Path, name: str) -> None:
    """Packs a set into an empty folder."""
    samples, settings = {
        "texts": lambda: (_with_captions(work.folder), {}),
        "gray-png": lambda: (
            _as_png(work.folder, False),
            {"mode": "L", "lossless": True},
        ),
        "16-bit-png": lambda: (_as_png(work.folder, True), {"mode": "I;16"}),
        "two-jpegs": lambda: (_with_right_view(work.folder), {}),
        "depth": lambda: (_with_depth(work.folder), {}),
        "mask": lambda: (_with_mask(work.folder), {}),
        "bands": lambda: (_scenes(work, folder / "files"), {}),
        "webp": lambda: (_as_webp(work.folder), {"keep": "webp"}),
        "png-unscaled": lambda: (_as_rgb_png(work.folder), {}),
        "png-points": lambda: (_as_rgb_png(work.folder), {"png": "points"}),
    }[name]()
    gpuload.pack(samples, folder / "set", workers=1, progress=False, **settings)  # type: ignore[arg-type]


def fade(sample: Any, rng: np.random.Generator) -> Any:
    """Brightness by a table, as a function of a user's may be: 0.1 ms of NumPy for 224×224."""
    factor = rng.uniform(0.6, 1.4)
    return np.clip(np.arange(256) * factor, 0, 255).astype(np.uint8)[sample["image"]]


def bucket_sizes(work: Work) -> gpuload.Buckets:
    """Of about as many pixels as the usual size."""
    return gpuload.Buckets(area=work.size**2, step=max(8, work.size // 16))


def tokenizer(folder: Path) -> Callable[[list[str]], Any]:
    """WordPiece, learned from a set's captions: int64 (N, 77)."""
    tokenizer = learned(folder)

    def ids(texts: list[str]) -> Any:
        return np.array([encoding.ids for encoding in tokenizer.encode_batch(texts)])

    return ids


def learned(folder: Path) -> Any:
    """The tokenizer itself."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000, special_tokens=["[UNK]", "[PAD]"], show_progress=False
    )
    tokenizer.train_from_iterator(texts_of(folder), trainer)
    tokenizer.enable_padding(length=77, pad_id=1)
    tokenizer.enable_truncation(77)
    return tokenizer


def texts_of(folder: Path) -> list[str]:
    """The captions of each sample, as they are stored: a JSON list."""
    dataset = gpuload.Dataset(folder)
    shards = range(len(dataset.shard_paths))
    return [
        text
        for shard in shards
        for text in dataset.rows(shard).column("captions").to_pylist()
    ]


def _with_captions(folder: Path) -> Iterator[dict[str, Any]]:
    words = np.array(
        [
            a + b
            for a in "bcdfghklmnprst"
            for b in ("ar", "en", "ilo", "ut", "ane", "or")
        ]
    )
    for number, data in enumerate(stored_images(folder)):
        drawn = np.random.default_rng(number).choice(words, (_CAPTIONS, _WORDS))
        yield {
            "image": data,
            "captions": [" ".join(words) for words in drawn],
            "label": number % 10,
        }


def _as_png(folder: Path, is_sixteen: bool) -> Iterator[dict[str, Any]]:
    for number, data in enumerate(stored_images(folder)):
        if number == _MOST:
            return
        gray = Image.open(io.BytesIO(data)).convert("L")
        image = (
            Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
            if is_sixteen
            else gray
        )
        file = io.BytesIO()
        image.save(file, "PNG")
        yield {"image": file.getvalue(), "label": number % 10}


def _as_webp(folder: Path) -> Iterator[dict[str, Any]]:
    """The photos as WebP without losses, as Pillow writes it."""
    for number, data in enumerate(islice(stored_images(folder), _WEBPS)):
        file = io.BytesIO()
        Image.open(io.BytesIO(data)).convert("RGB").save(file, "WEBP", lossless=True)
        yield {"image": file.getvalue(), "label": number % 10}


def _as_rgb_png(folder: Path) -> Iterator[dict[str, Any]]:
    """The photos as PNGs, as Pillow writes them; large ones are fewer."""
    pixels_left = _MOST_PIXELS
    for number, data in enumerate(islice(stored_images(folder), _MOST)):
        photo = Image.open(io.BytesIO(data))
        pixels_left -= photo.width * photo.height
        if pixels_left < 0:
            return
        if photo.format != "PNG":
            data = _png(np.asarray(photo.convert("RGB")))
        yield {"image": data, "label": number % 10}


def _scenes(work: Work, folder: Path) -> Path:
    """Scenes of 64×64 or 256×256 pixels as Sentinel-2 has them, smooth with noise: a folder of GeoTIFFs, compressed as
    GDAL does with a predictor."""
    import tifffile

    side = 64 if work.size <= 64 else 256
    noise = np.random.default_rng(0)
    for number, data in enumerate(islice(stored_images(work.folder), _SCENES)):
        gray = Image.open(io.BytesIO(data)).convert("L").resize((side, side))
        smooth = np.asarray(gray, np.float32)[..., None] * np.linspace(2, 16, BANDS)
        values = smooth + 400 + noise.normal(0, 20, smooth.shape)
        path = folder / f"{number % 10}" / f"{number:06d}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(
            path,
            values.clip(0, 65_535).astype(np.uint16),
            photometric="minisblack",
            planarconfig="contig",
            compression="zlib",
            predictor=2,
            extratags=_PLACE,
        )
    return folder


def _with_right_view(folder: Path) -> Iterator[dict[str, Any]]:
    """Each photo, and the same one shifted by 16 pixels, as a JPEG of the same quality."""
    for number, data in enumerate(stored_images(folder)):
        with Image.open(io.BytesIO(data)) as photo:
            tables = photo.quantization  # type: ignore[attr-defined]
            shifted = ImageChops.offset(photo.convert("RGB"), 16, 0)
        file = io.BytesIO()
        shifted.save(file, "JPEG", qtables=tables, subsampling="4:2:0")
        yield {"image": data, "right": file.getvalue(), "label": number % 10}


def _with_depth(folder: Path) -> Iterator[dict[str, Any]]:
    """Each photo, and a smooth map of its size of 0.5 to 10 m in millimetres, of 16 bits."""
    for number, data in enumerate(stored_images(folder)):
        smooth = _smooth(data)
        millimetres = (500 + smooth * (9500 / 255)).astype(np.uint16)
        yield {"image": data, "depth": _png(millimetres), "label": number % 10}


def _with_mask(folder: Path) -> Iterator[dict[str, Any]]:
    """Each photo, and a mask of its size of 21 classes, whose regions are those of the photo."""
    for number, data in enumerate(stored_images(folder)):
        classes = (_smooth(data) * (21 / 256)).astype(np.uint8)
        yield {"image": data, "mask": _png(classes), "label": number % 10}


def _smooth(data: bytes) -> Any:
    """float32 (height, width) in 0..255: brightness without its details."""
    with Image.open(io.BytesIO(data)) as photo:
        gray = photo.convert("L").convert("F")
    few = gray.resize(
        (max(1, gray.width // 8), max(1, gray.height // 8)), Image.Resampling.BOX
    )
    return np.asarray(few.resize(gray.size, Image.Resampling.BILINEAR))


def _png(values: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()
