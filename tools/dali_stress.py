"""Many runs of a loader with DALI's CPU decoder over a set with damaged images, each in its own process: counts how
they end. DALI alone crashes on the same data: `tools/dali_crash.py`.

    python tools/dali_stress.py --runs 200 --json tools/results/dali-stress.json
    python tools/dali_stress.py --runs 200 --damage many     # several kinds of damage in each run, in JPEG and PNG

Every run must end as its `on_corrupt` says (they alternate): "raise" with DecodeError, "skip" after an epoch with the
damaged samples counted. Exit code 1 otherwise.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image

import gpuload
import gpuload.decode.dali.decoder  # before a process is forked
import gpuload.decode.native.sound
from gpuload.cli import main as command

IMAGES, BATCH, THREADS, ZEROED = 480, 64, 2, 4096


def make_set(folder: Path) -> Path:
    """480 JPEGs of 320 × 240, as in tools/dali_crash.py, and with every eighth a PNG."""
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        small = Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8))
        path = folder / "photos" / str(number % 4) / f"{number:03d}.{'png' if number % 8 == 7 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((320, 240), Image.Resampling.BILINEAR).save(path, quality=95)
    if command(["pack", str(folder / "photos"), str(folder / "packed"), "--maxcount", "60"]) != 0:
        sys.exit("packing failed")
    return folder / "packed" / "train"


def damage(packed: Path, kind: str, seed: int) -> list[tuple[Path, int, bytes]]:
    """Damages some images in their shards. Returns what was there before: shard, offset and bytes."""
    dataset, rng = gpuload.Dataset(packed), np.random.default_rng(seed)
    samples = rng.choice(len(dataset), 1 if kind == "zeroed" else 8, replace=False).tolist()
    before = []
    for number, sample in enumerate(samples):
        shard = int(np.searchsorted(dataset.first_samples, sample, side="right")) - 1
        row = dataset.rows(shard).slice(sample - int(dataset.first_samples[shard]), 1).to_pylist()[0]
        with dataset.shard_paths[shard].open("r+b") as file:
            file.seek(row["image_offset"])
            data = file.read(row["image_bytes"])
            before.append((dataset.shard_paths[shard], row["image_offset"], data))
            file.seek(row["image_offset"])
            file.write(_damaged(data, "zeroed" if kind == "zeroed" else ("zeroed", *_KINDS)[number % 5], rng))
    return before


_KINDS = ("cut", "header", "scan", "any")


def _damaged(data: bytes, kind: str, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    if kind == "zeroed":
        changed[:ZEROED] = bytes(min(ZEROED, len(data)))
    elif kind == "cut":
        at = int(rng.integers(1, len(data)))
        changed[at:] = bytes(len(data) - at)
    else:
        low, high = {"header": (0, 600), "scan": (700, len(data)), "any": (0, len(data))}[kind]
        for at in rng.integers(low, high, 4).tolist():
            changed[at] = int(rng.integers(256))
    return bytes(changed)


def run_once(packed: Path, on_corrupt: str) -> str:
    """One epoch; says how it ended."""
    augment = gpuload.Augment(64, dtype="uint8")
    options = {"on_corrupt": on_corrupt, "max_corrupt": 1.0, "decoder": "dali", "device": "cpu", "num_threads": THREADS}
    with gpuload.DaliIterator(packed, BATCH, augment=augment, output="numpy", drop_last=False, **options) as loader:
        try:
            seen = sum(len(labels) for _, labels in loader)
        except gpuload.DecodeError:
            return "DecodeError"
        return f"epoch {loader.report().corrupt > 0}" if seen == IMAGES else f"{seen} samples"


def run_in_child(packed: Path, on_corrupt: str) -> str:
    """The same in a process of its own, or the signal that ended it. Forked, so that nothing is imported again."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        try:
            os.write(writer, run_once(packed, on_corrupt).encode())
        except BaseException as error:
            os.write(writer, repr(error)[-200:].encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return signal.Signals(-code).name if code < 0 else said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--damage", choices=["zeroed", "many"], default="zeroed", help="one zeroed header, or more")
    parser.add_argument("--json", type=Path, help="where to add the result")
    args = parser.parse_args()
    outcomes: Counter[str] = Counter()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        packed = make_set(Path(folder))
        run_in_child(packed, "raise")  # which compiles, if need be
        for number in range(args.runs):
            before = damage(packed, args.damage, number)
            mode = ("raise", "skip")[number % 2]
            outcomes[f"{mode}: {run_in_child(packed, mode)}"] += 1
            for path, offset, data in before:
                with path.open("r+b") as file:
                    file.seek(offset)
                    file.write(data)
    expected = {"raise: DecodeError", "skip: epoch True"}
    # Damage of a scan alone may be none that DALI notices.
    expected |= set() if args.damage == "zeroed" else {"raise: epoch False", "skip: epoch False"}
    crashes = sum(count for ended, count in outcomes.items() if ": SIG" in ended)
    result = {
        "tool": "tools/dali_stress.py",
        "damage": args.damage,
        "runs": args.runs,
        "crashes": crashes,
        "outcomes": dict(sorted(outcomes.items())),
        "seconds": round(time.perf_counter() - begun),
        "versions": {"dali": _version("nvidia-dali"), "python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(result, indent=1))
    if args.json:
        known = json.loads(args.json.read_text()) if args.json.exists() else []
        args.json.write_text(json.dumps([*known, result], indent=1) + "\n")
    return 0 if set(outcomes) <= expected else 1


def _version(prefix: str) -> str:
    return next(found.version for found in metadata.distributions() if str(found.name).startswith(prefix))


if __name__ == "__main__":
    sys.exit(main())
