"""Class folders, `root/<class>/**/<image>` or `root/<split>/<class>/**/<image>`; images alone: `--no-labels`; and
images with files of the same name beside them: `--from sidecar`."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.formats import image_extensions
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import (
    are_boxes,
    by_stem,
    no_captions,
    read_or_reject,
    text_in,
)
from gpuload.sources.files import (
    Files,
    Findings,
    OneFile,
    Ref,
    by_count,
    is_text,
    printable,
)
from gpuload.sources.listing import ambiguous, splits_called
from gpuload.sources.source import (
    FALLBACK,
    FilesSource,
    Row,
    Sight,
)

# Folders that data sets have for all of their images, or for what belongs to these: almost never a class.
# fmt: off
_NO_CLASSES = frozenset((
    "images", "image", "imgs", "img", "jpegimages", "annotations", "annotation", "masks", "mask", "data", "labels",
    "image_2", "image_3", "label_2", "instance", "semantic", "semantic_rgb", "img1", "leftimg8bit", "gtfine",
    "segmentationclass", "segmentationobject", "obj_train_data", "rgb", "depth", "depths", "flow", "occlusions",
    "div2k_train_hr", "div2k_valid_hr",
))
# fmt: on
# Where Datumaro and FiftyOne put the images that have no class.
_NO_LABEL = ("no_label", "_unlabeled")
_OTHERWISE = (
    "give --labels table.csv, --no-labels for the images alone, --from sidecar for texts and masks beside them, or "
    "--picture for several pictures of each sample"
)

# The folders of an image, from the split on, which is "" where there are none.
_Folders = tuple[str, ...]


class FolderSource(FilesSource):
    """Images in a folder of class folders.

    Classes are the sorted names of the folders at the first level, as torchvision's ImageFolder numbers them; a class
    folder without an image keeps its number (ImageFolder stops there, or keeps it with `allow_empty`). Folders below a
    class are searched too. Hidden files and folders are passed over. An image is known by its extension in any case.
    Samples are in the order of their paths, folder by folder.

    Where the folders at the first level are called as splits are (see `splits`), the class folders are those in them,
    and all splits have one list of classes. Images in `no_label` or `_unlabeled` have no class and are left out.
    """

    advice = f"Give a folder of class folders, as in photos/cat/1.jpg, or {_OTHERWISE}"

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        if isinstance(files, OneFile):
            return None
        return Sight(FALLBACK, "a folder, taken as one of class folders")

    def rows(self, findings: Findings) -> Iterator[Row]:
        splits = dict[str, str]()
        if self.options.own_splits:
            splits = splits_called(self.title, "its folders", self.files.folders())
        classes = self._classes(splits)
        findings.classes["label"] = tuple(classes)
        findings.strict = True if splits else None
        numbers = {name: number for number, name in enumerate(classes)}
        extensions = set(image_extensions())
        if self.options.as_stored:
            extensions.add("npy")
        placed = dict[_Folders, None]()
        companions = _Companions()
        for image in self.files.walk(extensions, findings):
            companions.add(image.name)
            folders = self._folders_of(image, splits)
            if len(folders) < 2:
                findings.reject(image.name, "lies in no class folder")
            elif folders[1] not in numbers:
                lies = f"lies in {folders[1]!r}, where Datumaro and FiftyOne put images without a class"
                findings.reject(image.name, f"{lies}; --from folder takes it as one")
            else:
                placed[folders] = None
                yield {"image": image, "label": numbers[folders[1]]}
        self._refuse_unlikely([name for _, name, *_ in placed])
        if companions.are_usual and not self.options.named:
            raise SourceError(f"{self.title}: {companions.in_words}")
        findings.notes += _notes_on_empty(list(placed), classes)
        findings.notes += _notes_on_splits(list(placed), splits)
        findings.notes += _notes_on_depth(list(placed))

    def _folders_of(self, image: Ref, splits: Collection[str]) -> _Folders:
        """Raises SourceError if an image lies in another folder at the first level than the splits."""
        folders = tuple(image.name.split("/")[:-1])
        if not splits:
            return ("", *folders)
        if folders and folders[0] not in splits:
            raise ambiguous(self.title, sorted(splits), repr(folders[0]))
        return folders

    def _classes(self, splits: dict[str, str]) -> list[str]:
        """The names of the class folders, sorted."""
        every = {
            name for place in splits or ("",) for name in self.files.folders(place)
        }
        if not self.options.named:
            every -= set(_NO_LABEL)
        classes = sorted(every)
        if wrong := [printable(name) for name in classes if not is_text(name)]:
            raise SourceError(
                f"{self.title}: the class folder {wrong[0]!r} has a name that is not UTF-8. Rename it"
            )
        return classes

    def _refuse_unlikely(self, names: list[str]) -> None:
        """Raises SourceError if a folder with images is one that data sets have for all of theirs."""
        unlikely = [name for name in names if name.lower() in _NO_CLASSES]
        if unlikely and not self.options.named:
            raise SourceError(
                f"{self.title}: the folder {unlikely[0]!r} does not look like a class. If it is one, give --from "
                f"folder; else {_OTHERWISE}"
            )


def _notes_on_empty(
    placed: Sequence[_Folders], classes: Sequence[str]
) -> Iterator[str]:
    """A note on class folders in which no image lies."""
    used = {name for _, name, *_ in placed}
    empty = [name for name in classes if name not in used]
    if empty:
        yield f"class folders without an image, which keep their class numbers: {some_of(empty)}"


def _notes_on_splits(
    placed: Sequence[_Folders], splits: Mapping[str, str]
) -> Iterator[str]:
    """Notes on folders that are taken as splits."""
    used = {splits.get(top): top for top, *_ in placed}
    train = used.get("train")
    if train is None:
        return
    if list(used) == ["train"]:
        yield f"{train!r} is taken as a split and not as a class; --no-splits takes it as a class"
    classes = {name for _, name, *_ in placed}
    trained = {name for top, name, *_ in placed if top == train}
    unseen = sorted(classes - trained)
    if unseen:
        yield f"classes without an image in {train!r}: {some_of(unseen)}"


def _notes_on_depth(placed: Sequence[_Folders]) -> Iterator[str]:
    """Notes on classes that may be other folders than they seem."""
    if not placed:
        return
    classes = sorted({name for _, name, *_ in placed})
    nested = [folders for folders in placed if len(folders) > 2]
    if len(classes) == 1 or len(nested) == len(placed):
        example = "/".join(placed[0]).lstrip("/")
        yield f"images lie in folders such as {example!r}; the classes are {some_of(classes)}"
    elif nested:
        example = "/".join(nested[0]).lstrip("/")
        count = counted(len(nested), "folder lies", "folders lie")
        yield f"{count} below those of classes: the class of images in {example!r} is {nested[0][1]!r}"


def _has_all(sample: dict[str, Ref], extensions: list[str], findings: Findings) -> bool:
    """Whether an image has all files that most have; else it is left out."""
    lacking = [end for end in extensions if end not in sample]
    if lacking:
        findings.reject(
            sample["image"].name,
            f"has no .{lacking[0]} beside it, though most images do",
        )
    return not lacking


class _Companions:
    """Counts images such as 1.depth.png beside 1.jpg, which are no samples of their own."""

    def __init__(self) -> None:
        self._images = 0
        self._pairs = 0
        self._first_pair = ("", "")
        self._before = ""

    def add(self, name: str) -> None:
        """Counts an image; in sorted order those of one name follow each other."""
        self._images += 1
        stem, is_plain = _up_to_first_dot(name)
        stem_before, was_plain = _up_to_first_dot(self._before)
        if stem == stem_before and is_plain != was_plain:
            self._pairs += 1
            if not any(self._first_pair):
                pair = (self._before, name)
                self._first_pair = pair if was_plain else pair[::-1]
        self._before = name

    @property
    def are_usual(self) -> bool:
        """Whether about every image has one."""
        return self._pairs * 3 > self._images

    @property
    def in_words(self) -> str:
        """What to do with them."""
        image, companion = self._first_pair
        word, _, extension = (
            companion.rpartition("/")[2].split(".", 1)[1].partition(".")
        )
        ending = image.rpartition(".")[2]
        return (
            f"{companion!r} lies beside {image!r}, as for most images: both are pictures of one sample. Give --picture "
            f"image='{{label}}/*.{ending}' --picture {word}='{{label}}/*.{word}.{extension}', or --from folder to pack "
            "each as a sample of its own"
        )


def _up_to_first_dot(path: str) -> tuple[str, bool]:
    """The part of a path before the first dot of its name, and whether only the extension follows."""
    folder, slash, name = path.rpartition("/")
    stem, _, rest = name.partition(".")
    return folder + slash + stem, "." not in rest


class UnlabeledSource(FilesSource):
    """Every image below a folder, without any other field.

    An image is known by its extension in any case. Hidden files and folders are passed over. Samples are in the order
    of their paths, folder by folder. Folders that are called as splits are (see `splits`) are the splits.
    """

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.strict = True
        for image in self.files.walk(image_extensions(), findings):
            yield {"image": image}


_FIELDS = {
    "txt": "caption",
    "json": "json",
    "png": "mask",
}  # of the files beside an image, by their extensions


class SidecarSource(FilesSource):
    """Images anywhere below a folder: `.txt` beside one is its caption, `.json` its JSON, and a `.png`
    beside an image of another kind its mask.

    What most images have, all must have: one that lacks it, or whose text or JSON is damaged, is left out with that
    reason. Samples are in the order of their paths.
    """

    advice = "Give a folder of images with files of the same name"
    uses = ("text", "json beside")

    def rows(self, findings: Findings) -> Iterator[Row]:
        samples = self._samples(findings)
        wanted = self._find_wanted(samples, findings)
        complete = [sample for sample in samples if _has_all(sample, wanted, findings)]
        findings.kinds["json"] = "json"
        findings.strict = True
        columns = {
            _FIELDS[end]: self._values(complete, end, findings) for end in wanted
        }
        for number, sample in enumerate(complete):
            fields = {name: column[number] for name, column in columns.items()}
            if None not in fields.values():
                yield {"image": sample["image"], **fields}

    def _samples(self, findings: Findings) -> list[dict[str, Ref]]:
        """The files of each image by their extensions, the image as "image"."""
        stems = by_stem(self.files, tuple(_FIELDS), findings)
        for sample in stems.values():
            if "image" not in sample and "png" in sample:
                sample["image"] = sample.pop("png")
        return [sample for _, sample in sorted(stems.items()) if "image" in sample]

    def _find_wanted(
        self, samples: Sequence[Mapping[str, Ref]], findings: Findings
    ) -> list[str]:
        """The extensions of the files that most images have beside them.

        Raises:
            SourceError: there are none.
        """
        counts = Counter(extension for sample in samples for extension in sample)
        wanted = [end for end in _FIELDS if counts[end] * 2 > len(samples)]
        if samples and not wanted:
            images = counted(len(samples), "image")
            raise SourceError(
                f"{self.title}: most of its {images} have no .txt, .json or .png beside them. Leave out --from sidecar"
            )
        rare = [end for end in _FIELDS if counts[end] and end not in wanted]
        if rare:
            files = by_count(Counter({f".{end}": counts[end] for end in rare}))
            findings.notes.append(f"passed over {files}, which most images do not have")
        return wanted

    def _values(
        self, samples: list[dict[str, Ref]], extension: str, findings: Findings
    ) -> list[Any]:
        """The values of all samples; None where one is damaged."""
        if extension == "png":
            return [sample["png"] for sample in samples]
        is_json = extension == "json"
        read = self._json if is_json else self._caption
        form = "a JSON document" if is_json else "a text in UTF-8"
        texts = [
            read_or_reject(
                partial(read, sample[extension]),
                sample["image"],
                sample[extension],
                form,
                findings,
                ValueError,
            )
            for sample in samples
        ]
        readable = [text for text in texts if text is not None]
        if extension == "txt" and are_boxes(readable):
            raise no_captions(self.title, readable[0], "Give --from yolo")
        return texts

    def _caption(self, file: Ref) -> str:
        return text_in(self.files, file).strip()

    def _json(self, file: Ref) -> str:
        """The text of a document, once it was parsed.

        Raises:
            ValueError: it is none.
        """
        text = text_in(self.files, file)
        parse_json(text)
        return text
