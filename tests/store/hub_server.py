"""A server that answers as the Hugging Face Hub does for one data set, and its CDN."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from store.servers import _Files, _Server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_of_the_tests"


class HubServer(_Server):
    """The files of a folder as datasets/me/photos. cdn: where they are sent from. asked: kinds of requests. busy: so
    many requests to the API are answered by 429. private: whether a token is needed."""

    def __init__(self, folder: Path, cdn: "CdnServer") -> None:
        super().__init__(("127.0.0.1", 0), _Hub)
        self.folder, self.cdn = folder, cdn
        self.asked: Counter[str] = Counter()
        self.commit = COMMIT
        self.busy, self.private = 0, False


class CdnServer(_Server):
    """tokens: what requests carried."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Cdn)
        self.folder = folder
        self.tokens: set[str | None] = set()


class _Hub(_Files):
    server: HubServer

    def __init__(self, *args: Any) -> None:
        super().__init__(Path(), False, *args)

    def do_GET(self) -> None:  # noqa: N802
        path = unquote(urlsplit(self.path).path)
        server = self.server
        if server.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401)
        if found := re.fullmatch(r"/api/datasets/me/photos(?:/(revision|tree)/([^/]+)/?(.*))?", path):
            server.asked["api"] += 1
            if server.busy:
                server.busy -= 1
                return self.answer(429)
            told: Any = {"id": "me/photos", "sha": server.commit}
            if found[1] == "tree":
                told = self._tree(found[3])
            else:
                assert "sha" in parse_qs(urlsplit(self.path).query)["expand"]
            return self.answer(200, json.dumps(told).encode(), **{"Content-Type": "application/json"})
        if path.startswith(f"/datasets/me/photos/resolve/{COMMIT}/"):
            below = path.partition(COMMIT)[2]
            if not (server.folder / below[1:]).is_file():
                return self.answer(404)
            return self.answer(302, Location=f"{server.cdn.url}{below}?signature=secret")
        return self.answer(404)

    do_HEAD = do_GET  # noqa: N815

    def _tree(self, below: str) -> list[dict[str, Any]]:
        root = self.server.folder
        return [
            {"type": "file", "path": path.relative_to(root).as_posix(), "size": path.stat().st_size, "oid": "0" * 40}
            for path in sorted((root / below).rglob("*"))
            if path.is_file()
        ]


class _Cdn(_Files):
    server: CdnServer

    def __init__(self, request: Any, address: Any, server: CdnServer) -> None:
        super().__init__(server.folder, True, request, address, server)

    def do_GET(self) -> None:  # noqa: N802
        self.server.tokens.add(self.headers.get("Authorization"))
        return super().do_GET()

    do_HEAD = do_GET  # noqa: N815
