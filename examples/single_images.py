"""Single images that their owner keeps in an LMDB or HDF5, more than fit into memory: packed once, read in sequence.

    python examples/single_images.py                                    # a small made-up LMDB
    python examples/single_images.py pictures.lmdb --shards packed      # your own; or pictures.h5
    python examples/single_images.py pictures.h5 --encode raw --size 128 --memory 1GB

Reading single images out of such a file in a new order every epoch is one seek each. So the packer reads it once from
end to end and shuffles the samples over all shards before they are stored; the loader then reads shards from end to
end, some at a time. The training loop prints for each batch how long it took to read (to find it in shards that are
read ahead), to decode, and to be waited for, and the memory that the process has come to.

--memory limits what this process and the packer's may each have of their own (RLIMIT_DATA, see setrlimit(2)): with less
than it needs it fails. Pages of the shards do not count: they are the kernel's cache, given back whenever memory is
short; the last line of an epoch tells the most that was in sight of them. Before each epoch the shards are put out of
that cache, so that they come from the disk.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import made_up
import measure
import torch
import torch.nn.functional as F
from torch import nn

import gpuload
from gpuload.cli import REJECTED
from gpuload.cli import main as gpuload_command
from gpuload.packing.options import parse_size

SHARD_BYTES = 32_000_000  # small, since the loader has two windows of them in sight at a time


def pack(store: Path, shards: Path, encode: str, size: int | None) -> None:
    """The store as shards, shuffled; nothing is done where they are there already."""
    if (shards / "train" / "manifest.json").exists():
        print(f"Reusing {shards}; delete it to pack anew")
        return
    form = ["--encode", encode, *(["--size", str(size), "--fit", "center-crop"] if size else [])]
    # --maxsize counts images as they lie in the store; pixels take many times the bytes of a JPEG.
    largest = ["--maxcount", str(max(1, SHARD_BYTES // (3 * size**2)))] if size and encode == "raw" else []
    command = ["pack", str(store), str(shards), "--val", "0.1", *form, "--maxsize", str(SHARD_BYTES), *largest]
    command.append("--resume")
    print("$ python -m gpuload", *command)
    if (code := gpuload_command(command)) not in (0, REJECTED):
        raise SystemExit(code)


def make_net(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 4, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, outputs),
    )


def train_epoch(loader: gpuload.DaliIterator, net: nn.Module, every: int) -> dict[str, Any]:
    """One epoch; prints every so many batches. Gives its figures."""
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    peak, seen, loss_sum = measure.PeakMemory(), 0, torch.zeros(())
    read, decode, wait, of_shards = [], [], [], 0
    begun = time.perf_counter()
    print(f"{'batch':>6} {'read':>9} {'decode':>9} {'waited':>9} {'own memory':>11} {'loss':>6}")
    for number, (images, labels) in enumerate(loader, 1):
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(labels)
        loss_sum += loss.detach() * len(labels)
        timing = loader.timing
        assert timing is not None  # there was a batch
        for times, seconds in ((read, timing.read_s), (decode, timing.decode_s), (wait, timing.wait_s)):
            times.append(seconds)
        peak.look()
        if number % 64 == 1:
            of_shards = max(of_shards, measure.mapped_bytes(loader.dataset.folder))
        if number % every == 0 or number == len(loader):
            ms = " ".join(f"{1000 * seconds:6.1f} ms" for seconds in timing)
            print(f"{number:>6} {ms} {measure.in_bytes(measure.memory().own):>11} {loss.item():6.2f}", flush=True)
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
    augment = gpuload.Augment(args.crop, scale=(0.5, 1.0))
    with gpuload.DaliIterator(packed, args.batch_size, augment=augment) as loader:
        limited = f"; this process may have {args.memory} of its own" if args.memory else ""
        print(f"{len(packed):,} images in {measure.in_bytes(stored)} of shards{limited}")
        net = make_net(len(packed.classes or ()) or int(packed.labels.max()) + 1)
        epochs = []
        for epoch in range(args.epochs):
            measure.evict(shards)
            print(f"Epoch {epoch + 1} of {args.epochs}")
            epochs.append(figures := train_epoch(loader, net, args.every))
            own, shown = (measure.in_bytes(figures[name]) for name in ("peak_own_bytes", "peak_shard_bytes"))
            print(
                f"{figures['images']:,} images in {figures['seconds']:.1f} s, {figures['waited_s']:.1f} s of it waited "
                f"for batches; mean loss {figures['mean_loss']:.3f}\nat most {own} of own memory, and {shown} of the "
                f"{measure.in_bytes(stored)} of shards in sight"
            )
    measure.save_record(args.json, samples=len(packed), shard_bytes=stored, limit=args.memory, epochs=epochs)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?", help="LMDB folder or HDF5 file with labels; without: made up")
    parser.add_argument("--shards", type=Path, help="folder to pack to, or one that is packed (STORE-packed)")
    parser.add_argument("--encode", choices=["keep", "jpeg", "raw"], default="keep", help="how images are packed")
    parser.add_argument("--size", type=int, help="packed images are cut to squares of this side")
    parser.add_argument("--memory", help="limit of this process's own memory, such as 1GB")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--crop", type=int, default=64, help="side of the crops in pixels")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="print one batch in so many")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            run(args, args.store or made_up.make("lmdb", Path(scratch) / "pictures.lmdb"))
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
