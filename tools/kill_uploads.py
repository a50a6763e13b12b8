"""Kills packing to a bucket at random moments, again and again: python tools/kill_uploads.py --runs 40.

Each run packs to a prefix of its own of an S3 server on this machine, is killed (SIGKILL) around a random one of its
requests, continued with --resume, perhaps killed again, until it ends; every second run appends to a set. What lies in
the bucket in the end must be what an uninterrupted run leaves, byte for byte. Exit code 1 where it is not.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from images import encode, photo  # noqa: E402
from s3_server import S3, s3_server  # noqa: E402
from store.servers import Proxy, running  # noqa: E402

# Forks for each run, so that each costs no start of an interpreter.
_SERVANT = """
import os, sys, json
from gpuload import cli
from gpuload.commands import pack
import gpuload.packing.run.packer, gpuload.disk.dataset
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        os.dup2(2, 1)
        os._exit(cli.main(json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Killer:
    """Runs gpuload in processes, and kills them at a request to the proxy."""

    def __init__(self, proxy: Proxy, environment: dict[str, str]) -> None:
        self.proxy = proxy
        self.servant = subprocess.Popen(
            [sys.executable, "-c", _SERVANT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **environment, "PYTHONPATH": str(ROOT), "AWS_ENDPOINT_URL": proxy.url},
        )  # fmt: skip
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.servant.stderr is not None
        self.said.extend(self.servant.stderr)

    def run(self, arguments: list[str], at: int | None = None, later_s: float = 0) -> tuple[int, int]:
        """The exit code and the number of requests. at: the request around which it is killed."""
        assert self.servant.stdin is not None and self.servant.stdout is not None
        seen, lock = [0], threading.Lock()

        def fault(path: str, number: int) -> None:
            with lock:
                seen[0] += 1
                is_it = seen[0] == at
            if is_it:
                threading.Timer(later_s, kill).start() if later_s else kill()

        def kill() -> None:
            if not ended.is_set():
                os.kill(pid, signal.SIGKILL)

        ended = threading.Event()
        self.servant.stdin.write(json.dumps(arguments) + "\n")
        self.servant.stdin.flush()
        pid = int(self.servant.stdout.readline())
        self.proxy.fault = fault
        code = int(self.servant.stdout.readline())
        ended.set()
        return code, seen[0]

    def close(self) -> None:
        assert self.servant.stdin is not None
        self.servant.stdin.close()
        self.servant.wait()


def make_photos(folder: Path, first: int, count: int) -> Path:
    for number in range(first, first + count):
        path = folder / f"class{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(number, 40 + number % 20, 30 + number % 9)))
    return folder


def try_once(killer: Killer, s3: S3, arguments: list[str], prefix: str, moments: int, rng: random.Random) -> int:
    """Packs, with kills. Returns how many there were."""
    kills, more = 0, []
    while True:
        at = rng.randrange(1, moments + 1) if kills < 3 else None
        code, _ = killer.run([*arguments, *more], at, rng.choice([0, 0, rng.uniform(0, 0.15)]))
        if code == 0:
            return kills
        if code != -signal.SIGKILL:
            raise SystemExit(f"{arguments} ended with {code}: {''.join(killer.said[-3:])}")
        kills, more = kills + 1, ["--resume"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON")
    args = parser.parse_args()
    rng, started = random.Random(args.seed), time.monotonic()
    wrong, kills = [], 0
    with tempfile.TemporaryDirectory() as folder, s3_server("bucket") as s3, running(Proxy(s3.url)) as proxy:
        tmp = Path(folder)
        first, second = make_photos(tmp / "first", 0, 30), make_photos(tmp / "second", 30, 14)
        killer = Killer(proxy, {**s3.environment, "GPULOAD_CACHE": str(tmp / "cache")})
        options = ["--val", "0.2", "--maxcount", "4", "--workers", "2", "--dedup", "report"]

        def pack(source: Path, out: str, *more: str) -> list[str]:
            return ["pack", str(source), out, *options, *more]

        _, packing = killer.run(pack(first, "s3://bucket/packed"))
        killer.run(pack(first, "s3://bucket/appended"))
        _, appending = killer.run(pack(second, "s3://bucket/appended", "--append"))
        expected: dict[str, Any] = {name: s3.files("bucket", f"{name}/") for name in ("packed", "appended")}
        for number in range(args.runs):
            name = f"run{number}"
            kind = ("packed", "appended")[number % 2]
            arguments, moments = pack(first, f"s3://bucket/{name}"), packing
            if kind == "appended":
                killer.run(arguments)
                arguments, moments = pack(second, f"s3://bucket/{name}", "--append"), appending
            kills += try_once(killer, s3, arguments, name, moments, rng)
            found = s3.files("bucket", f"{name}/")
            left = [path.name for path in (tmp / "cache").rglob("*") if path.is_file() and path.name != "lock"]
            if found != expected[kind] or left:
                differ = [one for one in {*found, *expected[kind]} if found.get(one) != expected[kind].get(one)]
                wrong.append({"run": number, "kind": kind, "differ": sorted(differ), "left": left})
                print(wrong[-1])
        killer.close()
    result = {
        "runs": args.runs,
        "kills": kills,
        "requests": {"packing": packing, "appending": appending},
        "wrong": wrong,
        "server": urlsplit(s3.url).hostname and "moto",
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
