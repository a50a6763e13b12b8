"""What all archives have in common: names without the folders that hold everything, from one list of members."""

import shutil
import weakref
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuload.sources.files import Files, Names, Scan, is_image


class Archive(Files):
    """An archive of named files, read without unpacking it to the disk.

    The folders that hold everything are left out of the names, and a table may name files with or without them.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.given = str(path)  # its name in messages
        self.temporary: Path | None = None

    def __str__(self) -> str:
        return self.given

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "given": self.given,
            "temporary": self.temporary,
        }

    def own(self, folder: Path) -> None:
        """Takes a temporary folder, in which what it reads lies, and removes it when nobody in this process uses the
        archive any more."""
        self.temporary = folder
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def move_to(self, folder: Path) -> None:
        if self.temporary is None:
            return
        target = folder / "archive"
        shutil.rmtree(target, ignore_errors=True)  # of a run that was interrupted
        shutil.move(self.temporary, target)
        if self.path.is_relative_to(self.temporary):
            self.path = target / self.path.relative_to(self.temporary)
        self.temporary = target

    def fault(self) -> str:
        return "" if self.path.exists() else "no such file"

    @property
    @abstractmethod
    def _members(self) -> Mapping[str, Any]:
        """What is not hidden, by its name, which ends in a slash for a folder. Of members of one name, the last."""

    @cached_property
    def _names(self) -> Names:
        return Names(self._members)

    @cached_property
    def around(self) -> str:  # type: ignore[override]  # found once it is asked for
        top = ""
        while True:
            folders, files = self._names.scan(top.rstrip("/"))
            if len(folders) != 1 or any(map(is_image, files)):
                return top
            top += f"{next(iter(folders))}/"

    def scan(self, folder: str) -> Scan:
        return self._names.scan(f"{self.around}{folder}".rstrip("/"))

    def member(self, name: str) -> Any:
        """What the archive holds under a name.

        Raises:
            FileNotFoundError: nothing, or the name is no plain one.
        """
        plain = plain_name(name)
        member = self._members.get(self.around + plain) or self._members.get(plain)
        if member is None or not plain or name.startswith("/"):
            raise FileNotFoundError(f"{name}: not in {self}")
        return member


def plain_name(name: str) -> str:
    """A name without parts that mean its own folder."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))
