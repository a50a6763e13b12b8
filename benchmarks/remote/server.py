"""Serves a folder by HTTP and as S3, from the page cache without a copy; optionally slower, like a network.

    python -m benchmarks.remote.server FOLDER [--rate BYTES_PER_S] [--latency SECONDS]

Prints its port. The folders in FOLDER are buckets (path style); signatures are not
checked. It knows GET and HEAD with ranges and ETags, and lists nothing. GET /.stats answers JSON: the bytes of bodies
sent so far, by path ("sent"), the number of requests ("requests"), and the server's processor time ("cpu_s").
"""

import argparse
import json
import os
import re
import threading
import time
from collections import Counter
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.remote.processes import end_with_parent

_PACED_BYTES = 256 << 10  # at a time, where the rate is limited
_MOST_BYTES = 8 << 20  # else


class Pace:
    """At most so many bytes a second, of all connections together."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = time.monotonic()
        self._lock = threading.Lock()
        self.piece = _PACED_BYTES if rate else _MOST_BYTES

    def wait(self, size: int) -> None:
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            # What was not used lately may be caught up: 0.1 s of it, as a network's buffers would.
            self._free = max(self._free, now - 0.1) + size / self._rate
            wait_s = self._free - now
        if wait_s > 0:
            time.sleep(wait_s)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, rate: float, latency: float) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, folder))
        self.pace = Pace(rate)
        self.latency = latency
        self.sent: Counter[str] = Counter()
        self.requests = 0
        self.lock = threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """Clients that go away are no error."""

    def stats(self) -> bytes:
        with self.lock:
            return json.dumps(
                {
                    "sent": self.sent,
                    "requests": self.requests,
                    "cpu_s": time.process_time(),
                }
            ).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # the end of a body would wait for an acknowledgement
    )
    server: Server

    def __init__(self, folder: Path, *args: Any) -> None:
        self._folder = folder
        super().__init__(*args)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/.stats":
            data = self.server.stats()
            self._head(200, len(data))
            self.wfile.write(data)
            return
        with self.server.lock:
            self.server.requests += 1
        time.sleep(self.server.latency)
        try:
            handle = os.open(self._folder / path.lstrip("/"), os.O_RDONLY)
        except OSError:
            self._head(404, 0)
            return
        try:
            self._answer(path, handle)
        finally:
            os.close(handle)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, path: str, handle: int) -> None:
        status = os.fstat(handle)
        size = status.st_size
        tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        if self.headers.get("If-None-Match") == tag:
            self._head(304, 0)
            return
        about = {
            "ETag": tag,
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        start = 0
        stop = size
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start = int(wanted[1])
            stop = min(int(wanted[2]) + 1, size) if wanted[2] else size
            if start >= stop:
                self._head(416, 0)
                return
            about["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._head(206 if wanted else 200, stop - start, **about)
        if self.command != "HEAD":
            self._send(path, handle, start, stop)

    def _send(self, path: str, handle: int, offset: int, stop: int) -> None:
        while offset < stop:
            size = min(self.server.pace.piece, stop - offset)
            self.server.pace.wait(size)
            done = os.sendfile(self.connection.fileno(), handle, offset, size)
            offset += done
            with self.server.lock:
                self.server.sent[path] += done

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--rate",
        type=float,
        default=0,
        help="bytes a second of all connections; 0: no limit",
    )
    parser.add_argument(
        "--latency", type=float, default=0, help="seconds before each answer"
    )
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="end with standard input, a pipe",
    )
    args = parser.parse_args()
    if args.until_stdin_ends:
        end_with_parent()
    server = Server(args.folder, args.rate, args.latency)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
