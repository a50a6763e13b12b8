"""Annotations in XML beside images: Pascal VOC and ILSVRC's detection set."""

from collections.abc import Iterator
from xml.etree import ElementTree

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.fields.numbers import BACKGROUND
from gpuload.sources.annotations import annotation_files, read_content, read_text
from gpuload.sources.at_path import FilesSource
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Findings, Ref, extension_of
from gpuload.sources.listing import SPLIT, one_file_each, some_of, split_called, splits_of_paths
from gpuload.sources.rows import Row

_IMAGE_FOLDERS = ("data", "jpegimages", "images")  # in any case
_LISTS = "ImageSets/Main"
_SIDES = ("xmin", "ymin", "xmax", "ymax")

Boxes = tuple[list[list[float]], list[str]]  # x0 y0 x1 y1, and the class of each


class VocSource(FilesSource):
    """`Annotations/**.xml`, each with the image of the same path below `Data` (ILSVRC), `JPEGImages` (Pascal VOC) or
    `images`.

    Fields: "label", the class of the largest box, or "background" (number 0) where there is none; "boxes", all of
    them, x0 y0 x1 y1 as the XML has them. Other classes are numbered from 1 in sorted order. Samples are in the
    order of their paths. Splits are the folders below `Data` that are named after them (see `splits`), or else the
    lists of Pascal VOC, `ImageSets/Main/train.txt`, `val.txt` and `test.txt`, if they have no image in common; then
    images in none of the lists are left out.
    """

    advice = "Give the folder that holds Annotations"

    @classmethod
    def fits(cls, files: Files) -> bool:
        xml, data = _folders(files)
        return bool(xml and data) and (data.lower() != "images" or bool(annotation_files(files, ".xml")))

    def rows(self, findings: Findings) -> Iterator[Row]:
        xml, data = _folders(self._files)
        if not xml or not data:
            raise SourceError(
                f"{self.title}: holds no Annotations beside Data (ILSVRC), JPEGImages (Pascal VOC) or images. Give the "
                "folder that holds them"
            )
        images, annotations = self._pairs(data, xml, findings)
        objects = {stem: self._objects(annotations[stem]) for stem in images}
        names = {name for _, names in objects.values() for name in names} - {BACKGROUND}
        findings.classes["label"] = findings.classes["boxes"] = classes = (BACKGROUND, *sorted(names))
        findings.strict, split_of = True, dict[str, str]()
        if self.own_splits and splits_of_paths(self.title, [image.name for image in images.values()]) is None:
            split_of = self._listed_splits(images, findings)
        if split_of:
            findings.origin = f"by the lists in {_LISTS!r}"
        for stem, image in images.items():
            boxes, named = objects[stem]
            row = {"image": image, "label": classes.index(_largest(boxes, named)), "boxes": boxes, "boxes_class": named}
            if not split_of:
                yield row
            elif stem in split_of:
                yield {**row, SPLIT: split_of[stem]}
            else:
                findings.reject(image.name, f"is in no list of {_LISTS}", True)

    def _listed_splits(self, known: dict[str, Ref], findings: Findings) -> dict[str, str]:
        """The split of each image by the lists of Pascal VOC; {} if there are no lists of two splits or more."""
        if _LISTS.partition("/")[0] not in self._files.folders():
            return {}
        texts = [name for name in self._files.names(_LISTS) if name.lower().endswith(".txt")]
        lists = one_file_each([f"{_LISTS}/{name}" for name in texts if split_called(name[: -len(".txt")])])
        split_of, why = dict[str, str](), "" if lists else f"no train.txt, val.txt or test.txt in {_LISTS}"
        for split, name in lists.items():
            lines = read_text(self._files, self._files.find(name), self.title).split("\n")
            listed = [line.split()[0] for line in lines if line.strip()]
            if both := [stem for stem in listed if split_of.get(stem, split) != split]:
                why = f"{some_of(both)} are in two lists"
            split_of.update((stem, split) for stem in listed if stem in known)
        if not why and len(set(split_of.values())) < 2:
            why = "they list images of fewer than two splits"
        if why:
            findings.notes.append(
                f"the lists of splits in 'ImageSets' are not used ({why}): all images are packed, and --val or "
                "--splits draws splits"
            )
        return {} if why else split_of

    def _pairs(self, data: str, xml: str, findings: Findings) -> tuple[dict[str, Ref], dict[str, Ref]]:
        """Images and annotations by their paths below their folders, without extension, sorted."""
        files: dict[str, dict[str, Ref]] = {data: {}, xml: {}}
        for file in self._files.walk({*IMAGE_EXTENSIONS, "xml"}, findings):
            folder, _, below = file.name.partition("/")
            if folder == (xml if extension_of(below) == "xml" else data):
                files[folder][below.rpartition(".")[0]] = file
        for one, other, what in ((xml, data, "image"), (data, xml, "XML")):
            if alone := [files[one][stem].name for stem in sorted(set(files[one]) - set(files[other]))]:
                raise SourceError(
                    f"{self.title}: {counted(len(alone), 'file has', 'files have')} no {what} of the same path below "
                    f"{other}: {some_of(alone)}. Add the partner, or remove them"
                )
        if not files[data]:
            raise SourceError(f"{self.title}: holds neither images nor XML. Is it unpacked?")
        return dict(sorted(files[data].items())), files[xml]

    def _objects(self, file: Ref) -> Boxes:
        text = read_content(self._files, file, self.title)
        title, advice = f"{self.title}/{file.name}", "Correct it, or remove it with its image"
        # Entities are what XML attacks are made of, and no annotation has any; UTF-16, with its zeros, hides them.
        if b"<!" in text.replace(b"<!--", b"") or b"\0" in text:
            raise SourceError(f"{title}: declares entities or is not UTF-8, which no annotation needs. {advice}")
        boxes, names = list[list[float]](), list[str]()
        try:
            for entry in ElementTree.fromstring(text).iter("object"):
                if (box := entry.find("bndbox")) is None:
                    raise ValueError("an object without a bndbox")
                boxes.append([float(box.findtext(side, "")) for side in _SIDES])
                names.append((entry.findtext("name") or "").strip())
            if "" in names:
                raise ValueError("an object without a name")
        except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an encoding that Python lacks
            raise SourceError(f"{title}: not an annotation in XML ({error}). {advice}") from None
        return boxes, names


def _largest(boxes: list[list[float]], names: list[str]) -> str:
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes]
    return names[areas.index(max(areas))] if areas else BACKGROUND


def _folders(files: Files) -> tuple[str, str]:
    """Names of the folders of XML and of images; "" for a missing one."""
    named = {name.lower(): name for name in reversed(files.folders())}
    data = next((named[name] for name in _IMAGE_FOLDERS if name in named), "")
    return named.get("annotations", ""), data
