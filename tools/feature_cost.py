"""What buckets and captions cost: a loader with the feature beside the same loader without it.

    python tools/feature_cost.py shards/train
    python tools/feature_cost.py shards/train --features buckets --size 512 --rounds 9 --json figures.json

The two loaders stay open and take turns of --seconds each, so that other load on the machine affects both alike.
Figures are medians over the rounds, of what the loader with the feature needs relative to the one without: time, and
processor time of the whole process, and the difference of the latter. The captions' features need a field of texts
(--captions), and `tokens` the package tokenizers.

Exit codes: 0; 2 if the folder or an argument cannot be used.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpuload
from gpuload.errors import GpuloadError


class Setting(NamedTuple):
    """The set, and what both loaders of a pair have in common."""

    folder: Path
    size: int
    batch_size: int
    threads: int
    decoder: str
    captions: str
    images: bool


class Pair(NamedTuple):
    """Arguments of two loaders that differ by one feature."""

    without: dict[str, Any]
    with_it: dict[str, Any]


def buckets(setting: Setting) -> Pair:
    """Sizes by aspect of about as many pixels as the one size without, to which whole images are stretched: a crop to
    one shape would decode less of each."""
    made = gpuload.Buckets(area=setting.size**2, step=max(8, setting.size // 16))
    return Pair(
        {"augment": gpuload.Augment(setting.size, crop="none")},
        {"augment": gpuload.Augment(crop="cover"), "buckets": made},
    )


def captions(setting: Setting, **more: Any) -> Pair:
    """One caption of several and dropout, beside the texts as they are packed."""
    augment = {"augment": gpuload.Augment(setting.size, crop="cover")}
    spec = gpuload.Captions(setting.captions, dropout=0.1, **more)
    return Pair({**augment, "fields": ("index", setting.captions)}, {**augment, "fields": ("index", spec)})


def tokens(setting: Setting) -> Pair:
    """The same, tokenized: WordPiece, learned from the set's own texts, 77 tokens."""
    import numpy as np
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    with gpuload.DaliIterator(
        setting.folder, 256, augment=gpuload.Augment(8), fields=[setting.captions], device="cpu", drop_last=False
    ) as loader:
        texts = [json.dumps(text) for (batch,) in loader for text in batch]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=4000, special_tokens=["[UNK]", "[PAD]"]))
    tokenizer.enable_padding(length=77, pad_id=1)
    tokenizer.enable_truncation(77)

    def ids(texts: list[str]) -> Any:
        return np.array([encoding.ids for encoding in tokenizer.encode_batch(texts)])

    return captions(setting, tokenizer=ids)


FEATURES: dict[str, Callable[[Setting], Pair]] = {"buckets": buckets, "captions": captions, "tokens": tokens}


def compare(setting: Setting, pair: Pair, rounds: int, seconds: float) -> dict[str, float]:
    """Medians, of the loader with the feature over the one without: time and processor time of an image."""
    options = {"device": "cpu", "decoder": setting.decoder, "num_threads": setting.threads, "fields": ("index",)}
    loaders = []
    for arguments in pair:
        used = {**options, **arguments}
        used["fields"] = (*used["fields"], *(("image",) if setting.images else ()))
        loaders.append(gpuload.DaliIterator(setting.folder, setting.batch_size, **used))
    endless = [_batches(loader) for loader in loaders]
    for batches in endless:  # compiled code, memory, and the page cache
        _spend(batches, seconds)
    found = [[_spend(batches, seconds) for batches in endless] for _ in range(rounds)]
    for loader in loaders:
        loader.close()
    wall = [with_it[0] / without[0] for without, with_it in found]
    work = [with_it[1] / without[1] for without, with_it in found]
    return {
        "time": round(statistics.median(wall), 3),
        "processor_time": round(statistics.median(work), 3),
        "more_us": round(1e6 * statistics.median(with_it[1] - without[1] for without, with_it in found), 2),
        "images_per_s_without": round(1 / statistics.median(without[0] for without, _ in found), 1),
        "rounds": rounds,
    }


def _batches(loader: gpuload.DaliIterator) -> Any:
    while True:
        yield from loader


def _spend(batches: Any, seconds: float) -> tuple[float, float]:
    """Time and processor time of an image, in seconds, over about as many seconds."""
    images, begun, worked = 0, time.perf_counter(), time.process_time()
    while not images or time.perf_counter() - begun < seconds:
        images += len(next(batches)[0])
    return (time.perf_counter() - begun) / images, (time.process_time() - worked) / images


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--decoder", choices=("native", "dali"), default="native")
    parser.add_argument("--captions", default="captions", help="the field of texts")
    parser.add_argument("--no-images", action="store_true", help="only what is read beside them")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    setting = Setting(
        args.folder, args.size, args.batch_size, args.threads, args.decoder, args.captions, not args.no_images
    )
    results = {}
    for name in args.features:
        try:
            results[name] = partial(compare, setting)(FEATURES[name](setting), args.rounds, args.seconds)
        except GpuloadError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        found = results[name]
        print(
            f"{name:10} time x {found['time']:.3f}, processor time x {found['processor_time']:.3f} "
            f"({found['more_us']:+.1f} µs an image)"
        )
    if args.json:
        about = {"size": args.size, "batch_size": args.batch_size, "threads": args.threads, "decoder": args.decoder}
        about["images"] = not args.no_images
        args.json.write_text(json.dumps({**about, "features": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
