"""Archives as containers of files: by their names, also at URLs."""

import shutil
import tempfile
from pathlib import Path

from gpuload.errors import SourceError, naming
from gpuload.sources.archive import Archive
from gpuload.sources.files import ARCHIVES, COPIES, Files
from gpuload.sources.tar_archive import is_plain_tar
from gpuload.store.url import URL

_SQUASHFS = (".squashfs", ".sqfs", ".sfs")
_SEVEN_ZIP = ".7z"


def is_archive_at(url: URL) -> bool:
    """Whether a URL names an archive, which is copied as a whole. A plain tar is a shard of WebDataset there."""
    from gpuload.sources.stores.unpacked import is_compressed_tar

    is_one = url.suffix.lower() in (*ARCHIVES, *_SQUASHFS, _SEVEN_ZIP)
    return is_one or is_compressed_tar(url.name)


def open_archive_at(url: URL, zip_encoding: str | None = None) -> Files:
    """The files of an archive at a URL: it is copied into a temporary folder, which is removed at the end.

    Raises:
        SourceError: it is damaged, or a compressed shard of WebDataset. RemoteError: it cannot be read. OutputError:
            the copy cannot be written. MissingPackageError: py7zr is not installed.
    """
    from gpuload.sources.remote import Copies  # asyncio

    folder = Path(tempfile.mkdtemp(prefix="gpuload-archive-"))
    try:
        with naming({folder / COPIES / url.name: url}):
            path = Copies(url, (url.suffix.lower(),)).fetch(folder)
            archive = open_archive(path, True, zip_encoding)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if archive is None:
        shutil.rmtree(folder)
        raise SourceError(
            f"{url}: is a compressed shard of WebDataset. Copy it to a disk, and pack it there"
        )
    archive.given = str(url)
    if archive.temporary is None:
        archive.own(folder)
    else:
        shutil.rmtree(folder)  # it is unpacked elsewhere
    return archive


def open_archive(
    path: Path, is_container: bool, zip_encoding: str | None = None
) -> Archive | None:
    """The files of an archive; None if this is none of those, or a compressed shard of WebDataset.

    Args:
        path: Of a file.
        is_container: Whether a tar may be a container, and is not named as a shard.
        zip_encoding: Of names in a zip archive, see `ZipArchive`.

    Raises:
        SourceError: it is damaged. MissingPackageError: py7zr is not installed.
    """
    suffix = path.suffix.lower()
    if suffix in ARCHIVES:
        from gpuload.sources.zip_archive import ZipArchive

        return ZipArchive(path, zip_encoding)
    if suffix in _SQUASHFS:
        from gpuload.sources.stores.squashfs import SquashFs

        return SquashFs(path)
    # These import modules for compression that few need.
    from gpuload.sources.stores.unpacked import (
        CompressedTar,
        SevenZip,
        is_compressed_tar,
    )

    if suffix == _SEVEN_ZIP:
        return SevenZip(path)
    if not is_container or not is_compressed_tar(path.name):
        return None
    tar = CompressedTar(path)
    return tar if is_plain_tar(tar.path) else None
