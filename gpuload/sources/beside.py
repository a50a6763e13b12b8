"""Further pictures of each sample, in folders of their own whose files are called as the images are."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.pictures import PICTURE_SUFFIXES, PictureKind
from gpuload.sources.files import Files, Findings, Ref
from gpuload.sources.folder import FolderSource, UnlabeledSource
from gpuload.sources.listing import Listing
from gpuload.sources.source import FilesSource, Row, Source, open_files
from gpuload.store.url import URL
from gpuload.types import Array

_EXTENSIONS = frozenset(suffix.removeprefix(".") for suffix in PICTURE_SUFFIXES)
_LOOKED_AT = 100  # images whose names tell in what those of files differ
_IMAGES = 0  # the number of the images' own files; those of further pictures follow


class PicturesBeside(Source):
    """The samples of another source, each with the files of the same name in further folders.

    A file belongs to an image if both have one name without extension, in the same folder below their own or anywhere,
    as "cats/1.jpg" and "1.png"; or if all files of the folder have the same ending after that name, as "0801x4.png", or
    all images have.

    Args:
        images: The source of the samples, whose images are files.
        folders: By the name of the picture, a folder, a zip archive or a URL.
        image: What the image is called.

    Raises:
        ArgumentError: The images of the source are no files; or a name is that of the image.
    """

    spools = False

    def __init__(
        self,
        images: Source,
        folders: Mapping[str, str | Path | URL | Files],
        image: str = "image",
    ) -> None:
        if not isinstance(images, FilesSource) or images.spools:
            raise ArgumentError(
                f"pictures: {images.title} holds its images, and further pictures lie beside files. Give a folder of "
                "images, or samples as dicts with several pictures"
            )
        if image in folders:
            raise ArgumentError(f"pictures: {image!r} is the image of each sample")
        # A folder without class folders holds images without labels.
        if type(images) is FolderSource and not images.files.folders():
            own_splits = images.options.own_splits
            images = UnlabeledSource(images.files, own_splits=own_splits)
        self._images = images
        self._image = image
        self._folders = {name: open_files(root) for name, root in folders.items()}
        self.options = self._images.options
        self.path = images.path

    @property
    def title(self) -> str:
        return self._images.title

    @property
    def identity(self) -> str:
        folders = ", ".join(f"{name}={root}" for name, root in self._folders.items())
        return f"{self._images.identity} as {self._image} with {folders}"

    def with_options(self, **changes: Any) -> Source:
        changed = super().with_options(**changes)
        assert isinstance(changed, PicturesBeside)
        images = self._images.with_options(**changes)
        assert isinstance(images, FilesSource)
        changed._images = images
        return changed

    def leave_out(self, folder: Path) -> None:
        self._images.leave_out(folder)
        for files in self._folders.values():
            files.leave_out(folder)

    def prepare(self, scratch: Path) -> None:
        self._images.prepare(scratch)

    def share(self, scratch: Path) -> None:
        self._images.share(scratch)
        for number, files in enumerate(self._folders.values(), 1):
            files.move_to(scratch / f"pictures-{number}")

    def list_samples(self) -> Listing:
        for name, files in self._folders.items():
            if fault := files.fault():
                raise SourceError(
                    f"{files}: {fault}. Give the folder of the pictures {name!r}"
                )
        return super().list_samples()

    def rows(self, findings: Findings) -> Iterator[Row]:
        """As `Source.rows`; an image that lacks a picture is rejected."""
        matches = self._matches(findings)
        findings.kinds |= dict.fromkeys(self._folders, PictureKind.name)
        if self._image != "image":
            findings.kinds[self._image] = PictureKind.name
        samples = [dict(row) for row in self._images.rows(findings)]
        for match in matches.values():
            match.find_ending([sample["image"].name for sample in samples])
        for sample in samples:
            image = sample.pop("image")
            pictures = {name: match.of(image.name) for name, match in matches.items()}
            lacking = [name for name, file in pictures.items() if file is None]
            if lacking:
                findings.reject(image.name, f"lacks its picture {', '.join(lacking)}")
                continue
            row = {self._image: _addressed(image, _IMAGES)}
            for name, value in sample.items():
                row[name] = _addressed(value, _IMAGES)
            for container, (name, file) in enumerate(pictures.items(), 1):
                row[name] = _addressed(file, container)
            yield row

    def _matches(self, findings: Findings) -> dict[str, "_Matches"]:
        return {
            name: _Matches(name, files, findings)
            for name, files in self._folders.items()
        }

    def expect(self, addresses: Sequence[str]) -> None:
        for number, files in enumerate(self._containers()):
            start = f"{number}:"
            inner_addresses = [
                address.removeprefix(start)
                for address in addresses
                if address.startswith(start)
            ]
            files.expect(inner_addresses)

    def wait(self, address: str) -> None:
        number, _, inner_address = address.partition(":")
        self._containers()[int(number)].wait(inner_address)

    def read(self, address: str) -> bytes | Array:
        number, _, inner_address = address.partition(":")
        return self._containers()[int(number)].read(inner_address)

    def _containers(self) -> list[Any]:
        return [self._images, *self._folders.values()]


def _addressed(value: Any, number: int) -> Any:
    """A value of a row; of a file, its address tells in which of the containers it lies."""
    if not isinstance(value, Ref):
        return value
    return value._replace(address=f"{number}:{value.address}")


class _Matches:
    """The files of a picture, by their names without extension.

    Args:
        name: Of the picture.
        files: Its folder.
        findings: Of the listing.
    """

    def __init__(self, name: str, files: Files, findings: Findings) -> None:
        self._name = name
        self._root = str(files)
        pictures = list(files.walk(_EXTENSIONS, findings))
        self._by_path = {_stem(file.name): file for file in pictures}
        names: dict[str, list[Ref]] = {}
        for file in pictures:
            names.setdefault(posixpath.basename(_stem(file.name)), []).append(file)
        self._by_name = {
            stem: alike[0] for stem, alike in names.items() if len(alike) == 1
        }
        self._ending = ""
        self._image_ending = ""

    def find_ending(self, images: Sequence[str]) -> None:
        """Finds what follows the name of each image in those of the files, or the other way round, where none is called
        as an image is.

        Raises:
            SourceError: the names have nothing to do with each other.
        """
        if any(self.of(image) is not None for image in images):
            return
        looked_at = [posixpath.basename(_stem(image)) for image in images[:_LOOKED_AT]]
        of_files = {ending for stem in looked_at for ending in self._endings(stem)}
        of_images = {
            ending for stem in looked_at for ending in self._image_endings(stem)
        }
        if len(of_files) == 1:
            self._ending = of_files.pop()
        elif len(of_images) == 1:
            self._image_ending = of_images.pop()
        else:
            examples = some_of([posixpath.basename(file) for file in self._by_path], 2)
            raise SourceError(
                f"{self._root}: no file is called as an image is; the images are such as {some_of(images, 2)}, the "
                f"pictures {self._name!r} {examples or 'none'}. Rename them, or give a pattern for each, such as "
                "--picture image='rgb_*.jpg'"
            )

    def _endings(self, stem: str) -> list[str]:
        """What follows the name of an image in those of files."""
        endings = [
            name.removeprefix(stem) for name in self._by_name if name.startswith(stem)
        ]
        return [ending for ending in endings if not ending[:1].isdigit()]

    def _image_endings(self, stem: str) -> list[str]:
        """What follows the names of files in that of an image."""
        return [
            stem[length:]
            for length in range(1, len(stem))
            if stem[:length] in self._by_name and not stem[length].isdigit()
        ]

    def of(self, image: str) -> Ref | None:
        """The file that belongs to an image; None if there is none."""
        stem = _stem(image)
        if self._image_ending and not stem.endswith(self._image_ending):
            return None
        stem = stem.removesuffix(self._image_ending) + self._ending
        return self._by_path.get(stem) or self._by_name.get(posixpath.basename(stem))


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]
