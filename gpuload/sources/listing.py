"""The samples of a source as the packer plans them.

A listing holds names and numbers only, so that a million samples are planned, shuffled and cut into shards without
reading one image. Splits of a source come from the names of its folders or files, or from a column: train, training,
val, valid, validation, dev, test and testing, in any case. They are packed into folders named train, val and test.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.errors import some_of as some_of
from gpuload.fields.field import Field
from gpuload.fields.picture_lists import PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import kind_of
from gpuload.formats import FloatRange
from gpuload.types import I64

SPLIT = "split"  # the key of a sample (a dict), and the role of a column
COLUMNS = (
    "split",
    "subset",
    "partition",
    "fold",
    "set",
)  # names that tables give to the column of splits

_ORDER = ("train", "val", "test")
_OTHER_NAMES = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
}
_SPLIT_OF = {name: name for name in _ORDER} | _OTHER_NAMES

_YEAR = re.compile(r"[ _-]?(19|20)\d\d$")

NAME = "name"
BYTES = "bytes"
WHERE = "where"
NO_IMAGE = ""  # the address of a sample that has none
DRAWN_ON = "drawn_on"  # a key of rows, see `Findings.draws`
DRAWN_WIDTH = "drawn_width"
DRAWN_HEIGHT = "drawn_height"
BESIDE = "bytes_beside"


@dataclass(frozen=True)
class SourceSplits:
    """The split of each sample of a listing.

    Attributes:
        names: Of the splits that hold a sample, in the order train, val, test.
        numbers: int64 (N,), the place of each sample's split in `names`.
        origin: Where they come from, for messages, such as "by its folders 'train', 'valid'".
    """

    names: tuple[str, ...]
    numbers: I64
    origin: str

    @classmethod
    def of(cls, values: Sequence[str], origin: str) -> "SourceSplits | None":
        """From the split of each sample; None if all are in "train", since that is what a set without splits is."""
        used = set(values)
        if used <= {"train"}:
            return None
        names = tuple(name for name in _ORDER if name in used)
        return cls(
            names, np.array([names.index(value) for value in values], np.int64), origin
        )

    def summary(self) -> str:
        """A sentence for the user."""
        return f"the splits are the source's own, {self.origin}; --no-splits packs it as one set"


def first_named(usual: Iterable[str], present: Collection[str]) -> str:
    """The first of the usual names that is there; "" if none is."""
    return next((name for name in usual if name in present), "")


def split_called(name: object) -> str:
    """ "train", "val" or "test" for the name of one of these, perhaps with a year, as in "val2017"; else ""."""
    return _SPLIT_OF.get(_YEAR.sub("", str(name).strip().lower()), "")


def splits_called(title: str, subject: str, names: Iterable[str]) -> dict[str, str]:
    """The split for each name that means one.

    Args:
        title: Of the source, for messages.
        subject: The things that are named, for messages, such as "its folders".
        names: Of things such as folders.

    Raises:
        SourceError: two names mean the same split.
    """
    split_of = {name: split for name in names if (split := split_called(name))}
    for split in _ORDER:
        same = sorted(name for name in split_of if split_of[name] == split)
        if len(same) > 1:
            both = f"{subject} {some_of(same)} would both be the split {split!r}"
            raise SourceError(
                f"{title}: {both}. Rename or join them, or give --no-splits"
            )
    return split_of


def splits_of_files(title: str, names: Sequence[str]) -> list[str]:
    """The split of each file, by a word in its name or else in its folder's; [] if no file is named after one, or all
    are named after "train".

    data/train-00000-of-00002.parquet and train/0000.parquet are "train".

    Raises:
        SourceError: only some of the files are named after splits, or one after two.
    """
    words = [_words_of_file(name) for name in names]
    wrong = [
        name for name, splits in zip(names, words, strict=True) if len(splits) != 1
    ]
    if wrong and any(words):
        raise SourceError(
            f"{title}: some of its files are named after one split, others after none or two ({some_of(wrong, 2)}). "
            "Rename them, or give --no-splits"
        )
    splits = [split for named in words for split in named]
    return [] if set(splits) <= {"train"} else splits


def _words_of_file(name: str) -> set[str]:
    """The splits that are words in the name of a file, or else in that of its folder."""
    folder, _, file = name.rpartition("/")
    return words_of_splits(file) or words_of_splits(folder.rpartition("/")[2])


def one_file_each(names: Sequence[str]) -> dict[str, str]:
    """The file of each split, by words in their names or else in those of their folders, in the order train, val, test;
    {} unless each file belongs to one split, and no two to the same."""
    files = {
        tuple(named_splits([name]) or named_splits([name.rpartition("/")[0]])): name
        for name in names
    }
    is_each = len(files) == len(names) and all(len(splits) == 1 for splits in files)
    return (
        {split: files[split,] for split in _ORDER if (split,) in files}
        if is_each
        else {}
    )


def named_splits(names: Sequence[str]) -> list[str]:
    """The splits that are words in these files' names, in the order train, val, test."""
    splits = {
        split for name in names for split in words_of_splits(name.rpartition("/")[2])
    }
    return sorted(splits, key=_ORDER.index)


def words_of_splits(name: str) -> set[str]:
    """The splits that are words in a name; "test-dev" is the usual name of a test set."""
    words = set(
        re.split(
            "[^a-z]+",
            name.lower().replace("test-dev", "test").replace("test_dev", "test"),
        )
    )
    return {split for word in words if (split := split_called(word))}


def word_of_split(name: str) -> str:
    """The split that is a word in a name; "" where there is none, or are several."""
    splits = words_of_splits(name)
    return next(iter(splits)) if len(splits) == 1 else ""


def splits_of_words(names: Sequence[str]) -> dict[str, str]:
    """The split of each image by a word in the name of the first folder that they do not all share, as in
    `obj_train_data`; {} unless each of these folders has one such word, and they are several splits. Folders that are
    named after splits alone are left to `splits_of_paths`."""
    if not names:
        return {}
    depth = _shared_folders(names)
    tops = {name: _folder_at(name, depth) for name in names}
    words = {top: words_of_splits(top) for top in dict.fromkeys(tops.values())}
    splits = set[str]().union(*words.values())
    has_one_each = all(len(splits_of_top) == 1 for splits_of_top in words.values())
    if len(splits) < 2 or not has_one_each or any(map(split_called, words)):
        return {}
    return {name: next(iter(words[top])) for name, top in tops.items()}


def _folder_at(name: str, depth: int) -> str:
    """The name of the folder at this depth of a path; "" where the file lies above it."""
    parts = name.split("/")
    return parts[depth] if len(parts) > depth + 1 else ""


def splits_of_paths(
    title: str, names: Sequence[str], strict: bool = True
) -> SourceSplits | None:
    """Splits of images by the first folder that they do not all share; None if it is not named after a split.

    Args:
        title: Of the source, for messages.
        names: Paths of all images, with slashes between folders.
        strict: Whether it is an error if only some of these folders are named after splits. Otherwise they then do not
            count as splits, nor does a single one.

    Raises:
        SourceError: see `strict`, and `splits_called`.
    """
    if not names:
        return None
    depth = _shared_folders(names)
    tops = [_folder_at(name, depth) for name in names]
    split_of = splits_called(title, "its folders", dict.fromkeys(tops))
    others = sorted(set(tops) - set(split_of))
    if not split_of or (not strict and (others or len(split_of) < 2)):
        return None
    if others:
        raise ambiguous(
            title,
            sorted(split_of),
            some_of(others) if others != [""] else "images in no folder",
        )
    return SourceSplits.of(
        [split_of[top] for top in tops], f"by its folders {some_of(sorted(split_of))}"
    )


def ambiguous(title: str, splits: Sequence[str], beside: str) -> SourceError:
    """The error for folders named after splits beside other folders with images."""
    fault = f"holds {some_of(splits)}, as splits are called, beside {beside}. Are they splits?"
    return SourceError(
        f"{title}: {fault} Then move the rest elsewhere. If not, give --no-splits"
    )


def _shared_folders(names: Sequence[str]) -> int:
    """The number of leading folders that all names share and that are not named after splits."""
    shared = 0
    first, last = (
        name.split("/")[:-1] for name in (min(names), max(names))
    )  # the others lie between them
    for folder, last_folder in zip(first, last, strict=False):
        if folder != last_folder or split_called(folder):
            break
        shared += 1
    return shared


def splits_of_column(
    title: str, column: str, values: Sequence[object], asked: bool = False
) -> list[str]:
    """The split of each row, by a column; [] if none of its values is the name of a split.

    Args:
        title: Of the source, for messages.
        column: Its name.
        values: One for each row.
        asked: Whether the user named the column.

    Raises:
        SourceError: only some of the values are names of splits, or none of a column that the user named.
    """
    texts = ["" if value is None else str(value).strip().lower() for value in values]
    split_of = splits_called(title, f"the values of {column!r}", dict.fromkeys(texts))
    others = sorted(set(texts) - set(split_of))
    if others and (split_of or asked):
        fault = f"column {column!r} names splits, such as train, val or test, but also {some_of(others)}"
        raise SourceError(f"{title}: {fault}. Correct these, or give --no-splits")
    return [split_of[text] for text in texts] if split_of else []


@dataclass(frozen=True)
class Rejection:
    """One image that was left out.

    Attributes:
        source: Its name in the source.
        reason: Why it was left out.
        asked: Whether the user asked for it (a copy, an image in no list of its split), so it is not a fault.
    """

    source: str
    reason: str
    asked: bool = False


@dataclass(frozen=True)
class Listing:
    """All samples of a source, in an order that depends on nothing but the source.

    Attributes:
        samples: A row a sample: `name` (text; becomes the index column `source`), `bytes` (int64, size of the image as
            it lies in the source), `where` (text, its address) unless that is the name, where the source tells it
            `drawn_width` and `drawn_height` (int32, of the image that annotations were drawn on, 0 for unknown), with
            further pictures `bytes_beside` (int64, size of these and of masks and arrays), then for each field its
            columns, or for what stays in the shard one column of its name with the address, of a list of pictures with
            all of them.
        fields: What a sample has besides its image.
        classes: Name of each class by its number; None if unknown.
        rejected: Images that were left out while listing.
        notes: Sentences for the user about what the source holds or skips.
        splits: The split of each sample, if the source has splits; else the packer draws them.
        image: The name of the first picture, whose address and size the samples have.
        joined: Fields that were joined to the set that is extended, and that its shards do not hold.
        floats: The range of the images that are arrays of floats and may be levels; where the source spools them, of
            all of them.
    """

    samples: pa.Table
    fields: tuple[Field, ...] = ()
    classes: tuple[str, ...] | None = None
    rejected: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    splits: SourceSplits | None = None
    image: str = "image"
    joined: tuple[Field, ...] = ()
    floats: FloatRange = dataclasses.field(default_factory=FloatRange)

    def __len__(self) -> int:
        return int(self.samples.num_rows)


def addresses(samples: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """The addresses by which a source reads the images of these samples."""
    return samples.column(WHERE if WHERE in samples.schema.names else NAME)


def listing_schema(
    fields: tuple[Field, ...], where: bool = False, drawn: bool = False
) -> pa.Schema:
    """The columns of `Listing.samples` for these fields."""
    columns = [pa.field(NAME, pa.large_string()), pa.field(BYTES, pa.int64())]
    if where:
        columns.append(pa.field(WHERE, pa.large_string()))
    if drawn:
        columns += [
            pa.field(DRAWN_WIDTH, pa.int32()),
            pa.field(DRAWN_HEIGHT, pa.int32()),
        ]
    if any(field.kind in (PictureKind.name, PicturesKind.name) for field in fields):
        columns.append(pa.field(BESIDE, pa.int64()))
    for field in fields:
        if kind_of(field).stays_in_shard:
            columns.append(pa.field(field.name, kind_of(field).listed_as))
        else:
            columns += [
                pa.field(name, kind)
                for name, kind in kind_of(field).columns(field).items()
            ]
    return pa.schema(columns)
