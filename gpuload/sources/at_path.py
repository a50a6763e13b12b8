"""Sources that lie at a path or URL: files of a container, or files that hold the samples."""

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gpuload.errors import SourceError
from gpuload.machine.installed import require
from gpuload.sources.files import ARCHIVES, ELSEWHERE, Files, Findings
from gpuload.sources.listing import Listing, splits_of_files
from gpuload.sources.local_folder import Folder
from gpuload.sources.rows import Names, Source
from gpuload.store.url import URL, as_location
from gpuload.types import Array


class FilesSource(Source):
    """Images, and perhaps masks, that are files of a container.

    root: a folder, a zip archive, a URL, or any other `Files`.
    advice: what to do where nothing can be listed.
    """

    advice: ClassVar[str] = "Give a folder of images"

    def __init__(self, root: str | Path | URL | Files) -> None:
        self._files = open_files(root)
        location = as_location(root) if isinstance(root, (str, os.PathLike)) else root
        self.root = Path(location) if isinstance(location, str) else location

    @property
    def title(self) -> str:
        return str(self.root)

    def leave_out(self, folder: Path) -> None:
        if isinstance(self._files, Folder):
            self._files.leave_out(folder)

    def list_samples(self) -> Listing:
        if fault := self._files.fault():
            raise SourceError(f"{self.root}: {fault}. {self.advice}")
        return super().list_samples()

    def no_image(self, findings: Findings, what: str = "holds no image") -> SourceError:
        others = f", found: {findings.by_extension()}" if findings.others else ""
        usual = "Images are known by their extension, such as .jpg, .png or .webp"
        return SourceError(f"{self.title}: {what}. {usual}{others}")

    def expect(self, addresses: Sequence[str]) -> None:
        self._files.expect(addresses)

    def wait(self, address: str) -> None:
        self._files.wait(address)

    def read(self, address: str) -> bytes | Array:
        return self._files.read(address)


class LocalSource(Source):
    """Samples in files that are not images, all at one path.

    path: as given; of a URL, the files that are copied from there. needs: packages.

    Raises:
        MissingPackageError: one of the packages that it needs cannot be used.
    """

    needs: ClassVar[Names] = ()

    def __init__(self, path: str | Path | URL, columns: Mapping[str, Names] | None = None) -> None:
        require(str(path), *self.needs)
        self.path: Any = as_location(path) if self.suffixes else path
        if isinstance(self.path, URL):
            from gpuload.sources.remote import Copies  # asyncio

            self.path = Copies(self.path, self.suffixes)
        else:
            self.path = Path(self.path)
        self._local = self.path if isinstance(self.path, Path) else Path()
        self.columns = dict(columns or {})

    @property
    def title(self) -> str:
        return str(self.path if isinstance(self.path, Path) else self.path.given)

    def files_here(self, suffix: str) -> list[Path]:
        """The files with this suffix, sorted: those of the folder (`Files.split_files`), those that match wildcards, or
        the one at the path."""
        if self._local.is_dir():
            paths = [self._local / name for name in Folder(self._local).split_files(suffix)]
        elif self._local.exists():
            return [self._local]
        else:
            paths = [Path(name) for name in sorted(glob.glob(str(self._local)))]
        if not paths:
            what = f"holds no {suffix}" if self._local.is_dir() else "no such file"
            raise SourceError(f"{self._local}: {what}. Give a file, or the folder that holds some")
        return paths

    def name_of(self, path: Path) -> str:
        """The name of one of its files, relative to its folder."""
        return path.relative_to(self._local if self._local.is_dir() else path.parent).as_posix()

    def splits_of(self, paths: Sequence[Path], findings: Findings) -> list[str]:
        """The split of each file; [] where all belong to one, or the path is not a folder."""
        if not self.own_splits or not self._local.is_dir():
            return []
        splits = splits_of_files(self.title, list(map(self.name_of, paths)))
        findings.origin = "by the names of its files or their folders" if splits else ""
        return splits

    def prepare(self, scratch: Path) -> None:
        if isinstance(self.path, Path):
            return super().prepare(scratch)
        self._local = self.path.fetch(scratch)
        try:
            super().prepare(scratch)
        except SourceError as error:
            raise SourceError(str(error).replace(str(scratch / "copies"), str(self.path.root))) from None


def open_files(root: str | Path | URL | Files) -> Files:
    """The container at a path: an archive by its name, else a folder, perhaps at a URL; a container is given back."""
    if isinstance(root, Files):
        return root
    path = as_location(root)
    if isinstance(path, URL):
        if path.suffix.lower() in ARCHIVES:
            raise SourceError(f"{path}: is an archive at a URL. {ELSEWHERE}")
        from gpuload.sources.remote import RemoteFolder  # asyncio

        return RemoteFolder(path)
    path = Path(path)
    if path.suffix.lower() in ARCHIVES and not path.is_dir():
        from gpuload.sources.zip_archive import ZipArchive  # imports compression modules that few need

        return ZipArchive(path)
    return Folder(path)
