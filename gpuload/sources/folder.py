"""A folder of class folders: `root/<class>/**/<image>`."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.field import LABEL
from gpuload.sources.listing import Listing, Rejection, Source, listing_schema, read_file, some_of

# fmt: off
IMAGE_EXTENSIONS = frozenset((
    "avif", "avifs", "bmp", "dib", "gif", "icns", "ico", "j2c", "j2k", "jfif", "jp2", "jpc", "jpe", "jpeg",
    "jpf", "jpg", "jpx", "mpo", "pbm", "pcx", "pgm", "png", "pnm", "ppm", "psd", "qoi", "sgi", "tga", "tif",
    "tiff", "webp",
))
# fmt: on
_CHUNK_ROWS = 65_536  # rows kept as Python objects before they become Arrow columns


class FolderSource(Source):
    """Images in a folder of class folders.

    Classes are the sorted names of the folders at the first level, as torchvision's ImageFolder numbers them; a class
    folder without an image keeps its number (ImageFolder stops there, or keeps it with `allow_empty`). Folders below a
    class are searched too and links are followed, except one that leads back to a folder it lies in. Hidden files and
    folders are passed over. An image is known by its extension in any case. Samples are in the order of their paths,
    folder by folder, whatever order the file system gives.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def list_samples(self) -> Listing:
        """All images below the class folders.

        Raises:
            SourceError: no such folder, no class folders in it, or no image in those.
        """
        if not self.root.is_dir():
            what = "is a file, not a folder" if self.root.exists() else "no such folder"
            raise SourceError(f"{self.root}: {what}. Give a folder of class folders, as in photos/cat/1.jpg")
        walk = _Walk(str(self.root))
        top = walk.entries("")
        classes = [entry.name for entry in top if walk.enters(entry, entry.name)]
        for name in classes:
            if _utf8(name) != name:
                raise SourceError(
                    f"{self.root}: the class folder {_utf8(name)!r} has a name that is not UTF-8. Rename it"
                )
        schema = listing_schema((LABEL,))
        chunks, empty = [], []
        for label, name in enumerate(classes):
            found = 0
            for names, sizes in _chunked(walk.images(name)):
                found += len(names)
                chunks.append(pa.record_batch([names, sizes, [label] * len(names)], schema=schema))
            if not found:
                empty.append(name)
        for entry in top:
            if entry.name not in classes and walk.is_image(entry, entry.name):
                walk.rejected.append(Rejection(_utf8(entry.name), "lies in no class folder"))
        samples = pa.Table.from_batches(chunks, schema)
        if not classes:
            raise SourceError(
                f"{self.root}: holds no class folders ({len(walk.rejected):,} images lie in it directly). "
                "Put each image into a folder named after its class, or give --labels table.csv"
            )
        if not samples.num_rows:
            raise SourceError(
                f"{self.root}: no image in its {len(classes):,} class folders ({some_of(classes)}). "
                f"Images are known by their extension, such as .jpg, .png or .webp{walk.passed_over(', found: ')}"
            )
        notes = list(walk.notes)
        if empty:
            notes.append(f"{len(empty):,} class folders hold no image and keep their class number: {some_of(empty)}")
        if walk.others:
            notes.append(f"passed over, by extension: {walk.passed_over()}")
        rejected = tuple(sorted(walk.rejected, key=lambda rejection: rejection.source))
        return Listing(samples, (LABEL,), tuple(classes), rejected, tuple(notes))

    def read(self, row: int, name: str, where: str = "") -> bytes:
        return read_file(os.path.join(self.root, name))


@dataclass
class _Walk:
    """Goes through a tree in sorted order and notes what it passes over."""

    root: str
    rejected: list[Rejection] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        """What lies in a folder of the tree (a relative path), sorted, without what is hidden."""
        path = os.path.join(self.root, folder) if folder else self.root
        try:
            with os.scandir(path) as scan:
                return sorted((entry for entry in scan if not entry.name.startswith(".")), key=lambda entry: entry.name)
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be listed ({error.strerror}). Mend its permissions or move it away"
            ) from None

    def images(self, folder: str) -> Iterator[tuple[str, int]]:
        """Relative path and size of each image below a folder."""
        for entry in self.entries(folder):
            name = f"{folder}/{entry.name}"
            if self.enters(entry, name):
                yield from self.images(name)
            elif self.is_image(entry, name):
                if _utf8(name) != name:
                    self.rejected.append(Rejection(_utf8(name), "its name is not UTF-8"))
                    continue
                try:
                    yield name, entry.stat().st_size
                except OSError as error:
                    self.rejected.append(Rejection(name, f"cannot be read: {error.strerror}"))

    def enters(self, entry: os.DirEntry[str], name: str) -> bool:
        """Whether this is a folder to go into; a link back to a folder above it is not."""
        if not entry.is_dir():
            return False
        if entry.is_symlink():
            here, target = os.path.dirname(entry.path), os.stat(entry.path)
            for _ in range(name.count("/") + 1):
                if os.path.samestat(os.stat(here), target):
                    self.notes.append(f"passed over {name!r}, a link to a folder that it lies in")
                    return False
                here = os.path.dirname(here)
        return True

    def is_image(self, entry: os.DirEntry[str], name: str) -> bool:
        extension = os.path.splitext(name)[1][1:].lower()
        if extension in IMAGE_EXTENSIONS:
            return not entry.is_dir()
        self.others[f".{extension}" if extension else "no extension"] += 1
        return False

    def passed_over(self, head: str = "") -> str:
        if not self.others:
            return ""
        return head + ", ".join(f"{count:,} × {name}" for name, count in sorted(self.others.items()))


def walk_files(root: Path, rejected: list[Rejection]) -> Iterator[tuple[str, int]]:
    """Path below the root and size of every file, sorted, as `FolderSource` goes through a tree.

    What has a name that is not UTF-8, or cannot be looked at, goes to `rejected`.
    """
    walk = _Walk(str(root), rejected)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        below = []
        for entry in walk.entries(folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if walk.enters(entry, name):
                below.append(name)
            elif _utf8(name) != name:
                rejected.append(Rejection(_utf8(name), "its name is not UTF-8"))
            elif not entry.is_dir():
                try:
                    yield name, entry.stat().st_size
                except OSError as error:
                    rejected.append(Rejection(name, f"cannot be read: {error.strerror}"))
        waiting += reversed(below)


def _utf8(name: str) -> str:
    """The name with a mark in place of each byte that is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _chunked(images: Iterator[tuple[str, int]]) -> Iterator[tuple[list[str], list[int]]]:
    names: list[str] = []
    sizes: list[int] = []
    for name, size in images:
        names.append(name)
        sizes.append(size)
        if len(names) == _CHUNK_ROWS:
            yield names, sizes
            names, sizes = [], []
    if names:
        yield names, sizes
