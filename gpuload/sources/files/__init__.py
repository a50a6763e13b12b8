"""Containers of named files, from which images come: folders and archives."""

import os
from pathlib import Path

from gpuload.errors import SourceError
from gpuload.sources.files.base import IMAGE_EXTENSIONS, Files, Found, PassedOver, is_text, printable, read_text
from gpuload.sources.files.folder import Folder
from gpuload.store.url import URL, as_location

__all__ = [
    "ARCHIVES", "COMPRESSED_TARS", "IMAGE_EXTENSIONS", "Files", "Folder", "Found", "PassedOver", "is_text",
    "open_files", "printable", "read_text"
]  # fmt: skip

ARCHIVES = (".zip",)
# What to do about a source at a URL.
ELSEWHERE = "Download what is there, or mount it"
# Endings of names of tars that are not read.
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4", ".tar.z")


def open_files(root: str | Path | URL | Files) -> Files:
    """The container at a path: an archive by its name, else a folder, perhaps at a URL; a container is given back."""
    if not isinstance(root, (str, os.PathLike, URL)):
        return root
    path = as_location(root)
    if isinstance(path, URL):
        if path.suffix.lower() in ARCHIVES:
            raise SourceError(f"{path}: is an archive at a URL. {ELSEWHERE}")
        from gpuload.sources.files.remote_folder import open_remote  # asyncio

        return open_remote(path)
    path = Path(path)
    if path.suffix.lower() in ARCHIVES and not path.is_dir():
        from gpuload.sources.files.zip_archive import ZipArchive  # imports compression modules that few need

        return ZipArchive(path)
    return Folder(path)
