"""Packed sets for the tests of reports, small and with everything that a report tells."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from images import encode
from PIL import Image

import gpuload
from gpuload.cli import main

EVIL = "<script>window.hacked = 1</script>\"'><img src=x onerror=window.hacked=1>{{7*7}}"
CLASSES = 95  # more than a page lists at once


def textured(seed: int, width: int = 120, height: int = 90) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def again(image: Image.Image, quality: int, side: int | None = None) -> bytes:
    """A near duplicate: scaled and compressed anew."""
    scaled = image if side is None else image.resize((side, side * image.height // image.width))
    return encode(scaled, quality=quality)


def pack_splits(folder: Path) -> Path:
    """train, val and test; in val an image of train, another one nearly, and one of train with another label."""
    train = [
        {"image": encode(textured(n)), "label": f"class {n % CLASSES:03d}", "name": f"{n:03d}"} for n in range(120)
    ]
    train[7]["image"] = encode(textured(7).convert("L"))
    train[8]["image"] = encode(Image.new("RGB", (64, 48), (4, 4, 4)))
    train[9]["image"] = encode(textured(9, 640, 40), progressive=True)
    val = [{"image": encode(textured(500 + n)), "label": f"class {n:03d}", "name": f"v{n}"} for n in range(20)]
    val[3]["image"] = train[3]["image"]
    val[4]["image"] = again(textured(4), 70, 96)
    val[4]["label"] = "class 004"
    train[30]["image"] = train[31]["image"]
    parts = (("train", train), ("val", val), ("test", val[10:]))
    samples = [{**sample, "name": f"{name}-{sample['name']}", "split": name} for name, part in parts for sample in part]
    gpuload.pack(samples, folder, workers=1, maxcount=40)
    return folder


def make_report(*folders: Path | str, images: int = 1000) -> tuple[dict[str, Any], str]:
    """The facts and the page of some packed sets."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        arguments = ["--images", str(images), "--size", "32", "-o", str(page)]
        assert main(["report", *map(str, folders), *arguments]) == 0
        return json.loads(page.with_suffix(".json").read_text()), page.read_text(encoding="utf-8")
