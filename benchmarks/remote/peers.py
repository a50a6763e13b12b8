"""gpuload, MosaicML Streaming and LitData read the same images from the same S3 server."""

import io
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.remote.loaders import BUCKET, LOADERS, Task
from benchmarks.remote.processes import ROOT, Child, ChildError, now, served

IMAGES = 4000
PER_SHARD = 100
BATCH_SIZE = 64
SIZE = 224
THREADS = 2
WINDOW = 8
MIDDLE = IMAGES // BATCH_SIZE // 2
LATENCY_S = 0.01
_SEEDS = 50  # different images; more would take minutes to make
# What is reported: in seconds, images a second, and bytes.
FIGURES = (
    "cold_images_per_s", "bytes", "warm_images_per_s", "first_batch_s", "resume_cold_s", "resume_bytes",
    "resume_warm_s", "resume_network_s", "resume_network_bytes",
)  # fmt: skip


class Peers:
    """folder: for the sets, which are kept. scratch: for the caches. pythons: interpreters of loaders that have their
    own.

    network: bytes a second of the slower one, over which a run is resumed, too, with a latency of 10 ms.
    """

    def __init__(
        self, folder: Path, scratch: Path, pythons: Mapping[str, str], network: float
    ) -> None:
        self._sets = folder / "peers"
        self._scratch = scratch / "peers"
        self._pythons = pythons
        self._network = network
        self._rounds: dict[str, list[dict[str, Any]]] = {}
        self._left_out: dict[str, str] = {}
        self._failures: dict[str, list[str]] = {name: [] for name in LOADERS}

    def run(self, runs: int) -> dict[str, Any]:
        """Figures of each loader, medians of runs in turn."""
        packed = make_images(self._sets / BUCKET / "gpuload", IMAGES, PER_SHARD)
        shards = [path.stat().st_size for path in packed.glob("*.tar")]
        self._scratch.mkdir(parents=True, exist_ok=True)
        for name in LOADERS:
            self._try(
                name,
                lambda name=name: self._prepare(
                    name, packed, sum(shards) // len(shards)
                ),
            )
        with (
            served(self._sets) as url,
            served(self._sets, self._network, LATENCY_S) as slow,
        ):
            # The first start compiles, and fills the page cache.
            for name in [*self._rounds]:
                self._try(
                    name, lambda name=name: self._ask(name, "resume", url, state=None)
                )
            for number in range(runs):
                names = [*self._rounds]
                for place in range(len(names)):
                    name = names[(number + place) % len(names)]
                    self._try(
                        name,
                        lambda name=name: self._rounds[name].append(
                            self._round(name, url, slow)
                        ),
                    )
        return {
            "images": IMAGES,
            "shards": len(shards),
            "shard_bytes": sum(shards) // len(shards),
            "batch_size": BATCH_SIZE,
            "size": SIZE,
            "threads": THREADS,
            "window": WINDOW,
            "resumed_after_batches": MIDDLE,
            "network_bytes_per_s": self._network,
            "network_latency_s": LATENCY_S,
            "left_out": self._left_out,
            "loaders": {
                name: self._summary(name, rounds)
                for name, rounds in self._rounds.items()
            },
        }

    def _try(self, name: str, action: Any) -> None:
        """Leaves a loader out where it fails."""
        try:
            action()
        except ChildError as error:
            self._left_out[name] = str(error)
            self._rounds.pop(name, None)
            print(f"left out: {name}: {error}", file=sys.stderr, flush=True)

    def _prepare(self, name: str, packed: Path, shard_bytes: int) -> None:
        """Writes the set in the loader's own format, once."""
        loader = LOADERS[name]
        python = self._pythons.get(name, sys.executable)
        has = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({loader.package!r}) is None)"
        if subprocess.run([python, "-c", has], check=False).returncode:
            raise ChildError(
                f"{loader.distribution} is not installed in {python}. See --python"
            )
        folder = self._sets / BUCKET / name
        if loader.prepare is not None and not folder.exists():
            unfinished = folder.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            self._ask(
                name,
                "prepare",
                packed=str(packed),
                folder=str(unfinished),
                shard_bytes=shard_bytes,
            )
            unfinished.rename(folder)
        self._rounds[name] = []

    def _round(self, name: str, url: str, slow: str) -> dict[str, Any]:
        """An epoch with an empty cache and one from the cache, then resuming from the cache and without it."""
        state = str(self._scratch / "state")
        answer = self._ask(name, "epochs", url, state=state, middle=MIDDLE)
        warm = self._ask(name, "resume", url, keeps=True, state=state)
        cold = self._ask(name, "resume", url, state=state)
        network = self._ask(name, "resume", slow, state=state)
        return {
            **answer,
            "cold_images_per_s": answer["images"] / answer["cold_s"],
            "warm_images_per_s": answer["warm_images"] / answer["warm_s"],
            "resume_cold_s": cold["resume_s"],
            "resume_bytes": cold["bytes"],
            "resume_warm_s": warm["resume_s"],
            "resume_network_s": network["resume_s"],
            "resume_network_bytes": network["bytes"],
        }

    def _ask(
        self,
        name: str,
        order: str,
        url: str | None = None,
        keeps: bool = False,
        **options: Any,
    ) -> Any:
        """What a new process answers to an order, the second one where the first fails.

        url: with one, the loader is opened. keeps: it finds its cache.
        """
        try:
            return self._ask_once(name, order, url, keeps, **options)
        except ChildError as error:
            self._failures[name].append(f"{order}: {error}")
            return self._ask_once(name, order, url, keeps, **options)

    def _ask_once(
        self, name: str, order: str, url: str | None, keeps: bool, **options: Any
    ) -> Any:
        python = self._pythons.get(name, sys.executable)
        cache = self._scratch / name
        if not keeps:
            shutil.rmtree(cache, ignore_errors=True)
        if url is not None:
            options["task"] = Task(
                url, str(cache), BATCH_SIZE, SIZE, THREADS, WINDOW, PER_SHARD
            )._asdict()
            options["started"] = now()
        child = Child(
            [
                python,
                "-m",
                "benchmarks.remote.contender",
                name,
                order,
                json.dumps(options),
            ],
            quiet=True,
        )
        try:
            return child.answer()
        finally:
            child.end(LOADERS[name].end_s)

    def _summary(self, name: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
        stored = sum(
            path.stat().st_size
            for path in (self._sets / BUCKET / name).rglob("*")
            if path.is_file()
        )
        return {
            "what": LOADERS[name].what,
            "versions": rounds[0]["versions"],
            "stored_bytes": stored,
            "failures": self._failures[name],
            **{
                figure: statistics.median(turn[figure] for turn in rounds)
                for figure in FIGURES
            },
            "runs": [
                {key: value for key, value in turn.items() if key != "versions"}
                for turn in rounds
            ],
        }


def make_images(out: Path, images: int, per_shard: int) -> Path:
    """A packed set of JPEGs of 500×375."""
    if not (out / "train" / "manifest.json").exists():
        source = out.with_name(f"{out.name}.source")
        for number, data in enumerate(_jpegs() * (images // _SEEDS)):
            path = source / f"class{number % 10}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        command = [
            sys.executable,
            "-m",
            "gpuload",
            "pack",
            str(source),
            str(out),
            "--maxcount",
            str(per_shard),
        ]
        subprocess.run(
            [*command, "--overwrite"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        shutil.rmtree(source)
    return out / "train"


def _jpegs() -> list[bytes]:
    """Smooth images with some noise, which decides their size."""
    rng = np.random.default_rng(1)
    images = []
    for _ in range(_SEEDS):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(
            small.resize((500, 375), Image.Resampling.BICUBIC), np.int16
        )
        pixels = np.clip(pixels + rng.integers(-18, 19, pixels.shape), 0, 255).astype(
            np.uint8
        )
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        images.append(file.getvalue())
    return images
