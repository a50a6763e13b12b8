"""Servers on the loopback: a folder by HTTP, with ranges and without, and a proxy that makes what goes wrong."""

import hashlib
import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # else a connection beside some others waits for a second on a busy machine

    def handle_error(self, *_: Any) -> None:
        """Clients that go away are no error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms until its header was acknowledged

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


class _Files(_Handler):
    """Files of a folder, with ETags."""

    def __init__(self, folder: Path, ranges: bool, *args: Any) -> None:
        self.folder, self.ranges = folder, ranges
        super().__init__(*args)

    def do_GET(self) -> None:
        path = self.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            return self.answer(404)
        data = path.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        if (wanted := self.headers.get("If-Match")) and wanted != tag:
            return self.answer(412)
        if self.headers.get("If-None-Match") == tag:
            return self.answer(304)
        found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.ranges else None
        if found is None:
            return self.answer(200, data, ETag=tag)
        start, last = int(found[1]), min(int(found[2]), len(data) - 1)
        if start > last:
            return self.answer(416)
        about = {"ETag": tag, "Content-Range": f"bytes {start}-{last}/{len(data)}"}
        return self.answer(206, data[start : last + 1], **about)

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class Proxy(_Server):
    """Hands requests on to a server. fault: for the path and its number among those of this path, from 1, what goes
    wrong, see `_Proxied`. sent: bytes of bodies by path. asked: requests by path."""

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Proxied)
        self.upstream = urlsplit(upstream)
        self.fault: Callable[[str, int], str | None] = lambda path, number: None
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.silent_s = 30.0
        self.delay_s = 0.0

    def reset(self) -> None:
        self.fault = lambda path, number: None
        self.sent.clear()
        self.asked.clear()


class _Proxied(_Handler):
    server: Proxy

    def handle_any(self) -> None:
        path = urlsplit(self.path).path
        with self.server.lock:
            self.server.asked[path] += 1
            number = self.server.asked[path]
        time.sleep(self.server.delay_s)
        fault = self.server.fault(path, number)
        if fault == "unconditional":
            fault = "501" if "If-None-Match" in self.headers else None
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault is not None and fault.isdecimal():
            return self.refuse(int(fault))
        if fault == "hang up":
            self.close_connection = True
            return None
        client = http.client.HTTPConnection(self.server.upstream.netloc, timeout=250)
        client.request(self.command, self.path, body, dict(self.headers))
        found = client.getresponse()
        data = found.read()
        client.close()
        if fault == "wrong bytes":
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        if fault == "truncate":
            data = data[:-1]
        self.send_response(found.status)
        for name, value in found.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = found.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return None
        with self.server.lock:
            self.server.sent[path] += len(data)
        if fault in ("cut", "stall"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if fault == "stall":
                time.sleep(self.server.silent_s)
            self.close_connection = True
            return None
        self.wfile.write(data)
        return None

    def refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815


@contextmanager
def running(server: _Server) -> Iterator[Any]:
    thread = threading.Thread(target=partial(server.serve_forever, 0.02), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def file_server(folder: Path, ranges: bool = True) -> _Server:
    return _Server(("127.0.0.1", 0), partial(_Files, folder, ranges))


@contextmanager
def proxied(folder: Path) -> Iterator[Proxy]:
    """A proxy before a server of a folder."""
    with running(file_server(folder)) as server, running(Proxy(server.url)) as proxy:
        yield proxy


def shards_asked(proxy: Any) -> dict[str, int]:
    """How often each shard was asked for."""
    return {path: count for path, count in dict(proxy.asked).items() if path.endswith(".tar")}
