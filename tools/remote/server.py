"""Serves a folder by HTTP with ranges, from the page cache without a copy; optionally slower, like a network.

    python -m tools.remote.server FOLDER [--rate BYTES_PER_S] [--latency SECONDS]

Prints its port. GET /.sent answers the bytes of bodies sent so far, by path, as JSON.
"""

import argparse
import json
import os
import re
import threading
import time
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_PIECE_BYTES = 256 << 10


class Pace:
    """At most so many bytes a second, of all connections together."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free, self._lock = rate, time.monotonic(), threading.Lock()

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
        self.pace, self.latency = Pace(rate), latency
        self.sent: Counter[str] = Counter()
        self.lock = threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """Clients that go away are no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def __init__(self, folder: Path, *args: Any) -> None:
        self._folder = folder
        super().__init__(*args)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/.sent":
            with self.server.lock:
                data = json.dumps(self.server.sent).encode()
            self._head(200, len(data))
            self.wfile.write(data)
            return
        time.sleep(self.server.latency)
        try:
            file = (self._folder / path.lstrip("/")).open("rb", buffering=0)
        except OSError:
            self._head(404, 0)
            return
        with file:
            found = os.fstat(file.fileno())
            tag = f'"{found.st_mtime_ns:x}-{found.st_size:x}"'
            wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(wanted[1]), min(int(wanted[2]) + 1, found.st_size)) if wanted else (0, found.st_size)
            if self.headers.get("If-None-Match") == tag:
                self._head(304, 0)
                return
            about = {"ETag": tag}
            if wanted:
                about["Content-Range"] = f"bytes {start}-{stop - 1}/{found.st_size}"
            self._head(206 if wanted else 200, stop - start, **about)
            at = start
            while at < stop:
                size = min(_PIECE_BYTES, stop - at)
                self.server.pace.wait(size)
                at += os.sendfile(self.connection.fileno(), file.fileno(), at, size)
        with self.server.lock:
            self.server.sent[path] += stop - start

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=float, default=0, help="bytes a second of all connections; 0: no limit")
    parser.add_argument("--latency", type=float, default=0, help="seconds before each answer")
    args = parser.parse_args()
    server = Server(args.folder, args.rate, args.latency)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
