"""What a source is: the interface that gpuload's own and those of other packages implement.

A source says whether it recognises a place, yields a row for every sample, and reads the images that rows refer to.
It knows nothing of shards. `docs/own-source.md` shows how to write one.
"""

import dataclasses
import glob
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gpuload.checks import nearest
from gpuload.errors import ArgumentError, SourceError
from gpuload.formats import Conversion
from gpuload.machine.installed import require
from gpuload.sources import listing, rows
from gpuload.sources.archive import Archive
from gpuload.sources.archives import is_archive_at, open_archive, open_archive_at
from gpuload.sources.files import (
    ARCHIVES,
    COPIES,
    ELSEWHERE,
    Files,
    Findings,
    Folder,
)
from gpuload.sources.numbering import renumber
from gpuload.sources.tar_archive import TarArchive
from gpuload.store.url import URL, as_location
from gpuload.types import Array

Row = Mapping[str, Any]
Names = tuple[str, ...]

# How sure a source is of what it recognises. Only their order counts.
CERTAIN = 1.0  # by a signature or a suffix that nothing else has
CONTENT = 0.8  # by what a file says
LAYOUT = 0.5  # by names of files and folders
FALLBACK = 0.1  # where nothing else recognises anything


class Sight(NamedTuple):
    """What a source recognises in a place.

    Attributes:
        confidence: How sure it is, above 0 and up to 1, see `CERTAIN`. The surest source packs the place.
        reason: What it sees there, such as "holds data.yaml and labels beside images", for messages.
        uses: Names of the files of annotations that it reads. Others that lie there are a question to the user.
    """

    confidence: float
    reason: str
    uses: Names = ()


@dataclass(frozen=True)
class SourceOptions:
    """The options of every source. A source with more of its own derives from it, and sets `Source.Options`.

    Args:
        named: Whether the user said that it is this source (`--from`), so that nothing in it is too unlikely.
        own_splits: Whether the splits that the place itself has are kept.
        images_alone: Whether only the images are wanted, without any field.
        as_stored: Whether arrays of images stay as they are, of any dtype and number of channels; else they become
            uint8. The packer sets it by its mode.
        conversion: What PIL images become. The packer sets it.
        follows: Whether the mode of the set follows from its images, so that PIL images and floats stay as they are
            until it is known. The packer sets it.
        classes: Names of all classes in the order of the numbers that they get (`--classes`); () keeps those of the
            source.
        kinds: Those of fields that were joined to the set that is extended, by name. The packer sets it.
    """

    named: bool = False
    own_splits: bool = True
    images_alone: bool = False
    as_stored: bool = False
    conversion: Conversion = field(default_factory=Conversion)
    follows: bool = False
    classes: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnOptions(SourceOptions):
    """The options of a source of columns, arrays or keys.

    Args:
        columns: Their names by what they hold, where these are not the usual ones (`--column`).
    """

    columns: Mapping[str, Names] = field(default_factory=dict)


# Recorded by the packer.
_OF_PACKING = ("own_splits", "as_stored", "conversion", "follows", "kinds")


class Source(ABC):
    """Where images come from: yields its samples one after the other, as dicts with the same keys.

    "image": encoded bytes, a `Ref` to a file, a PIL image, or an array, uint8 or float in 0..1, (H, W), (H, W, C) or
        (C, H, W) with 1 or 3 channels. Where `takes_paths`, also the path of a file.
    "label": a class, as number or name. "labels": a list of them. "boxes": (M, 4) x0 y0 x1 y1 in pixels, with
        "boxes_class", and of instances "boxes_masks", COCO's segmentations or masks (H, W), "boxes_area" and
        "boxes_crowd". "keypoints": a list of instances, each of points x, y, visibility. "mask": as an image, a class
        number for each pixel. "name": what the sample is called, by default as its file, or its number.
    "split": "train", "val" or "test", or another name of these (see `splits`); then the packer draws no splits.
    Any other key by the type of its value: a float or a list of floats is a target, a str a caption, an array stays
        one, ints in every sample are whole numbers (else a target), and a dict or another list JSON.

    Classes that a sample names are numbered in sorted order. A source whose numbers have names of their own sets
    `findings.classes["label"]`, and of boxes `findings.classes["boxes"]`, before its first row.

    It is sent to worker processes, so it must be picklable and hold no open files. Its options never change: the packer
    works on a copy with those of the run (`with_options`).

    Options: the class of its options. spools: whether images are in the rows, or these can be had only once; else every
        image is a `Ref`, which `read` reads. takes_paths: whether an image or a mask may be the path of a file, as a
        program may give it; a file of somebody else could name any. advice: what to do where there is no sample.
    uses: the kinds of files of annotations that it reads (see `survey`), besides those that its `Sight` names; where it
        is recognised, others are an error.
    needs: packages. needs_process: whether it is read in a process of its own, since it calls C libraries that trust
        what they read, so that a damaged file may crash them.
    suffixes: of the files that it reads, with their dots; the first is that of the files in a folder, and those at a
        URL are copied first. Without, it is read from local files alone.
    copies_folders: whether all files of a folder at a URL are copied, whatever their suffixes.

    Args:
        path: A file or a folder, or a URL where there are `suffixes`.
        options: Fields of `Options`, by name.

    Raises:
        ArgumentError: an option is unknown.
        MissingPackageError: a package that it needs cannot be used.
        SourceError: it is read from local files alone, and the path is a URL.
    """

    Options: ClassVar[type[SourceOptions]] = SourceOptions
    advice: ClassVar[str] = "Give at least one"
    suffixes: ClassVar[Names] = ()
    copies_folders: ClassVar[bool] = False
    spools: ClassVar[bool] = True
    takes_paths: ClassVar[bool] = False
    needs: ClassVar[Names] = ()
    needs_process: ClassVar[bool] = False
    uses: ClassVar[Names] = ()
    # What the user gave, by the place of a copy of it.
    originals: Mapping[Path, object] = {}
    _scratch = Path()
    _local = Path()
    _white = 1  # in its images of floats

    def __init__(self, path: str | Path | URL, **options: Any) -> None:
        self.options = self.make_options(options)
        require(str(path), *self.needs)
        self.path: Any = located(path)
        if isinstance(self.path, Path):
            self._local = self.path
        elif self.suffixes or self.copies_folders:
            from gpuload.sources.remote import Copies  # asyncio

            self.path = Copies(self.path, self.suffixes, self.copies_folders)
        else:
            raise SourceError(
                f"{self.path}: is a URL, and this kind of source is read from files. {ELSEWHERE}"
            )

    @classmethod
    def make_options(cls, values: Mapping[str, Any]) -> SourceOptions:
        """Its options with these values, by name.

        Raises:
            ArgumentError: it has no option of that name.
        """
        names = [option.name for option in dataclasses.fields(cls.Options)]
        if unknown := sorted(values.keys() - set(names)):
            similar = nearest(unknown[0], names)
            advice = (
                f"Did you mean {similar}?" if similar else f"It has {', '.join(names)}"
            )
            raise ArgumentError(
                f"{cls.__name__} has no option {unknown[0]!r}. {advice}"
            )
        return cls.Options(**values)

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        """What this source sees in a place; None if it is nothing of its own.

        By default: a name with one of `suffixes`, or a folder with files of the first.

        Args:
            files: A folder, an archive, or a single file, which is then the only one (`Files.names`).
        """
        if isinstance(files, Archive):
            return None  # only a source of files can read what is in one
        if files.suffix in cls.suffixes:
            return Sight(CERTAIN, f"its name ends in {files.suffix}")
        if cls.suffixes and files.split_files(cls.suffixes[0]):
            return Sight(LAYOUT, f"holds {cls.suffixes[0]}")
        return None

    @abstractmethod
    def rows(self, findings: Findings) -> Iterator[Row]:
        """Each sample, once, by `self.options`.

        Args:
            findings: Gets notes and rejected files.

        Raises:
            SourceError: there is no sample, or the data contradict themselves.
        """

    def with_options(self, **changes: Any) -> "Source":
        """A copy with some options changed."""
        changed = object.__new__(type(self))
        changed.__dict__ |= (
            self.__dict__
        )  # `copy` would leave out what workers do not get
        changed.options = dataclasses.replace(self.options, **changes)
        return changed

    @property
    def title(self) -> str:
        """Its name in messages."""
        return str(self.path if isinstance(self.path, Path) else self.path.given)

    @property
    def identity(self) -> str:
        """Which images these are, as a text: a run is resumed only with the same."""
        usual = self.Options()
        values = {
            option.name: getattr(self.options, option.name)
            for option in dataclasses.fields(self.Options)
            if option.name not in _OF_PACKING
        }
        changed = {
            name: value
            for name, value in values.items()
            if value != getattr(usual, name)
        }
        return (
            ", ".join(
                [
                    f"{type(self).__name__}({self.path}",
                    *(f"{name}={value}" for name, value in sorted(changed.items())),
                ]
            )
            + ")"
        )

    def leave_out(self, folder: Path) -> None:  # noqa: B027 -- most read no folder in which it could lie
        """Skips a folder from now on: the output folder."""

    def prepare(self, scratch: Path) -> None:
        """Makes the samples ready: copies the files of a URL, and fills the spool, unless an earlier run has filled it.

        Args:
            scratch: A folder that exists until the set is packed.
        """
        if not isinstance(self.path, Path):
            self._local = self.path.fetch(scratch)
            self.originals = {scratch / COPIES: self.path.root}
        self._scratch = scratch
        if self.spools:
            self._white = rows.fill_spool(self, scratch)

    def share(self, scratch: Path) -> None:  # noqa: B027 -- for sources that unpack something
        """Called after `prepare` where workers are on other machines.

        Args:
            scratch: A folder that all machines share.
        """

    def list_samples(self) -> listing.Listing:
        """Every sample: names and numbers, no pixels; in an order that depends on the source alone.

        Raises:
            SourceError: as `rows`.
        """
        samples = (
            rows.list_spool(self, self._scratch)
            if self.spools
            else rows.list_rows(self)
        )
        classes = self.options.classes
        return renumber(samples, classes, self.title) if classes else samples

    def expect(self, addresses: Sequence[str]) -> None:  # noqa: B027 -- for sources whose files take long to come
        """Called in a worker with all that it will `read`, in order."""

    def wait(self, address: str) -> None:  # noqa: B027 -- as `expect`
        """Called before each `read`, whose time is limited: what takes long for no fault of the image is done here."""

    def read(self, address: str) -> bytes | Array:
        """The image, mask or array at an address of the listing: encoded, or an array.

        Raises:
            OSError: it cannot be read any more; the packer leaves it out with that reason.
            DecodeError: the same, with the reason as its message.
        """
        mode = "" if self.options.follows else self.options.conversion.mode
        return rows.read_spool(self._scratch, address, self._white, mode)

    def matching(self) -> list[Path]:
        """The files that match the path, which has wildcards, sorted."""
        return [Path(name) for name in sorted(glob.glob(str(self._local)))]

    def splits_of(self, names: Sequence[str], findings: Findings) -> list[str]:
        """The split of each of some files, by words in their names or in those of their folders; [] where all belong to
        one."""
        if not self.options.own_splits:
            return []
        splits = listing.splits_of_files(self.title, names)
        if splits:
            findings.origin = "by the names of its files or their folders"
        return splits


class FilesSource(Source):
    """Images, and perhaps masks, that are files of a container: rows hold a `Ref` for each, by `Files.find` or `walk`,
    and nothing is copied before it is packed.

    `self.files` is the container.

    Args:
        root: A folder, a zip archive, a URL, or any other `Files`.
        options: Fields of `Options`, by name.
    """

    advice = "Give a folder of images, which are known by their extensions, such as .jpg, .png or .webp"
    spools = False

    def __init__(self, root: str | Path | URL | Files, **options: Any) -> None:
        self.options = self.make_options(options)
        require(str(root), *self.needs)
        self.files = open_files(root)
        self.path = root if isinstance(root, Files) else located(root)

    @property
    def title(self) -> str:
        return str(self.path)

    def leave_out(self, folder: Path) -> None:
        self.files.leave_out(folder)

    def prepare(self, scratch: Path) -> None:
        self._scratch = scratch
        if self.spools:
            self._white = rows.fill_spool(self, scratch)

    def share(self, scratch: Path) -> None:
        self.files.move_to(scratch)

    def list_samples(self) -> listing.Listing:
        if fault := self.files.fault():
            raise SourceError(f"{self.path}: {fault}. {self.advice}")
        return super().list_samples()

    def expect(self, addresses: Sequence[str]) -> None:
        self.files.expect(addresses)

    def wait(self, address: str) -> None:
        self.files.wait(address)

    def read(self, address: str) -> bytes | Array:
        return self.files.read(address)


def located(path: Any) -> Path | URL:
    """A path, or a URL that can be read here; raises as `as_location`."""
    location = as_location(path)
    return location if isinstance(location, URL) else Path(location)


def open_files(
    root: str | Path | URL | Files, zip_encoding: str | None = None
) -> Files:
    """Opens the container at a path: an archive by its name, else a folder, perhaps at a URL.

    Args:
        root: The path; a container is given back.
        zip_encoding: Of names in a zip archive, see `ZipArchive`.

    Raises:
        SourceError: an archive is damaged, or a compressed shard of WebDataset. MissingPackageError: py7zr is not
            installed. RemoteError: a URL cannot be read.
    """
    if isinstance(root, Files):
        return root
    path = located(root)
    if isinstance(path, URL):
        from gpuload.sources.remote import RemoteFolder  # asyncio

        if is_archive_at(path):
            return open_archive_at(path, zip_encoding)
        return RemoteFolder(path)
    suffix = path.suffix.lower()
    if path.is_dir() or not (path.is_file() or suffix in ARCHIVES):
        return Folder(path)
    if suffix == ".tar":
        return TarArchive(path)
    return open_archive(path, True, zip_encoding) or Folder(path)
