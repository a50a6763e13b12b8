"""Containers of named files, such as a folder or an archive, from which sources read images.

A source decides what belongs to an image (its class folder, its row of a table, a file beside it) and works on any
container. A new container is a subclass of `Files`, and a line in `rows.open_files`.
"""

import codecs
import errno
import os
import posixpath
import stat
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from gpuload.disk.manifest import ROOT_FILES
from gpuload.errors import DecodeError, GpuloadError, SourceError
from gpuload.fields.field import Field
from gpuload.formats import image_extensions
from gpuload.machine.untrusted import open_regular
from gpuload.sources.listing import Rejection, split_called
from gpuload.store.url import URL

ARCHIVES = (".zip",)
COPIES = "copies"  # the folder of a run for what it copies from a URL
# The advice about a source at a URL.
ELSEWHERE = "Download what is there, or mount it"


# fmt: off
# Other images by their extensions: what they are, and how they can be packed.
_DEVELOP = "camera raw, which is not read: develop them to TIFF, PNG or JPEG"
_CONVERT = "which is not read: convert them to TIFF or PNG, or pass arrays to gpuload.pack() from a program"
_TO_CONVERT = {
    "hdr": "Radiance", "pfm": "PFM", "nii": "NIfTI", "mha": "MetaImage", "nrrd": "NRRD", "jxr": "JPEG XR",
    "jls": "JPEG-LS", "bpg": "BPG", "dds": "DDS", "svs": "a slide of a scanner", "ndpi": "a slide of a scanner",
    "mrxs": "a slide of a scanner", "czi": "a slide of a scanner", "svg": "SVG",
}
_CAMERA_RAW = ("dng", "nef", "cr2", "cr3", "arw", "raf", "orf", "rw2", "pef", "srw", "x3f", "nrw", "raw")
_OTHER_IMAGES = {
    **{extension: f"{name}, {_CONVERT}" for extension, name in _TO_CONVERT.items()},
    **dict.fromkeys(_CAMERA_RAW, _DEVELOP),
    "npy": "arrays: give --mode with their type and number of channels, such as --mode uint16x4",
}
PACKED = frozenset(("manifest.json", "index.arrow"))  # in every folder that gpuload packed
# Folders that systems create beside a user's files: macOS, Python, NAS boxes, Windows, ext4.
_SYSTEM_FOLDERS = frozenset((
    "__MACOSX", "__pycache__", "@eaDir", "@Recycle", "#recycle", "$RECYCLE.BIN", "System Volume Information",
    "lost+found",
))
# fmt: on


_MOST_AROUND = 4  # folders around a data set that are looked into


def is_hidden(name: str) -> bool:
    """Whether to skip a file or folder: its name is hidden, or belongs to an operating system."""
    return name.startswith(".") or name in _SYSTEM_FOLDERS


def lies_hidden(name: str) -> bool:
    """Whether to skip a file: a folder around it is hidden, or it is itself."""
    return any(map(is_hidden, name.split("/")))


@contextmanager
def readable(title: object, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors of reading a file into one that names it; those of gpuload stay as they are.

    Args:
        title: The file, for messages.
        what: What it should be, with the advice for one that is not.
        *errors: That reading may raise, besides OSError.
    """
    try:
        yield
    except Exception as error:  # `fault_of` raises what is not expected
        fault = fault_of(error, *errors)
        advice = "Correct it, copy it again, or leave it out"
        raise SourceError(
            f"{title}: cannot be read as {what} ({fault}). {advice}"
        ) from None


def fault_of(error: Exception, *expected: type[Exception]) -> str:
    """Why a file cannot be read, in a line; what is no such fault is raised again.

    Args:
        error: That reading raised.
        *expected: What it may raise, besides OSError and DecodeError.
    """
    is_own = isinstance(error, GpuloadError) and not isinstance(error, DecodeError)
    if is_own or not isinstance(error, (OSError, DecodeError, *expected)):
        raise error
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return str(reason) or type(error).__name__


def decode_text(data: bytes) -> str:
    """The text of a file that describes images, without a byte order mark: UTF-8, or UTF-16 where its mark says so.

    Raises:
        UnicodeDecodeError: it is neither.
    """
    return data.decode(
        "utf-16"
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        else "utf-8-sig"
    )


class Ref(NamedTuple):
    """Stands in a row for an image, mask or array that the source reads later.

    Attributes:
        name: With slashes between folders.
        size: In bytes.
        address: What the container reads it by.
        detail: What is known of an array, see `ArrayKind.detail`.
    """

    name: str
    size: int
    address: str
    detail: str = ""


class Findings:
    """What a source reports besides its rows.

    Args:
        images_alone: Whether only images are wanted.

    Attributes:
        rejected: As of `Listing`.
        notes: As of `Listing`.
        others: Counts of files that are passed over, by extension.
        classes: Names of the class numbers, by field.
        category_ids: COCO's numbers of these classes, by field.
        instances_of: See `Field.instances_of`, by field.
        kinds: Of fields whose kind does not follow from name or values.
        fields: Those that are known before their values.
        picked: Whether values are in the form that `Kind.parse` takes, not in that of samples.
        origin: Where the "split" of its rows comes from, for messages, unless it is a column.
        doubts: Columns of which it is not known how they are to be read, with the question to the user; an error, if
            they are still here after all rows.
        settled: Columns that have told it themselves.
        shapeless: Counts of shapes without an area, which are no objects, by their kinds.
        draws: Whether its rows have `DRAWN_ON`, the (width, height) of the image that their annotations were drawn on;
            0, 0 where that is unknown, or there are none.
        strict: Whether it is an error if only some images lie in folders named after splits; None where such folders do
            not count as splits.
    """

    def __init__(self, images_alone: bool = False) -> None:
        self.images_alone = images_alone
        self.rejected: list[Rejection] = []
        self.notes: list[str] = []
        self.others: Counter[str] = Counter()
        self.classes: dict[str, tuple[str, ...]] = {}
        self.category_ids: dict[str, tuple[int, ...]] = {}
        self.instances_of: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.fields: dict[str, Field] = {}
        self.picked = False
        self.origin = ""
        self.draws = False
        self.doubts: dict[str, str] = {}
        self.settled = set[str]()
        self.shapeless: Counter[str] = Counter()
        self.strict: bool | None = None
        self._used = set[str]()

    def note(self, text: str) -> None:
        """Adds a note, if it is not there yet."""
        if text not in self.notes:
            self.notes.append(text)

    def reject(self, name: str, reason: str, asked: bool = False) -> None:
        self.rejected.append(Rejection(printable(name), reason, asked))

    def wants(self, name: str, extensions: Collection[str]) -> bool:
        """Whether a file has one of the extensions; the others are counted."""
        extension = extension_of(name)
        if extension in extensions:
            if is_text(name):
                return True
            self.reject(name, "its name is not UTF-8")
        else:
            self.others[_counted_as(name)] += 1
        return False

    def use(self, name: str) -> None:
        """A file that `wants` has counted is one of annotations, and is read."""
        if name not in self._used:
            self._used.add(name)
            self.others[_counted_as(name)] -= 1

    def all_notes(self) -> tuple[str, ...]:
        """The notes, with one for files of other extensions."""
        notes = dict.fromkeys(self.notes)
        passed_over = by_count(+self.others)
        if not passed_over:
            return (*notes,)
        return (*notes, f"passed over, by extension: {passed_over}")


def _counted_as(name: str) -> str:
    """What the files with the extension of this one are called."""
    extension = extension_of(name)
    return f".{printable(extension)}" if extension else "no extension"


def by_count(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {name}" for name, count in sorted(counts.items()))


def advice_on_images(others: Counter[str]) -> str:
    """What to do with files that are images, but of kinds that are not read; "" if there are none.

    Args:
        others: Counts of files that are passed over, by extension.
    """
    advice = {
        _OTHER_IMAGES[name[1:]]: name for name in others if name[1:] in _OTHER_IMAGES
    }
    return "; ".join(f"{name} are {remedy}" for remedy, name in advice.items())


Scan = tuple[dict[str, str], list[str]]


class Files(ABC):
    """A container of named files. It is sent to worker processes, so it must be picklable and hold no open files.

    `str()` gives its name in messages and in the identity of a run.

    around: the outer folders that hold everything, each with a slash after it; names do not contain them.
    """

    around = ""

    @property
    def suffix(self) -> str:
        """That of its own name, in lower case and with the dot; "" without."""
        return os.path.splitext(str(self))[1].lower()

    @abstractmethod
    def fault(self) -> str:
        """Why it cannot be listed, such as "no such folder"; "" if it can."""

    @abstractmethod
    def scan(self, folder: str) -> Scan:
        """The entries of a folder ("": the first level) that are not hidden: folders, each with the reason for skipping
        it or "", and files. Both are empty if the folder does not exist.

        Raises:
            SourceError: it cannot be listed.
        """

    @abstractmethod
    def find(self, name: str) -> Ref:
        """The file with this name.

        Raises:
            OSError: it does not exist.
        """

    @abstractmethod
    def read(self, address: str) -> bytes:
        """The content of a file, in any process.

        Raises:
            OSError: it cannot be read. DecodeError: it is damaged.
        """

    def text(self, name: str) -> str:
        """The text of a file that describes images: UTF-8, or UTF-16 with a byte order mark.

        Raises:
            SourceError: it does not exist, or is no text.
        """
        with readable(f"{self}/{name}", "UTF-8 text", UnicodeDecodeError):
            return decode_text(self.content(name))

    def content(self, name: str) -> bytes:
        """The bytes of the file with this name.

        Raises:
            OSError, DecodeError: as `find` and `read`.
        """
        return self.read(self.find(name).address)

    def leave_out(self, folder: str | Path) -> None:  # noqa: B027 -- for containers in which it could lie
        """Skips the output folder from now on, by whatever name it appears."""

    def move_to(self, folder: Path) -> None:  # noqa: B027 -- most are where all machines find them
        """Moves what lies in a temporary folder of this machine into another folder, which others share."""

    def folders(self, below: str = "") -> list[str]:
        """The folders directly in a folder, sorted, empty ones too."""
        return sorted(
            name for name, reason in self.scan(below)[0].items() if not reason
        )

    def names(self, below: str = "") -> list[str]:
        """The files directly in a folder, sorted."""
        return sorted(self.scan(below)[1])

    def images(self, below: str = "") -> list[str]:
        """The images directly in a folder, by their extensions, sorted."""
        return list(filter(is_image, self.names(below)))

    def walk(self, extensions: Collection[str], findings: Findings) -> Iterator[Ref]:
        """Every file with one of some extensions, folder by folder, sorted by name.

        Files that are left out are reported to `findings`.

        Args:
            extensions: Lower case, without a dot.
            findings: Gets the files that are left out.
        """
        if self.around:
            around = self.around.rstrip("/")
            findings.notes.append(
                f"names and classes start inside {around!r}, which holds everything"
            )
        levels = [self._entries("")]
        while levels:
            name, passed_over = next(levels[-1], ("", None))
            if not name:
                levels.pop()
            elif passed_over:
                findings.notes.append(f"passed over {name!r}, {passed_over}")
            elif passed_over is not None:
                levels.append(self._entries(name))
            elif findings.wants(name, extensions) and (
                file := self._listed(name, findings)
            ):
                yield file

    def _entries(self, folder: str) -> Iterator[tuple[str, str | None]]:
        """The names in a folder, sorted: files with None, folders with the reason for skipping them, or ""."""
        folders, files = self.scan(folder)
        reasons: dict[str, str | None] = {**dict.fromkeys(files), **folders}
        return (
            (posixpath.join(folder, name), reasons[name]) for name in sorted(reasons)
        )

    def _listed(self, name: str, findings: Findings) -> Ref | None:
        try:
            return self.find(name)
        except OSError as error:
            findings.reject(name, f"cannot be read: {error.strerror}")
        return None

    def split_files(self, suffix: str | tuple[str, ...]) -> list[str]:
        """The files with one of these suffixes at the first level, or else in folders named after splits; else the
        same in `data`.

        Folders that gpuload packed are included.
        """
        for place in ("", "data/"):
            splits = [
                f"{place}{name}/"
                for name in sorted(self.scan(place.rstrip("/"))[0])
                if split_called(name)
            ]
            for folders in ([place], splits):
                names = [
                    folder + name
                    for folder in folders
                    for name in self.names(folder.rstrip("/"))
                ]
                if names := [name for name in names if name.lower().endswith(suffix)]:
                    return names
        return []

    def expect(self, addresses: Sequence[str]) -> None:  # noqa: B027 -- for containers whose files take long to come
        """Announces what will be read, in this order; replaces earlier announcements."""

    def wait(self, address: str) -> None:  # noqa: B027 -- as `expect`
        """Waits until an expected file can be read at once, or has failed."""


class Folder(Files):
    """A folder on a disk with all that lies below it.

    Links are followed, except those to a folder above them. Entries are in the order of their names. Addresses are
    names. Folders that gpuload packed are skipped.
    """

    def __init__(
        self, path: str | Path, around: str = "", without: os.stat_result | None = None
    ) -> None:
        self.path = Path(path)
        self.around = around
        self._without = without  # the output folder
        # Of the folders at the first level, which are listed several times.
        self._passed_over = dict[str, str]()

    def inside(self, folder: str) -> "Folder":
        """A folder at the first level as a container, with names relative to it."""
        return Folder(self.path / folder, f"{self.around}{folder}/", self._without)

    def leave_out(self, folder: str | Path) -> None:
        self._without = None
        self._passed_over = {}
        with suppress(OSError):
            self._without = os.stat(folder)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_passed_over": {}}

    def __str__(self) -> str:
        return str(self.path)

    def fault(self) -> str:
        try:
            return (
                ""
                if stat.S_ISDIR(os.stat(self.path).st_mode)
                else "is a file, not a folder"
            )
        except FileNotFoundError:
            return "no such folder"
        except OSError as error:  # such as links in a circle
            return f"cannot be opened ({error.strerror})"

    def scan(self, folder: str) -> Scan:
        path = os.path.join(self.path, folder) if folder else str(self.path)
        try:
            with os.scandir(path) as scan:
                entries = [entry for entry in scan if not is_hidden(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return {}, []
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be listed ({error.strerror}). Correct its permissions"
            ) from None
        folders = dict[str, str]()
        files = list[str]()
        reasons = dict[str, str]() if folder else self._passed_over
        depth = folder.count("/") + 1 if folder else 0
        for entry in entries:
            if _is_dir(entry):
                if entry.name not in reasons:
                    reasons[entry.name] = self._why_passed_over(entry, depth)
                folders[entry.name] = reasons[entry.name]
            else:
                files.append(entry.name)
        return folders, files

    def _why_passed_over(self, entry: os.DirEntry[str], depth: int) -> str:
        """The reason why an entry of a folder is not looked at; "" if it is.

        Args:
            depth: The number of folders of this container around it.
        """
        if entry.is_symlink() and _leads_back(entry, depth):
            return "a link to a folder that it lies in"
        if self._without is not None and os.path.samestat(
            os.stat(entry.path), self._without
        ):
            return "the output folder"
        is_packed = _holds_packed_set(entry.path) or (
            not depth and _holds_packed_splits(entry.path)
        )
        return "which gpuload packed" if is_packed else ""

    def find(self, name: str) -> Ref:
        """A file by a name from a text, which may not lead out of the folder."""
        if ".." in name or name.startswith("/"):
            root = os.path.abspath(self.path)
            name = os.path.relpath(os.path.normpath(os.path.join(root, name)), root)
            if name.split("/")[0] == "..":
                raise PermissionError(errno.EPERM, "leads out of the folder", name)
        try:
            status = os.stat(os.path.join(self.path, name))
        except ValueError:  # a zero, or half of a surrogate pair
            raise FileNotFoundError(
                errno.ENOENT, "is no name of a file", name
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "is not a regular file", name)
        return Ref(name, status.st_size, name)

    def read(self, address: str) -> bytes:
        return read_file(os.path.join(self.path, address))


class OneFile(Files):
    """A single file as a container, so that sources recognise it as they do a folder. It may lie at a URL; then it has
    a name alone."""

    def __init__(self, path: Path | URL) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        """Whether there is such a file; of one at a URL that is not known yet."""
        return isinstance(self.path, URL) or self.path.exists()

    def fault(self) -> str:
        return "is a file, not a folder" if self.exists else "no such folder"

    def scan(self, folder: str) -> Scan:
        return {}, [] if folder else [self.path.name]

    def find(self, name: str) -> Ref:
        if isinstance(self.path, URL) or name != self.path.name:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return Ref(name, self.path.stat().st_size, name)

    def read(self, address: str) -> bytes:
        return read_file(self.path) if isinstance(self.path, Path) else b""


def lone_folder(files: Files) -> str:
    """The folder that holds everything but files that are no images; "" if there is none.

    Such a folder is one around a data set. It is looked for on a disk alone; names in archives start inside it anyway.
    """
    if not isinstance(files, Folder) or files.around.count("/") >= _MOST_AROUND:
        return ""
    folders = files.folders()
    is_around = len(folders) == 1 and not split_called(folders[0])
    return folders[0] if is_around and not files.images() else ""


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as links in a circle
        return False


def _leads_back(entry: os.DirEntry[str], depth: int) -> bool:
    """Whether a link leads to a folder above it, of which there are `depth` and the container."""
    above = islice(Path(entry.path).parents, depth + 1)
    return any(os.path.samefile(folder, entry.path) for folder in above)


def _holds_packed_set(path: str) -> bool:
    """Whether gpuload packed this folder, or indexed it."""
    return all(os.path.exists(os.path.join(path, name)) for name in PACKED)


def _holds_packed_splits(path: str) -> bool:
    """Whether this folder holds nothing but packed folders and what describes them, as the output of a run does."""
    with suppress(OSError), os.scandir(path) as scan:
        entries = (
            entry
            for entry in scan
            if not entry.name.startswith(".") and entry.name not in ROOT_FILES
        )
        if first := next(entries, None):
            return all(
                entry.is_dir() and _holds_packed_set(entry.path)
                for entry in chain([first], entries)
            )
    return False


def read_file(path: str | os.PathLike[str]) -> bytes:
    """A whole file, in less time than `open` and `read` take where it is cached.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_regular(path, buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)
        return data if len(data) == size else data + file.read()  # it grew


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Some bytes of a file; fewer where it ends before."""
    with open_regular(path, buffering=0) as file:
        return os.pread(file.fileno(), size, offset)


def extension_of(name: str) -> str:
    """Of a file's name, in lower case and without the dot; "" without."""
    return os.path.splitext(name)[1][1:].lower()


def is_image(name: str) -> bool:
    """Whether a file is an image, by its extension."""
    return extension_of(name) in image_extensions()


class Names:
    """The folders and files of a container, by folder, from a list of all names.

    Args:
        names: All of them, with slashes between folders; the name of an empty folder ends in one.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.folders: dict[str, dict[str, str]] = {"": {}}
        self.files: dict[str, list[str]] = {}
        for name in names:
            place, _, file = name.rpartition("/")
            if file:
                self.files.setdefault(place, []).append(file)
            inside = ""
            while place not in self.folders:
                self.folders[place] = {inside: ""} if inside else {}
                place, _, inside = place.rpartition("/")
            if inside:
                self.folders[place][inside] = ""

    def scan(self, folder: str) -> Scan:
        """As `Files.scan`."""
        return self.folders.get(folder, {}), self.files.get(folder, [])


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8. Python keeps bytes that are not as halves of surrogate pairs."""
    return printable(name) == name


def printable(name: str) -> str:
    """The name with a mark in place of each byte that is not UTF-8, which Python keeps as half of a surrogate pair."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")
