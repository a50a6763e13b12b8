"""The records of `tools/gpu_check.py`: the machine, and of each step its exit code, figures and last lines of output.

    python tools/gpu_report.py packages FILE cuda      # records machine and packages, and reports missing packages

Needs only the standard library. Exit codes: 0; 1 where packages or the GPU are missing; 2 wrong arguments.
"""

import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

PACKAGES = (
    *("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "pyarrow", "pillow", "simplejpeg", "numba", "pytest"),
    *("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg"),
)
# Modules that the steps import, and their distributions.
NEEDED = {
    "torch": "torch",
    "nvidia.dali": "nvidia-dali-cuda130",
    "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu13",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "PIL": "pillow",
    "webdataset": "webdataset",
    "rich": "rich",
    "simplejpeg": "simplejpeg",
    "pytest": "pytest",
}
NEEDED_ON = {"cuda": {"cupy": "cupy-cuda13x"}, "cpu": {"numba": "numba"}}
TIMED_OUT = 124  # as of timeout(1)
_QUERY = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current"
_LAST_LINES = 40
# The lines of nvImageCodec's log about versions, JPEG engines and preallocated memory.
_CODEC = re.compile(r"nvJPEG version|HW |num_hw_engines|prealloc|hw_decoder", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def environment() -> dict[str, Any]:
    """Machine, GPU, driver and versions of the installed packages."""
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
        "gpus": gpus if gpus and "driver_version" in gpus[0] else [],
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "memory_gb": memory[0] if memory else None,
        "python": platform.python_version(),
        "packages": versions,
    }


def missing(device: str) -> list[str]:
    """The distributions that the steps need on this device and that are not installed."""
    return [name for module, name in (NEEDED | NEEDED_ON[device]).items() if not _finds(module)]


def _finds(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def read_summary(folder: Path) -> dict[str, Any]:
    """{"setting": device and amount of work, "steps": record by name}; None and {} for a new folder."""
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    except FileNotFoundError:
        return {"setting": None, "steps": {}}
    return summary


def record(
    folder: Path, name: str, command: list[str], code: int, seconds: float, setting: Mapping[str, object]
) -> dict[str, Any]:
    """Adds a step to summary.json and returns its record: exit code, figures, and the end of its log."""
    log = [_COLOUR.sub("", line) for line in _lines(folder / f"{name}.log")]
    figures = _figures(folder, name, log)
    fault = _fault(name, figures, command) if code == 0 else None
    step = {
        "ok": code == 0 and fault is None,
        "exit": code,
        "timed_out": code == TIMED_OUT,
        "fault": fault,
        "seconds": round(seconds, 1),
        "command": " ".join(command),
        "figures": figures,
        "output": log[-_LAST_LINES:],
    }
    summary = read_summary(folder)
    summary = {"setting": dict(setting), "steps": {**summary["steps"], name: step}}
    temporary = folder / "summary.json.tmp"
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    temporary.replace(folder / "summary.json")
    return step


def outcome(step: Mapping[str, Any]) -> str:
    if step["ok"]:
        return "ok"
    return "timed out" if step["timed_out"] else "failed" if step["fault"] else f"exit {step['exit']}"


def failed(folder: Path) -> list[str]:
    """The names of the failed steps."""
    return [name for name, step in read_summary(folder)["steps"].items() if not step["ok"]]


def _figures(folder: Path, name: str, log: list[str]) -> Any:
    try:
        figures = json.loads((folder / f"{name}.json").read_text())
    except (OSError, ValueError):  # it has none, or was stopped while it wrote them
        figures = None
    if name == "codec":
        codec = dict.fromkeys(line for line in log if _CODEC.search(line))
        figures = {**(figures or {}), "codec": list(codec)}
    if name == "bench" and figures and (dmon := _lines(folder / "dmon.log")):
        figures["gpu_use"] = _gpu_use(figures["loaders"], dmon)
    return figures


def _fault(name: str, figures: Any, command: list[str]) -> str | None:
    """Why a step failed in spite of exit code 0: no test ran, or a loader was not measured. None if it did not fail."""
    if name in ("codec", "tests"):
        return None if figures and figures.get("passed") else "no test ran: all were skipped"
    if name != "bench":
        return None
    after = command[command.index("--loaders") + 1 :]
    asked = list(itertools.takewhile(lambda word: not word.startswith("--"), after))
    measured = [row["name"] for row in figures["loaders"]] if figures else []
    lacking = [name for name in asked if name not in measured]
    reasons = [f"{name}: {(figures or {}).get('left_out', {}).get(name, 'no figures')}" for name in lacking]
    return "; ".join(reasons) or None


def _gpu_use(loaders: list[dict[str, Any]], lines: list[str]) -> dict[str, dict[str, float]]:
    """For each loader the means of dmon's columns during its rounds, and the number of lines they are taken from.

    lines: Unix time and a line of `nvidia-smi dmon`, whose columns are in %, those of PCIe in MB/s.
    """
    names: list[str] = []
    rows: list[tuple[float, dict[str, float]]] = []
    for line in lines:
        words = line.split()
        if words[1:2] == ["#"] and "gpu" in words:
            names = words[2:]
        elif words[1:2] != ["#"] and len(words) == len(names) + 1:
            values = {name: float(word) for name, word in zip(names, words[1:], strict=True) if word != "-"}
            rows.append((float(words[0]), values))
    use = {}
    for row in loaders:
        spans = [(turn["began"], turn["began"] + turn["elapsed_s"]) for turn in row["rounds"]]
        found = [values for at, values in rows if any(begin <= at <= end for begin, end in spans)]
        columns = {name for values in found for name in values} - {"gpu"}
        means = {name: mean(values[name] for values in found if name in values) for name in sorted(columns)}
        use[row["name"]] = {"lines": len(found), **means}
    return use


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def main(argv: list[str] | None = None) -> int:
    match argv if argv is not None else sys.argv[1:]:
        case ["packages", path, ("cuda" | "cpu") as device]:
            found = {**environment(), "missing": missing(device)}
            Path(path).write_text(json.dumps(found, indent=1) + "\n")
            names = ", ".join(gpu["name"] for gpu in found["gpus"]) or "no GPU"
            lacks = f"; missing: {' '.join(found['missing'])}" if found["missing"] else ""
            print(f"{names}; {found['cpu']}, {found['cores']} cores{lacks}")
            return 1 if found["missing"] or (device == "cuda" and not found["gpus"]) else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
