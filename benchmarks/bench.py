"""Compares loaders on your machine and your images.

    python benchmarks/bench.py shards/train
    python benchmarks/bench.py shards/train --loaders torch gpuload --size 128 --threads 8
    python benchmarks/bench.py shards/train --json figures.json --plot figures.png
    python benchmarks/bench.py shards/train --python ffcv=/opt/ffcv/bin/python mosaic=/opt/mosaic/bin/python
    python benchmarks/bench.py shards/train --against 41da87e --rounds 15
    python benchmarks/bench.py shards/train --with rotation buckets captions --json features.json
    python benchmarks/bench.py small/train --with padding-reflect --size 32 --batch-size 256
    python benchmarks/bench.py shards/train --lock --batch-size 256
    python benchmarks/bench.py shards/train --whole

Each loader runs in a separate process, configured as its documentation recommends, and makes the same batches from the
same stored images: random resized crop, horizontal flip, normalisation. For peers that need another storage format, the
images are converted once, byte for byte, into --cache (FOLDER.peers beside FOLDER), which takes the size of the set for
each of these peers and is kept. A loader that is not installed is skipped with a message;
`pip install -e '.[bench]'` installs those that can share an environment with gpuload, --python names the interpreter
of the others.

The loaders take turns, so that other load on the machine affects all of them alike; figures are medians over the
rounds: five with a warm page cache and five with a cold one, each of 1 to 5 s a loader for images like ImageNet's on 2
cores. In warm rounds all data is in the page cache and the loader stays open. A cold round is the first epoch of a new
loader, counted from its first batch, after its data was evicted from the page cache. CPU seconds cover all processes
and threads of a loader; memory is their peak. "Decoding alone" is the rate of a program that decodes whole
images and does nothing else; a loader that decodes only what a crop shows may be above it. With --whole, images are
resized whole instead of cropped, so that no loader can leave a part of an image undecoded.

With --with, gpuload with a feature takes turns with gpuload without it, and where it is simple a DataLoader, too; the
figures are ratios, round by round, and the processor time that the feature takes for an image. One feature is measured
after the other. Sets that some of them need (captions, gray and 16-bit PNGs) are made out of the set's images once, in
--cache. With --against, gpuload of this checkout takes turns with that of a commit, which is checked out into a
temporary folder.

Exit codes: 0; 2 if a folder or an argument cannot be used, or if no loader could run.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# pillow_loader.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from timing.ceiling import Ceiling, disk_rate
from timing.command_line import add_pythons, add_record, interpreters, make_parser
from timing.contenders import BEFORE, CONTENDERS, why_not
from timing.course import Course, default_cache
from timing.feature_figures import compare, print_ratios
from timing.features import FEATURES
from timing.process import check_out
from timing.report import describe, describe_ceiling, print_report, summarise
from timing.work import Work

import gpuload
from gpuload.counted import counted
from gpuload.disk.places import packed_folders
from gpuload.machine.installed import fault_of

_BATCHES = 16  # minimum per round
# Mean size of a stored sample below which images count as small: loaders make tens of thousands of them per second.
_SMALL_BYTES = 20_000


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    pythons = _prepare(parser, args)
    try:
        args.folder = packed_folders(args.folder)[0]
        dataset = gpuload.Dataset(args.folder)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    _check_set(parser, args, dataset)
    work = _work_of(args, dataset)
    if args.lock:
        from timing.lock import measure_lock, print_lock

        print_lock(measure_lock(work))
        return 0
    title = (
        f"{args.threads} threads or workers, batches of {args.batch_size}, {args.size}×{args.size} {args.dtype}, "
        f"{'whole images, ' * args.whole}{counted(args.rounds, 'round')} of {args.images:,} images"
    )
    lines = describe(work, args.folder)
    if args.features:
        is_measured = _compare_features(args, work, pythons, title, lines)
    else:
        labels = count_labels(dataset)
        is_measured = _compare_loaders(args, work, pythons, labels, title, lines)
    if not is_measured:
        print("no loader could run, for the reasons above", file=sys.stderr)
        return 2
    return 0


def _prepare(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> dict[str, str]:
    """Checks the arguments and completes them; the interpreter of each loader that has its own."""
    if args.cold is None:
        args.cold = 0 if args.against else args.rounds
    _check_device(parser, args)
    _check_counts(parser, args)
    if args.whole and args.features:
        parser.error(
            "--whole: does not go with --with, whose features are measured on crops"
        )
    pythons = interpreters(parser, args.python, CONTENDERS)
    if args.against:
        args.loaders = [BEFORE, "gpuload"]
        try:
            pythons[BEFORE] = check_out(args.against)
        except subprocess.CalledProcessError as error:
            parser.error(f"--against {args.against}: {error.stderr.decode().strip()}")
    if args.plot and (fault := fault_of("matplotlib")) is not None:
        parser.error(f"--plot: {fault.reason}. {fault.remedy}")
    return pythons


def _check_set(
    parser: argparse.ArgumentParser, args: argparse.Namespace, dataset: gpuload.Dataset
) -> None:
    mode = dataset.manifest.pixels.mode
    if mode != "RGB" and not args.features:
        parser.error(
            f"{args.folder}: has mode {mode}, and loaders are compared on RGB images. Pack it "
            "with --mode RGB"
        )
    _check_images(parser, args, dataset)
    if len(dataset) < args.batch_size:
        parser.error(
            f"--batch-size {args.batch_size}: is larger than {args.folder}, which has "
            f"{counted(len(dataset), 'sample')}; "
            "use a smaller one"
        )


def _work_of(args: argparse.Namespace, dataset: gpuload.Dataset) -> Work:
    return Work(
        args.folder.resolve(),
        args.batch_size,
        args.size,
        args.threads,
        args.images,
        dtype=args.dtype,
        cache=(args.cache or default_cache(args.folder)).resolve(),
        raw=dataset.fields["image"].kind == "raw",
        samples=len(dataset),
        largest=(dataset.manifest.width, dataset.manifest.height),
        whole=args.whole,
    )


def _compare_features(
    args: argparse.Namespace,
    work: Work,
    pythons: dict[str, str],
    title: str,
    lines: list[str],
) -> bool:
    """Measures the features and prints their ratios; False if no loader could run."""
    record = {"machine": lines, "setting": title}
    rows = compare(args.features, work, pythons, args.rounds, record, args.json)
    if rows:
        print_ratios(rows, title, lines)
    return bool(rows)


def _compare_loaders(
    args: argparse.Namespace,
    work: Work,
    pythons: dict[str, str],
    labels: Any,
    title: str,
    lines: list[str],
) -> bool:
    """Measures the loaders, and prints, writes and plots their figures; False if none could run."""

    def write(limits: dict[str, Any] | None = None, complete: bool = False) -> None:
        """Writes what has been measured so far: an interrupted run keeps its complete rounds."""
        if args.json and any(result.warm for result in course.results.values()):
            record = {
                "machine": lines,
                "setting": title,
                "complete": complete,
                "ceiling": limits,
                "left_out": course.left_out,
                "loaders": summarise(course.results, limits),
            }
            temporary = args.json.with_name(args.json.name + ".tmp")
            temporary.write_text(json.dumps(record, indent=1) + "\n")
            temporary.replace(args.json)

    course = Course(work, pythons, labels, write)
    names = [
        name
        for name in _asked(args)
        if _can_run(name, work, pythons, course, bool(args.loaders))
    ]
    course.examine(names)
    ceiling = Ceiling(work) if course.results else None
    course.run_warm(args.rounds, ceiling)
    if not any(result.warm for result in course.results.values()):
        return False
    course.run_cold(args.cold)

    limits = None
    if ceiling is not None:
        rate, cached = disk_rate(work.folder, work.threads)
        limits = describe_ceiling(ceiling, rate, cached)
    rows = summarise(course.results, limits)
    print_report(rows, title, lines, limits)
    write(limits, complete=True)
    if args.plot:
        from timing.plot import plot

        plot(rows, limits, title, args.plot)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        help="a packed set such as shards/train, of RGB images or raw pixels; of a folder of several, the first",
    )
    # The others are those of --with.
    loaders = [name for name in CONTENDERS if "+" not in name]
    parser.add_argument(
        "--loaders", nargs="+", choices=loaders, metavar="NAME", help=", ".join(loaders)
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: CPU and, if there is one, GPU",
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="compare gpuload with that of a commit, on the CPU",
    )
    parser.add_argument(
        "--with",
        dest="features",
        nargs="+",
        choices=list(FEATURES),
        default=[],
        metavar="FEATURE",
        help=f"instead: what features cost, on the CPU: {', '.join(FEATURES)}",
    )
    parser.add_argument(
        "--lock",
        action="store_true",
        help="instead: how long Python's lock is held, and for how many threads it is enough",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cold",
        type=int,
        metavar="ROUNDS",
        help="rounds with a cold page cache (default: as --rounds; 0: none)",
    )
    parser.add_argument(
        "--images",
        type=int,
        help="images per loader and round (2048; small ones 32768)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="worker processes or decoding threads (%(default)s)",
    )
    parser.add_argument(
        "--size", type=int, default=224, help="side of the crops in pixels"
    )
    parser.add_argument(
        "--whole", action="store_true", help="resize whole images; no crops"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="folder for the peers' formats (FOLDER.peers)",
    )
    add_pythons(parser)
    add_record(parser, "all figures")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the figures")
    return parser


def _check_device(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if (args.features or args.against) and (args.loaders or args.device == "cuda"):
        parser.error(
            "--with and --against: name their loaders, on the CPU; leave --loaders and --device out"
        )
    contrary = [
        name
        for name in args.loaders or ()
        if args.device not in ("auto", CONTENDERS[name].device)
    ]
    if contrary:
        where, end = (
            ("on the GPU", "do not end")
            if args.device == "cpu"
            else ("in host memory", "end")
        )
        parser.error(
            f"--device {args.device}: contradicts --loaders {' '.join(contrary)}, whose batches are {where}; leave "
            f"--device out, or name loaders that {end} in -gpu"
        )


def _check_counts(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name in ("rounds", "images", "threads", "size", "batch_size"):
        if (getattr(args, name) or 0) < 1 and not (
            name == "images" and args.images is None
        ):
            parser.error(
                f"--{name.replace('_', '-')} {getattr(args, name)}: expected at least 1"
            )
    if args.cold < 0:
        parser.error(f"--cold {args.cold}: expected 0 or more")


def _check_images(
    parser: argparse.ArgumentParser, args: argparse.Namespace, dataset: gpuload.Dataset
) -> None:
    """Sets --images so that a round lasts some seconds even for a fast loader on small images, and checks it."""
    if args.images is None:
        small = dataset.manifest.bytes / len(dataset) < _SMALL_BYTES
        args.images = max(32_768 if small else 2048, _BATCHES * args.batch_size)
    if args.images < _BATCHES * args.batch_size:
        parser.error(
            f"--images {args.images}: expected at least {_BATCHES} batches ({_BATCHES * args.batch_size:,} images), "
            "or the batches that wait in the loaders' queues would count too much"
        )


def _asked(args: argparse.Namespace) -> list[str]:
    if args.loaders:
        return args.loaders
    return [
        name
        for name, contender in CONTENDERS.items()
        if "+" not in name
        and not contender.if_asked
        and args.device in ("auto", contender.device)
    ]


def _can_run(
    name: str, work: Work, pythons: dict[str, str], course: Course, asked: bool
) -> bool:
    """Reports why not, except for loaders that nobody asked for and that do not suit this data or this machine."""
    contender = CONTENDERS[name]
    reason = why_not(contender, work.raw, name.removesuffix("-gpu") in pythons)
    if reason is None:
        return True
    suits = (
        contender.raw if work.raw else contender.jpeg
    ) and contender.device == "cpu"
    if asked or suits:
        course.leave_out(name, reason)
    return False


def count_labels(dataset: gpuload.Dataset) -> dict[str, int]:
    """The number of samples of each label; of label 0, in a set without labels."""
    if "label" not in dataset.fields:
        return {"0": len(dataset)}
    counts: dict[str, int] = {}
    for shard in range(len(dataset.shard_paths)):
        for label in dataset.rows(shard).column("label").to_pylist():
            counts[str(label)] = counts.get(str(label), 0) + 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
