"""Measures what a batch costs the thread that trains: processor time of that thread alone, for each batch handed out.

    python tools/training_thread.py shards/train --batch-size 256
    python tools/training_thread.py shards/train --device cuda --decoder dali --json figures.json

Reading, decoding and feeding the decoder are other threads' work; what remains here is time that a training step cannot
have. At 20,000 images/s a batch of 256 takes 12.8 ms. Several decoders take turns, a few batches each; medians.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import gpuload

TURN = 8  # batches of a turn


def costs(batches: Iterator[Any], count: int) -> list[float]:
    """Milliseconds of this thread for each of the next batches."""
    found = []
    for _ in range(count):
        before = time.thread_time()
        next(batches)
        found.append(1000 * (time.thread_time() - before))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split, such as shards/train")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (%(default)s)")
    parser.add_argument("--decoder", nargs="+", default=["dali", "native"], help="which (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=64, help="side of the crops in pixels (%(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of each decoder (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to it")
    args = parser.parse_args(argv)
    found: dict[str, list[float]] = {name: [] for name in args.decoder}
    try:
        loaders = {
            name: gpuload.DaliIterator(
                args.folder, args.batch_size, augment=gpuload.Augment(args.size), device=args.device, decoder=name
            )
            for name in args.decoder
        }
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    streams = {name: chain.from_iterable(repeat(loader)) for name, loader in loaders.items()}
    for stream in streams.values():
        list(islice(stream, 4))  # what is loaded or built with the first batches
    for _ in range(args.turns):
        for name, stream in streams.items():
            found[name] += costs(stream, TURN)
    for loader in loaders.values():
        loader.close()
    rows = [
        {"decoder": name, "ms": round(statistics.median(ms), 3), "most_ms": round(max(ms), 3), "batches": len(ms)}
        for name, ms in found.items()
    ]
    for row in rows:
        print(f"{row['decoder']:<8}{row['ms']:>8.2f} ms a batch of {args.batch_size}, {row['most_ms']:.2f} at most")
    if args.json:
        args.json.write_text(json.dumps({"device": args.device, "batch_size": args.batch_size, "rows": rows}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
