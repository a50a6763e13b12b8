"""COCO's JSON: captions, or instances with boxes and classes, beside a folder of images."""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuload.errors import SourceError, some_of
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import NamedFiles, annotation_files
from gpuload.sources.coco_document import CocoDocument
from gpuload.sources.coco_form import check_document, plain_document
from gpuload.sources.files import (
    Files,
    Findings,
    Folder,
    decode_text,
    lone_folder,
    read_file,
    readable,
)
from gpuload.sources.listing import SPLIT, named_splits, one_file_each
from gpuload.sources.named_images import NamedImages
from gpuload.sources.panoptic import PanopticMasks
from gpuload.sources.source import CONTENT, FilesSource, Row, Sight, SourceOptions
from gpuload.sources.survey import survey


@dataclass(frozen=True)
class CocoOptions(SourceOptions):
    """The options of COCO's JSON.

    Args:
        labels: The file of annotations; None: the one in the folder `annotations` of the container, or else anywhere in
            it, or one for each split, such as `instances_train2017.json` and `instances_val2017.json`, or one in each
            of the folders `train` and `valid`.
    """

    labels: str | Path | None = None


class CocoSource(FilesSource):
    """Images that a file such as `instances_train2017.json` or `captions_train2017.json` names.

    Instances give the fields "boxes" (x0 y0 x1 y1), "labels" (the classes in the image) and "image_id" as JSON; an
    image without any keeps empty ones. Where they have areas or segmentations, the boxes have these, too, and those of
    crowds are marked; else crowds are left out. "keypoints" are in the order of the boxes; an instance without any has
    points that are not labelled. Captions give "caption", the first of an image, and "captions", all of them as JSON;
    an image without one is left out.

    Classes are numbered from 0 in the order of their COCO numbers, which have gaps and are kept as
    `Field.category_ids`. Annotations that were drawn before the Exif orientation of their image, or at another size,
    are moved with it, see `gpuload.packing.annotations`. Samples are in the order of the file. Names in the file start
    at the root, or at a folder in it, such as `images/train2017`.
    """

    Options = CocoOptions
    options: CocoOptions
    advice = "Give the folder of the images as SOURCE"
    uses = ("coco",)

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        documents = _documents(files)
        return Sight(CONTENT, f"holds {documents[0]!r}") if documents else None

    @property
    def annotations(self) -> Path | None:
        """The file of annotations, where the user named it."""
        labels = self.options.labels
        return None if labels is None else Path(labels)

    @property
    def title(self) -> str:
        return str(self.path if self.annotations is None else self.annotations)

    def rows(self, findings: Findings) -> Iterator[Row]:
        splits = {"": ""} if self.annotations is not None else self._choose()
        parts = {split: self._read(name, findings) for split, name in splits.items()}
        first, *others = sorted(parts.values(), key=lambda part: part.is_empty)
        first.share(others)
        findings.classes |= first.classes
        numbered = first.classes.keys() - {"keypoints"}
        findings.category_ids |= dict.fromkeys(numbered, first.category_ids)
        findings.instances_of = {"keypoints": "boxes"}
        findings.kinds |= {"captions": "json", "image_id": "json"}
        findings.draws = True
        findings.strict = None if others else False
        if others and self.options.own_splits:
            findings.origin = "by the names of the files in 'annotations'"
            if not annotation_files(self.files, ".json"):
                findings.origin = f"by {some_of(list(splits.values()))}"
        for split, part in parts.items():
            findings.notes += part.notes()
            for row in part.rows(findings):
                yield {**row, SPLIT: split} if findings.origin else row
        findings.notes += self._notes_on_others(list(parts.values()))

    def _choose(self) -> dict[str, str]:
        """The files of annotations in the container by their splits; a single one by any name.

        Raises:
            SourceError: there is none, or there are several that are not one for each split.
        """
        every = _documents(self.files)
        chosen = [
            name
            for name in every
            if name.rpartition("/")[2].lower().startswith("instances")
        ] or every
        # Datumaro writes the images of a split without an object into a file of another name.
        chosen += [name for name in every if _is_of_another_split(name, chosen)]
        if len(chosen) == 1:
            return {"": chosen[0]}
        if splits := one_file_each(chosen):
            return splits
        names = some_of([f"{self.path}/{name}" for name in chosen], 8) or "none"
        raise SourceError(
            f"{self.path}: expected a .json in a folder 'annotations', or one for each split; found {names}. Give the "
            "file of annotations with --labels"
        )

    def _read(self, name: str, findings: Findings) -> CocoDocument:
        """Reads a document.

        Args:
            name: Of the file of annotations in the container, if it lies there.
        """
        title = f"{self.path}/{name}" if name else str(self.annotations)
        with readable(title, "COCO's JSON with images and annotations", ValueError):
            parsed = parse_json(decode_text(self._content(name)))
            document: dict[str, Any] = plain_document(parsed)
            check_document(document)
        files = NamedFiles(self.files, title, self.path)
        names = [image["file_name"] for image in document["images"]]
        place = self._place(title, files, posixpath.dirname(name), names)
        if not files.find(f"{place}{document['images'][0]['file_name']}"):
            document["images"] = self._found_elsewhere(title, document["images"])
        if name or place:
            findings.notes.append(
                f"annotations are those in {title}, with names that start in {place or './'!r}"
            )
        part = CocoDocument(title, document, files, place)
        if part.segments:
            part.masks = self._panoptic_masks(name, part, findings)
        return part

    def _content(self, name: str) -> bytes:
        """The bytes of the file of annotations, which lies in the container if it has a name there."""
        if self.annotations is not None:
            return read_file(self.annotations)
        return self.files.content(name)

    def _notes_on_others(self, parts: Sequence[CocoDocument]) -> Iterator[str]:
        """Notes on images that no document names."""
        title = " and ".join(part.title for part in parts)
        files = NamedFiles(self.files, title, self.path)
        names = [name for part in parts for name in part.names]
        yield from files.beside(names)
        if self.annotations is None:
            pngs = [f"{part.masks.folder}/*.png" for part in parts if part.masks]
            yield from files.elsewhere([*names, *pngs])

    def _panoptic_masks(
        self, name: str, part: CocoDocument, findings: Findings
    ) -> PanopticMasks | None:
        """The PNGs of a panoptic document.

        Args:
            name: As `_read` takes it.
        """
        files = self.files
        document = name
        if self.annotations is not None:
            files = Folder(self.annotations.parent)
            document = self.annotations.name
        masks = PanopticMasks.beside(files, document, part.segments)
        if masks is None:
            png = part.segments[0][0]["png"]
            findings.notes.append(
                f"{part.title}: is panoptic, and no PNG is there as {png!r}: the boxes of segments are packed, without "
                "their masks"
            )
        return masks

    def _found_elsewhere(
        self, title: str, entries: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The entries of images, which the file calls as they were called elsewhere, with their names here."""
        images = NamedImages(self.files, Findings())
        names = [entry["file_name"] for entry in entries]
        if not images.find(title, names[0]):
            return entries
        refs = images.find_all(title, names)
        return [
            {**entry, "file_name": ref.name}
            for entry, ref in zip(entries, refs, strict=True)
        ]

    def _place(
        self, title: str, files: NamedFiles, folder: str, names: list[str]
    ) -> str:
        """The folder that the names in the file are relative to, with a slash after it; "" for the root.

        Args:
            folder: Of the file.

        Raises:
            SourceError: they exist in several folders.
        """
        if folder and files.find(f"{folder}/{names[0]}"):
            return f"{folder}/"
        if files.find(names[0]):
            return ""
        places = self._folders_with(files, names)
        split = named_splits([title])
        if len(places) > 1 and split:
            of_split = [place for place in places if named_splits([place]) == split]
            places = of_split or places
        if len(places) > 1:
            raise SourceError(
                f"{title}: the images that it names are in each of {some_of(places)}. Give one of these folders in "
                f"{self.path} as SOURCE"
            )
        return f"{places[0]}/" if places else ""

    def _folders_with(self, files: NamedFiles, names: Sequence[str]) -> list[str]:
        """The folders of the first two levels with all of these files, or else with the first."""
        folders = [
            name for name in self.files.folders() if name.lower() != "annotations"
        ]
        for top in list(folders):
            folders += [f"{top}/{name}" for name in self.files.folders(top)]
        with_first = [
            folder for folder in folders if files.find(f"{folder}/{names[0]}")
        ]
        with_all = [
            folder
            for folder in with_first
            if all(files.find(f"{folder}/{name}") for name in names)
        ]
        return with_all or with_first


def _is_of_another_split(name: str, chosen: Sequence[str]) -> bool:
    """Whether a list of images is of one split, of which the chosen files have none."""
    is_list = name.rpartition("/")[2].lower().startswith("image_info")
    splits = named_splits([name])
    return (
        is_list
        and len(splits) == 1
        and bool(named_splits(chosen))
        and splits[0] not in named_splits(chosen)
    )


def _documents(files: Files) -> list[str]:
    """Names of the files of annotations in a container: in `annotations`, at the first level, or in folders there.

    In a folder that is alone they are left to a source that begins there. What lies in `annotations` may be damaged,
    but not another kind of annotations.
    """
    sheets = survey(files)
    names = [sheet.name for sheet in sheets if sheet.kind == "coco"]
    in_folder = annotation_files(files, ".json")
    if in_folder and (not sheets or set(in_folder) & set(names)):
        return in_folder
    return [
        name
        for name in names
        if "/" not in name or (name.count("/") == 1 and not lone_folder(files))
    ]
