"""Measures what each encoding, and each mode, takes to load on a CPU.

    python tools/encoding_speed.py photos --json tools/results/encodings-2-cores.json

Makes images of 500×375 pixels out of the photos in a folder, packs them in each encoding, and loads them with one
thread: random crops of 224 pixels, flips, float32. What is told is processor time, that of all threads together, since
the machine may be shared: the median of some epochs, the sets in turn. Prints a table in Markdown.
"""

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import gpuload

WIDTH, HEIGHT, SIZE = 500, 375, 224


class Case(NamedTuple):
    """name: in the table. give: an image as it is packed, out of a photo. settings: of the packer."""

    name: str
    give: Callable[[Image.Image], Any]
    settings: dict[str, Any]


def _encoded(format: str, mode: str = "RGB", **options: Any) -> Callable[[Image.Image], bytes]:
    def give(photo: Image.Image) -> bytes:
        file = io.BytesIO()
        photo.convert(mode).save(file, format, **options)
        return file.getvalue()

    return give


def _sixteen(photo: Image.Image) -> bytes:
    levels = np.asarray(photo.convert("L")).astype(np.uint16) * 257
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def _bands(dtype: str, channels: int) -> Callable[[Image.Image], Any]:
    def give(photo: Image.Image) -> Any:
        levels = np.asarray(photo.convert("L"))
        return np.stack([levels] * channels, axis=2).astype(dtype)

    return give


CASES = (
    Case("JPEG, quality 90", _encoded("JPEG", quality=90), {}),
    Case("PNG", _encoded("PNG"), {}),
    Case("WebP, quality 90", _encoded("WEBP", quality=90), {"keep": "webp"}),
    Case("WebP, lossless", _encoded("WEBP", lossless=True), {"keep": "webp"}),
    Case("AVIF, quality 75", _encoded("AVIF", quality=75), {"keep": "avif"}),
    Case("TIFF", _encoded("TIFF"), {"keep": "tiff"}),
    Case("TIFF, deflate", _encoded("TIFF", compression="tiff_adobe_deflate"), {"keep": "tiff"}),
    Case("raw", _encoded("PNG"), {"encode": "raw"}),
    Case("L: JPEG, quality 90", _encoded("JPEG", "L", quality=90), {"mode": "L"}),
    Case("L: raw", _encoded("PNG", "L"), {"mode": "L", "encode": "raw"}),
    Case("RGBA: PNG", _encoded("PNG", "RGBA"), {"mode": "RGBA"}),
    Case("I;16: PNG", _sixteen, {"mode": "I;16"}),
    Case("uint16x4: raw", _bands("uint16", 4), {"mode": "uint16x4", "encode": "raw"}),
    Case("float32x7: raw", _bands("float32", 7), {"mode": "float32x7", "encode": "raw"}),
)


def photos(folder: Path, count: int) -> list[Image.Image]:
    """Crops of the photos, at different places, resized to WIDTH × HEIGHT."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    random, found = np.random.default_rng(0), []
    for number in range(count):
        with Image.open(paths[number % len(paths)]) as image:
            image.draft("RGB", (2 * WIDTH, 2 * HEIGHT))
            whole = image.convert("RGB")
        scale = min(whole.width / WIDTH, whole.height / HEIGHT)
        wide, high = int(WIDTH * scale), int(HEIGHT * scale)
        left, top = random.integers(0, [whole.width - wide + 1, whole.height - high + 1])
        found.append(whole.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, (left, top, left + wide, top + high)))
    return found


def open_loader(folder: Path, decoder: str) -> gpuload.DaliIterator:
    channels = gpuload.Dataset(folder).manifest.pixels.channels
    augment = gpuload.Augment(SIZE, mean=(0.5,) * channels, std=(0.5,) * channels)
    fields, options = ("image",), {"device": "cpu", "num_threads": 1, "drop_last": False}
    return gpuload.DaliIterator(folder, 16, augment=augment, fields=fields, decoder=decoder, **options)  # type: ignore[arg-type]


def measure(root: Path, images: Sequence[Image.Image], rounds: int) -> list[dict[str, Any]]:
    """A row for each case: bytes of an image, and ms of processor time for it by each decoder."""
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(CASES):
        samples = [{"image": case.give(image)} for image in images]
        gpuload.pack(samples, root / str(number), workers=1, progress=False, **case.settings)
        manifest = gpuload.Dataset(root / str(number) / "train").manifest
        if manifest.packing["kept"] != len(images) and case.settings.get("encode") != "raw":
            raise RuntimeError(f"{case.name}: {manifest.packing['stored_anew']} were encoded anew")
        rows.append({"name": case.name, "mode": manifest.pixels.mode, "bytes": manifest.bytes // len(images)})
    taken: dict[tuple[int, str], list[float]] = {(n, d): [] for n in range(len(CASES)) for d in ("native", "dali")}
    for _ in range(rounds):
        for number, decoder in taken:
            with open_loader(root / str(number) / "train", decoder) as loader:
                for _ in loader:  # compiles, and builds DALI's graph
                    pass
                begun = time.process_time()
                for _ in loader:
                    pass
                taken[number, decoder].append((time.process_time() - begun) / len(images) * 1e3)
    for (number, decoder), times in taken.items():
        rows[number][decoder] = round(median(times), 2)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| images | bytes | native, ms | DALI, ms |", "|---|---|---|---|"]
    lines += [f"| {row['name']} | {row['bytes']:,} | {row['native']:.2f} | {row['dali']:.2f} |" for row in rows]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of photos, JPEGs")
    parser.add_argument("--images", type=int, default=64, metavar="N", help="in each set (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="epochs of each (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch), photos(args.folder, args.images), args.rounds)
    print(table(rows))
    if args.json is not None:
        from benchmark.report import describe_machine

        found = {"machine": describe_machine(), "images": args.images, "rounds": args.rounds, "rows": rows}
        args.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
