"""Images in an LMDB or HDF5 file that is larger than memory: packed once, then read sequentially.

    python examples/single_images.py                                    # a small generated LMDB
    python examples/single_images.py pictures.lmdb --shards packed      # your own; or pictures.h5
    python examples/single_images.py pictures.h5 --encode raw --size 128 --memory 1GB

Reading single images from such a file in a new order every epoch takes one seek per image. So the packer reads the file
once, sequentially, and shuffles the samples over all shards; the loader then reads whole shards, some at a time. The
training loop prints for each batch the time to read (from shards that are read ahead), to decode and to wait, and the
memory of the process.

--memory limits the anonymous memory of this process and of the packer (RLIMIT_DATA, see setrlimit(2)); with less than
they need, they fail. Pages of the shards do not count: they are in the kernel's page cache and reclaimed when memory is
short. The last line of an epoch shows how much of them was mapped at most. Before each epoch the shards are evicted
from the page cache, so that they are read from the disk.
"""

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

import measure
import torch
import torch.nn.functional as F
from torch import nn

import gpuload
from gpuload.checks import parse_size

SHARD_BYTES = 32_000_000  # small, since the loader maps two windows of them at a time


def pack(store: Path, shards: Path, encode: str, size: int | None) -> None:
    """Packs the store into shards, shuffled, unless they exist."""
    form = [
        "--encode",
        encode,
        *(["--size", str(size), "--fit", "center-crop"] if size else []),
    ]
    # --maxsize counts the bytes in the store; raw pixels take many times the bytes of a JPEG.
    largest = (
        ["--maxcount", str(max(1, SHARD_BYTES // (3 * size**2)))]
        if size and encode == "raw"
        else []
    )
    measure.pack(
        store, shards, "--val", "0.1", *form, "--maxsize", str(SHARD_BYTES), *largest
    )


def train_epoch(
    loader: gpuload.DaliIterator, net: nn.Module, every: int
) -> dict[str, Any]:
    """Trains one epoch, prints a line every --every batches, and returns the figures."""
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    peak = measure.PeakMemory()
    seen = 0
    loss_sum = torch.zeros(())
    read = []
    decode = []
    wait = []
    of_shards = 0
    begun = time.perf_counter()
    print(
        f"{'batch':>6} {'read':>9} {'decode':>9} {'waited':>9} {'own memory':>11} {'loss':>6}"
    )
    for number, (images, labels) in enumerate(loader, 1):
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(labels)
        loss_sum += loss.detach() * len(labels)
        last = loader.metrics(1)
        for times, seconds in (
            (read, last.read_s),
            (decode, last.decode_s),
            (wait, last.wait_s),
        ):
            times.append(seconds)
        peak.look()
        if number % 64 == 1:
            of_shards = max(of_shards, measure.mapped_bytes(loader.dataset.folder))
        if number % every == 0 or number == len(loader):
            ms = " ".join(
                f"{1000 * seconds:6.1f} ms"
                for seconds in (last.read_s, last.decode_s, last.wait_s)
            )
            print(
                f"{number:>6} {ms} {measure.in_bytes(measure.memory().own):>11} {loss.item():6.2f}",
                flush=True,
            )
    elapsed = time.perf_counter() - begun
    return {
        "images": seen,
        "seconds": elapsed,
        "mean_loss": loss_sum.item() / seen,
        "read_s": measure.spread(read),
        "decode_s": measure.spread(decode),
        "wait_s": measure.spread(wait),
        "waited_s": sum(wait),
        "peak_own_bytes": peak.most.own,
        "peak_shard_bytes": of_shards,
    }


def run(args: argparse.Namespace, store: Path) -> None:
    shards = args.shards or store.with_name(store.name + "-packed")
    if args.memory:
        limit = parse_size(args.memory)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    pack(store, shards, args.encode, args.size)
    stored = measure.bytes_below(shards / "train")
    packed = gpuload.Dataset(shards / "train")
    augment = gpuload.Augment(
        args.crop, crop=gpuload.RandomResizedCrop(scale=(0.5, 1.0))
    )
    with gpuload.DaliIterator(packed, args.batch_size, augment=augment) as loader:
        limited = (
            f"; this process may have {args.memory} of anonymous memory"
            if args.memory
            else ""
        )
        print(
            f"{len(packed):,} images in {measure.in_bytes(stored)} of shards{limited}"
        )
        classes = len(packed.classes or ()) or int(packed.labels.max()) + 1
        net = measure.make_net(classes, ((16, 5, 4), (32, 3, 2)), 4)
        epochs = []
        for epoch in range(args.epochs):
            measure.evict(shards)
            print(f"Epoch {epoch + 1} of {args.epochs}")
            epochs.append(figures := train_epoch(loader, net, args.every))
            anonymous, shown = (
                measure.in_bytes(figures[name])
                for name in ("peak_own_bytes", "peak_shard_bytes")
            )
            print(
                f"{figures['images']:,} images in {figures['seconds']:.1f} s, {figures['waited_s']:.1f} s of it waited "
                f"for batches; mean loss {figures['mean_loss']:.3f}\nat most {anonymous} of anonymous memory, and "
                f"{shown} of the {measure.in_bytes(stored)} of shards mapped"
            )
    measure.save_record(
        args.json,
        samples=len(packed),
        shard_bytes=stored,
        limit=args.memory,
        epochs=epochs,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "store",
        type=Path,
        nargs="?",
        help="LMDB folder or HDF5 file with labels (default: a generated set)",
    )
    parser.add_argument(
        "--shards",
        type=Path,
        help="folder to pack into, or a packed one (STORE-packed)",
    )
    parser.add_argument(
        "--encode",
        choices=["keep", "jpeg", "raw"],
        default="keep",
        help="encoding of the packed images",
    )
    parser.add_argument(
        "--size", type=int, help="side of the squares that packed images are cropped to"
    )
    parser.add_argument(
        "--memory", help="limit of the process's anonymous memory, such as 1GB"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--crop", type=int, default=64, help="side of the crops in pixels"
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--every", type=int, default=1, help="print every so many batches"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    return measure.run_on(run, args, args.store, "lmdb", "pictures.lmdb")


if __name__ == "__main__":
    sys.exit(main())
