"""How a new index and a new manifest replace old ones, so that a set can be opened whatever happens meanwhile.

No file system replaces two files in one step. So the new index is first complete and on disk under a name of its own,
then the manifest is replaced, and the index gets its name last. A reader in between finds the index that the manifest
describes under the one name or the other.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuload.disk import manifest as manifest_file
from gpuload.disk.index import FILE_NAME, Index
from gpuload.disk.manifest import Manifest
from gpuload.errors import FormatError
from gpuload.machine.untrusted import open_regular

NEXT_NAME = "index.next.arrow"
_PIECE = 1 << 20


def open_index(folder: Path, manifest: Manifest) -> Index:
    """The index of a set.

    Raises:
        FormatError: as `Index`.
    """
    arguments = manifest.fields, manifest.index_spans, len(manifest.shards)
    if _is_next(folder, manifest):
        with suppress(FormatError):  # it got its name meanwhile
            return Index(folder / NEXT_NAME, *arguments)
    return Index(folder / FILE_NAME, *arguments)


def index_path(folder: Path, manifest: Manifest) -> Path:
    """Where the index of a set lies."""
    return folder / (NEXT_NAME if _is_next(folder, manifest) else FILE_NAME)


def settle(folder: Path) -> None:
    """Ends what an interrupted run had begun: gives a new index its name, or removes it if its manifest did not come.

    Raises:
        OSError: it cannot be renamed or removed. FormatError: the manifest is damaged.
    """
    path = folder / NEXT_NAME
    if not path.exists():
        return
    if _is_next(folder, Manifest.read(folder)):
        os.replace(path, folder / FILE_NAME)
    else:
        path.unlink()
    sync(folder)


def commit(folder: Path, replace_manifest: Callable[[], object]) -> None:
    """Gives a new index, which is on disk as NEXT_NAME, and a new manifest their names.

    In a folder without a manifest, the manifest comes last, as everywhere: there is no old set to keep.

    Args:
        folder: Of the set.
        replace_manifest: Gives the manifest its name, once its content is on disk.

    Raises:
        OSError: something cannot be renamed or written.
    """
    is_new = not (folder / manifest_file.FILE_NAME).exists()
    if is_new:
        os.replace(folder / NEXT_NAME, folder / FILE_NAME)
    sync(folder)
    replace_manifest()
    sync(folder)
    if not is_new:
        os.replace(folder / NEXT_NAME, folder / FILE_NAME)
        sync(folder)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk.

    Raises:
        OSError: it cannot be opened or written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_next(folder: Path, manifest: Manifest) -> bool:
    """Whether the new index is the one that the manifest describes. Where there is one, it is read as a whole."""
    size = manifest.index_spans[-1].end if manifest.index_spans else None
    digest = hashlib.sha256()
    with suppress(OSError), open_regular(folder / NEXT_NAME) as file:
        if os.fstat(file.fileno()).st_size == size:
            while piece := file.read(_PIECE):
                digest.update(piece)
            return digest.hexdigest() == manifest.index_sha256
    return False
