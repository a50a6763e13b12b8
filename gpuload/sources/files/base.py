"""A container of named files, such as a folder or an archive: what a source knows of where its images lie.

What belongs to an image (its class folder, its row of a table, a file beside it) is up to a source, which works on any
container. A new container is a file here with a class that fits `Files`, and a line in `open_files`.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from gpuload.sources.listing import Rejection

# fmt: off
IMAGE_EXTENSIONS = frozenset((
    "avif", "avifs", "bmp", "dib", "gif", "icns", "ico", "j2c", "j2k", "jfif", "jp2", "jpc", "jpe", "jpeg",
    "jpf", "jpg", "jpx", "mpo", "pbm", "pcx", "pgm", "png", "pnm", "ppm", "psd", "qoi", "sgi", "tga", "tif",
    "tiff", "webp",
))
# fmt: on


class Found(NamedTuple):
    """A file of a container: its name, with slashes between folders; its size in bytes; what `Files.read` takes."""

    name: str
    size: int
    address: str


class Files(Protocol):
    """Named files. It is sent to worker processes, so it must be picklable and hold no open files.

    `str()` of it is what messages, and the identity of a run, call it.
    """

    def fault(self) -> str:
        """Why nothing can be listed, such as "no such folder"; "" if nothing is wrong."""

    def folders(self, below: str = "") -> list[str]:
        """The folders directly in a folder ("": at the first level), sorted, empty ones too, without hidden ones."""

    def names(self, below: str = "") -> list[str]:
        """The files directly in a folder, sorted, without hidden ones; [] if there is no such folder."""

    def walk(self, extensions: Collection[str], passed: "PassedOver") -> Iterator[Found]:
        """Every file with one of these extensions (lower case, without a dot), folder by folder, sorted by name.

        Hidden files and folders are passed over. What else is left out goes to `passed`.

        Raises:
            SourceError: a folder cannot be listed.
        """

    def find(self, name: str) -> Found:
        """The file of this name.

        Raises:
            OSError: there is none.
        """

    def read(self, address: str) -> bytes:
        """The content of a file, in whichever process.

        Raises:
            OSError: it cannot be read. DecodeError: it is damaged, or is not read for another reason.
        """


@runtime_checkable
class ReadAhead(Protocol):
    """A container whose files take long to come, so that they are asked for before they are read."""

    def expect(self, addresses: Sequence[str]) -> None:
        """What will be read, in this order; not what was expected before."""

    def all_names(self) -> list[str]:
        """Every file that is not hidden, also in folders that gpuload packed."""

    def wait(self, address: str) -> None:
        """Waits until a file that was expected can be read at once, or will not come."""


@dataclass
class PassedOver:
    """What a walk left out: rejected files, sentences about the rest, and how many files of each other extension."""

    rejected: list[Rejection] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def wants(self, name: str, extensions: Collection[str]) -> bool:
        """Whether a file has one of the extensions; counts it if not."""
        extension = os.path.splitext(name)[1][1:].lower()
        if extension in extensions:
            return True
        self.others[f".{printable(extension)}" if extension else "no extension"] += 1
        return False

    def accepts(self, name: str) -> bool:
        """Whether a file's name is UTF-8; rejects the file if not."""
        if printable(name) == name:
            return True
        self.rejected.append(Rejection(printable(name), "its name is not UTF-8"))
        return False

    def by_extension(self) -> str:
        return ", ".join(f"{count:,} × {name}" for name, count in sorted(self.others.items()))

    def sorted_rejections(self) -> tuple[Rejection, ...]:
        """The rejected files, by name."""
        return tuple(sorted(self.rejected, key=lambda rejection: rejection.source))

    def all_notes(self) -> tuple[str, ...]:
        """The sentences for the user, with one for the files of other extensions."""
        return (*self.notes, f"passed over, by extension: {self.by_extension()}") if self.others else (*self.notes,)


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8. Python keeps bytes that are not as halves of surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(name: str) -> str:
    """The name with a mark in place of each byte that is not UTF-8, which Python keeps as half of a surrogate pair."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def read_text(files: Files, found: Found) -> str:
    """A file as text, with "\\n" at the end of each line.

    Raises:
        OSError, DecodeError: as `Files.read`. UnicodeDecodeError: it is not UTF-8.
    """
    return files.read(found.address).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def inside_note(around: str, what: str) -> str:
    """What users are told where all names begin inside of folders that hold everything."""
    return f"names and classes start inside {around.rstrip('/')!r}, which holds everything in the {what}"
