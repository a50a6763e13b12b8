"""How fast the packer is, beside others on the same files, in interleaved rounds with a warm cache.

    python tools/bench_pack.py photos            # a folder of class folders, such as ImageNet's
    python tools/bench_pack.py photos --rounds 5 --json pack.json

Prints images/s and images per second of processor time (which other work on the machine does not change), medians over
the rounds, and ratios: `keep` with header checks against GNU tar; `keep` with full
checks against libjpeg-turbo's decode rate (simplejpeg) over as many processes; `jpeg --size 256`, per worker, against a
loop of Pillow and webdataset's ShardWriter in one process; two workers against one.
"""

import argparse
import io
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def children_s() -> float:
    """Seconds of processor time of all processes that this one has started and that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def packer(folder: Path, *arguments: str) -> Callable[[Path], float]:
    """The packer as a user starts it: its own process, from the start of Python to the last byte."""
    command = [sys.executable, "-m", "gpuload", "pack", str(folder)]

    def run(out: Path) -> float:
        before = children_s()
        root = Path(__file__).resolve().parent.parent
        subprocess.run([*command, str(out / "set"), *arguments], cwd=root, check=True, stdout=subprocess.DEVNULL)
        return children_s() - before

    return run


def gnu_tar(folder: Path) -> Callable[[Path], float]:
    def run(out: Path) -> float:
        before = children_s()
        subprocess.run(["tar", "cf", out / "all.tar", "-C", folder.parent, folder.name], check=True)
        with (out / "all.tar").open("rb") as file:
            os.fsync(file.fileno())  # as the packer does, or it would win by leaving its work undone
        return children_s() - before

    return run


def decode_part(paths: list[Path]) -> float:
    import simplejpeg

    started = time.process_time()
    for path in paths:
        simplejpeg.decode_jpeg(path.read_bytes())
    return time.process_time() - started


def turbo(paths: list[Path], workers: int) -> Callable[[Path], float]:
    """Decodes to RGB in processes that are running already: libjpeg-turbo's own rate."""
    pool = multiprocessing.get_context("spawn").Pool(workers)
    pool.map(decode_part, [[]] * workers)

    def run(out: Path) -> float:
        return sum(pool.map(decode_part, [paths[start :: 8 * workers] for start in range(8 * workers)], chunksize=1))

    return run


def shard_writer(paths: list[Path], size: int) -> Callable[[Path], float]:
    from PIL import Image
    from webdataset import ShardWriter

    def run(out: Path) -> float:
        before = time.process_time()
        with ShardWriter(str(out / "shard-%06d.tar"), verbose=0) as sink:
            for number, path in enumerate(paths):
                image = Image.open(path).convert("RGB")
                scale = size / min(image.size)
                if scale < 1:
                    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BICUBIC)
                file = io.BytesIO()
                image.save(file, "JPEG", quality=92)
                sink.write({"__key__": f"{number:08d}", "jpg": file.getvalue(), "cls": "0"})
        return time.process_time() - before

    return run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it")
    args = parser.parse_args(argv)
    paths = sorted(path for path in args.folder.rglob("*.*") if path.is_file())
    if not paths:
        parser.error(f"{args.folder}: holds no images")
    for path in paths:
        path.read_bytes()  # warms the cache
    many = ("--workers", str(args.workers))
    contestants = {
        "GNU tar": gnu_tar(args.folder),
        "keep, header checks": packer(args.folder, "--check", "header", *many),
        "libjpeg-turbo decode": turbo(paths, args.workers),
        "keep, full checks": packer(args.folder, *many),
        "keep, 1 worker": packer(args.folder, "--workers", "1"),
        "ShardWriter and Pillow, 256": shard_writer(paths, 256),
        "jpeg --size 256": packer(args.folder, "--encode", "jpeg", "--size", "256", *many),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    per_cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(args.rounds):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            out = Path(tempfile.mkdtemp(dir=args.folder.parent))
            started = time.perf_counter()
            per_cpu[name].append(len(paths) / contestants[name](out))
            rates[name].append(len(paths) / (time.perf_counter() - started))
            shutil.rmtree(out)
    rate = {name: statistics.median(found) for name, found in rates.items()}
    resized, by_hand = rate["jpeg --size 256"] / args.workers, rate["ShardWriter and Pillow, 256"]
    cpu = {name: statistics.median(found) for name, found in per_cpu.items()}
    ratios = {
        "keep, header checks / GNU tar": rate["keep, header checks"] / rate["GNU tar"],
        "keep, full checks / libjpeg-turbo": rate["keep, full checks"] / rate["libjpeg-turbo decode"],
        "jpeg --size 256 per worker / ShardWriter": resized / by_hand,
        "the same, by processor time": cpu["jpeg --size 256"] / cpu["ShardWriter and Pillow, 256"],
        "keep, full checks / libjpeg-turbo, by it": cpu["keep, full checks"] / cpu["libjpeg-turbo decode"],
        f"{args.workers} workers / 1": rate["keep, full checks"] / rate["keep, 1 worker"],
    }  # fmt: skip
    print(f"{len(paths):,} images, {sum(path.stat().st_size for path in paths) / 1e6:,.0f} MB, {args.rounds} rounds")
    for name, value in rate.items():
        print(f"{name:<44}{value:>10,.0f} images/s{cpu[name]:>10,.0f} a processor second")
    for name, value in ratios.items():
        print(f"{name:<44}{value:>10.2f}")
    if args.json:
        args.json.write_text(
            json.dumps(
                {"images": len(paths), "rates": rates, "per_processor_second": per_cpu, "ratios": ratios}, indent=1
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
