"""A folder of a bucket: its objects are listed, picked by wildcards, uploaded, verified and deleted."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.checks import shown
from gpuload.errors import ArgumentError, OutputError, RemoteError
from gpuload.store.background import background
from gpuload.store.hub import hub_files
from gpuload.store.objects import NoSuchObjectError, Objects, client
from gpuload.store.url import URL

WRITABLE = ("s3", "gs", "az")
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # S3 takes 10,000
_PARTS_AT_A_TIME = 4  # of one object
_TRIES = 3  # of an upload that arrives damaged
_MARK = "gpuloadrun"  # user metadata: the run that wrote an object. Azure takes neither hyphens nor underscores
_MAGIC = re.compile(r"[*[]")  # a question mark begins a query
_LISTED = ("s3", "gs", "az", "hf")


class Stored(NamedTuple):
    """An object: its size in bytes, and its ETag."""

    size: int
    tag: str | None


class Listed(Objects):
    """Objects below a URL that can be listed."""

    async def list(self, give_up_s: float | None = None) -> dict[str, Stored]:
        """All objects by their names below the URL, sorted. Leaves out empty objects named like folders, which web
        consoles create.

        Raises:
            ArgumentError: it is a web server, which cannot list files.
            RemoteError: the bucket does not exist, or it cannot be listed.
        """
        if self.url.scheme == "hf":
            files = await asyncio.to_thread(hub_files, self.url)
            return {name: Stored(size, None) for name, size in sorted(files.items()) if self._is_inside(name)}
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
        return {
            name: one
            for name, one in sorted(found.items())
            if (one.size or name.rstrip("/") not in folders) and self._is_inside(name)
        }

    def _is_inside(self, name: str) -> bool:
        """Whether a name is a valid path below a local folder.

        Raises:
            RemoteError: it leads outside the folder. No name is skipped silently.
        """
        if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
            raise RemoteError(
                f"{self.url}: holds {shown(name)}, which is no name of a file below a folder. Rename it, or name the "
                "files you want"
            )
        return True

    async def _list(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        async with background().connections:
            try:
                pages: AsyncIterator[Any] = client().list(self._store(), chunk_size=1000)
                async for page in pages:
                    found.update((one["path"], Stored(int(one["size"]), one["e_tag"])) for one in page)
            except client().exceptions.GenericError as error:
                if "status code: 404" in str(error):
                    raise FileNotFoundError from None
                raise
        return found


def expand_url(url: URL) -> list[URL]:
    """Expands a URL: itself, or the objects that match its shell wildcards, sorted by name.

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
    """Whether each part of a name matches its part of the pattern: wildcards do not match slashes."""
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))


class Bucket(Listed):
    """Objects below a URL of a bucket, for one writer. run: what its objects are marked with."""

    retries = 4  # of each part, so that a large object is not sent again for one of them
    again = "Check the network and the service"
    run = ""

    @property
    def first_s(self) -> float:
        """How long requests before and after the work are retried: the URL may be mistyped."""
        return min(30, self.patience.give_up_s)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Bucket belongs to the process that writes")

    async def create(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """Writes a small JSON object unless the name exists. Returns the object that is there afterwards.

        Raises:
            RemoteError: it cannot be written.
        """
        data = json.dumps(content).encode()
        with suppress(NoSuchObjectError):
            return await self.read_json(name)

        async def once() -> None:
            failures, more = client().exceptions, {"attributes": {_MARK: self.run}}
            async with background().connections:
                try:
                    await client().put_async(self._store(), name, data, mode="create", **more)
                except failures.AlreadyExistsError:
                    return
                except (NotImplementedError, failures.BaseError) as error:
                    if isinstance(error, failures.BaseError) and "status code: 501" not in str(error):
                        raise
                    # The service has no conditional writes; of two simultaneous ones, one wins.
                    await client().put_async(self._store(), name, data, **more)

        await self._persist(name, once, self.first_s)
        return await self.read_json(name)

    async def read_json(self, name: str) -> dict[str, Any]:
        """A small JSON object; {} where it holds something else.

        Raises:
            NoSuchObjectError. RemoteError: it cannot be read.
        """
        found = await self.read(name, 0, 1 << 16, give_up_s=self.first_s)
        try:
            content = json.loads(bytes(found.data))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    async def upload(self, name: str, path: Path, replaces: bool = False) -> Stored:
        """Uploads a file in parts, and verifies the object: by its ETag, where that is the MD5 of what was sent, else
        by reading it back.

        replaces: whether an object of this name that another run wrote is replaced.

        Raises:
            OutputError: there is one, or what arrives is damaged. RemoteError: it cannot be written.
            OSError: the file cannot be read.
        """
        if not replaces and await self._mark(name) not in (None, self.run):
            raise OutputError(
                f"{self.url / name}: exists, and was not written by this run, which replaces nothing. Choose another "
                "URL, or delete it"
            )
        size = path.stat().st_size
        part = max(_PART_BYTES, -(-size // _MOST_PARTS))
        digests = await asyncio.to_thread(_Digests.of, path, part)

        async def once() -> str | None:
            async with background().connections:
                sent = await client().put_async(
                    self._store(),
                    name,
                    path if size else b"",
                    attributes={_MARK: self.run},
                    chunk_size=part,
                    max_concurrency=_PARTS_AT_A_TIME,
                    use_multipart=size > part,
                )
            tag: str | None = sent["e_tag"]
            return tag

        for _ in range(_TRIES):
            tag = await self._persist(name, once, None)
            if tag is not None and tag.strip('"') in digests.tags:
                return Stored(size, tag)
            if await self._sha256(name) == (digests.sha256, size):
                return Stored(size, tag)
        raise OutputError(
            f"{self.url / name}: arrives with other bytes than those that were sent, at {_TRIES} attempts. Check the "
            "network between here and the service"
        )

    async def is_same(self, name: str, one: Stored, found: dict[str, Stored]) -> bool:
        """Whether an object, of those that `list` has found, is still the one that was uploaded."""
        there = found.get(name)
        if there is None or there.size != one.size:
            return False
        # Some services list other ETags than they answer an upload with.
        return there.tag == one.tag or await self._mark(name) == self.run

    async def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; missing ones are ignored.

        Raises:
            RemoteError: one cannot be deleted.
        """

        def once(name: str) -> Callable[[], Awaitable[None]]:
            async def delete() -> None:
                async with background().connections:
                    await client().delete_async(self._store(), name)

            return delete

        for name in names:
            with suppress(NoSuchObjectError):
                await self._persist(name, once(name), self.first_s)

    async def delete_own(self, names: Sequence[str]) -> None:
        """Deletes those objects that this run has written."""
        await self.delete([name for name in names if await self._mark(name) == self.run])

    async def _mark(self, name: str) -> str | None:
        """The run that wrote an object, "" for another program; None where there is none."""

        async def once() -> str:
            async with background().connections:
                found = await client().get_async(self._store(), name, options={"head": True})
            return str(found.attributes.get(_MARK, ""))

        try:
            return await self._persist(name, once, None)
        except NoSuchObjectError:
            return None

    async def _sha256(self, name: str) -> tuple[str, int]:
        """SHA-256 and size of an object, read as a whole."""
        digest, size = hashlib.sha256(), 0

        def begin(_: int) -> None:
            nonlocal digest, size
            digest, size = hashlib.sha256(), 0

        async def take(_: int, piece: Any) -> None:
            nonlocal size
            size += len(piece)
            await asyncio.to_thread(digest.update, piece)

        await self.stream(name, begin, take)
        return digest.hexdigest(), size


class _Digests(NamedTuple):
    """tags: the ETags of S3, for one part and for several."""

    tags: tuple[str, ...]
    sha256: str

    @classmethod
    def of(cls, path: Path, part: int) -> "_Digests":
        whole, sha256, parts = hashlib.md5(usedforsecurity=False), hashlib.sha256(), []
        with path.open("rb") as file:
            while block := file.read(part):
                whole.update(block)
                sha256.update(block)
                parts.append(hashlib.md5(block, usedforsecurity=False).digest())
        several = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
        return cls((whole.hexdigest(), f"{several}-{len(parts)}"), sha256.hexdigest())
