"""Measures loaders against each other on your machine and your images.

    python tools/bench.py shards/train
    python tools/bench.py shards/train --loaders torch gpuload --size 128 --threads 8
    python tools/bench.py shards/train --json figures.json --plot figures.png
    python tools/bench.py shards/train --python ffcv=/opt/ffcv/bin/python mosaic=/opt/mosaic/bin/python
    python tools/bench.py shards/train --profile
    python tools/bench.py shards/train --read-only

Every loader runs in a process of its own, in the configuration that its documentation advises, and makes the same
batches of the same stored images: random resized crop, horizontal flip, normalised. Peers with a format of their own
get the images once, byte for byte, into --cache. One that is not installed is left out, with a line that says so;
`pip install 'gpuload[bench]'` brings those that go into one environment with gpuload, --python names the others' own.

They take turns, so that whatever else the machine does falls on all of them; figures are medians over the rounds. Warm
rounds have all data in the page cache and a loader that stays open. A cold round is the first epoch of a new loader,
from its first batch on, after its data were put out of the page cache. CPU seconds count all processes and threads of a
loader, memory is the most that they had. The ceiling is what the machine decodes and does nothing else.

Exit codes: 0, or 2 for a folder or an argument that cannot be used, or where no loader could run.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))  # pillow_loader

from benchmark.ceiling import Ceiling, copy_rate, disk_rate
from benchmark.contenders import CONTENDERS, why_not
from benchmark.course import Course, default_cache
from benchmark.profile import profile
from benchmark.report import describe, describe_ceiling, print_profile, print_report, summarise
from benchmark.work import Work

import gpuload

_BATCHES = 16  # in a round, at least
# Of a sample in its shard: 64×64 and 128×128 images have less, and loaders make thousands of them a second.
_SMALL_BYTES = 20_000


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.cold is None:
        args.cold = 0 if args.read_only else args.rounds
    _check_device(parser, args)
    _check_counts(parser, args)
    pythons = _interpreters(parser, args)
    try:
        dataset = gpuload.Dataset(args.folder)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    _check_images(parser, args, dataset)
    if len(dataset) < args.batch_size:
        parser.error(f"--batch-size {args.batch_size}: is larger than {args.folder}; use a smaller one")
    work = Work(
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
    )
    if args.profile:
        print_profile(profile(work), describe(work, args.folder))
        return 0

    kind = "encoded samples" if args.read_only else f"{args.size}×{args.size} {args.dtype}"
    title = (
        f"{args.threads} threads or workers, batches of {args.batch_size}, {kind}, "
        f"{args.rounds} rounds of {args.images:,} images"
    )
    lines = describe(work, args.folder)

    def write(limits: dict[str, Any] | None = None, complete: bool = False) -> None:
        """What has been measured so far, so that a run that is ended leaves its rounds."""
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

    course = Course(work, pythons, count_labels(dataset), write)
    names = [name for name in _asked(args) if _can_run(name, work, pythons, course, bool(args.loaders))]
    if args.read_only:
        course.take(names)
    else:
        course.examine(names)
    ceiling = None if args.read_only or not course.results else Ceiling(work)
    course.run_warm(args.rounds, ceiling)
    if not any(result.warm for result in course.results.values()):
        print("no loader could run; the lines above say why", file=sys.stderr)
        return 2
    course.run_cold(args.cold)

    limits = None
    if ceiling is not None:
        rate, cached = disk_rate(work.folder, work.threads)
        limits = describe_ceiling(ceiling, copy_rate(work.threads), rate, cached)
    rows = summarise(course.results, limits)
    print_report(rows, title, lines, limits)
    write(limits, complete=True)
    if args.plot:
        from benchmark.plot import plot

        plot(rows, limits, title, args.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split, such as shards/train; of JPEGs or of raw pixels")
    parser.add_argument("--loaders", nargs="+", choices=list(CONTENDERS), metavar="NAME", help=", ".join(CONTENDERS))
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: all that there is")
    parser.add_argument("--read-only", action="store_true", help="reading alone, without decoding")
    parser.add_argument("--profile", action="store_true", help="only where the time of gpuload's batches goes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", type=int, metavar="ROUNDS", help="with a cold page cache (as --rounds; 0: none)")
    parser.add_argument(
        "--images", type=int, help="of one loader in one round (2048, of small ones 32768; with --read-only 200000)"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="workers, or threads that decode"
    )
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="for the peers' own formats (FOLDER.peers)")
    parser.add_argument("--python", nargs="+", default=[], metavar="LOADER=PATH", help="run a loader with this Python")
    parser.add_argument("--ffcv-python", metavar="PATH", help="the same as --python ffcv=PATH")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw them")
    return parser


def _check_device(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    contrary = [name for name in args.loaders or () if args.device not in ("auto", CONTENDERS[name].device)]
    if contrary:
        where, end = ("on the GPU", "do not end") if args.device == "cpu" else ("in host memory", "end")
        parser.error(
            f"--device {args.device}: contradicts --loaders {' '.join(contrary)}, whose batches are {where}; leave "
            f"--device out, or name loaders that {end} in -gpu"
        )


def _check_counts(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name in ("rounds", "images", "threads", "size", "batch_size"):
        if (getattr(args, name) or 0) < 1 and not (name == "images" and args.images is None):
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected at least 1")
    if args.cold < 0:
        parser.error(f"--cold {args.cold}: expected 0 or more")


def _check_images(parser: argparse.ArgumentParser, args: argparse.Namespace, dataset: gpuload.Dataset) -> None:
    """A round has to last some seconds, also of a fast loader on small images."""
    if args.images is None:
        small = dataset.manifest.bytes / len(dataset) < _SMALL_BYTES
        wanted = 200_000 if args.read_only else 32_768 if small else 2048
        args.images = max(wanted, _BATCHES * args.batch_size)
    if args.images < _BATCHES * args.batch_size:
        parser.error(
            f"--images {args.images}: expected at least {_BATCHES} batches ({_BATCHES * args.batch_size:,} images), "
            "or what lies ready in the loaders' queues would count too much"
        )


def _interpreters(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, str]:
    """--python and --ffcv-python as {loader: path}."""
    found = {"ffcv": args.ffcv_python} if args.ffcv_python else {}
    for pair in args.python:
        name, equals, path = pair.partition("=")
        if not equals or name not in CONTENDERS:
            parser.error(f"--python {pair}: expected LOADER=PATH, such as ffcv=/opt/ffcv/bin/python")
        found[name] = path
    return found


def _asked(args: argparse.Namespace) -> list[str]:
    if args.loaders:
        return args.loaders
    return [
        name
        for name, contender in CONTENDERS.items()
        if contender.reads_only == args.read_only and args.device in ("auto", contender.device)
    ]


def _can_run(name: str, work: Work, pythons: dict[str, str], course: Course, asked: bool) -> bool:
    """Says why not; but not of each loader that nobody asked for and that is not for such data or such a machine."""
    contender = CONTENDERS[name]
    reason = why_not(contender, work.raw, name.removesuffix("-gpu") in pythons)
    if reason is None:
        return True
    suits = (contender.raw if work.raw else contender.jpeg) and contender.device == "cpu"
    if asked or suits:
        course.leave_out(name, reason)
    return False


def count_labels(dataset: gpuload.Dataset) -> dict[str, int]:
    """How often each label is in the set."""
    counts: dict[str, int] = {}
    for shard in range(len(dataset.shard_paths)):
        for label in dataset.rows(shard).column("label").to_pylist():
            counts[str(label)] = counts.get(str(label), 0) + 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
