"""A set whose every text may be a path: nothing outside of it is opened, written, moved, deleted or run."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import gpuload
from fuzzing.folders import sample, tell_index
from fuzzing.target import Target, scratch_folder
from gpuload.disk import Manifest, ShardInfo
from gpuload.disk.fetch import fetch
from gpuload.disk.sample import Quarantined, write_quarantine

# OUTSIDE stands for a folder beside the set that holds the same files, which would be taken for the set's own.
_PATHS = (
    "OUTSIDE/shard-000000.tar",
    "OUTSIDE/shard-000001.tar",
    "OUTSIDE/victim",
    "OUTSIDE",
    "../outside/shard-000000.tar",
    "../outside/victim",
    "../../outside/victim",
    "../../../../outside/victim",
    "a/../../outside/victim",
    "..\\outside\\victim",
    "./../outside/victim",
    "file://OUTSIDE/victim",
    "pipe:touch OUTSIDE/made",
    "|touch OUTSIDE/made",
    "$(touch OUTSIDE/made)",
    "http://127.0.0.1:9/outside/victim",
    "https://user:secret@127.0.0.1:9/x.tar",
    "s3://bucket/../victim.tar",
    "OUTSIDE/victim\0",
    "manifest.json",
    "index.arrow",
    ".manifest.json",
    ".",
    "..",
    "",
    "/",
    "~/x",
    "C:\\victim",
    "shard-000000.tar/../../outside/victim",
    "a/b.tar",
    "\n../outside/victim",
)
_EVENTS = ("open", "os.", "shutil.", "subprocess.", "pathlib.")
_COMMANDS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.")
_CELLS = ("key", "source", "caption", "about")


class PathTarget(Target):
    """Texts of `manifest.json` and `index.arrow`, each of which may be a path, a URL or a command."""

    name = "paths"

    def __init__(self) -> None:
        root = scratch_folder()
        gpuload.pack(map(sample, range(5)), root / "packed", workers=1, maxcount=3, shuffle=False)
        self.folder = root / "set"
        self._outside = root / "outside"
        self._cache = root / "cache"
        shutil.copytree(root / "packed" / "train", self._outside)
        (self._outside / "victim").write_bytes(b"not to be touched")
        self._pristine = root / "packed" / "train"
        self._seen: list[str] = []
        self._watched = False
        sys.addaudithook(self._audit)
        handler = partial(_Quiet, directory=str(self.folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def seeds(self) -> list[bytes]:
        packed = json.loads((self._pristine / "manifest.json").read_text())
        indexed = packed | {"packing": {"indexed": "shards packed by others"}}
        return [json.dumps({"manifest": manifest, "cells": [], "at": 0}).encode() for manifest in (packed, indexed)]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        manifest = json.loads(rng.choice(seeds))
        of_shards = rng.random() < 0.7  # the others are many
        tree = manifest["manifest"]["shards"] if of_shards else manifest["manifest"]
        texts = [place for place in _places(tree) if isinstance(place[0][place[1]], str)]
        for holder, key in texts if rng.random() < 0.1 else rng.sample(texts, rng.choice((0, 0, 1, 1, 2))):
            holder[key] = rng.choice(_PATHS[: 8 if of_shards and rng.random() < 0.5 else None])
        manifest["cells"] = [rng.choice(_PATHS) for _ in range(rng.choice((0, 1, 4)))]
        return json.dumps({**manifest, "at": rng.randrange(3)}).encode()

    def run(self, data: bytes) -> None:
        manifest = json.loads(data.replace(b"OUTSIDE", str(self._outside).encode()))
        self._write(manifest["manifest"], manifest["cells"])
        before = _state(self._outside.parent, self._outside)
        self._seen = []
        # An indexed set that lies on the disk may name shards elsewhere, which are read.
        self._watched = manifest["at"] > 0 or "indexed" not in manifest["manifest"]["packing"]
        try:
            self._read(manifest["at"])
        finally:
            self._watched = False
            for folder in ("fetched", "cache"):
                shutil.rmtree(self._outside.parent / folder, ignore_errors=True)
            assert _state(self._outside.parent, self._outside) == before, "something outside was changed"
            assert not self._seen, self._seen[0]

    def _read(self, at: int) -> None:
        url = f"http://127.0.0.1:{self._server.server_port}"
        if at == 2:
            fetch(url, self._outside.parent / "fetched")
        dataset = gpuload.Dataset(self.folder if at == 0 else url, cache=None if at == 0 else self._cache)
        if any("://" in str(path) and at == 0 for path in dataset.shard_paths):
            return  # of an indexed set: they would be downloaded
        for number in (0, 4):
            first = dataset[number]
            with suppress(gpuload.ArgumentError):
                dataset[first["source"]]
        listed = Quarantined(first["key"], dataset.shard_paths[0].name, 512, 1, "")
        path = self._outside.parent / "cache.list"
        write_quarantine(path, [listed])
        try:
            part = gpuload.Dataset(dataset.folder, None if at == 0 else self._cache, exclude=path)
            gpuload.DaliIterator(part, 1, augment=gpuload.Augment(8), device="cpu").close()
        finally:
            path.unlink()

    def _write(self, manifest: dict[str, Any], cells: Sequence[str]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._pristine, self.folder)
        table = pa.ipc.open_file((self._pristine / "index.arrow").read_bytes())
        with pa.ipc.new_file(str(self.folder / "index.arrow"), table.schema) as writer:
            for number in range(table.num_record_batches):
                batch = table.get_batch(number)
                for name, text in zip(_CELLS, cells, strict=False):
                    position = batch.schema.get_field_index(name)
                    column = batch.column(name).type
                    batch = batch.set_column(
                        position,
                        batch.schema.field(position),
                        pa.array([text] * len(batch), column),
                    )
                writer.write_batch(batch)
        with suppress(Exception):
            shards = tuple(ShardInfo(**shard) for shard in manifest["shards"])
            manifest["fingerprint"] = Manifest(shards, ()).fingerprint
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        tell_index(self.folder)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._watched and event.startswith(_EVENTS):
            # Not by their text alone: a folder of the set may be named like a command with a path outside.
            paths = [
                os.path.normpath(os.fsdecode(argument))
                for argument in args
                if isinstance(argument, str | bytes | os.PathLike)
            ]
            is_command = event.startswith(_COMMANDS) and ("touch" in repr(args) or str(self._outside) in repr(args))
            if is_command or any(path.startswith(str(self._outside)) for path in paths):
                self._seen.append(f"{event} {args!r}"[:300])


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def _places(tree: Any) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = []
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        places.append((tree, key))
        if isinstance(value, dict | list):
            places += _places(value)
    return places


def _state(parent: Path, folder: Path) -> Any:
    files = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}
    return sorted(path.name for path in parent.iterdir() if path.name != "set"), files
