"""A folder of images, each with files of its name beside it: `cat.jpg`, `cat.txt`, `cat.json`, `cat.png` (a mask)."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.sources import values
from gpuload.sources.folder import IMAGE_EXTENSIONS, walk_files
from gpuload.sources.listing import Listing, Rejection, Source, listing_schema, read_file, some_of

_MASK = Field("mask", "mask", "mask.png")


class SidecarSource(Source):
    """Images anywhere below a folder: `.txt` beside one is its caption, `.json` its JSON, and a `.png` beside an image
    of another kind its mask.

    What most images have, all must have: one that lacks it is left out with that reason. Samples are in the order of
    their paths.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def list_samples(self) -> Listing:
        """Every image.

        Raises:
            SourceError: no such folder, no image in it, or no image with a file beside it.
        """
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: no such folder. Give a folder of images with files of the same name")
        stems: dict[str, dict[str, str]] = {}
        sizes: dict[str, int] = {}
        rejected: list[Rejection] = []
        for name, size in walk_files(self.root, rejected):
            stem, dot, extension = name.rpartition(".")
            extension = extension.lower()
            if not dot or extension not in (*IMAGE_EXTENSIONS, "txt", "json"):
                continue
            kind = extension if extension in ("txt", "json", "png") else "image"
            if kind in stems.setdefault(stem, {}):
                rejected.append(Rejection(name, f"shares its stem with {stems[stem][kind]!r}"))
                continue
            stems[stem][kind] = name
            sizes[name] = size
        for found in stems.values():
            if "image" not in found and "png" in found:
                found["image"] = found.pop("png")
        samples = {stem: found for stem, found in stems.items() if "image" in found}
        if not samples:
            raise SourceError(f"{self.root}: holds no image. Images are known by their extension, such as .jpg or .png")
        counts = Counter(kind for found in samples.values() for kind in found)
        wanted = [kind for kind in ("txt", "json", "png") if counts[kind] * 2 > len(samples)]
        if not wanted:
            raise SourceError(
                f"{self.root}: most of its {len(samples):,} images have no .txt, .json or .png beside them (such as "
                f"{some_of([found['image'] for found in samples.values()], 1)}). "
                "For classes give a folder of class folders"
            )
        notes = tuple(
            f"passed over {counts[kind]:,} × .{kind}, which most images do not have"
            for kind in ("txt", "json", "png")
            if counts[kind] and kind not in wanted
        )
        kept = []
        for _, found in sorted(samples.items()):
            lacking = [kind for kind in wanted if kind not in found]
            if lacking:
                rejected.append(Rejection(found["image"], f"has no .{lacking[0]} beside it, though most images do"))
            else:
                kept.append(found)
        names = [found["image"] for found in kept]
        fields: list[Field] = []
        columns: list[Any] = [names, [sizes[name] for name in names]]
        for kind in wanted:
            files = [found[kind] for found in kept]
            if kind == "png":
                field, column = _MASK, [pa.array(files, pa.large_string())]
            elif kind == "txt":
                texts = [self._text(name).strip() for name in files]
                field, column = values.caption_column(str(self.root), "caption", texts)
            else:
                field, column = values.json_column("json", [self._text(name) for name in files])
            fields.append(field)
            columns += column
        rejected.sort(key=lambda rejection: rejection.source)
        table = pa.table(columns, schema=listing_schema(tuple(fields)))
        return Listing(table, tuple(fields), None, tuple(rejected), notes)

    def _text(self, name: str) -> str:
        try:
            return (self.root / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.root / name}: cannot be read as UTF-8 text ({error}). Mend or remove it"
            ) from None

    def read(self, row: int, name: str, where: str = "") -> bytes:
        return read_file(os.path.join(self.root, name))

    def read_field(self, field: Field, row: int, where: str) -> bytes:
        return self.read(row, where)
