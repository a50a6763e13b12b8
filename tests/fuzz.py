"""Fuzzes what reads the bytes of a data set: python tests/fuzz.py jpeg tar --count 100000.

Each target runs in processes of its own with bounded memory and time for each input. Small valid files are changed at
random; a finding is an input that ends the process, takes too long, or gives an exception that is none of gpuload's.
Findings are saved, with the exception, and belong into tests/corpus/<target>, whose files are seeds of later runs and
tests. Exit code 1 where there are any.
"""

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parent.parent),
]

from fuzzing.registry import TARGETS  # noqa: E402
from fuzzing.run import fuzz  # noqa: E402

PACKAGES = ("numpy", "pyarrow", "pillow", "h5py", "lmdb", "msgpack")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help=f"by default all: {', '.join(TARGETS)}",
    )
    parser.add_argument(
        "--count",
        type=int,
        default=1000,
        metavar="N",
        help="inputs for each target (%(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1e9,
        metavar="S",
        help="for each target, if that comes first",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the mutations (%(default)s)",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=Path("findings"),
        metavar="FOLDER",
        help="(%(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="JSON; the targets that it has already stay in it",
    )
    parser.add_argument("--list", action="store_true", help="names of the targets and what they read")
    args = parser.parse_args()
    if args.list:
        for name, target in TARGETS.items():
            print(f"{name:16} {(resolve_name(target).__doc__ or '').splitlines()[0]}")
        return 0
    if unknown := sorted(set(args.targets) - set(TARGETS)):
        parser.error(f"no target {unknown[0]!r}; give some of {', '.join(TARGETS)}")
    failed = False
    for name in args.targets or TARGETS:
        result = fuzz(name, args.seed, args.count, args.seconds, args.findings)
        failed |= bool(result["findings"])
        shown = {key: value for key, value in result.items() if key != "findings"}
        print(
            f"{name}: {shown}",
            *(f"  {finding['title']} ({finding['times']} times)" for finding in result["findings"]),
            sep="\n",
        )
        if args.out:
            _record(args.out, name, {"seed": args.seed, **result})
    return int(failed)


def _record(path: Path, name: str, result: dict[str, object]) -> None:
    record = json.loads(path.read_text()) if path.exists() else {"targets": {}}
    record["python"] = platform.python_version()
    record["machine"] = platform.machine()
    record["versions"] = {package: version(package) for package in PACKAGES}
    record["targets"][name] = result
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
