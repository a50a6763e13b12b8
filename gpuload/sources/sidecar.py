"""A folder of images, each with files of its name beside it: `cat.jpg`, `cat.txt`, `cat.json`, `cat.png` (a mask)."""

from collections import Counter
from typing import Any

from gpuload.counted import counted
from gpuload.errors import DecodeError, SourceError
from gpuload.headers.json_text import parse_json
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.files import IMAGE_EXTENSIONS, Found, PassedOver, read_text
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.listing import NAME, Listing, Rejection, some_of
from gpuload.sources.splits import splits_of_paths

_BESIDE = ("txt", "json", "png")


class SidecarSource(FilesSource):
    """Images anywhere below a folder or in an archive: `.txt` beside one is its caption, `.json` its JSON, and a `.png`
    beside an image of another kind its mask. Where all documents are objects with "keypoints", these are a field, too.

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
                f"{self.root}: most of its {counted(len(samples), 'image')} have no .txt, .json or .png beside them "
                "(such as "
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
        fields = FieldColumns(str(self.root))
        for extension in wanted:
            self._add(fields, extension, [found[extension] for found in kept])
        table = files_table([found["image"] for found in kept], fields.fields, fields.columns)
        names = table.column(NAME).to_pylist()
        own = splits_of_paths(str(self.root), names) if self.own_splits else None
        return Listing(table, tuple(fields.fields), None, passed.sorted_rejections(), tuple(passed.notes), own)

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

    def _add(self, fields: FieldColumns, extension: str, files: list[Found]) -> None:
        """Adds the field of the files with this extension, and the keypoints that their documents hold."""
        if extension == "png":
            fields.add("mask", "mask", [found.address for found in files])
            return
        texts = [self._text(found) for found in files]
        if extension == "txt":
            fields.add("caption", "caption", [text.strip() for text in texts])
            return
        fields.add("json", "json", texts)
        documents = [_parsed(text) for text in texts]
        if documents and all(isinstance(document, dict) and "keypoints" in document for document in documents):
            fields.add("keypoints", "keypoints", [document["keypoints"] for document in documents])

    def _text(self, found: Found) -> str:
        try:
            return read_text(self.files, found)
        except (OSError, DecodeError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.root}/{found.name}: cannot be read as UTF-8 text ({error}). Correct or remove it"
            ) from None


def _parsed(text: str) -> Any:
    """The document, or None where it is no JSON, which the loader reports for whoever asks for it."""
    try:
        return parse_json(text)
    except ValueError:
        return None
