"""What every real export says: four images with the objects that are on them, and the tools' files about these."""

import base64
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

EXPORTS = Path(__file__).parent / "exports"
CLASSES = ("cat", "dog", "bird")  # not in sorted order
SIZES = {"a": (100, 50), "b": (80, 60), "c": (64, 64), "d": (50, 40)}
SPLITS = {"a": "train", "b": "train", "c": "val", "d": "val"}
WHOLE = {"a": "cat", "b": "bird", "c": "dog"}  # classes of whole images; d has none


class TrueObject(NamedTuple):
    """box: x0 y0 x1 y1. polygon: flat, of the same box."""

    label: str
    box: tuple[int, int, int, int]
    polygon: tuple[int, ...]


OBJECTS = {
    "a": [
        TrueObject("cat", (10, 5, 30, 25), (10, 5, 30, 5, 30, 25, 10, 25)),
        TrueObject("dog", (60, 20, 100, 50), (60, 20, 100, 20, 100, 50, 60, 50)),
    ],
    "b": [
        TrueObject("bird", (8, 6, 48, 36), (8, 6, 48, 6, 48, 36)),
        TrueObject("cat", (16, 12, 64, 48), (16, 12, 64, 12, 64, 48, 16, 48)),
    ],
    "c": [TrueObject("dog", (20, 30, 21, 31), (20, 30, 21, 30, 21, 31, 20, 31))],
    "d": [],
}


def true_image(name: str) -> Image.Image:
    """Smooth colours, different for each image."""
    rng = np.random.default_rng(ord(name))
    coarse = Image.fromarray(rng.integers(0, 200, (3, 3, 3), np.uint8))
    return coarse.resize(SIZES[name], Image.Resampling.BICUBIC)


def encoded(name: str, path: str) -> bytes:
    """An image in the format that the name of its file says."""
    file = io.BytesIO()
    true_image(name).save(file, "PNG" if path.lower().endswith(".png") else "JPEG", quality=95)
    return file.getvalue()


def name_of_image(data: bytes) -> str | None:
    """Which of the images an encoded one is; None if it is another, such as a mask."""
    with Image.open(io.BytesIO(data)) as opened:
        for name, size in SIZES.items():
            if opened.size == size and opened.mode == "RGB":
                difference = np.asarray(opened, np.int16) - np.asarray(true_image(name), np.int16)
                if np.abs(difference).mean() < 20:
                    return name
    return None


def collect(folder: Path) -> dict[str, Any]:
    """The files of an export: names of images by their paths, texts, and others in Base64."""
    images: dict[str, str] = {}
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        path = file.relative_to(folder).as_posix()
        data = file.read_bytes()
        is_picture = file.suffix.lower() in (".jpg", ".jpeg", ".png")
        image = name_of_image(data) if is_picture else None
        if image is not None:
            images[path] = image
        elif is_picture:
            others[path] = base64.b64encode(data).decode()
        else:
            texts[path] = data.decode()
    return {"images": images, "texts": texts, "others": others}


def read_exports(tool: str) -> dict[str, dict[str, bytes]]:
    """The files of each export of a tool, by their paths."""
    exports = {}
    for name, export in json.loads((EXPORTS / f"{tool}.json").read_text())["exports"].items():
        files = {path: encoded(image, path) for path, image in export["images"].items()}
        files |= {path: text.encode() for path, text in export["texts"].items()}
        files |= {path: base64.b64decode(data) for path, data in export["others"].items()}
        exports[name] = files
    return exports
