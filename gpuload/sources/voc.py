"""Annotations in XML beside images: Pascal VOC and ILSVRC's detection set."""

import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.field import LABEL, Field
from gpuload.sources import values
from gpuload.sources.folder import IMAGE_EXTENSIONS, walk_files
from gpuload.sources.listing import Listing, Rejection, Source, listing_schema, read_file, some_of

BACKGROUND = "background"
_IMAGE_FOLDERS = ("Data", "JPEGImages")


class VocSource(Source):
    """`Annotations/**.xml`, each with the image of the same path below `Data` (ILSVRC) or `JPEGImages` (Pascal VOC).

    Fields: "label", the class of the largest box, or "background" (number 0) where there is none; "boxes", all of
    them, x0 y0 x1 y1 as the XML has them. Other classes are numbered from 1 in sorted order. Samples are in the
    order of their paths.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @staticmethod
    def fits(root: Path) -> bool:
        """Whether a folder looks like one of these."""
        return (root / "Annotations").is_dir() and any((root / name).is_dir() for name in _IMAGE_FOLDERS)

    def list_samples(self) -> Listing:
        """Every pair of image and XML.

        Raises:
            SourceError: one has no partner, or an XML is not an annotation.
        """
        if not self.fits(self.root):
            raise SourceError(f"{self.root}: holds no Annotations beside Data (ILSVRC) or JPEGImages (Pascal VOC)")
        data = next(name for name in _IMAGE_FOLDERS if (self.root / name).is_dir())
        rejected: list[Rejection] = []
        images = self._files(data, IMAGE_EXTENSIONS, rejected)
        annotations = self._files("Annotations", frozenset(("xml",)), rejected)
        for found, others, what, place in (
            (annotations, images, "image", data),
            (images, annotations, "XML", "Annotations"),
        ):
            alone = [found[stem][0] for stem in sorted(set(found) - set(others))]
            if alone:
                raise SourceError(
                    f"{self.root}: {len(alone):,} files have no {what} of the same path below {place}: "
                    f"{some_of(alone)}. Add the partner, or remove them"
                )
        if not images:
            raise SourceError(f"{self.root}: holds neither images nor XML. Is it unpacked?")
        stems = sorted(images)
        boxes, names = zip(*(self._objects(annotations[stem][0]) for stem in stems), strict=True)
        largest = [_largest(*pair) for pair in zip(boxes, names, strict=True)]
        classes = (BACKGROUND, *sorted({name for row in names for name in row} - {BACKGROUND}))
        numbers = [classes.index(name) for name in largest]
        field, columns = values.boxes_column(str(self.root), "boxes", boxes, names, classes)
        fields: tuple[Field, ...] = (LABEL, field)
        table = [[images[stem][0] for stem in stems], [images[stem][1] for stem in stems], numbers, *columns]
        listing = pa.table(table, schema=listing_schema(fields))
        return Listing(listing, fields, classes, tuple(rejected))

    def _files(self, folder: str, extensions: frozenset[str], rejected: list[Rejection]) -> dict[str, tuple[str, int]]:
        """Path below the root and size of each file, by its path below the folder without extension."""
        found = {}
        for name, size in walk_files(self.root / folder, rejected):
            stem, _, extension = name.rpartition(".")
            if extension.lower() in extensions:
                found[stem] = (f"{folder}/{name}", size)
        return found

    def _objects(self, name: str) -> tuple[list[list[float]], list[str]]:
        path = self.root / name
        try:
            text = path.read_bytes()
            # Entities are what XML attacks are made of, and no annotation has any; UTF-16, with its zeros, hides them.
            if b"<!" in text.replace(b"<!--", b"") or b"\0" in text:
                raise SourceError(f"{path}: declares entities or is not UTF-8, which no annotation needs. Remove that")
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
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
        except (ElementTree.ParseError, ValueError) as error:
            raise SourceError(
                f"{path}: not an annotation in XML ({error}). Mend it, or remove it with its image"
            ) from None
        return boxes, names

    def read(self, row: int, name: str, where: str = "") -> bytes:
        return read_file(os.path.join(self.root, name))


def _largest(boxes: list[list[float]], names: list[str]) -> str:
    if not boxes:
        return BACKGROUND
    x0, y0, x1, y1 = np.array(boxes).T
    return names[int(np.argmax((x1 - x0) * (y1 - y0)))]
