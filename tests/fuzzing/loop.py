"""The process that fuzzes one target, and may die of an input: `python -m fuzzing.loop`, started by `fuzzing.run`."""

import hashlib
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from pkgutil import resolve_name
from random import Random

from fuzzing.registry import TARGETS
from fuzzing.target import Target

# Inputs that were findings once.
_CORPUS = Path(__file__).resolve().parents[1] / "corpus"
# The input that is being read, kept where it outlives this process.
CURRENT_BYTES = 16 << 20


def main(names: str, seed: int, count: int, seconds: float, folder: Path) -> None:
    """Fuzzes targets, whose names are joined by commas, and writes the sums of their counts to `folder`."""
    warnings.simplefilter("ignore")
    # Such as NaN that is cast to a whole number.
    warnings.simplefilter("error", RuntimeWarning)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (folder / "current").open("r+b") as file:
        current = mmap.mmap(file.fileno(), CURRENT_BYTES)
    counts = {"inputs": 0, "accepted": 0, "refused": 0}
    each = names.split(",")
    for name in each:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        target: Target = resolve_name(TARGETS.get(name, name))()
        counts = _fuzz(
            target,
            seed,
            count // len(each),
            seconds / len(each),
            current,
            folder,
            counts,
        )
    (folder / "counts").write_text(json.dumps(counts))
    (folder / "ended").touch()


def _fuzz(
    target: Target,
    seed: int,
    count: int,
    seconds: float,
    current: mmap.mmap,
    folder: Path,
    counts: dict[str, int],
) -> dict[str, int]:
    """The counts, with those of this target added."""
    before = counts["inputs"]
    ends = time.monotonic() + seconds
    crashes = sorted((_CORPUS / target.name).glob("*")) if (_CORPUS / target.name).is_dir() else []
    seeds = target.seeds()
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + target.memory, resource.RLIM_INFINITY))
    refused = sum(_read(target, data, current, folder) == "refused" for data in seeds)
    print(f"{target.name}: {refused} of {len(seeds)} seeds are refused", file=sys.stderr)
    if target.processes:
        counts, seed = _survive({"contained": 0, **counts}, seed, folder)
    for path in crashes:
        _read(target, path.read_bytes(), current, folder)
    rng = Random(f"{target.name} {seed}")
    while counts["inputs"] - before < count and time.monotonic() < ends:
        data = target.mutate(rng, rng.choice(seeds), seeds)[: CURRENT_BYTES - 8]
        outcome = _read(target, data, current, folder)
        counts["inputs"] += 1
        counts[outcome] += 1
        if target.processes or counts["inputs"] % 256 == 0:
            (folder / "counts").write_text(json.dumps(counts))
    return counts


def _read(target: Target, data: bytes, current: mmap.mmap, folder: Path) -> str:
    current[8 : 8 + len(data)] = data
    current[:8] = len(data).to_bytes(8, "little")
    return _outcome(target, data, folder)


def _survive(counts: dict[str, int], seed: int, folder: Path) -> tuple[dict[str, int], int]:
    """Forks processes that may die, each with a seed of its own; returns in these, and ends with the last one."""
    while True:
        child = os.fork()
        if not child:
            return counts, seed
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            os._exit(0)
        if code in (-signal.SIGPROF, -signal.SIGALRM):
            os.kill(os.getpid(), -code)
        if (folder / "counts").exists():
            counts = json.loads((folder / "counts").read_text())
        counts["inputs"] += 1
        counts["contained"] += 1
        seed += 1_000_000


def _outcome(target: Target, data: bytes, folder: Path) -> str:
    signal.setitimer(signal.ITIMER_PROF, target.seconds)  # SIGPROF ends the process
    signal.setitimer(signal.ITIMER_REAL, 20 * target.seconds)
    try:
        target.run(data)
    except target.refusals as error:
        return "refused" if "\n" not in str(error) else _found(folder, data, "a message of several lines", error)
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return _found(
            folder,
            data,
            f"{type(error).__name__} in {Path(frame.filename).name}:{frame.name}",
            error,
        )
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "accepted"


def _found(folder: Path, data: bytes, title: str, error: BaseException) -> str:
    """Saves an input with what came out, once for each place; "refused", so that the counts add up."""
    path = folder / hashlib.sha256(title.encode()).hexdigest()[:12]
    if not path.exists():
        path.write_bytes(data)
        text = "".join(traceback.format_exception(error))
        path.with_suffix(".json").write_text(json.dumps({"title": title, "trace": text[-4000:], "times": 0}))
    finding = json.loads(path.with_suffix(".json").read_text())
    finding["times"] += 1
    path.with_suffix(".json").write_text(json.dumps(finding))
    return "refused"


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]),
        Path(sys.argv[5]),
    )
