"""Draws the diagrams of docs/concepts.md as SVG files in docs/images, which the page includes.

    python tools/documentation/diagrams.py

Lines and text have the colour of the text around them (currentColor), so that they can be read in light and dark mode.
"""
# Text in a drawing is one line.

import argparse
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TEAL, ORANGE, PURPLE = "#1b9e8f", "#e07b28", "#8f6fd0"


class Drawing:
    """An SVG image, drawn from top to bottom; coordinates are in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'aria-label="{title}" font-family="sans-serif" font-size="13" fill="currentColor">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>',
        ]

    def text(self, x: float, y: float, text: str, anchor: str = "middle", size: int = 13, color: str = "") -> None:
        fill = f' fill="{color}"' if color else ""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}"{fill}>{text}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", color: str = "", fill: float = 0.18
    ) -> None:
        shade = (
            f'fill="{color}" fill-opacity="{fill}" stroke="{color}"' if color else 'fill="none" stroke="currentColor"'
        )
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" stroke-width="1.3" {shade}/>'
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4.5 + 17 * (number - (len(lines) - 1) / 2), line)

    def arrow(self, x0: float, y0: float, x1: float, y1: float, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="currentColor" stroke-width="1.3"{dash} '
            'marker-end="url(#tip)"/>'
        )

    def line(self, x0: float, y0: float, x1: float, y1: float, color: str = "currentColor", width: float = 1.3) -> None:
        self.parts.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="{color}" stroke-width="{width}"/>')

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def shards() -> Drawing:
    draw = Drawing(760, 250, "A folder of images is packed into shards, an index and a manifest")
    for number, name in enumerate(("photos/bridge/…jpg", "photos/fossa/…jpg", "photos/wine/…jpg")):
        draw.box(10, 55 + 42 * number, 160, 32, name)
    draw.arrow(180, 113, 258, 113)
    draw.text(219, 103, "pack")
    draw.box(270, 20, 480, 220, "")
    draw.text(282, 40, "shards/train", "start")
    for number in range(3):
        x = 285 + 152 * number
        draw.box(x, 52, 140, 104, "", TEAL)
        draw.text(x + 70, 70, f"shard-00000{number}.tar")
        for row, member in enumerate(("00000007.jpg", "00000007.cls", "00000002.jpg", "…")):
            draw.text(x + 14, 90 + 17 * row, member, "start", 12)
    draw.box(285, 170, 216, 58, "index.arrow\na row for each sample", ORANGE)
    draw.box(513, 170, 224, 58, "manifest.json\nshards, classes, fields", PURPLE)
    return draw


def window() -> Drawing:
    draw = Drawing(760, 230, "Shards are permuted, and samples are mixed within a window of shards")
    draw.text(10, 22, "1. The shards of a pass are permuted by (seed, epoch)", "start")
    order = (5, 2, 7, 0, 8, 3, 1, 6, 4)
    for number, shard in enumerate(order):
        draw.box(10 + 82 * number, 34, 74, 34, f"shard {shard}", (TEAL, ORANGE, PURPLE)[number // 3])
    draw.text(
        10,
        106,
        "2. Windows of shards (here 3, by default 8) are mixed: samples of a window come in random order",
        "start",
    )
    pattern = (0, 2, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2)
    for group, color in enumerate((TEAL, ORANGE, PURPLE)):
        x = 10 + 246 * group
        draw.box(x, 118, 238, 44, "", color)
        for number, source in enumerate(pattern):
            draw.box(x + 7 + 19 * number, 126, 15, 28, str(order[3 * group + source]), color, 0.45)
    draw.text(
        10,
        190,
        "The numbers say which shard a sample comes from. While a window is handed out, the next one is",
        "start",
    )
    draw.text(10, 210, "read ahead in the background, so memory and disk see a few shards at a time.", "start")
    return draw


def order() -> Drawing:
    draw = Drawing(760, 226, "Global batches are slices of the order; each rank takes its part of a slice")
    draw.text(
        10, 22, "The order of an epoch: a permutation of the samples that depends on (seed, epoch) alone", "start"
    )
    numbers = (17, 4, 9, 22, 0, 13, 6, 19, 11, 2, 20, 7, 15, 3, 21, 8)
    for number, sample in enumerate(numbers):
        color = (TEAL, ORANGE)[number // 8]
        draw.box(10 + 46 * number, 34, 42, 30, str(sample), color, 0.18 if number % 8 < 4 else 0.5)
    for group, color in enumerate((TEAL, ORANGE)):
        x = 10 + 368 * group
        draw.line(x, 74, x + 364, 74, color, 3)
        draw.text(x + 182, 93, f"global batch {group}")
        for rank in range(2):
            draw.arrow(x + 90 + 184 * rank, 100, x + 90 + 184 * rank, 126)
            draw.box(x + 8 + 184 * rank, 130, 164, 32, f"rank {rank}: 4 samples", color, 0.18 if rank == 0 else 0.5)
    draw.text(
        10,
        192,
        "With 4 ranks and batches of 2, the same global batches are cut into other parts: the run trains on the",
        "start",
    )
    draw.text(10, 212, "same samples in the same steps.", "start")
    return draw


def stream() -> Drawing:
    draw = Drawing(760, 180, "Epochs are cut from a stream of passes over the data")
    for number in range(3):
        color = (TEAL, ORANGE, PURPLE)[number]
        draw.box(10 + 246 * number, 34, 242, 36, f"pass {number}: each sample once", color)
    draw.text(10, 22, "The stream: passes over the data, one after another", "start")
    for number, (start, stop) in enumerate(((10, 170), (170, 330), (330, 490), (490, 650))):
        draw.line(start + 2, 92, stop - 2, 92, "currentColor", 3)
        draw.text((start + stop) / 2, 112, f"epoch {number}")
    draw.arrow(652, 92, 745, 92, dashed=True)
    draw.text(
        10,
        146,
        "By default an epoch is one pass. With steps_per_epoch it is that many batches, and the next epoch",
        "start",
    )
    draw.text(10, 166, "continues where the last one stopped. Mixtures and weights are streams, too.", "start")
    return draw


def decoder() -> Drawing:
    draw = Drawing(760, 232, "A batch on its way from the shards to the training loop")
    stages = (
        ("shards", "memory-mapped,\nread ahead", ""),
        ("read", "order, bytes,\nrandom numbers\nfor augmentation", TEAL),
        ("decode", "threads or GPU:\nonly what the crop\nshows", ORANGE),
        ("hand over", "fields, batch\ntransforms, arrays", PURPLE),
        ("your loop", "trains", ""),
    )
    for number, (name, what, color) in enumerate(stages):
        x = 10 + 151 * number
        draw.box(x, 34, 126, 84, what, color)
        draw.text(x + 63, 24, name)
        if number:
            draw.arrow(x - 23, 76, x - 3, 76)
    draw.text(
        10, 150, "Batches are decoded ahead (prefetch), while the training loop works on an earlier one:", "start"
    )
    for row, (name, shift, color) in enumerate((("decode", 0, ORANGE), ("train", 1, TEAL))):
        draw.text(60, 181 + 28 * row, name, "end")
        for number in range(5):
            draw.box(70 + 110 * (number + shift), 166 + 28 * row, 106, 22, f"batch {number}", color, 0.3)
    return draw


def resume() -> Drawing:
    draw = Drawing(760, 236, "A run stops after a batch and resumes with another number of ranks")
    draw.text(10, 22, "Epoch 3 on 2 ranks with batches of 64", "start")
    for number in range(5):
        draw.box(10 + 74 * number, 32, 70, 34, f"{128 * number}…", TEAL, 0.35)
    draw.line(382, 24, 382, 96, ORANGE, 3)
    draw.text(392, 46, "stop: state_dict() is a few numbers,", "start")
    draw.text(392, 64, "epoch 3, 640 samples handed out", "start")
    draw.arrow(382, 98, 382, 130)
    draw.text(392, 118, "load_state_dict(state)", "start")
    draw.text(10, 150, "Epoch 3 goes on, on 4 ranks with batches of 48", "start")
    draw.box(10, 160, 370, 34, "handed out before the stop", "", 0)
    for number in range(3):
        draw.box(384 + 118 * number, 160, 114, 34, f"{640 + 192 * number}…", ORANGE, 0.35)
    draw.text(
        10, 222, "The run sees exactly the rest of the epoch, with the same crops, then the right next epoch.", "start"
    )
    return draw


DRAWINGS = {"shards": shards, "window": window, "order": order, "stream": stream, "decoder": decoder, "resume": resume}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the files (default: docs/images)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (options.out / f"{name}.svg").write_text(draw().svg())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
