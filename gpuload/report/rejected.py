"""What the packer left out of a split, and why: `rejected.jsonl`."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile

from gpuload.headers.json_text import parse_json
from gpuload.headers.limits import MAX_PIXELS
from gpuload.pictures.embed import jpeg_uri, thumbnail
from gpuload.report.splits import Split
from gpuload.store.url import URL

FILE_NAME = "rejected.jsonl"
_MOST_LISTED, _TEXT = 500, 300
_MOST_BYTES = 40_000_000  # of the list, and of a picture


def read_rejected(split: Split, source: Path | None) -> dict[str, Any]:
    """The number of images that were rejected, and left out on request; reasons with their counts; the first 500.

    source: the folder that the set was packed from, where pictures are looked for; None where it was not given.
    """
    found: dict[str, Any] = {"split": split.name, "rejected": 0, "left_out": 0, "reasons": [], "samples": []}
    folder = split.dataset.folder
    if isinstance(folder, URL):
        return found
    reasons = Counter[tuple[str, bool]]()
    try:
        with (folder / FILE_NAME).open("rb") as file:
            for line in file.read(_MOST_BYTES).splitlines():
                _add(line, reasons, found["samples"])
    except OSError:  # shards that were only indexed have none
        return found
    for (_, asked), count in reasons.items():
        found["left_out" if asked else "rejected"] += count
    found["reasons"] = [
        {"reason": reason, "asked": asked, "count": count} for (reason, asked), count in reasons.most_common(50)
    ]
    if source is not None:
        for sample in found["samples"]:
            sample["picture"] = picture_of(source, sample["source"])
    return found


def _add(line: bytes, reasons: "Counter[tuple[str, bool]]", samples: list[dict[str, Any]]) -> None:
    try:
        entry = parse_json(line)
        name, reason, asked = str(entry["source"]), str(entry["reason"])[:_TEXT], bool(entry.get("asked"))
    except (ValueError, KeyError, TypeError, AttributeError):
        name, reason, asked = "", "a line of the list that cannot be read", False
    if len(reasons) < 1000 or (reason, asked) in reasons:
        reasons[reason, asked] += 1
    if len(samples) < _MOST_LISTED:
        samples.append({"source": name[:_TEXT], "reason": reason, "asked": asked, "picture": None})


def picture_of(root: Path, name: str) -> str | None:
    """A thumbnail of what can be made out of a file below `root`, as far as it decodes; None where nothing can."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()) or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return jpeg_uri(thumbnail(_decode_what_is_there(path.read_bytes()), 168, 112))
    except Exception:  # Pillow's decoders raise many kinds; a picture is only an extra
        return None


def _decode_what_is_there(content: bytes) -> Image.Image:
    """An image, of which the end may be missing; gray or black there."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError("too large")
            found: Image.Image = image.convert("RGB")
            return found
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
