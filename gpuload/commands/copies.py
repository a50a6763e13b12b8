"""`python -m gpuload decoded`: makes decoded copies of sets ahead of training, lists them, and removes them."""

import time
from dataclasses import dataclass
from typing import Literal

from rich.filesize import decimal

from gpuload.checks import COUNT
from gpuload.commands import DONE
from gpuload.commands.options import given
from gpuload.commands.terminal import say, say_table
from gpuload.counted import counted, progress_bar
from gpuload.errors import ArgumentError

_ALL = "all"
_HOUR_S = 3600


@dataclass(frozen=True)
class DecodedCopies:
    """Makes a copy of a packed set with decoded images, as gpuload.decoded does at the begin of a run, for all
    processes of this machine. Without a set, lists the copies, or removes some."""

    epilog = "Exit codes: 0 done; 2 it is not (reason on stderr); 130 stopped by Ctrl-C: run it again to go on."

    set: str | None = given(
        None,
        "a packed folder, such as shards/train, or its URL",
        "SET",
        "set",
        nargs="?",
    )
    size: int | None = given(
        None,
        "largest length of the shorter side in pixels (default: images keep their size)",
        "N",
        type=int,
        rule=COUNT,
    )
    fit: Literal["shortest", "longest"] = given(
        "shortest",
        "the side that --size means: shortest or longest (%(default)s)",
        "SIDE",
    )
    folder: str | None = given(
        None,
        "of the copies, such as /dev/shm/gpuload (default: the folder of the cache)",
        "DIR",
    )
    limit: str | None = given(
        None,
        "largest size of all copies there, such as 200GB (default: nine tenths of what is free, in memory half)",
        "BYTES",
    )
    remove: tuple[str, ...] = given(
        (),
        "remove a copy by its name, or all that are not in use",
        "NAME",
        action="append",
    )

    def run(self) -> int:
        if self.set is not None and self.remove:
            raise ArgumentError(
                "--remove removes copies, and a set is copied. Give one of the two"
            )
        if self.set is not None:
            return self._make(self.set)
        if self.size is not None or self.limit is not None:
            raise ArgumentError("--size and --limit need the set that is to be copied")
        return self._remove() if self.remove else self._list()

    def _make(self, place: str) -> int:
        from gpuload.decoded_copies.build import decoded
        from gpuload.disk.dataset import Dataset

        with progress_bar("decoding", "shards") as bar:
            copy = decoded(
                Dataset(place),
                self.size,
                fit=self.fit,
                folder=self.folder,
                limit=self.limit,
                watch=bar,
            )
        say(
            f"{copy.folder}: {counted(len(copy), 'sample')}, {decimal(copy.manifest.bytes)}"
        )
        return DONE

    def _remove(self) -> int:
        from gpuload.decoded_copies.places import CopiesFolder

        names = [] if _ALL in self.remove else list(self.remove)
        for copy in CopiesFolder(self.folder).remove(names):
            say(f"removed {copy.folder.name}, {decimal(copy.facts.bytes)}")
        return DONE

    def _list(self) -> int:
        from gpuload.decoded_copies.places import CopiesFolder

        copies = CopiesFolder(self.folder)
        rows = [
            [
                copy.folder.name,
                copy.facts.of,
                f"{copy.facts.samples:,}",
                copy.facts.resized or "own sizes",
                decimal(copy.facts.bytes),
                "whole" if copy.is_whole else "incomplete",
                "in use" if copy.in_use() else _since(copy.used_s),
            ]
            for copy in copies
        ]
        head = ["name", "set", "samples", "size", "bytes", "state", "last used"]
        say(f"{copies.root}: {counted(len(rows), 'copy', 'copies')}")
        if rows:
            say_table(rows, head, left=2)
        return DONE


def _since(used_s: float) -> str:
    return f"{(time.time() - used_s) / _HOUR_S:.1f} hours ago"
