"""How many bytes of remote shards would be moved if only what is needed of them were: the figures of decision 21.

    python benchmarks/partial_reads.py PHOTOS FOLDER --json figures.json

Makes in FOLDER sets of mosaics of the photos in PHOTOS, unscaled, as JPEGs of quality 90: of 4K (3840×2160) and of 20
megapixels (5472×3648), with seek points; and a set of crops of 500×375. For each case it computes from the index which
bytes are needed, and how many would be moved if pieces of some size had a hash each and were moved as a whole: as a
share of the bytes of all shards, in the first epoch, and in all of 5, 20 and 90 with a cache that keeps what was moved.
Then it moves those of a selection from a server on the loopback with a rate and a latency, against whole shards.

Exit code 0.
"""

import argparse
import asyncio
import io
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpuload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.remote.processes import served, stats

PIECES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
EPOCHS = (1, 5, 20, 90)
SHARD_BYTES = 128 << 20
AT_A_TIME = 16
RANGE_BYTES = 8 << 20
CONTEXT = 2  # pixels around a crop from which its chroma is interpolated
END_BYTES = 2  # of the marker of a JPEG's end, without which it is not decoded in part
Span = tuple[int, int]


def mosaic(photos: list[Image.Image], width: int, height: int, rng: Any) -> bytes:
    """Unscaled photos side by side, each at its own random place."""
    canvas = Image.new("RGB", (width, height))
    for left in range(0, width, 1024):
        for top in range(0, height, 1024):
            photo = photos[rng.integers(len(photos))]
            x = rng.integers(max(1, photo.width - 1024))
            y = rng.integers(max(1, photo.height - 1024))
            canvas.paste(photo.crop((x, y, x + 1024, y + 1024)), (left, top))
    file = io.BytesIO()
    canvas.save(file, "JPEG", quality=90)
    return file.getvalue()


def crop_of(photos: list[Image.Image], rng: Any) -> bytes:
    """A photo like those of ImageNet."""
    photo = photos[rng.integers(len(photos))]
    x = rng.integers(max(1, photo.width - 1200))
    y = rng.integers(max(1, photo.height - 900))
    file = io.BytesIO()
    part = photo.crop((x, y, x + 1200, y + 900)).resize((500, 375))
    part.save(file, "JPEG", quality=95)
    return file.getvalue()


def make_sets(photos: Path, folder: Path) -> dict[str, gpuload.Dataset]:
    images = [Image.open(path).convert("RGB") for path in sorted(photos.glob("*.jpg"))]
    rng = np.random.default_rng(0)
    makers: dict[str, tuple[int, Any]] = {
        "crops": (600, lambda: crop_of(images, rng)),
        "4K": (8, lambda: mosaic(images, 3840, 2160, rng)),
        "20 MP": (6, lambda: mosaic(images, 5472, 3648, rng)),
    }
    sets = {}
    for name, (count, make) in makers.items():
        place = folder / name.replace(" ", "-")
        if not (place / "train").exists():
            samples = [{"image": make(), "label": 0} for _ in range(count)]
            gpuload.pack(samples, place, workers=1, progress=False)
        sets[name] = gpuload.Dataset(place / "train")
    return sets


def _rounded_up(number: int, divisor: int) -> int:
    return -(-number // divisor)


class Bits:
    """Reads numbers of some bits each, from the highest bit of a byte on."""

    def __init__(self, data: bytes) -> None:
        self._number = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, width: int, count: int) -> list[int]:
        numbers = []
        for _ in range(count):
            self._left -= width
            numbers.append(self._number >> self._left & (1 << width) - 1)
        return numbers


class JpegMap:
    """Where in a JPEG each part of its image is, by its seek points (docs/format.md).

    Args:
        data: The file.
        points: Its seek points.
        width: Of the image.
        height: Of the image.
    """

    def __init__(self, data: bytes, points: bytes, width: int, height: int) -> None:
        frame = data.index(b"\xff\xc0")
        sampling = data[frame + 11]
        self.mcu = 8 * (sampling >> 4), 8 * (sampling & 15)
        columns = -(-width // self.mcu[0])
        rows = -(-height // self.mcu[1])
        self.step = points[0]
        self._size = len(data)
        widths = points[1:6]
        in_row = -(-columns // self.step)
        bits = Bits(points[6:-8])
        down = bits.take(widths[0], rows - 1)
        across = bits.take(widths[1], rows * (in_row - 1))
        scan = data.index(b"\xff\xda", frame)
        self.start = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
        first = np.concatenate([[0], np.cumsum(down)]) + 8 * self.start
        steps = np.array(across).reshape(rows, in_row - 1).cumsum(axis=1)
        # The bit of each point, and behind the last one of a row the first of the next row.
        self.bits = np.concatenate([first[:, None], first[:, None] + steps], axis=1)
        ends = np.append(first[1:], 8 * len(data))
        self.bits = np.concatenate([self.bits, ends[:, None]], axis=1)

    def spans(self, top: int, left: int, height: int, width: int) -> list[Span]:
        """The bytes that a crop needs: of each row of MCUs, and what is before and after the scan."""
        first = max(0, left - CONTEXT) // self.mcu[0] // self.step
        end_column = _rounded_up(left + width + CONTEXT, self.mcu[0])
        last = min(_rounded_up(end_column, self.step), self.bits.shape[1] - 1)
        end_row = _rounded_up(top + height + CONTEXT, self.mcu[1])
        first_row = max(0, top - CONTEXT) // self.mcu[1]
        rows = range(first_row, min(end_row, len(self.bits)))
        return [
            (0, self.start),
            (self._size - END_BYTES, self._size),
            *(
                (int(self.bits[row, first]) // 8, int(self.bits[row, last]) // 8 + 8)
                for row in rows
            ),
        ]


def pieces_of(spans: Iterable[Span], size: int) -> set[int]:
    """The numbers of the pieces of a file that hold these bytes."""
    numbers: set[int] = set()
    for begin, end in spans:
        numbers.update(range(begin // size, -(-end // size)))
    return numbers


def crops_case(dataset: gpuload.Dataset, side: int) -> dict[str, Any]:
    """A random crop of each image in each epoch: shares of the bytes of the images."""
    rng = np.random.default_rng(1)
    shares: dict[str, Any] = {str(size): {} for size in PIECES}
    needed = 0
    total = 0
    moved = {size: [set[int]() for _ in range(len(dataset))] for size in PIECES}
    maps = []
    for row in dataset.rows(0).to_pylist():
        with dataset.shard_paths[0].open("rb") as file:
            file.seek(row["image_offset"])
            data = file.read(row["image_bytes"])
        size = row["width"], row["height"]
        maps.append((JpegMap(data, row["image_points"], *size), *size))
        total += len(data)
    for epoch in range(1, max(EPOCHS) + 1):
        for number, (of_image, width, height) in enumerate(maps):
            top = int(rng.integers(height - side + 1))
            left = int(rng.integers(width - side + 1))
            spans = of_image.spans(top, left, side, side)
            if epoch == 1:
                needed += sum(end - begin for begin, end in spans)
            for piece in PIECES:
                moved[piece][number] |= pieces_of(spans, piece)
        if epoch in EPOCHS:
            for piece in PIECES:
                count = sum(map(len, moved[piece]))
                shares[str(piece)][str(epoch)] = min(1.0, count * piece / total)
    return {
        "needed": needed / total,
        "moved": shares,
        "bytes_an_image": total / len(maps),
    }


def selection_case(dataset: gpuload.Dataset, share: float) -> dict[str, Any]:
    """A random selection of samples, of shards of 128 MiB: shares of their bytes."""
    sizes = np.concatenate(
        [rows.column("image_bytes").to_numpy() for _, rows in dataset.all_rows()]
    )
    rng = np.random.default_rng(2)
    spans_of = 1024 + rng.choice(sizes, 4 * SHARD_BYTES // int(sizes.mean())) + 512
    ends = np.cumsum(spans_of)
    ends = ends[ends < SHARD_BYTES]
    begins = np.concatenate([[0], ends[:-1]])
    chosen = np.flatnonzero(rng.random(len(ends)) < share)
    spans = list(zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True))
    needed = sum(end - begin for begin, end in spans)
    moved = {
        str(piece): len(pieces_of(spans, piece)) * piece / SHARD_BYTES
        for piece in PIECES
    }
    return {"needed": needed / SHARD_BYTES, "moved": moved, "samples": len(ends)}


async def fetch_spans(url: str, name: str, spans: list[Span]) -> float:
    """Seconds that moving these bytes takes."""
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    limit = asyncio.Semaphore(AT_A_TIME)

    async def fetch(begin: int, end: int) -> None:
        async with limit:
            await store.get_range_async(name, start=begin, end=end)

    started = time.monotonic()
    await asyncio.gather(*(fetch(*span) for span in spans))
    return time.monotonic() - started


def runs_of(numbers: set[int], size: int, total: int) -> list[Span]:
    """Adjoining pieces as one range each."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number * size:
            runs[-1][1] += size
        else:
            runs.append([number * size, (number + 1) * size])
    return [(begin, min(end, total)) for begin, end in runs]


def timed_selection(folder: Path, rate: float, latency: float) -> dict[str, Any]:
    """Moving 1 % of the samples of one shard of 128 MiB, in pieces of 64 KiB, against the whole shard."""
    (folder / "network").mkdir(exist_ok=True)
    shard = folder / "network" / "shard.tar"
    shard.write_bytes(np.random.default_rng(3).bytes(SHARD_BYTES))
    rng = np.random.default_rng(4)
    begins = np.arange(0, SHARD_BYTES - 110_000, 110_000)
    chosen = begins[rng.random(len(begins)) < 0.01].tolist()
    piece = 64 << 10
    needed = pieces_of([(begin, begin + 110_000) for begin in chosen], piece)
    whole = [(at, at + RANGE_BYTES) for at in range(0, SHARD_BYTES, RANGE_BYTES)]
    figures: dict[str, Any] = {"rate": rate, "latency": latency, "samples": len(chosen)}
    with served(folder / "network", rate, latency) as url:
        for name, spans in (
            ("ranges", runs_of(needed, piece, SHARD_BYTES)),
            ("whole", whole),
        ):
            before = stats(url)
            seconds = asyncio.run(fetch_spans(url, "shard.tar", spans))
            after = stats(url)
            figures[name] = {
                "seconds": seconds,
                "bytes": after.bytes - before.bytes,
                "requests": len(spans),
            }
    return figures


def measure(photos: Path, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    sets = make_sets(photos, folder)
    return {
        "selection of 1 %": selection_case(sets["crops"], 0.01),
        "selection of 10 %": selection_case(sets["crops"], 0.1),
        "tiles of 512 of 4K": crops_case(sets["4K"], 512),
        "crops of 224 of 20 MP": crops_case(sets["20 MP"], 224),
        "crops of 512 of 20 MP": crops_case(sets["20 MP"], 512),
        "network": timed_selection(folder, 150e6, 0.01),
        "slow network": timed_selection(folder, 20e6, 0.05),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, help="a folder of large JPEGs")
    parser.add_argument("folder", type=Path, help="for the sets")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures = measure(args.photos, args.folder)
    print(json.dumps(figures, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
