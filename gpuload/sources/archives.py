"""Archives that are neither zips nor plain tars, as containers of files."""

from pathlib import Path

from gpuload.sources.files import Files
from gpuload.sources.tar_archive import is_plain_tar

_SQUASHFS = (".squashfs", ".sqfs", ".sfs")
_SEVEN_ZIP = ".7z"


def open_archive(path: Path, is_container: bool) -> Files | None:
    """The files of an archive; None if this is none of those, or a compressed shard of WebDataset.

    Args:
        path: of a file.
        is_container: whether a tar may be a container, and is not named as a shard.

    Raises:
        SourceError: it is damaged. MissingPackageError: py7zr is not installed.
    """
    suffix = path.suffix.lower()
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
