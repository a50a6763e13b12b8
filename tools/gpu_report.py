"""What `tools/gpu_check.sh` needs of Python: a record of the machine, and one JSON out of all that its steps left.

    python tools/gpu_report.py environment environment.json
    python tools/gpu_report.py collect FOLDER                  # writes a JSON of each step, and FOLDER/summary.json

Exit codes: 0; 1 where `collect` finds a step that did not end well; 2 wrong arguments.
"""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "pyarrow", "pillow", "simplejpeg", "numba", "pytest"),
    *("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg"),
)
_QUERY = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current"
_LAST_LINES = 40
TIMED_OUT = 124  # of timeout(1)


def environment() -> dict[str, Any]:
    """Machine, GPU, driver and versions; a package that is not there is left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
        gpus = [dict(zip(_QUERY.split(","), line.split(", "), strict=False)) for line in done.stdout.splitlines()]
    except (OSError, subprocess.TimeoutExpired):
        gpus = []
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) / 1e6 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "gpus": gpus if gpus and "name" in gpus[0] else [],
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "memory_gb": memory[0] if memory else None,
        "python": platform.python_version(),
        "packages": versions,
    }


def read_tests(path: Path) -> dict[str, Any]:
    """pytest's JUnit XML: counts, what failed, and what the tests recorded of differences and memory."""
    cases = list(ET.parse(path).getroot().iter("testcase"))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failed, recorded = {}, {}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            failed[name] = (problem.get("message") or "")[:500]
        outcome = "failed" if problem is not None else "skipped" if case.find("skipped") is not None else "passed"
        counts[outcome] += 1
        for found in case.iter("property"):
            recorded[f"{case.get('name')}: {found.get('name')}"] = found.get("value")
    return {**counts, "failures": failed, "recorded": recorded}


def collect(folder: Path) -> list[dict[str, Any]]:
    """A record of each step, in their order; also written beside the step's log, in place of its own JSON."""
    steps = []
    for line in _lines(folder / "steps.tsv"):
        name, code, seconds, command = line.split("\t", 3)
        own, tests = folder / f"{name}.json", folder / f"{name}.xml"
        figures = None
        try:
            if tests.exists():
                figures = read_tests(tests)
            elif own.exists():
                figures = json.loads(own.read_text())
        except (ValueError, ET.ParseError):  # the step was ended while it wrote
            figures = None
        step = {
            "step": name,
            "exit": int(code),
            "timed_out": int(code) == TIMED_OUT,
            "seconds": round(float(seconds), 1),
            "command": command,
            "figures": figures,
            "output": _lines(folder / f"{name}.log")[-_LAST_LINES:],
        }
        own.write_text(json.dumps(step, indent=1) + "\n")
        steps.append(step)
    return steps


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def main(argv: list[str] | None = None) -> int:
    match argv if argv is not None else sys.argv[1:]:
        case ["environment", path]:
            found = environment()
            Path(path).write_text(json.dumps(found, indent=1) + "\n")
            names = ", ".join(gpu["name"] for gpu in found["gpus"]) or "no GPU"
            print(f"{names}; {found['cpu']}, {found['cores']} cores")
            return 0
        case ["collect", folder]:
            steps = collect(Path(folder))
            summary = Path(folder) / "summary.json"
            summary.write_text(json.dumps({step["step"]: step for step in steps}, indent=1) + "\n")
            bad = [step["step"] for step in steps if step["exit"]]
            seconds = sum(step["seconds"] for step in steps)
            how = f"not well: {', '.join(bad)}" if bad else "all well"
            print(f"{len(steps)} steps in {seconds:.0f} s, {how}; {summary}")
            return 1 if bad or not steps else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
