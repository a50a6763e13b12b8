"""Which decoder notices which damage: decodes images that were damaged in several ways, and writes a table of the share
that each decoder refuses.

    PYTHONPATH=tests python tests/decode/noticed.py          # prints the table
    PYTHONPATH=tests python tests/decode/noticed.py --write  # and puts it into docs/lab/decode.md

Each decoder is asked as the loader asks it: "native" and DALI's CPU decoder through `FaultHandler`, which for DALI looks at
headers first; an image that is not of the size that the index says counts as refused only if the decoder says so.
"""

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from made_batches import make_batch, no_spare
from PIL import Image

from gpuload import Augment
from gpuload.decode.interface import Stored
from gpuload.decode.open import Resources, open_decoder
from gpuload.read.batch import Batch

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "decode.md"
BEGIN, END = "<!-- made by tests/decode/noticed.py -->", "<!-- end -->"
WIDTH, HEIGHT = 160, 120

Rng = np.random.Generator


class Kind(NamedTuple):
    """A kind of file. body: where its coded pixels begin and end."""

    name: str
    options: dict[str, Any]
    marker: bytes  # before the coded pixels
    tail: int  # bytes after them

    def make(self, rng: Rng, width: int = WIDTH, height: int = HEIGHT) -> bytes:
        """A smooth image with some noise."""
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((width, height))
        pixels = np.asarray(coarse).astype(np.int16) + rng.integers(-8, 9, (height, width, 1))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, **self.options)
        return file.getvalue()

    def body(self, data: bytes) -> tuple[int, int]:
        return data.index(self.marker) + 12, len(data) - self.tail


KINDS = (
    Kind("JPEG", {"format": "JPEG", "quality": 90}, b"\xff\xda", 2),
    Kind("progressive JPEG", {"format": "JPEG", "quality": 90, "progressive": True}, b"\xff\xda", 2),
    Kind("PNG", {"format": "PNG"}, b"IDAT", 16),
)


def _flip(data: bytes, at: int, rng: Rng) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _zero(data: bytes, begin: int, end: int) -> bytes:
    return data[:begin] + bytes(end - begin) + data[end:]


def _in_body(kind: Kind, data: bytes, rng: Rng, size: int = 1) -> int:
    begin, end = kind.body(data)
    return int(rng.integers(begin, end - size))


# What is done to a file, by name.
DAMAGE: dict[str, Callable[[Kind, bytes, Rng], bytes]] = {
    "none": lambda kind, data, rng: data,
    "empty": lambda kind, data, rng: b"",
    "first 64 bytes zeroed": lambda kind, data, rng: _zero(data, 0, 64),
    "truncated in the header": lambda kind, data, rng: data[: int(rng.integers(2, kind.body(data)[0]))],
    "truncated in the pixels": lambda kind, data, rng: data[: _in_body(kind, data, rng)],
    "end marker missing": lambda kind, data, rng: data[: -kind.tail],
    "end marker zeroed": lambda kind, data, rng: _zero(data, len(data) - kind.tail, len(data)),
    "second half zeroed": lambda kind, data, rng: _zero(data, len(data) // 2, len(data)),
    "a bit of the size flipped": lambda kind, data, rng: _flip(data, _size_at(data) + int(rng.integers(2)), rng),
    "a bit of the header flipped": lambda kind, data, rng: _flip(data, int(rng.integers(kind.body(data)[0])), rng),
    "a bit of the pixels flipped": lambda kind, data, rng: _flip(data, _in_body(kind, data, rng), rng),
    "200 bytes of the pixels zeroed": lambda kind, data, rng: _zeroed_run(kind, data, rng),
    "swapped, of another size": lambda kind, data, rng: kind.make(rng, WIDTH + 24, HEIGHT + 16),
    "swapped, of the same size": lambda kind, data, rng: kind.make(rng),
}


def _size_at(data: bytes) -> int:
    """Where the low bytes of the height are."""
    if data.startswith(b"\x89PNG"):
        return 22
    return next(at + 6 for at in range(len(data)) if data[at] == 0xFF and data[at + 1] in (0xC0, 0xC2)) - 1


def _zeroed_run(kind: Kind, data: bytes, rng: Rng) -> bytes:
    at = _in_body(kind, data, rng, 200)
    return _zero(data, at, at + 200)


TITLES: dict[str, Any] = {"native": "native", "DALI (CPU)": "dali"}


def measure(files: int) -> dict[str, dict[str, dict[str, int]]]:
    """By kind, damage and decoder: how many of so many damaged files the decoder refused."""
    augment = Augment((HEIGHT, WIDTH), crop="none", flip=0, dtype="uint8")
    decoders = {
        title: open_decoder(name, None, [augment.form], Stored(), Resources(files, 1, 1), None, "mark")
        for title, name in TITLES.items()
    }
    found: dict[str, dict[str, dict[str, int]]] = {}
    for kind in KINDS:
        rng = np.random.default_rng(7)
        sound = [kind.make(rng) for _ in range(files)]
        found[kind.name] = {}
        for name, change in DAMAGE.items():
            batch = _batch_of(augment, [change(kind, data, rng) for data in sound])
            row = found[kind.name][name] = {}
            for decoder, guard in decoders.items():
                (one,) = guard.decode(iter([batch]), no_spare)
                row[decoder] = len(one.faults)
    for guard in decoders.values():
        guard.close()
    return found


def _batch_of(augment: Augment, files: list[bytes]) -> Batch:
    return make_batch(augment, [np.frombuffer(data, np.uint8) for data in files], [(WIDTH, HEIGHT)] * len(files))


def verdict(noticed: int, files: int) -> str:
    """In the words of the table."""
    return "all" if noticed == files else "none" if not noticed else "some"


def make_table(found: dict[str, dict[str, dict[str, int]]], files: int) -> str:
    """A table in Markdown: a row for each damage, and columns by kind and decoder."""
    columns = [(kind, decoder) for kind, rows in found.items() for decoder in next(iter(rows.values()))]
    lines = [
        "| damage | " + " | ".join(f"{kind}, {decoder}" for kind, decoder in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name in DAMAGE:
        cells = [verdict(found[kind][name][decoder], files) for kind, decoder in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def written_table() -> str:
    """The table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100, help="of each kind with each damage")
    parser.add_argument("--write", action="store_true", help="put the table into docs/lab/decode.md")
    args = parser.parse_args(argv)
    table = make_table(measure(args.files), args.files)
    print(table)
    if args.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        PAGE.write_text(f"{before}\n{table}\n\n{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
