"""Whether DALI decodes just a crop of a JPEG on this device, and whether that is faster than decoding whole images.

    python tools/probe_cropped_decode.py shards/train
    python tools/probe_cropped_decode.py shards/train --device cpu --images 512 --json figures.json

Cropped decoding on a GPU (`fn.decoders.image_slice(device="mixed")`) crashes in nvImageCodec 0.9 (github
NVIDIA/nvImageCodec#55), which is why gpuload decodes whole images there. Every way is tried in a process of its own,
which may crash, with the same crops: "slice" (gpuload's: whole decode, slice, resize), "region" (whole decode, resize
of a region, whose filter looks beyond the crop's edge) and "cropped". Pixels and images/s are compared.

Exit codes: 0 whether it crashes or not; 2 where the folder or DALI cannot be used at all.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpuload

SIZE, BATCHES_AHEAD = 224, 4
WAYS = ("slice", "region", "cropped")
LOADS = (0.0, 0.65, 1.0)  # hw_decoder_load: CUDA's cores alone, DALI's default, the JPEG engines alone


def read_images(folder: Path, count: int) -> tuple[list[np.ndarray], Any]:
    """Encoded images, over and over where there are fewer, and a random crop of each."""
    dataset = gpuload.Dataset(folder)
    found: list[tuple[np.ndarray, int, int]] = []
    for number, path in enumerate(dataset.shard_paths):
        rows = dataset.rows(number).select(["image_offset", "image_bytes", "width", "height"]).to_pylist()
        shard = np.memmap(path, np.uint8, "r")
        for row in rows[: count - len(found)]:
            end = row["image_offset"] + row["image_bytes"]
            found.append((np.array(shard[row["image_offset"] : end]), row["width"], row["height"]))
    found = [found[number % len(found)] for number in range(count)]
    widths, heights = (np.array([one[place] for one in found], np.float64) for place in (1, 2))
    rng = np.random.default_rng(0)
    side = np.sqrt(rng.uniform(0.08, 1, count))  # area of a random resized crop
    shape = np.maximum(np.stack([heights * side, widths * side], 1).astype(np.int32), 1)
    start = (rng.random((count, 2)) * (np.stack([heights, widths], 1) - shape)).astype(np.int32)
    return [one[0] for one in found], (start, shape)


def try_one(args: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: decodes by one way, saves the first batch, and measures."""
    from nvidia.dali import fn, pipeline_def, types

    images, (start, shape) = read_images(args.folder, args.images)
    batches = len(images) // args.batch_size
    on_gpu = args.device == "cuda"
    decoder = {"device": "mixed", "hw_decoder_load": args.load} if on_gpu else {"device": "cpu"}
    place = {"axes": [0, 1], "normalized_anchor": False, "normalized_shape": False}

    def feed(number: int) -> tuple[Any, Any, Any]:
        part = slice(number % batches * args.batch_size, (number % batches + 1) * args.batch_size)
        return images[part], start[part], shape[part]

    @pipeline_def(
        batch_size=args.batch_size,
        num_threads=args.threads,
        device_id=0 if on_gpu else None,
        prefetch_queue_depth=2,
        exec_dynamic=True,
    )
    def graph() -> Any:
        encoded, anchor, size = fn.external_source(feed, num_outputs=3, batch=True)
        resize = {"size": [SIZE, SIZE], "interp_type": types.INTERP_LINEAR, "antialias": True}
        if args.way == "cropped":
            return fn.resize(fn.decoders.image_slice(encoded, anchor, size, **place, **decoder), **resize)
        whole = fn.decoders.image(encoded, **decoder)
        if args.way == "region":
            begin, end = (fn.cast(corner, dtype=types.FLOAT) for corner in (anchor, anchor + size))
            return fn.resize(whole, roi_start=begin, roi_end=end, **resize)
        return fn.resize(fn.slice(whole, anchor, size, **place), **resize)

    pipeline = graph()
    pipeline.build()

    def run() -> Any:
        (pixels,) = pipeline.run()
        return pixels.as_cpu() if on_gpu else pixels  # waits

    np.save(args.pixels, np.stack([np.asarray(image) for image in run()]))
    for _ in range(BATCHES_AHEAD):
        run()
    rates, cpu = [], time.process_time()
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(batches):
            run()
        rates.append(batches * args.batch_size / (time.perf_counter() - started))
    seen = 3 * batches * args.batch_size
    return {"images_per_s": statistics.median(rates), "cpu_s_per_1000": 1000 * (time.process_time() - cpu) / seen}


def try_in_process(args: argparse.Namespace, way: str, load: float, pixels: Path) -> dict[str, Any]:
    """What the process said, or how it ended."""
    options = {"device": args.device, "images": args.images, "batch-size": args.batch_size, "threads": args.threads}
    options |= {"way": way, "load": load, "pixels": pixels}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, __file__, str(args.folder), *words]
    row: dict[str, Any] = {"way": way, "hw_decoder_load": load if args.device == "cuda" else None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.time_limit)
    except subprocess.TimeoutExpired:
        return {**row, "ended": f"hung: ended after {args.time_limit:g} s"}
    if done.returncode < 0:
        return {**row, "ended": f"crashed: {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {**row, "ended": f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}"}
    return {**row, "ended": "works", **json.loads(done.stdout.splitlines()[-1])}


def compare(rows: list[dict[str, Any]], folder: Path) -> None:
    """Adds to each row how far its pixels are from those of the first slice that works."""
    paths = [folder / f"{number}.npy" for number in range(len(rows))]
    works = [row["ended"] == "works" for row in rows]
    first = next((place for place, row in enumerate(rows) if row["way"] == "slice" and works[place]), None)
    if first is None:
        return
    reference = np.load(paths[first]).astype(int)
    for row, path, ok in zip(rows, paths, works, strict=True):
        if ok:
            difference = np.abs(np.load(path).astype(int) - reference)
            row["difference"] = {"mean": float(difference.mean()), "max": int(difference.max())}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split of JPEGs, such as shards/train")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of DALI (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=60, metavar="S", help="for one way (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it")
    for hidden, kind in (("--way", str), ("--load", float), ("--pixels", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not 1 <= args.batch_size <= args.images:
        parser.error(f"--batch-size {args.batch_size}: expected 1 to {args.images}, the number of --images")
    if args.way:
        print(json.dumps(try_one(args)))
        return 0
    try:
        gpuload.Dataset(args.folder)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    loads = LOADS if args.device == "cuda" else (0.0,)
    with tempfile.TemporaryDirectory() as scratch:
        rows = [
            try_in_process(args, way, load, Path(scratch) / f"{len(WAYS) * number + place}.npy")
            for number, load in enumerate(loads)
            for place, way in enumerate(WAYS)
        ]
        compare(rows, Path(scratch))
    for row in rows:
        load = "" if row["hw_decoder_load"] is None else f", hw_decoder_load {row['hw_decoder_load']:g}"
        figures = ""
        if row["ended"] == "works":
            figures = f": {row['images_per_s']:,.0f} images/s, {row['cpu_s_per_1000']:.2f} CPU s per 1,000"
            figures += f", {row['difference']['mean']:.2f} levels from the first" if "difference" in row else ""
        print(f"{row['way']}{load}: {row['ended']}{figures}")
    if args.json:
        args.json.write_text(json.dumps({"device": args.device, "ways": rows}, indent=1) + "\n")
    return 0 if any(row["ended"] == "works" for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
