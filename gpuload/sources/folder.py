"""Class folders, `root/<class>/**/<image>` or `root/<split>/<class>/**/<image>`; and images alone: `--no-labels`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import are_boxes, no_captions, read_text
from gpuload.sources.at_path import FilesSource
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Findings, Ref, extension_of, is_text, printable
from gpuload.sources.listing import SPLIT, ambiguous, by_folders, some_of, splits_called
from gpuload.sources.local_folder import Folder
from gpuload.sources.rows import Row

_BESIDE = Counter((".txt", ".json"))
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json")
# Folders that data sets have for all of their images, or for what belongs to these: almost never a class.
_NO_CLASSES = frozenset(("images", "image", "imgs", "img", "jpegimages", "annotations", "masks"))
_MASKS = ("masks", "mask", "annotations", "labels", "segmentations")


class FolderSource(FilesSource):
    """Images in a folder, or an archive, of class folders.

    Classes are the sorted names of the folders at the first level, as torchvision's ImageFolder numbers them; a class
    folder without an image keeps its number (ImageFolder stops there, or keeps it with `allow_empty`). Folders below a
    class are searched too. Hidden files and folders are passed over. An image is known by its extension in any case.
    Samples are in the order of their paths, folder by folder.

    Where the folders at the first level are called as splits are (see `splits`), the class folders are those in them,
    and all splits have one list of classes.

    sure: whether class folders are what the user said, so that no name is too unlikely for a class.
    """

    sure: bool = False
    advice = "Give a folder of class folders, as in photos/cat/1.jpg"

    def rows(self, findings: Findings) -> Iterator[Row]:
        tops = self._files.folders()
        splits = splits_called(self.title, "its folders", tops) if self.own_splits else {}
        classes = sorted({name for place in splits or ("",) for name in self._files.folders(place)})
        if wrong := [printable(name) for name in classes if not is_text(name)]:
            raise SourceError(f"{self.title}: the class folder {wrong[0]!r} has a name that is not UTF-8. Rename it")
        findings.classes["label"] = tuple(classes)
        numbers, depth = {name: number for number, name in enumerate(classes)}, 1 if splits else 0
        placed: dict[tuple[str, ...], None] = {}
        for image in self._files.walk(IMAGE_EXTENSIONS | ({"npy"} if self.as_stored else set()), findings):
            folders = tuple(image.name.split("/")[:-1])
            placed[folders] = None
            if depth and folders and folders[0] not in splits:
                continue  # `_check` raises
            if len(folders) <= depth:
                findings.reject(image.name, "lies in no class folder")
            else:
                row = {"image": image, "label": numbers[folders[depth]]}
                yield row | {SPLIT: splits[folders[0]]} if depth else row
        layout = _Layout(splits, classes, placed)
        self._check(layout, findings)
        findings.notes += layout.notes(tops, self.title, self._files)
        findings.origin = by_folders({split for split, _ in layout.full}) if splits else ""

    def _check(self, layout: "_Layout", findings: Findings) -> None:
        """Raises SourceError where these are not class folders, or are ambiguous."""
        classes, splits = layout.classes, some_of(sorted(layout.splits))
        if layout.others:
            raise SourceError(ambiguous(self.title, list(layout.splits), some_of(layout.others)))
        if layout.bare:
            which = "Give the others alone" if layout.full else f"Give {labels_advice(self._files)}"
            raise SourceError(
                f"{self.title}: the images in {some_of(layout.bare)} lie in no class folder, so they have no class. "
                f"{which}, or --no-labels for the images of all, or --no-splits if {splits} are classes"
            )
        if not classes:
            notes = "".join(f"; {note}" for note in findings.notes)
            beside = ", or --from sidecar for the .txt or .json beside them" if findings.others & _BESIDE else ""
            flat = counted(len(findings.rejected), "image lies", "images lie")
            raise SourceError(
                f"{self.title}: holds no class folders ({flat} in it directly{notes}). Put each image into a folder "
                f"named after its class, or give {labels_advice(self._files)}, or --no-labels{beside}"
            )
        if not layout.full:
            raise self.no_image(
                findings, f"no image in its {counted(len(classes), 'class folder')} ({some_of(classes)})"
            )
        unlikely = [name for name in layout.full_classes if name.lower() in _NO_CLASSES]
        if unlikely and not self.sure:
            place = layout.place_of(unlikely[0])
            inside = f"{self.title}/{place} if its folders are the classes, " if self._files.folders(place) else ""
            also = f" (also found: {findings.by_extension()})" if findings.others else ""
            raise SourceError(
                f"{self.title}: the folder {place!r} does not look like a class{also}. Give {inside}"
                f"{labels_advice(self._files)}, --no-labels for the images alone, or --from folder if it is one"
            )


class _Layout:
    """Where the images of class folders lie.

    splits: the split of each folder at the first level, where these are splits. placed: the folders of each image.
    full: the folder of the split ("" without) and the class of all that hold images. full_classes: these, sorted.
    bare: splits of which no image lies in a class folder. others: folders with images beside the splits.
    """

    def __init__(self, splits: dict[str, str], classes: list[str], placed: Iterable[tuple[str, ...]]) -> None:
        self.splits, self.classes = splits, classes
        inside = [folders if splits else ("", *folders) for folders in placed if folders or not splits]
        self.others = sorted({top for top, *_ in inside} - set(splits or ("",)))
        self.full = {(top, folders[0]) for top, *folders in inside if folders}
        self.full_classes = sorted({name for _, name in self.full})
        self.bare = sorted(set(splits) & {top for top, *_ in inside} - {top for top, _ in self.full})
        self._folders = [folders for folders in inside if len(folders) > 1]

    def place_of(self, name: str) -> str:
        """A folder of a class with images."""
        return "/".join(min(pair for pair in self.full if pair[1] == name)).lstrip("/")

    def notes(self, tops: list[str], title: str, files: Files) -> list[str]:
        """Notes on folders without images, on splits, and on folders that may be other classes than they seem.

        tops: the folders at the first level.
        """
        notes, full = [], self.full_classes
        if empty := [name for name in self.classes if name not in full]:
            hold = counted(len(empty), "class folder holds", "class folders hold")
            keep = "keeps its" if len(empty) == 1 else "keep their"
            notes.append(f"{hold} no image and {keep} class number: {some_of(empty)}")
        if self.splits and (others := [name for name in tops if name not in self.splits]):
            notes.append(f"passed over {some_of(others)} beside the splits: no images in there")
        used = {split: name for name, split in self.splits.items() if any(name == top for top, _ in self.full)}
        if lacking := sorted(set(self.splits) - set(used.values())):
            notes.append(f"no image in {some_of(lacking)}, so there is no such split")
        if list(used) == ["train"]:
            notes.append(f"{used['train']!r} is taken as a split and not as a class; --no-splits takes it as a class")
        if "train" in used and (unseen := [name for name in full if (used["train"], name) not in self.full]):
            notes.append(f"classes without an image in {used['train']!r}: {some_of(unseen)}")
        if len(full) == 1:
            inside = files.folders(place := self.place_of(full[0]))
            more = f". If its folders ({some_of(inside)}) are the classes, give {title}/{place}" if inside else ""
            notes.append(f"all images are of one class, {full[0]!r}{more}")
        elif all(len(folders) > 2 for folders in self._folders):
            such = f"such as {'/'.join(self._folders[0]).lstrip('/')!r}; the classes are {some_of(full)}"
            notes.append(f"no image lies directly in a class folder, but in folders below, {such}")
        return notes


def labels_advice(files: Files) -> str:
    """How to give labels from elsewhere, with a table that lies there."""
    tables = [name for name in files.names() if name.lower().endswith(_TABLES)]
    return f"--labels {Path(files.path, tables[0])}" if tables and isinstance(files, Folder) else "--labels table.csv"


class UnlabeledSource(FilesSource):
    """Every image below a folder or in an archive, without any other field.

    An image is known by its extension in any case. Hidden files and folders are passed over. Samples are in the order
    of their paths, folder by folder. Folders that are called as splits are (see `splits`) are the splits.
    """

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.strict, counts = True, Counter[str]()
        for image in self._files.walk(IMAGE_EXTENSIONS, findings):
            counts[image.name.rpartition("/")[0].partition("/")[0]] += 1
            yield {"image": image}
        if not counts:
            raise self.no_image(findings)
        masks = [name for name in counts if name.lower() in _MASKS]
        if masks and set(counts) - {"", *masks[:1]}:
            findings.notes.append(f"images in {masks[0]!r} are packed like all others: {counts[masks[0]]:,}")


_FIELDS = {"txt": "caption", "json": "json", "png": "mask"}  # of the files beside an image, by their extensions


class SidecarSource(FilesSource):
    """Images anywhere below a folder or in an archive: `.txt` beside one is its caption, `.json` its JSON, and a `.png`
    beside an image of another kind its mask. Where all documents are objects with "keypoints", these are a field, too.

    What most images have, all must have: one that lacks it is left out with that reason. Samples are in the order of
    their paths.
    """

    advice = "Give a folder of images with files of the same name"

    def rows(self, findings: Findings) -> Iterator[Row]:
        samples = self._samples(findings)
        counts = Counter(extension for beside in samples for extension in beside)
        wanted = [extension for extension in _FIELDS if counts[extension] * 2 > len(samples)]
        if not wanted:
            such = some_of([beside["image"].name for beside in samples], 1)
            raise SourceError(
                f"{self.title}: most of its {counted(len(samples), 'image')} have no .txt, .json or .png beside them "
                f"(such as {such}). For classes give a folder of class folders"
            )
        findings.notes += [
            f"passed over {counts[extension]:,} × .{extension}, which most images do not have"
            for extension in _FIELDS
            if counts[extension] and extension not in wanted
        ]
        whole = [beside for beside in samples if self._has_all(beside, wanted, findings)]
        findings.kinds["json"], findings.strict = "json", True
        columns = {_FIELDS[end]: self._values([beside[end] for beside in whole], end) for end in wanted}
        documents = [_parsed(text) for text in columns.get("json", ())]
        if documents and all(isinstance(document, dict) and "keypoints" in document for document in documents):
            columns["keypoints"] = [document["keypoints"] for document in documents]
        for number, beside in enumerate(whole):
            yield {"image": beside["image"], **{name: column[number] for name, column in columns.items()}}

    def _samples(self, findings: Findings) -> list[dict[str, Ref]]:
        """Each image by its path without extension: itself as "image", and what lies beside it by extension."""
        stems: dict[str, dict[str, Ref]] = {}
        for file in self._files.walk({*IMAGE_EXTENSIONS, *_FIELDS}, findings):
            extension = extension_of(file.name)
            kind = extension if extension in _FIELDS else "image"
            first = stems.setdefault(file.name.rpartition(".")[0], {}).setdefault(kind, file)
            if first is not file:
                findings.reject(file.name, f"shares its stem with {first.name!r}")
        for beside in stems.values():
            if "image" not in beside and "png" in beside:
                beside["image"] = beside.pop("png")
        if not (samples := [beside for _, beside in sorted(stems.items()) if "image" in beside]):
            raise self.no_image(findings)
        return samples

    def _has_all(self, beside: dict[str, Ref], wanted: list[str], findings: Findings) -> bool:
        lacking = [extension for extension in wanted if extension not in beside]
        if lacking:
            findings.reject(beside["image"].name, f"has no .{lacking[0]} beside it, though most images do")
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
