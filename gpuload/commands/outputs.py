"""Files that commands write where somebody asked for them: whole or not at all, and over nothing but their own kind."""

import os
from dataclasses import dataclass
from pathlib import Path

from gpuload.errors import OutputError
from gpuload.machine.untrusted import open_regular
from gpuload.store.files import replaced

_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Output:
    """A file to write.

    option: of the command, that names it. mark: stands in the first 4 KiB of each file of this kind. Where the path
    leads to anything else but an empty file, that is kept.

    Raises:
        OutputError: it cannot be written, or is not of this kind. It says so before the work, not after it.
    """

    path: Path
    option: str
    mark: bytes

    def __post_init__(self) -> None:
        folder = self.path.absolute().parent
        if self.path.is_dir():
            raise OutputError(f"{self.path}: is a folder. Give the name of a file, such as {self.path / 'figures'}")
        if not folder.is_dir():
            raise OutputError(f"{self.path}: its folder does not exist. Make it, or give another {self.option}")
        if not os.access(folder, os.W_OK):
            raise OutputError(f"{self.path}: its folder cannot be written. Give another {self.option}")
        if os.path.lexists(self.path) and not self._is_own():
            raise OutputError(
                f"{self.path}: is there, and was not written by this command. Move it, or give another {self.option}"
            )

    def write(self, content: bytes) -> None:
        """Raises OutputError where it cannot be written."""
        try:
            with replaced(self.path) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot be written ({error.strerror}). Free space, or give another {self.option}"
            ) from None

    def _is_own(self) -> bool:
        try:
            with open_regular(self.path) as file:
                head = file.read(_HEAD_BYTES)
            return not self.path.is_symlink() and (not head or self.mark in head)
        except OSError:
            return False
