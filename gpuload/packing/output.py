"""The packer's output folder: nobody else's, and never half-filled."""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gpuload.errors import OutputError

SCRATCH_NAME = ".packing"


class Output:
    """An output folder taken for one run of the packer, with a scratch folder inside.

    On leaving the `with` block the scratch folder is removed; after an error, all that was written too, so that the
    folder is as it was.

    Raises:
        OutputError: it holds something already, is being packed into, or cannot be made.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.scratch = self.path / SCRATCH_NAME
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            what = "is a file, not a folder" if self.path.is_file() else f"cannot be made ({error.strerror})"
            raise OutputError(f"{self.path}: {what}. Choose another output folder") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise OutputError(
                f"{self.path}: another packer is at work in it. Wait for it, or choose another folder"
            ) from None
        try:
            self._check_empty()
            self.scratch.mkdir()
        except OSError as error:
            os.close(self._lock)
            raise OutputError(
                f"{self.path}: cannot be written ({error.strerror}). Choose another output folder"
            ) from None
        except OutputError:
            os.close(self._lock)
            raise

    def make_split(self, name: str) -> Path:
        """A new folder in the output."""
        folder = self.path / name
        folder.mkdir()
        return folder

    def _check_empty(self) -> None:
        found = sorted(entry.name for entry in self.path.iterdir())
        if SCRATCH_NAME in found:
            raise OutputError(f"{self.path}: holds a pack that was broken off. Delete the folder and pack again")
        if found:
            packed = "a packed set" if (self.path / found[0] / "manifest.json").exists() else f"{found[0]!r}"
            more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
            raise OutputError(
                f"{self.path}: is not empty, it holds {packed}{more}. Choose another folder, or empty this one"
            )

    def __enter__(self) -> "Output":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        if error is None:
            os.fsync(self._lock)
        else:
            for entry in self.path.iterdir():
                shutil.rmtree(entry, ignore_errors=True)
            with suppress(OSError):
                for folder in self._made:
                    folder.rmdir()
        os.close(self._lock)
