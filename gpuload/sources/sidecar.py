"""A folder of images, each with files of its name beside it: `cat.jpg`, `cat.txt`, `cat.json`, `cat.png` (a mask)."""

from collections import Counter
from typing import Any

import pyarrow as pa

from gpuload.errors import DecodeError, SourceError
from gpuload.fields.field import Field
from gpuload.sources import values
from gpuload.sources.files import IMAGE_EXTENSIONS, Found, PassedOver, read_text
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.listing import Listing, Rejection, some_of

_MASK = Field("mask", "mask", "mask.png")
_BESIDE = ("txt", "json", "png")


class SidecarSource(FilesSource):
    """Images anywhere below a folder or in an archive: `.txt` beside one is its caption, `.json` its JSON, and a `.png`
    beside an image of another kind its mask.

    What most images have, all must have: one that lacks it is left out with that reason. Samples are in the order of
    their paths.
    """

    def list_samples(self) -> Listing:
        """Every image.

        Raises:
            SourceError: no such folder or archive, no image in it, or no image with a file beside it.
        """
        self.check_root("Give a folder of images with files of the same name")
        passed = PassedOver()
        samples = self._samples(passed)
        counts = Counter(kind for found in samples.values() for kind in found)
        wanted = [kind for kind in _BESIDE if counts[kind] * 2 > len(samples)]
        if not wanted:
            raise SourceError(
                f"{self.root}: most of its {len(samples):,} images have no .txt, .json or .png beside them (such as "
                f"{some_of([found['image'].name for found in samples.values()], 1)}). "
                "For classes give a folder of class folders"
            )
        passed.notes += [
            f"passed over {counts[kind]:,} × .{kind}, which most images do not have"
            for kind in _BESIDE
            if counts[kind] and kind not in wanted
        ]
        kept = []
        for _, found in sorted(samples.items()):
            lacking = [kind for kind in wanted if kind not in found]
            if lacking:
                reason = f"has no .{lacking[0]} beside it, though most images do"
                passed.rejected.append(Rejection(found["image"].name, reason))
            else:
                kept.append(found)
        fields: list[Field] = []
        columns: list[Any] = []
        for kind in wanted:
            field, column = self._field(kind, [found[kind] for found in kept])
            fields.append(field)
            columns += column
        table = files_table([found["image"] for found in kept], fields, columns)
        return Listing(table, tuple(fields), None, passed.sorted_rejections(), tuple(passed.notes))

    def _samples(self, passed: PassedOver) -> dict[str, dict[str, Found]]:
        """For each image, by its path without extension: itself as "image", and what lies beside it by extension."""
        stems: dict[str, dict[str, Found]] = {}
        for found in self.files.walk({*IMAGE_EXTENSIONS, *_BESIDE}, passed):
            stem, _, extension = found.name.rpartition(".")
            kind = extension.lower() if extension.lower() in _BESIDE else "image"
            if kind in stems.setdefault(stem, {}):
                passed.rejected.append(Rejection(found.name, f"shares its stem with {stems[stem][kind].name!r}"))
            else:
                stems[stem][kind] = found
        for beside in stems.values():
            if "image" not in beside and "png" in beside:
                beside["image"] = beside.pop("png")
        samples = {stem: beside for stem, beside in stems.items() if "image" in beside}
        if not samples:
            raise SourceError(f"{self.root}: holds no image. Images are known by their extension, such as .jpg or .png")
        return samples

    def _field(self, kind: str, files: list[Found]) -> tuple[Field, values.Columns]:
        if kind == "png":
            return _MASK, [pa.array([found.address for found in files], pa.large_string())]
        texts = [self._text(found) for found in files]
        if kind == "txt":
            return values.caption_column(str(self.root), "caption", [text.strip() for text in texts])
        return values.json_column("json", texts)

    def _text(self, found: Found) -> str:
        try:
            return read_text(self.files, found)
        except (OSError, DecodeError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.root}/{found.name}: cannot be read as UTF-8 text ({error}). Correct or remove it"
            ) from None
