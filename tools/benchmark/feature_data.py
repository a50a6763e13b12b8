"""The sets that some features are measured on, made out of the images of the set that is measured."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpuload
from benchmark.stored import stored_images
from benchmark.work import Work

_MOST = 1024  # images of a set whose images are encoded anew
_CAPTIONS = 5
_WORDS = 12


def prepare(work: Work, folder: Path, name: str) -> None:
    """Packs a set into an empty folder."""
    settings = {
        "texts": {},
        "gray-png": {"mode": "L", "lossless": True},
        "16-bit-png": {"mode": "I;16"},
    }[name]
    samples = (
        _with_captions(work.folder)
        if name == "texts"
        else _as_png(work.folder, name == "16-bit-png")
    )
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
