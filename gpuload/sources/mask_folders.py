"""Images and their masks in folders of their own, as data sets for segmentation lie on disk.

A layout is two patterns, of the images and of the masks; what their wildcards stand for tells which belong together.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.fields.images import MaskKind
from gpuload.sources.files import Files, Findings, OneFile, Ref, extension_of, is_image
from gpuload.sources.listing import SPLIT, split_called
from gpuload.sources.matched import Key, MatchedOptions, MatchedSource, Pattern
from gpuload.sources.source import LAYOUT, Names, Row, Sight, open_files
from gpuload.store.url import URL

_BESIDE_BOXES = 0.2  # how sure it is where boxes are, which are packed instead
_IMAGE = "image"
_MASK = "mask"
_BOTH = ("trainval", "trainvaltest")  # lists of several splits


class MaskLayout(NamedTuple):
    """How images and masks lie in a data set.

    Attributes:
        title: Of the data set.
        image: The pattern of images, without extension (see `Pattern`).
        mask: That of masks.
        folders: Which must be there; `{split}` is one that is named after a split.
        lists: The folder of lists of splits, such as train.txt; "" is the first level.
        boxes: The folder of boxes, with which another source packs the place, unless the user names this one.
        is_partial: Whether images without a mask are usual, and left out with a note.
    """

    title: str
    image: str
    mask: str
    folders: Names
    lists: str = ""
    boxes: str = ""
    is_partial: bool = False


LAYOUTS = (
    MaskLayout(
        "Cityscapes",
        "leftImg8bit/{split}/**/*_leftImg8bit",
        "gtFine/{split}/**/*_gtFine_labelIds",
        ("leftImg8bit/{split}", "gtFine/{split}"),
    ),
    MaskLayout(
        "CamVid", "{split}/*", "{split}annot/*", ("{split}", "{split}annot"), lists="-"
    ),
    MaskLayout(
        "Pascal VOC",
        "JPEGImages/*",
        "SegmentationClass/*",
        ("JPEGImages", "SegmentationClass"),
        lists="ImageSets/Segmentation",
        boxes="Annotations",
        is_partial=True,
    ),
    MaskLayout(
        "Oxford-IIIT Pet",
        "images/*",
        "annotations/trimaps/*",
        ("images", "annotations/trimaps"),
        lists="annotations",
    ),
    MaskLayout(
        "ADE20K",
        "images/{split}/**/*",
        "annotations/{split}/**/*",
        ("images/{split}", "annotations/{split}"),
    ),
    MaskLayout(
        "images and masks by splits",
        "images/{split}/**/*",
        "masks/{split}/**/*",
        ("images/{split}", "masks/{split}"),
    ),
    MaskLayout(
        "splits of images and masks",
        "{split}/images/**/*",
        "{split}/masks/**/*",
        ("{split}/images", "{split}/masks"),
    ),
    MaskLayout("images and masks", "images/**/*", "masks/**/*", ("images", "masks")),
    MaskLayout("CamVid of fast.ai", "images/*", "labels/*_P", ("images", "labels")),
    MaskLayout("images and labels", "images/**/*", "labels/**/*", ("images", "labels")),
    MaskLayout("FiftyOne", "data/**/*", "labels/**/*", ("data", "labels")),
)


@dataclass(frozen=True)
class MaskOptions(MatchedOptions):
    """The options of images and masks in folders of their own.

    Args:
        image: The pattern of the images, where they lie in no known layout.
        mask: The pattern of the masks.
    """

    image: str = ""
    mask: str = ""


class MaskFoldersSource(MatchedSource):
    """Images with masks of class numbers, by a known layout or by the patterns of the options.

    Splits are those of the folders, else those of lists such as train.txt, by which an image of no list is in "train".

    Args:
        root: A folder, a zip archive or a URL.
        options: Of `MaskOptions`, by name.

    Raises:
        SourceError: It has no known layout, and no patterns are given.
    """

    Options = MaskOptions
    options: MaskOptions
    picture_kind: ClassVar[str] = MaskKind.name
    advice = (
        "Give --option image=PATTERN and --option mask=PATTERN, such as image='rgb/{split}/*.png' and "
        "mask='classes/{split}/*.png'"
    )

    def __init__(self, root: str | Path | URL | Files, **options: Any) -> None:
        files = open_files(root)
        image = options.get(_IMAGE, "")
        mask = options.get(_MASK, "")
        self._layout = MaskLayout("patterns", image, mask, (), lists="-")
        if not (image and mask):
            layout = _layout_of(files)
            if layout is None:
                raise SourceError(
                    f"{files}: images and masks lie in no known layout. {self.advice}"
                )
            self._layout = layout._replace(
                image=image or layout.image, mask=mask or layout.mask
            )
        patterns = {
            _IMAGE: _without_extension(self._layout.image),
            _MASK: _without_extension(self._layout.mask),
        }
        super().__init__(files, **{**options, "pictures": patterns})

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        layout = None if isinstance(files, OneFile) else _layout_of(files)
        if layout is None:
            return None
        lists = (*_lists_of(files, layout), *_lists_beside(files, layout))
        reason = f"holds images and masks as {layout.title} has them"
        has_boxes = layout.boxes in files.folders()
        return Sight(_BESIDE_BOXES if has_boxes else LAYOUT, reason, lists)

    def rows(self, findings: Findings) -> Iterator[Row]:
        """As `Source.rows`; an image that lacks its mask is rejected, or left out where that is usual."""
        split_of = dict[str, str]()
        lists = _lists_of(self.files, self._layout)
        if self.options.own_splits and "{split}" not in self._layout.image:
            split_of = self._listed(lists)
        for name in lists:
            findings.use(name)
        if split_of:
            findings.origin = f"by {some_of(list(lists))}"
        elif "{split}" in self._layout.image:
            findings.origin = "by its folders"
        for row in super().rows(findings):
            if split_of:
                stem = posixpath.basename(_without_extension(row[_IMAGE].name))
                row = {**row, SPLIT: split_of.get(stem, "train")}
            yield row

    def _listed(self, lists: dict[str, str]) -> dict[str, str]:
        """The split of each image by its name without folders and extension."""
        split_of = dict[str, str]()
        for name, split in lists.items():
            for line in self.files.text(name).splitlines():
                if words := line.split():
                    split_of[posixpath.basename(_without_extension(words[0]))] = split
        return split_of

    def match(
        self, findings: Findings
    ) -> tuple[dict[Key, Ref], dict[str, dict[Key, Ref]]]:
        images, others = super().match(findings)
        if not self._layout.is_partial:
            return images, others
        masks = others[_MASK]
        with_masks = {key: image for key, image in images.items() if key in masks}
        without = len(images) - len(with_masks)
        if without:
            findings.notes.append(
                f"{counted(without, 'image')} without a mask, which {self._layout.title} has for some alone"
            )
        return with_masks, others

    def _fitting(self, file: str) -> list[tuple[Pattern, Key]]:
        return super()._fitting(_without_extension(file))


def _without_extension(name: str) -> str:
    """A name, or a pattern, without the extension of images."""
    return name.rpartition(".")[0] if is_image(name) else name


def _layout_of(files: Files) -> MaskLayout | None:
    """The first of the known layouts whose folders are there, with files in those of the masks."""
    for layout in LAYOUTS:
        places = [_places(files, folder) for folder in layout.folders]
        if all(places) and _holds_masks(files, places[-1][0], layout):
            return layout
    return None


def _places(files: Files, folder: str) -> list[str]:
    """The folders that are meant by the name of one, in which a part may have the word {split}."""
    places = [""]
    for part in folder.split("/"):
        start, has_split, end = part.partition("{split}")
        places = [
            f"{place}/{name}".removeprefix("/")
            for place in places
            for name in files.folders(place)
            if (name == part if not has_split else _fits(name, start, end))
        ]
    return places


def _fits(name: str, start: str, end: str) -> bool:
    is_around = name.startswith(start) and name.endswith(end)
    return is_around and bool(split_called(name[len(start) : len(name) - len(end)]))


def _holds_masks(files: Files, folder: str, layout: MaskLayout) -> bool:
    """Whether an image in a folder, or in the first folder in it, is called as masks are."""
    inner = files.folders(folder)
    if inner and not files.names(folder):
        folder = f"{folder}/{inner[0]}"
    pattern = Pattern(_MASK, layout.mask)
    stems = map(_without_extension, files.images(folder))
    return any(pattern.read(f"{folder}/{stem}") is not None for stem in stems)


def _lists_of(files: Files, layout: MaskLayout) -> dict[str, str]:
    """The lists that divide the images, with the split of each."""
    lists = dict[str, str]()
    for name in files.names(layout.lists) if layout.lists != "-" else ():
        word = name.removesuffix(".txt")
        split = "train" if word in _BOTH else split_called(word)
        if word != name and split:
            lists[posixpath.join(layout.lists, name)] = split
    has_train = any(posixpath.basename(name) == "train.txt" for name in lists)
    return {
        name: split
        for name, split in lists.items()
        if not (has_train and posixpath.basename(name)[: -len(".txt")] in _BOTH)
    }


def _lists_beside(files: Files, layout: MaskLayout) -> list[str]:
    """The other texts that lie where lists do, or at the first level, and say nothing more of the images."""
    places = {"", "" if layout.lists == "-" else layout.lists}
    return [
        posixpath.join(place, name)
        for place in sorted(places)
        for name in files.names(place)
        if extension_of(name) == "txt"
    ]
