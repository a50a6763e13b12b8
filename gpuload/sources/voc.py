"""Annotations in XML beside images: Pascal VOC and ILSVRC's detection set."""

from xml.etree import ElementTree

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import DecodeError, SourceError
from gpuload.fields.class_numbers import BACKGROUND
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Found, PassedOver
from gpuload.sources.files.base import read_text
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.layout import annotation_files
from gpuload.sources.listing import Listing, Rejection, some_of
from gpuload.sources.splits import SourceSplits, one_file_each, split_called, splits_of_paths

_IMAGE_FOLDERS = ("data", "jpegimages", "images")  # in any case
_XML_FOLDER = "annotations"
_LISTS = "ImageSets/Main"


class VocSource(FilesSource):
    """`Annotations/**.xml`, each with the image of the same path below `Data` (ILSVRC), `JPEGImages` (Pascal VOC) or
    `images`.

    Fields: "label", the class of the largest box, or "background" (number 0) where there is none; "boxes", all of
    them, x0 y0 x1 y1 as the XML has them. Other classes are numbered from 1 in sorted order. Samples are in the
    order of their paths. Folders below `Data` that are called as splits are (see `splits`) are the splits, or else the
    lists of Pascal VOC: `ImageSets/Main/train.txt`, `val.txt` and `test.txt`, where these have no image in common;
    images in none of them are left out then.
    """

    @staticmethod
    def fits(files: Files) -> bool:
        """Whether a container looks like one of these."""
        xml, data = _folders(files)
        return bool(xml and data) and (data.lower() != "images" or bool(annotation_files(files, ".xml")))

    def list_samples(self) -> Listing:
        """Every pair of image and XML.

        Raises:
            SourceError: one has no partner, or an XML is not an annotation.
        """
        self.check_root("Give the folder that holds Annotations")
        xml, data = _folders(self.files)
        if not xml or not data:
            raise SourceError(
                f"{self.root}: holds no Annotations beside Data (ILSVRC), JPEGImages (Pascal VOC) or images. Give the "
                "folder that holds them"
            )
        passed = PassedOver()
        images, annotations = self._pairs(data, xml, passed)
        stems = sorted(images)
        boxes, names = zip(*(self._objects(annotations[stem]) for stem in stems), strict=True)
        largest = [_largest(*pair) for pair in zip(boxes, names, strict=True)]
        classes = (BACKGROUND, *sorted({name for row in names for name in row} - {BACKGROUND}))
        numbers = [classes.index(name) for name in largest]
        found = FieldColumns(str(self.root))
        found.add("class", "label", numbers, classes)
        found.add("boxes", "boxes", list(zip(boxes, names, strict=True)), classes)
        files = [images[stem] for stem in stems]
        table = files_table(files, found.fields, found.columns)
        own = splits_of_paths(str(self.root), [file.name for file in files]) if self.own_splits else None
        if own is None and self.own_splits and (split_of := self._listed_splits(stems, passed)):
            table = table.filter(pa.array([stem in split_of for stem in stems]))
            values = [split_of[stem] for stem in stems if stem in split_of]
            own = SourceSplits.of(values, f"by the lists in {_LISTS!r}")
            passed.rejected += [
                Rejection(images[stem].name, f"is in no list of {_LISTS}", True)
                for stem in stems
                if stem not in split_of
            ]
        return Listing(table, tuple(found.fields), found.classes, passed.sorted_rejections(), tuple(passed.notes), own)

    def _listed_splits(self, stems: list[str], passed: PassedOver) -> dict[str, str]:
        """The split of each image by the lists of Pascal VOC; {} where there are none, or not of two splits."""
        if _LISTS.partition("/")[0] not in self.files.folders():
            return {}
        known, split_of = set(stems), dict[str, str]()
        why = "" if (lists := one_file_each(self._split_lists())) else f"no train.txt, val.txt or test.txt in {_LISTS}"
        for split, name in lists.items():
            lines = read_text(self.files, self.files.find(name)).split("\n")
            listed = [line.split()[0] for line in lines if line.strip()]
            if both := [stem for stem in listed if split_of.get(stem, split) != split]:
                why = f"{some_of(both)} are in two lists"
            split_of.update((stem, split) for stem in listed if stem in known)
        if not why and len(set(split_of.values())) < 2:
            why = "they list images of fewer than two splits"
        if why:
            passed.notes.append(
                f"the lists of splits in 'ImageSets' are not used ({why}): all images are packed, and --val or "
                "--splits draws splits"
            )
        return {} if why else split_of

    def _split_lists(self) -> list[str]:
        """The files such as `ImageSets/Main/train.txt`; not those of one class, nor trainval.txt."""
        names = [name for name in self.files.names(_LISTS) if name.lower().endswith(".txt")]
        return [f"{_LISTS}/{name}" for name in names if split_called(name[: -len(".txt")])]

    def _pairs(self, data: str, xml: str, passed: PassedOver) -> tuple[dict[str, Found], dict[str, Found]]:
        """Images and annotations by their paths below their folders, without extension."""
        images: dict[str, Found] = {}
        annotations: dict[str, Found] = {}
        for found in self.files.walk({*IMAGE_EXTENSIONS, "xml"}, passed):
            folder, _, below = found.name.partition("/")
            stem, _, extension = below.rpartition(".")
            if folder == data and extension.lower() != "xml":
                images[stem] = found
            elif folder == xml and extension.lower() == "xml":
                annotations[stem] = found
        for present, others, what, place in (
            (annotations, images, "image", data),
            (images, annotations, "XML", xml),
        ):
            alone = [present[stem].name for stem in sorted(set(present) - set(others))]
            if alone:
                raise SourceError(
                    f"{self.root}: {counted(len(alone), 'file has', 'files have')} no {what} of the same path below "
                    f"{place}: "
                    f"{some_of(alone)}. Add the partner, or remove them"
                )
        if not images:
            raise SourceError(f"{self.root}: holds neither images nor XML. Is it unpacked?")
        return images, annotations

    def _objects(self, found: Found) -> tuple[list[list[float]], list[str]]:
        title = f"{self.root}/{found.name}"
        try:
            text = self.files.read(found.address)
            # Entities are what XML attacks are made of, and no annotation has any; UTF-16, with its zeros, hides them.
            if b"<!" in text.replace(b"<!--", b"") or b"\0" in text:
                raise SourceError(f"{title}: declares entities or is not UTF-8, which no annotation needs. Remove that")
            tree = ElementTree.fromstring(text)
            boxes, names = [], []
            for entry in tree.iter("object"):
                box = entry.find("bndbox")
                if box is None:
                    raise ValueError("an object without a bndbox")
                boxes.append([float(box.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax")])
                names.append((entry.findtext("name") or "").strip())
            if "" in names:
                raise ValueError("an object without a name")
        except (OSError, DecodeError) as error:
            raise SourceError(
                f"{title}: cannot be read ({getattr(error, 'strerror', None) or error}). "
                "Correct it, or remove it with its image"
            ) from None
        except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an encoding that Python lacks
            raise SourceError(
                f"{title}: not an annotation in XML ({error}). Correct it, or remove it with its image"
            ) from None
        return boxes, names


def _largest(boxes: list[list[float]], names: list[str]) -> str:
    if not boxes:
        return BACKGROUND
    x0, y0, x1, y1 = np.array(boxes).T
    return names[int(np.argmax((x1 - x0) * (y1 - y0)))]


def _folders(files: Files) -> tuple[str, str]:
    """Names of the folders of XML and of images; "" for one that is not there."""
    named = {name.lower(): name for name in reversed(files.folders())}
    data = next((named[name] for name in _IMAGE_FOLDERS if name in named), "")
    return named.get(_XML_FOLDER, ""), data
