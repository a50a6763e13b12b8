"""The sets that some features are measured on, made out of the images of the set that is measured."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops

import gpuload
from timing.stored import stored_images
from timing.work import Work

_MOST = 1024  # images of a set whose images are encoded anew
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
