"""What indexing a tar at a URL costs, by its headers alone and as a whole: python tools/probe_headers.py.

Where the next header lies is known from the one before, so that headers come one after the other: a range for each
member, which also holds the beginning of its image. A whole tar comes in ranges of 8 MB, eight at a time. A server on
this machine answers each request after a pause, as one far away does.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from store.servers import _Files, _Server, running  # noqa: E402

from gpuload.disk.tar import TarWriter, member_span  # noqa: E402
from gpuload.store.background import background  # noqa: E402
from gpuload.store.objects import Objects  # noqa: E402
from gpuload.store.transfer import download  # noqa: E402
from gpuload.store.url import URL  # noqa: E402

_HEAD_BYTES = 512 + 4096  # a member's header, and what tells the size of most JPEGs


class Slow(_Files):
    """Answers after a pause, from memory."""

    latency_s = 0.0
    requests = 0
    held: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:  # noqa: N802
        Slow.requests += 1
        time.sleep(self.latency_s)
        data = self.held[self.path]
        start, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = data[int(start) : int(last) + 1]
        about = {"Content-Range": f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}", "ETag": '"1"'}
        self.answer(206, part, **about)


def write_tar(path: Path, size: int, members: int) -> None:
    with path.open("wb") as file:
        tar = TarWriter(file)
        for number in range(members):
            tar.append(f"{number:06d}.jpg", bytes(size))
        tar.finish()


def by_headers(url: URL, name: str, members: int) -> None:
    async def read() -> None:
        objects, at = Objects(url), 0
        for _ in range(members):
            found = await objects.read(name, at, at + _HEAD_BYTES)
            at += member_span(int(bytes(found.data[124:135]), 8))

    background().wait(read())


def as_a_whole(url: URL, name: str) -> None:
    with tempfile.TemporaryFile() as file:
        background().wait(download(Objects(url), name, file.fileno(), sha256=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.03, metavar="S", help="of each request (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=64, metavar="N", help="size of each tar (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 100, 1000, 8000], metavar="KB", help="of members")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON")
    args = parser.parse_args()
    Slow.latency_s = args.latency
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        server = _Server(("127.0.0.1", 0), partial(Slow, Path(folder), True))
        assert isinstance(server, ThreadingHTTPServer)
        with running(server):
            for kilobytes in args.sizes:
                members = max(1, args.megabytes * 1000 // kilobytes)
                some = min(members, 200)  # headers come one by one, so their time is in proportion
                name = f"{kilobytes}.tar"
                write_tar(Path(folder) / name, kilobytes * 1000, members)
                Slow.held[f"/{name}"] = (Path(folder) / name).read_bytes()
                row: dict[str, Any] = {"member_kb": kilobytes, "members": members}
                for way, read, share in (
                    ("headers", partial(by_headers, URL(server.url), name, some), some / members),
                    ("whole", partial(as_a_whole, URL(server.url), name), 1),
                ):
                    Slow.requests, started = 0, time.perf_counter()
                    read()
                    seconds = (time.perf_counter() - started) / share
                    row[way] = {"seconds": round(seconds, 2), "requests": round(Slow.requests / share)}
                Slow.held.clear()
                rows.append(row)
                print(json.dumps(row))
    result = {"latency_s": args.latency, "megabytes": args.megabytes, "python": platform.python_version(), "tars": rows}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
