"""Archives that cannot be read at any place: compressed tars, and 7z. They are unpacked into a temporary folder first,
which is removed when the program ends, or nobody uses them any more."""

import lzma
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from gpuload.errors import SourceError
from gpuload.machine.installed import require
from gpuload.machine.untrusted import open_regular
from gpuload.sources.archive import Archive, plain_name
from gpuload.sources.files import Ref, lies_hidden, read_at, readable
from gpuload.sources.stores.pieces import Codec, inflate_file
from gpuload.sources.tar_archive import TarArchive

_PIECE = 1 << 20
# How a tar is compressed, by what its name ends in.
_CODECS: dict[str, Codec] = {
    ".tar.gz": "gzip",
    ".tgz": "gzip",
    ".tar.bz2": "bz2",
    ".tbz2": "bz2",
    ".tar.zst": "zstd",
    ".tzst": "zstd",
    ".tar.lz4": "lz4",
}
_XZ_ENDINGS = (".tar.xz", ".txz")
COMPRESSED_TARS = (*_CODECS, *_XZ_ENDINGS)


def is_compressed_tar(name: str) -> bool:
    """Whether the name of a file is that of a compressed tar."""
    return name.lower().endswith(COMPRESSED_TARS)


def unpack_tar(path: Path, target: Path) -> None:
    """Decompresses a tar.

    Raises:
        SourceError: it is damaged. OutputError: the target cannot be written.
    """
    name = path.name.lower()
    errors = (ValueError, EOFError, lzma.LZMAError, zlib.error)
    with readable(path, "a compressed tar", *errors):
        if name.endswith(_XZ_ENDINGS):
            with (
                open_regular(path) as file,
                lzma.open(file) as stream,
                target.open("wb") as out,
            ):
                shutil.copyfileobj(stream, out, _PIECE)
        else:
            codec = next(_CODECS[end] for end in _CODECS if name.endswith(end))
            inflate_file(path, codec, None, target)


class CompressedTar(TarArchive):
    """A compressed tar of plain folders. Its name is that of the archive."""

    def __init__(self, path: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="gpuload-tar-"))
        super().__init__(folder / "unpacked.tar")
        self.given = str(path)
        self.own(folder)
        unpack_tar(path, self.path)


class SevenZip(Archive):
    """The files of a 7z archive, by the package py7zr; each is unpacked into a file with a number for its name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        require(str(path), "py7zr")
        self.own(Path(tempfile.mkdtemp(prefix="gpuload-7z-")))
        self._files = dict[str, str]()
        self._unpack()
        self.path = self._folder  # all that is read from now on

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_files": {}}

    @property
    def _folder(self) -> Path:
        assert self.temporary is not None
        return self.temporary

    def _unpack(self) -> None:
        import py7zr
        from py7zr.io import WriterFactory

        folder = self._folder
        files = self._files

        class Numbered(WriterFactory):  # type: ignore[misc]  # py7zr has no types
            """Opens a file for each member."""

            def create(self, filename: str) -> "_Writer":
                name = plain_name(filename)
                files[name] = str(len(files))
                return _Writer(folder / files[name])

        with (
            readable(str(self), "7z", Exception),
            py7zr.SevenZipFile(self.path) as archive,
        ):
            needed = archive.archiveinfo().uncompressed
            free = shutil.disk_usage(folder).free
            if needed > free:
                raise SourceError(
                    f"{self}: takes {needed:,} bytes unpacked, and {folder.parent} has {free:,} free. "
                    "Free some space, or set TMPDIR"
                )
            archive.extractall(factory=Numbered())

    @cached_property
    def _members(self) -> Mapping[str, Any]:
        return {
            name: number
            for name, number in self._files.items()
            if not lies_hidden(name)
        }

    def find(self, name: str) -> Ref:
        number = self.member(name)
        return Ref(name, (self._folder / number).stat().st_size, number)

    def read(self, address: str) -> bytes:
        path = self._folder / address
        return read_at(path, 0, path.stat().st_size)


class _Writer:
    """A file that py7zr writes a member into."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("w+b")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def read(self, size: int | None = None) -> bytes:
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def flush(self) -> None:
        self._file.flush()

    def size(self) -> int:
        return Path(self._file.name).stat().st_size

    def close(self) -> None:
        self._file.close()
