"""Which objects there are below a URL, and which of them a pattern with wildcards means."""

import asyncio
import re
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpuload.errors import ArgumentError, RemoteError
from gpuload.store.background import background
from gpuload.store.hub import hub_files
from gpuload.store.objects import NoSuchObjectError, Objects
from gpuload.store.url import URL

_MAGIC = re.compile(r"[*[]")  # a question mark begins a query
_LISTED = ("s3", "gs", "az", "hf")


class Stored(NamedTuple):
    """An object: its size in bytes, and its ETag."""

    size: int
    tag: str | None


class Listed(Objects):
    """Objects below a URL that can be listed."""

    async def list(self, give_up_s: float | None = None) -> dict[str, Stored]:
        """All objects by their names below the URL, sorted. Empty ones that are called as folders, which consoles make,
        are left out.

        Raises:
            ArgumentError: a web server, which lists nothing.
            RemoteError: the bucket does not exist, or it cannot be listed.
        """
        if self.url.scheme == "hf":
            files = await asyncio.to_thread(hub_files, self.url)
            return {name: Stored(size, None) for name, size in sorted(files.items())}
        if self.url.scheme not in _LISTED:
            raise ArgumentError(
                f"{self.url}: what lies at {self.url.scheme}:// cannot be listed. Name the files, with braces as in "
                "'shards/train-{000..127}.tar'"
            )
        try:
            found = await self._persist("", self._list, give_up_s)
        except NoSuchObjectError:
            raise RemoteError(f"{self.url}: its bucket does not exist. Create it, or check the URL") from None
        folders = {name.rpartition("/")[0] for name in found} | {""}
        return {name: one for name, one in sorted(found.items()) if one.size or name.rstrip("/") not in folders}

    async def _list(self) -> dict[str, Stored]:
        import obstore
        import obstore.exceptions

        found: dict[str, Stored] = {}
        async with background().connections:
            try:
                pages: AsyncIterator[Any] = obstore.list(self._store(), chunk_size=1000)
                async for page in pages:
                    found.update((one["path"], Stored(int(one["size"]), one["e_tag"])) for one in page)
            except obstore.exceptions.GenericError as error:
                if "status code: 404" in str(error):
                    raise FileNotFoundError from None
                raise
        return found


def expand_url(url: URL) -> list[URL]:
    """The objects that a URL means: itself, or sorted by name those that fit its wildcards, which work as the shell's.

    Raises:
        ArgumentError, RemoteError: as `Listed.list`.
    """
    folder, _, pattern = url.text.partition("://")[2].partition("/")
    if not _MAGIC.search(pattern):
        return [url]
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    root = URL("/".join([f"{url.scheme}://{folder}", *parts[:fixed]]))
    found = background().wait(Listed(root).list())
    return [root / name for name in found if _fits(name.split("/"), parts[fixed:])]


def _fits(name: list[str], pattern: list[str]) -> bool:
    """Whether each folder and the file of a name fits its part of the pattern: no wildcard fits a slash."""
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))
