"""Measures the packer against other programs on the same files, in interleaved rounds with a warm page cache.

    python tools/bench_pack.py photos            # a folder of class folders, such as ImageNet's
    python tools/bench_pack.py photos more --rounds 5 --json pack.json

Prints images/s and images per second of processor time, which other load on the machine does not change, as medians
over the rounds, and these ratios: `keep` with header checks against GNU tar; `keep` with full checks against
libjpeg-turbo (simplejpeg) decoding in as many processes; `jpeg --size 256`, per worker, against a loop of Pillow and
webdataset's ShardWriter in one process (the JSON names the resizer that `pack` chose: torch where it is installed); two
workers against one. The packer is timed from the start of Python to its end, of which some 0.4 s do not depend on the
images: use at least 4,096 images of 110 kB, better 16,384.

Each round packs or reads all images seven times, into folders beside FOLDER that are removed again: as much
space as the images take must be free there.
"""

import argparse
import ctypes
import importlib.util
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PACKAGES = ("numpy", "pillow", "pyarrow", "simplejpeg", "webdataset")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Python may cache compiled modules, as it does by default.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def children_s() -> float:
    """Processor seconds of all child processes that have ended, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def children_of(process: int | str) -> set[int]:
    try:
        return {
            int(pid) for path in Path(f"/proc/{process}/task").glob("*/children") for pid in path.read_text().split()
        }
    except FileNotFoundError:
        return set()


def packer(folder: Path, *arguments: str) -> Callable[[Path], float]:
    """Times the packer as a user starts it: a process, from the start of Python to the last byte."""
    command = [sys.executable, "-m", "gpuload", "pack", str(folder)]

    def run(out: Path) -> float:
        others, before = children_of("self"), children_s()
        subprocess.run(
            [*command, str(out / "set"), *arguments], cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL
        )
        # The server of its workers outlives it and becomes a child of this process, which has asked for that.
        while left := children_of("self") - others:
            for pid in left:
                os.waitpid(pid, 0)
        return children_s() - before

    return run


def gnu_tar(folder: Path) -> Callable[[Path], float]:
    def run(out: Path) -> float:
        before = children_s()
        subprocess.run(["tar", "cf", out / "all.tar", "-C", folder.parent, folder.name], check=True)
        with (out / "all.tar").open("rb") as file:
            os.fsync(file.fileno())  # as the packer does; without it, writes would be left unfinished
        return children_s() - before

    return run


def decode_part(paths: list[Path]) -> float:
    import simplejpeg

    started = time.process_time()
    for path in paths:
        simplejpeg.decode_jpeg(path.read_bytes())
    return time.process_time() - started


def turbo(paths: list[Path], workers: int) -> Callable[[Path], float]:
    """Decodes to RGB in processes that are already running: the rate of libjpeg-turbo alone."""
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


def chosen_resizer() -> str:
    from gpuload.packing.options import Encoding
    from gpuload.packing.run.prepare import choose_resizer

    return choose_resizer(Encoding("jpeg", (256, 256))).resizer


def measure(folder: Path, paths: list[Path], rounds: int, workers: int) -> dict[str, Any]:
    """Rates and ratios on one folder, all rounds."""
    for path in paths:
        path.read_bytes()  # warms the cache
    many = ("--workers", str(workers))
    contestants = {
        "GNU tar": gnu_tar(folder),
        "keep, header checks": packer(folder, "--check", "header", *many),
        "libjpeg-turbo decode": turbo(paths, workers),
        "keep, full checks": packer(folder, *many),
        "keep, 1 worker": packer(folder, "--workers", "1"),
        "ShardWriter and Pillow, 256": shard_writer(paths, 256),
        "jpeg --size 256": packer(folder, "--encode", "jpeg", "--size", "256", *many),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    per_cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            out = Path(tempfile.mkdtemp(dir=folder.parent))
            started = time.perf_counter()
            per_cpu[name].append(len(paths) / contestants[name](out))
            rates[name].append(len(paths) / (time.perf_counter() - started))
            shutil.rmtree(out)
    rate = {name: statistics.median(found) for name, found in rates.items()}
    cpu = {name: statistics.median(found) for name, found in per_cpu.items()}

    def both(name: str, other: str, share: int = 1) -> dict[str, float]:
        return {"time": rate[name] / share / rate[other], "processor time": cpu[name] / cpu[other]}

    ratios = {
        "keep, header checks / GNU tar": both("keep, header checks", "GNU tar"),
        "keep, full checks / libjpeg-turbo": both("keep, full checks", "libjpeg-turbo decode"),
        "jpeg --size 256 per worker / ShardWriter": both("jpeg --size 256", "ShardWriter and Pillow, 256", workers),
        f"{workers} workers / 1": both("keep, full checks", "keep, 1 worker"),
    }
    size = sum(path.stat().st_size for path in paths)
    print(f"{folder.name}: {len(paths):,} images, {size / 1e6:,.0f} MB, {rounds} rounds")
    for name, value in rate.items():
        print(f"{name:<44}{value:>10,.0f} images/s{cpu[name]:>10,.0f} per processor second")
    for name, values in ratios.items():
        print(f"{name:<44}{values['time']:>10.2f} in time {values['processor time']:>10.2f} in processor time")
    return {"images": len(paths), "bytes": size, "rates": rates, "per_processor_second": per_cpu, "ratios": ratios}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it")
    args = parser.parse_args(argv)
    if importlib.util.find_spec("simplejpeg") is None:
        parser.error("simplejpeg is not installed, and libjpeg-turbo is measured by it: pip install simplejpeg")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    found: list[dict[str, Any]] = []
    for folder in args.folders:
        paths = sorted(path for path in folder.resolve().rglob("*.*") if path.is_file())
        if not paths:
            parser.error(f"{folder}: holds no images")
        found.append(measure(folder.resolve(), paths, args.rounds, args.workers))
    if args.json:
        about = {"python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0)), "workers": args.workers}
        resizer = chosen_resizer()
        packages = (*PACKAGES, "torch") if resizer == "torch" else PACKAGES
        about |= {"resizer": resizer, "load_average": os.getloadavg()}
        about |= {"versions": {name: version(name) for name in packages}}
        args.json.write_text(json.dumps({**about, "folders": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
