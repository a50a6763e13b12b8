"""Containers of named files, from which images come: folders and archives."""

import os
from pathlib import Path

from gpuload.sources.files.base import IMAGE_EXTENSIONS, Files, Found, PassedOver, is_text, printable, read_text
from gpuload.sources.files.folder import Folder

__all__ = [
    "ARCHIVES", "COMPRESSED_TARS", "IMAGE_EXTENSIONS", "Files", "Folder", "Found", "PassedOver", "is_text",
    "open_files", "printable", "read_text"
]  # fmt: skip

ARCHIVES = (".zip",)
# Endings of names of tars that are not read.
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4", ".tar.z")


def open_files(root: str | Path | Files) -> Files:
    """The container at a path: an archive by its name, else a folder; a container is given back."""
    if not isinstance(root, (str, os.PathLike)):
        return root
    path = Path(root)
    if path.suffix.lower() in ARCHIVES and not path.is_dir():
        from gpuload.sources.files.zip_archive import ZipArchive  # imports compression modules that few need

        return ZipArchive(path)
    return Folder(path)
