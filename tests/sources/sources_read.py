"""What sources list, and what the command packs of them, for the tests."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images import encode, photo

from gpuload import cli
from gpuload.disk import Manifest
from gpuload.packing.verify import verify
from gpuload.sources import Listing, open_source

PHOTOS = [encode(photo(number, 40 + number, 30)) for number in range(12)]
IMAGES = {f"{number}.jpg": PHOTOS[number] for number in range(3)}
BOX = {"id": 1, "image_id": 0, "bbox": [1, 2, 3, 4], "category_id": 5}


def inside(folder: str, files: Mapping[str, bytes] = IMAGES) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


def coco(names: Sequence[str] = tuple(IMAGES), **changes: Any) -> bytes:
    """COCO's JSON of these images, the first of which has a box of the class "x". changes: of its lists."""
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    document = {"images": images, "annotations": [BOX], "categories": [{"id": 5, "name": "x"}]}
    return json.dumps({**document, **changes}).encode()


def listed(root: Path, *arguments: Any, **options: Any) -> Listing:
    """The listing of what `open_source` opens with these arguments."""
    source = open_source(root, *arguments, **options)
    with tempfile.TemporaryDirectory() as scratch:
        source.prepare(Path(scratch))
        return source.list_samples()


def names_of(listing: Listing) -> list[str]:
    return listing.samples.column("name").to_pylist()


def reasons_of(listing: Listing) -> list[tuple[str, str]]:
    return [(rejection.source, rejection.reason) for rejection in listing.rejected]


def splits_of(listing: Listing) -> list[str] | None:
    """The split of each sample; None where the source has none."""
    splits = listing.splits
    return splits and [splits.names[number] for number in splits.numbers]


def packed(source: object, out: Path, *options: object, code: int = cli.DONE) -> dict[str, Manifest]:
    """Packs by the command and verifies: the manifest of each split."""
    assert cli.main(["pack", str(source), str(out), "--workers", "1", *map(str, options)]) == code
    assert verify(out, workers=1) == []
    return {folder.name: Manifest.read(folder) for folder in sorted(out.iterdir()) if folder.is_dir()}
