"""Tests whether DALI can decode only a crop of a JPEG on this device, and whether that is faster than the whole image.

    python tools/probe_cropped_decode.py shards/train
    python tools/probe_cropped_decode.py shards/train --device cpu --images 512 --json figures.json

Cropped decoding on a GPU (`fn.decoders.image_slice(device="mixed")`) crashes in nvImageCodec 0.9 (github
NVIDIA/nvImageCodec#55), which is why gpuload decodes whole images there. Each way runs in its own process, which may
crash, on the same crops:

    slice       gpuload's: whole decode, slice, resize
    region      whole decode, then resize of a region; the filter looks beyond the crop's edge
    cropped     cropped decode, resize
    unfiltered  as slice, but with chroma upsampled without a filter (jpeg_fancy_upsampling=False); on a GPU only. Shows
                what the filter, which gpuload asks for, costs, and how much the pixels differ without it

Apart from that the decoder has gpuload's settings. On a GPU each way runs with three values of hw_decoder_load. Pixels
are compared with those of the first `slice`. A row is printed, and written to --json, as soon as it is measured.

Exit codes: 0, also if some ways crash; 2 if the folder or DALI cannot be used at all.
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
from gpuload.decode.dali.memory import preallocation
from gpuload.decode.interface import Stored

SIZE, BATCHES_AHEAD = 224, 4
WAYS = ("slice", "region", "cropped")
ON_GPU_ALONE = ("unfiltered",)  # on a CPU DALI always filters
LOADS = (0.0, 0.65, 1.0)  # hw_decoder_load: CUDA's cores alone, DALI's default, the JPEG engines alone


def read_images(dataset: gpuload.Dataset, count: int) -> tuple[list[np.ndarray], Any]:
    """Encoded images, repeated where there are fewer than `count`, and a random crop of each: (start, shape)."""
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


def decoder_settings(way: str, device: str, load: float, width: int, height: int, batch_size: int) -> dict[str, Any]:
    """Arguments of DALI's decoder. width, height: of the largest image."""
    if device == "cpu":
        return {"device": "cpu"}
    return {
        "device": "mixed",
        "hw_decoder_load": load,
        **preallocation(Stored(width, height), batch_size, load),
        "jpeg_fancy_upsampling": way != "unfiltered",
    }


def show(way: str, settings: dict[str, Any], encoded: Any, anchor: Any, shape: Any) -> Any:
    """Crops of `encoded`, resized, in the pipeline that is being defined."""
    from nvidia.dali import fn, types

    resize = {"size": [SIZE, SIZE], "interp_type": types.INTERP_LINEAR, "antialias": True}
    in_pixels = {"axes": [0, 1], "normalized_anchor": False, "normalized_shape": False}
    if way == "cropped":
        return fn.resize(fn.decoders.image_slice(encoded, anchor, shape, **in_pixels, **settings), **resize)
    whole = fn.decoders.image(encoded, **settings)
    if way == "region":
        begin, end = (fn.cast(corner, dtype=types.FLOAT) for corner in (anchor, anchor + shape))
        return fn.resize(whole, roi_start=begin, roi_end=end, **resize)
    return fn.resize(fn.slice(whole, anchor, shape, **in_pixels), **resize)


def try_one(args: argparse.Namespace) -> dict[str, Any]:
    """Decodes by one way, in this process: saves the first batch, and measures."""
    from nvidia.dali import fn, pipeline_def

    dataset = gpuload.Dataset(args.folder)
    images, (start, shape) = read_images(dataset, args.images)
    batches = len(images) // args.batch_size
    on_gpu = args.device == "cuda"
    largest = dataset.manifest.width, dataset.manifest.height
    settings = decoder_settings(args.way, args.device, args.load, *largest, args.batch_size)

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
        return show(args.way, settings, *fn.external_source(feed, num_outputs=3, batch=True))

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
    """The figures of one way, or how its process ended."""
    options = {"device": args.device, "images": args.images, "batch-size": args.batch_size, "threads": args.threads}
    options |= {"way": way, "load": load, "pixels": pixels}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, __file__, str(args.folder), *words]
    row: dict[str, Any] = {"way": way, "hw_decoder_load": load if args.device == "cuda" else None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.time_limit)
    except subprocess.TimeoutExpired:
        return {**row, "ended": f"hung: stopped after {args.time_limit:g} s"}
    if done.returncode < 0:
        return {**row, "ended": f"crashed: {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {**row, "ended": f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}"}
    return {**row, "ended": "works", **json.loads(done.stdout.splitlines()[-1])}


def compare(rows: list[dict[str, Any]], paths: list[Path]) -> None:
    """Adds to the last row the difference of its pixels from the first `slice` that works, in levels of 255."""
    first = next((place for place, row in enumerate(rows) if row["way"] == "slice" and row["ended"] == "works"), None)
    if first is not None and rows[-1]["ended"] == "works":
        difference = np.abs(np.load(paths[-1]).astype(int) - np.load(paths[first]))
        rows[-1]["difference"] = {"mean": float(difference.mean()), "max": int(difference.max())}


def describe(row: dict[str, Any]) -> str:
    load = "" if row["hw_decoder_load"] is None else f", hw_decoder_load {row['hw_decoder_load']:g}"
    figures = ""
    if row["ended"] == "works":
        figures = f": {row['images_per_s']:,.0f} images/s, {row['cpu_s_per_1000']:.2f} CPU s per 1,000"
        figures += f", {row['difference']['mean']:.2f} levels from the first" if "difference" in row else ""
    return f"{row['way']}{load}: {row['ended']}{figures}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split of JPEGs, such as shards/train")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of DALI (%(default)s)"
    )
    parser.add_argument(
        "--time-limit", type=float, default=60, metavar="S", help="time limit of each way (%(default)s)"
    )
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
    loads, ways = (LOADS, WAYS + ON_GPU_ALONE) if args.device == "cuda" else ((0.0,), WAYS)
    rows: list[dict[str, Any]] = []
    paths: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        for load in loads:
            for way in ways:
                paths.append(Path(scratch) / f"{len(rows)}.npy")
                rows.append(try_in_process(args, way, load, paths[-1]))
                compare(rows, paths)
                print(describe(rows[-1]), flush=True)
                if args.json:
                    args.json.write_text(json.dumps({"device": args.device, "ways": rows}, indent=1) + "\n")
    return 0 if any(row["ended"] == "works" for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
