"""Images with files of their names: captions, JSON and masks beside them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import are_boxes, no_captions, read_text
from gpuload.sources.files import IMAGE_EXTENSIONS, Ref, Told, extension_of
from gpuload.sources.listing import some_of
from gpuload.sources.rows import FilesSource, Row

_FIELDS = {"txt": "caption", "json": "json", "png": "mask"}  # of the files beside an image, by their extensions


class SidecarSource(FilesSource):
    """Images anywhere below a folder or in an archive: `.txt` beside one is its caption, `.json` its JSON, and a `.png`
    beside an image of another kind its mask. Where all documents are objects with "keypoints", these are a field, too.

    What most images have, all must have: one that lacks it is left out with that reason. Samples are in the order of
    their paths.
    """

    advice = "Give a folder of images with files of the same name"

    def rows(self, told: Told) -> Iterator[Row]:
        samples = self._samples(told)
        counts = Counter(extension for beside in samples for extension in beside)
        wanted = [extension for extension in _FIELDS if counts[extension] * 2 > len(samples)]
        if not wanted:
            such = some_of([beside["image"].name for beside in samples], 1)
            raise SourceError(
                f"{self.title}: most of its {counted(len(samples), 'image')} have no .txt, .json or .png beside them "
                f"(such as {such}). For classes give a folder of class folders"
            )
        told.notes += [
            f"passed over {counts[extension]:,} × .{extension}, which most images do not have"
            for extension in _FIELDS
            if counts[extension] and extension not in wanted
        ]
        whole = [beside for beside in samples if self._has_all(beside, wanted, told)]
        told.kinds["json"], told.strict = "json", True
        columns = {_FIELDS[end]: self._values([beside[end] for beside in whole], end) for end in wanted}
        documents = [_parsed(text) for text in columns.get("json", ())]
        if documents and all(isinstance(document, dict) and "keypoints" in document for document in documents):
            columns["keypoints"] = [document["keypoints"] for document in documents]
        for number, beside in enumerate(whole):
            yield {"image": beside["image"], **{name: column[number] for name, column in columns.items()}}

    def _samples(self, told: Told) -> list[dict[str, Ref]]:
        """Each image by its path without extension: itself as "image", and what lies beside it by extension."""
        stems: dict[str, dict[str, Ref]] = {}
        for file in self._files.walk({*IMAGE_EXTENSIONS, *_FIELDS}, told):
            extension = extension_of(file.name)
            kind = extension if extension in _FIELDS else "image"
            first = stems.setdefault(file.name.rpartition(".")[0], {}).setdefault(kind, file)
            if first is not file:
                told.reject(file.name, f"shares its stem with {first.name!r}")
        for beside in stems.values():
            if "image" not in beside and "png" in beside:
                beside["image"] = beside.pop("png")
        if not (samples := [beside for _, beside in sorted(stems.items()) if "image" in beside]):
            raise self.no_image(told)
        return samples

    def _has_all(self, beside: dict[str, Ref], wanted: list[str], told: Told) -> bool:
        lacking = [extension for extension in wanted if extension not in beside]
        if lacking:
            told.reject(beside["image"].name, f"has no .{lacking[0]} beside it, though most images do")
        return not lacking

    def _values(self, files: list[Ref], extension: str) -> list[Any]:
        if extension == "png":
            return files
        texts = [read_text(self._files, file, self.title) for file in files]
        if extension == "txt" and are_boxes(texts):
            raise no_captions(self.title, texts[0], "Give --from yolo")
        return [text.strip() for text in texts] if extension == "txt" else texts


def _parsed(text: str) -> Any:
    """The document; None where it is not JSON, which the loader reports when the field is requested."""
    try:
        return parse_json(text)
    except ValueError:
        return None
