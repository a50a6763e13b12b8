"""Compares two ways to take batches from DALI on a GPU: waiting for each on the host, or only on the training's stream.

    python tools/probe_streams.py shards/train
    python tools/probe_streams.py shards/train --json figures.json

`pipeline.run()` returns when a batch is ready, and DLPack then makes the training's stream wait for whatever DALI has
queued by then, later batches included. `pipeline.run(stream)` returns at once, and the stream waits for this batch
alone. gpuload does the first; this measures what the second would gain beside a training step, and whether batches are
the same. The two take turns; medians. With --traces FOLDER, torch.profiler writes a timeline of each for
chrome://tracing.

Exit codes: 0 the same batches by both; 1 others; 2 it cannot be measured here.
"""

import argparse
import json
import statistics
import sys
import time
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gpuload

WAYS = ("host", "stream")
WARM_UP = 6  # batches of a turn that do not count


def open_loader(args: argparse.Namespace, way: str) -> gpuload.DaliIterator:
    augment = gpuload.Augment(args.size, dtype="float16", layout="channels_last")
    loader = gpuload.DaliIterator(
        args.folder, args.batch_size, augment=augment, device=args.device, decoder="dali", deterministic=True
    )
    if way == "stream":
        # Not public: the loader would do it by itself, if it is faster.
        loader._decoder._decoder.stream = lambda: torch.cuda.current_stream(loader.device).cuda_stream  # type: ignore[attr-defined]
    return loader


def make_step(device: str) -> Any:
    """A training step of a small net."""
    layers = (nn.Conv2d(3, 128, 7, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    net = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(images: torch.Tensor) -> None:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = net(images.float()).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def measure(args: argparse.Namespace, way: str, step: Any) -> dict[str, Any]:
    """One turn. ms: of the host's time for each batch taken."""
    with open_loader(args, way) as loader:
        batches = chain.from_iterable(repeat(loader))
        # On the device, so that nothing waits here: a batch that was read too early would show in its sum.
        sums = []
        for images, _ in islice(batches, WARM_UP):
            step(images)
            sums.append(images.double().sum())
        torch.cuda.synchronize()
        waits, seen, started = [], 0, time.perf_counter()
        while time.perf_counter() - started < args.seconds:
            before = time.perf_counter()
            images, _ = next(batches)
            waits.append(1000 * (time.perf_counter() - before))
            step(images)
            sums.append(images.double().sum())
            seen += len(images)
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - started
        return {"images_per_s": seen / elapsed, "ms": statistics.median(waits), "sums": torch.stack(sums).tolist()}


def trace(args: argparse.Namespace, way: str, step: Any) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with open_loader(args, way) as loader:
        batches = chain.from_iterable(repeat(loader))
        for images, _ in islice(batches, WARM_UP):
            step(images)
        with torch.profiler.profile(activities=activities) as profiled:
            for images, _ in islice(batches, 10):
                step(images)
            torch.cuda.synchronize()
    profiled.export_chrome_trace(str(args.traces / f"{way}.json"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split, such as shards/train")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:1 (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each way (%(default)s)")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="write a timeline of each way to it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to it, after each turn")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("No GPU was found: streams are those of a GPU.", file=sys.stderr)
        return 2
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    same = True
    step = make_step(args.device)
    try:
        for _ in range(args.turns):
            for way in WAYS:
                found[way].append(measure(args, way, step))
            pairs = list(zip(*(found[way][-1].pop("sums") for way in WAYS), strict=False))
            same = same and all(one == other for one, other in pairs)
            if args.json:
                args.json.write_text(json.dumps({"same": same, "ways": found}, indent=1) + "\n")
        if args.traces:
            args.traces.mkdir(parents=True, exist_ok=True)
            for way in WAYS:
                trace(args, way, step)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    for way, turns in found.items():
        rate, ms = (statistics.median(turn[name] for turn in turns) for name in ("images_per_s", "ms"))
        print(f"{way:<8}{rate:>10,.0f} images/s beside a training step, {ms:.2f} ms to take a batch")
    print(f"Batches are {'the same' if same else 'NOT the same'} by both.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
