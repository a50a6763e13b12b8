"""Fuzzes one target in processes that may die, one after the other, and collects what was found."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzzing.loop import CURRENT_BYTES

_TESTS = Path(__file__).resolve().parent.parent
_MOST_DEATHS = 20
_TIMES = {-signal.SIGPROF: "too much processor time", -signal.SIGALRM: "too much time"}


def fuzz(name: str, seed: int, count: int, seconds: float, findings: Path) -> dict[str, Any]:
    """Counts, and the findings of a target: inputs that ended the process or gave an exception of another kind.

    count, seconds: whichever is reached first. findings: the folder in which such inputs are saved.
    """
    total = {"inputs": 0, "accepted": 0, "refused": 0}
    by_title: dict[str, Any] = {}
    begun = time.monotonic()
    deaths = 0
    while total["inputs"] < count and time.monotonic() - begun < seconds and len(by_title) < _MOST_DEATHS:
        with tempfile.TemporaryDirectory(dir=_scratch()) as scratch:
            folder = Path(scratch)
            with (folder / "current").open("wb") as file:
                file.truncate(CURRENT_BYTES)
            seconds_left = (
                str(count - total["inputs"]),
                str(seconds - (time.monotonic() - begun)),
            )
            command = [
                sys.executable,
                "-m",
                "fuzzing.loop",
                name,
                str(seed + deaths),
                *seconds_left,
                scratch,
            ]
            paths = os.pathsep.join([str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")])
            run = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": paths, "TMPDIR": scratch},
                capture_output=True,
                text=True,
            )
            if run.stderr.strip() and not deaths:
                print(run.stderr.strip()[-2000:], file=sys.stderr)
            counts = json.loads((folder / "counts").read_text()) if (folder / "counts").exists() else {}
            for key, number in counts.items():
                total[key] = total.get(key, 0) + number
            for about in sorted(folder.glob("*.json")):
                finding = json.loads(about.read_text())
                listed = by_title.setdefault(finding["title"], {**finding, "times": 0, "input": ""})
                listed["times"] += finding["times"]
                listed["input"] = listed["input"] or _save(findings / name, about.with_suffix(""))
            if run.returncode == 1:
                raise RuntimeError(f"the fuzzer itself failed:\n{run.stderr}")
            if not (folder / "ended").exists():
                deaths += 1
                total["inputs"] += 1
                title = _death(run.returncode)
                listed = by_title.setdefault(
                    title,
                    {
                        "title": title,
                        "trace": run.stderr[-2000:],
                        "times": 0,
                        "input": "",
                    },
                )
                listed["times"] += 1
                current = (folder / "current").read_bytes()
                (folder / "input").write_bytes(current[8:][: int.from_bytes(current[:8], "little")])
                listed["input"] = listed["input"] or _save(findings / name, folder / "input")
    return {
        **total,
        "seconds": round(time.monotonic() - begun, 1),
        "findings": sorted(by_title.values(), key=lambda finding: str(finding["title"])),
    }


def _death(code: int) -> str:
    return _TIMES.get(code) or f"the process ended ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _save(folder: Path, path: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.iterdir()))
    return str(shutil.copy(path, folder / f"{number:03d}"))


def _scratch() -> str | None:
    """In memory, where there is such a folder: some targets write each input to a file."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
