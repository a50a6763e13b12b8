"""What a report on packed sets costs: seconds, processor time, memory, and the size of the page.

    python tools/report_cost.py shards --json report-of-mine.json

Runs `python -m gpuload report` in a process of its own. max_rss_bytes counts pages of shards that are mapped, which the
kernel takes back where memory is short; max_own_bytes is without them.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def own_bytes(process: int) -> int:
    """Memory of a process that is not that of files; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return 1024 * int(found[0]) if found else 0


def measure(shards: list[str], options: list[str]) -> dict[str, Any]:
    """Raises SystemExit where the report cannot be made; it has said why."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "gpuload", "report", *shards, "-o", str(page), *options]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        started, own = time.monotonic(), 0
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as process:
            while process.poll() is None:
                own = max(own, own_bytes(process.pid))
                time.sleep(0.05)
        seconds = time.monotonic() - started
        if process.returncode:
            raise SystemExit(process.returncode)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        facts = json.loads(page.with_suffix(".json").read_text())
        return {
            "images": facts["looked_at"]["images"],
            "image_bytes": sum(split["image_bytes"] for split in facts["splits"]),
            "seconds": round(seconds, 2),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
            "max_rss_bytes": 1024 * used.ru_maxrss,
            "max_own_bytes": own,
            "page_bytes": page.stat().st_size,
            "cores": len(os.sched_getaffinity(0)),
            "gpuload": facts["gpuload"],
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="+", help="packed folders, or folders that hold several")
    parser.add_argument("--images", type=int, default=100_000, help="most images that are looked at (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to it")
    args = parser.parse_args(arguments)
    load = round(os.getloadavg()[2], 2)
    record = {**measure(args.shards, ["--images", str(args.images)]), "load_before": load}
    text = json.dumps(record, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
