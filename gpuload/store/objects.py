"""Objects below a URL, by obstore with retries: read in ranges or whole, listed, picked by wildcards, uploaded."""

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpuload.checks import shown
from gpuload.counted import counted
from gpuload.errors import ArgumentError, OutputError, RemoteError
from gpuload.store.hub import hub_files, web_address, web_headers
from gpuload.store.network import Patience, Problem, background, persist, together
from gpuload.store.schemes import lists, scheme_called
from gpuload.store.url import URL

T = TypeVar("T")

RANGE_BYTES = 8 << 20  # of a large object, asked for at a time
_MOST_BYTES = 1 << 30  # of an object that is read into memory
_PART_BYTES = 8 << 20  # of an upload
_MOST_PARTS = 9_000  # S3 takes 10,000
_PARTS_AT_A_TIME = 4  # of one object
_TRIES = 3  # of an upload that arrives damaged
_MARK = "gpuloadrun"  # user metadata: the run that wrote an object. Azure takes neither hyphens nor underscores
_MAGIC = re.compile(r"[*[]")  # a question mark begins a query


class Range(NamedTuple):
    """Bytes of an object.

    Attributes:
        data: The bytes.
        size: Of the whole object, in bytes.
        tag: Its ETag, where the server tells one that identifies the bytes.
    """

    data: Any
    size: int
    tag: str | None


class StoredObject(NamedTuple):
    """An object: its size in bytes, and its ETag."""

    size: int
    tag: str | None


class ReplacedError(Exception):
    """The object's ETag has changed since its download began."""


class NoRangesError(RemoteError):
    """The server gives whole objects only."""


class NoSuchObjectError(RemoteError):
    """There is no such object."""


class EmptyObjectError(RemoteError):
    """No range of an object without bytes can be had."""


class Objects:
    """Objects below a URL. Survives pickling: each process opens its own connections."""

    patience = Patience()
    retries = 0  # by obstore: `_persist` tries again, also after a body that was cut
    again = "Check the network and the server, then run it again: what was downloaded is kept"

    def __init__(self, url: URL) -> None:
        self.url = url
        self._opened: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url,)

    async def read(
        self,
        name: str,
        start: int,
        stop: int,
        tag: str | None = None,
        give_up_s: float | None = None,
    ) -> Range:
        """Reads a part of an object.

        Args:
            name: Of the object below the URL.
            start: First byte.
            stop: Byte after the last; fewer are returned where the object ends before it.
            tag: The ETag that it must have; None: any.
            give_up_s: In place of the usual, in seconds.

        Raises:
            RemoteError: it cannot be read. NoSuchObjectError, ReplacedError, NoRangesError.
        """
        options: dict[str, Any] = {"range": (start, stop)}
        if tag:
            options["if_match"] = tag

        async def once() -> Range:
            reply = await client().get_async(self._store(), name, options=options)
            data = await reply.bytes_async()
            size = int(reply.meta["size"])
            _check_length(len(data), min(stop, size) - start)
            return Range(data, size, _strong(reply.meta.get("e_tag")))

        try:
            return await self._persist(name, once, give_up_s, has_tag=tag is not None)
        except EmptyObjectError:
            return Range(b"", 0, None)

    async def read_whole(
        self,
        name: str,
        give_up_s: float | None = None,
        check: Callable[[bytearray], None] = lambda data: None,
    ) -> Range:
        """Reads a whole object into memory.

        Args:
            name: Of the object below the URL.
            give_up_s: As of `read`.
            check: Called with the bytes received so far; what it raises ends the download.

        Raises:
            RemoteError: it cannot be read, or has more than 1 GiB. NoSuchObjectError. What `check` raises.
        """
        data = bytearray()

        def begin(size: int) -> None:
            if size > _MOST_BYTES:
                raise RemoteError(
                    f"{self.url / name}: is {size:,} bytes, expected {_MOST_BYTES:,} at most. Check the URL"
                )
            data.clear()

        async def take(at: int, piece: Any) -> None:
            data.extend(piece)
            check(data)

        try:
            whole_object = await self.copy(name, begin, take, give_up_s=give_up_s)
        except ReplacedError:
            raise RemoteError(
                f"{self.url / name}: was replaced while it was read. Try again"
            ) from None
        return whole_object._replace(data=bytes(data))

    async def copy(
        self, name: str, begin: Callable[[int], None], take: Callable[[int, Any], Awaitable[None]], *,
        at_a_time: int = 1, give_up_s: float | None = None,
    ) -> Range:  # fmt: skip
        """Reads a whole object in ranges: a slow network has its time for each, and loses one at most. From a server
        that gives none, it is streamed, and streamed again where that fails.

        Args:
            name: Of the object below the URL.
            begin: Called with the size, before the first piece of each attempt.
            take: Called with each piece and its position, in ascending order unless several ranges are read at a time.
            at_a_time: Ranges that are read at the same time.
            give_up_s: As of `read`.

        Raises:
            RemoteError, NoSuchObjectError, ReplacedError: as `read`. What `begin` and `take` raise.
        """

        async def streamed() -> Range:
            reply = await client().get_async(self._store(), name)
            size = int(reply.meta["size"])
            position = 0
            begin(size)
            pieces: AsyncIterator[Any] = reply.stream()
            async for piece in pieces:
                await take(position, piece)
                position += len(piece)
            _check_length(position, size)
            return Range(b"", size, _strong(reply.meta.get("e_tag")))

        try:
            first = await self.read(name, 0, RANGE_BYTES, give_up_s=give_up_s)
        except NoRangesError:
            return await self._persist(name, streamed, give_up_s)
        begin(first.size)
        starts = iter(range(0, first.size, RANGE_BYTES))

        async def worker() -> None:
            for start in starts:
                piece = first
                if start:
                    stop = min(start + RANGE_BYTES, first.size)
                    piece = await self.read(name, start, stop, first.tag, give_up_s)
                if piece.size != first.size:
                    raise ReplacedError
                await take(start, piece.data)

        await together(
            worker() for _ in range(min(at_a_time, -(-first.size // RANGE_BYTES)))
        )
        return first

    async def list(self, give_up_s: float | None = None) -> dict[str, StoredObject]:
        """All objects by their names below the URL, sorted. Leaves out empty objects named like folders, which web
        consoles create.

        Raises:
            ArgumentError: it is a web server, which cannot list files.
            RemoteError: the bucket does not exist, it cannot be listed, or a name leads outside of the URL: no name is
                skipped silently.
        """
        if not lists(self.url.scheme):
            raise ArgumentError(
                f"{self.url}: what lies at {self.url.scheme}:// cannot be listed. Name the files, with braces as in "
                "'shards/train-{000..127}.tar'"
            )
        if self.url.scheme == "hf":
            files = await asyncio.to_thread(hub_files, self.url)
            objects = {name: StoredObject(size, None) for name, size in files.items()}
        else:
            listed = await self._persist("", self._list, give_up_s)
            folders = {name.rpartition("/")[0] for name in listed} | {""}
            objects = {
                name: stored
                for name, stored in listed.items()
                if stored.size or name.rstrip("/") not in folders
            }
        for name in objects:
            if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
                raise RemoteError(
                    f"{self.url}: holds {shown(name)}, which is no name of a file below a folder. Rename it, or name "
                    "the files you want"
                )
        return dict(sorted(objects.items()))

    async def _list(self) -> dict[str, StoredObject]:
        objects = dict[str, StoredObject]()
        pages: AsyncIterator[Any] = client().list(self._store(), chunk_size=1000)
        async for page in pages:
            for entry in page:
                stored = StoredObject(int(entry["size"]), entry["e_tag"])
                objects[entry["path"]] = stored
        return objects

    async def _persist(
        self,
        name: str,
        once: Callable[[], Awaitable[T]],
        give_up_s: float | None = None,
        has_tag: bool = False,
    ) -> T:
        """The result of `once`, with retries.

        Args:
            has_tag: Whether another ETag than that of the request is `ReplacedError`.
        """

        async def connected() -> T:
            async with background().connections:
                return await once()

        def explain(error: Exception) -> Problem:
            failures = client().exceptions
            if has_tag and isinstance(
                error, failures.NotModifiedError | failures.PreconditionError
            ):
                raise ReplacedError from None
            if not isinstance(
                error, failures.BaseError | FileNotFoundError | _TooShortError
            ):
                raise error
            return _problem(error, self.url.scheme, self.again)

        return await persist(
            f"{self.url / name}".rstrip("/"),
            connected,
            explain,
            self.patience,
            give_up_s,
        )

    def _store(self) -> Any:
        """obstore's store, opened when it is first used."""
        if self._opened is None:
            try:
                self._opened = self._open()
            except (client().exceptions.BaseError, ValueError) as error:
                said = (
                    re.sub(r"\?\S*", "?…", " ".join(str(error).splitlines()[:1]))
                    or type(error).__name__
                )
                raise RemoteError(
                    f"{self.url}: cannot be opened ({said}). Check the URL"
                ) from None
        return self._opened

    def _open(self) -> Any:
        from obstore.store import from_url

        scheme = scheme_called(self.url.scheme)
        if scheme is not None:
            return scheme.open(self.url.text)
        addresses = (
            os.environ.get(name) for name in _ENDPOINTS.get(self.url.scheme, ())
        )
        endpoint = next(filter(None, addresses), "")
        address = self.url.text
        headers = dict[str, str]()
        more = dict[str, Any]()
        if self.url.scheme == "hf":
            address = web_address(self.url)
            headers = web_headers(self.url)
        if self.url.scheme == "s3":
            options = {
                "endpoint": endpoint,
                "credential_provider": _boto3_credentials(),
            }
            more = {name: value for name, value in options.items() if value}
        return from_url(
            address,
            client_options={
                "default_headers": headers,
                "timeout": timedelta(seconds=self.patience.request_s),
                "read_timeout": timedelta(seconds=self.patience.silent_s),
                "allow_http": address.startswith("http://")
                or endpoint.startswith("http://"),
            },
            retry_config={"max_retries": self.retries},
            **more,
        )


# Environment variables that name another server, by scheme; obstore reads only some of them.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


class _TooShortError(Exception):
    """A body was cut."""


def _check_length(found: int, expected: int) -> None:
    if found != expected:
        raise _TooShortError(f"only {found:,} of {counted(expected, 'byte')} came")


# How to give credentials, by scheme.
_CREDENTIALS = {
    "s3": "Set the credentials by AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, by AWS_PROFILE, or by the "
    "files of the AWS command line; AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "Set the credentials by GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, the paths of their JSON "
    "files, or by `gcloud auth application-default login`",
    "az": "Set the credentials by AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY",
    "hf": "Set the credentials by HF_TOKEN, or by `hf auth login`",
}
_NO_CREDENTIALS = "No credentials are sent to web servers: check that everybody may read the URL, or copy the set"
_ACCESS = "the credentials of the scheme"  # in place of an advice
_SERVER = "Check the server, and what lies between it and here, such as a proxy"
# Permanent failures, by the words of obstore's errors; the first that fits counts.
_FAILURES: tuple[tuple[str, str, str, type[RemoteError]], ...] = (
    ("^NotSupportedError.*Range", "the server gives no ranges of it",
     "Use one that does, or copy the set by `python -m gpuload fetch`", NoRangesError),
    (r"/169\.254\.|metadata\.google\.internal", "no credentials were found", _ACCESS, RemoteError),
    ("^(FileNotFound|NotFound)Error|status code: 404", "does not exist", "Check the URL", NoSuchObjectError),
    ("status code: 40[13]|^PermissionDenied|^Unauthenticated", "access was denied", _ACCESS, RemoteError),
    ("ExpiredToken", "the credentials have expired", _ACCESS, RemoteError),
    ("status code: 416|StartTooLarge", "has no such bytes", "Check the URL", EmptyObjectError),
    ("^(NotModified|Precondition)Error", "the server answered 304 or 412 unasked", _SERVER, RemoteError),
    ("MissingContentLength|UnexpectedRange|ContentRange",
     "the server does not send the bytes that were asked for, and says how many they are", _SERVER, RemoteError),
    ("error following redirect|builder error", "its redirects lead to no file", _SERVER, RemoteError),
)  # fmt: skip
_KINDS = {
    "Timeout": "timed out",
    "Interrupted": "the connection was cut",
    "Connect": "no connection",
}


def _access_to(scheme: str) -> str:
    """How to give the credentials of a scheme."""
    added = scheme_called(scheme)
    if added is not None:
        return added.credentials
    return _CREDENTIALS.get(scheme, _NO_CREDENTIALS)


def _problem(error: Exception, scheme: str, again: str) -> Problem:
    """Describes an error of obstore, without anything that could be a secret.

    Args:
        again: The advice where a later attempt may succeed.
    """
    if isinstance(error, _TooShortError):
        return Problem(str(error), again)
    text = f"{type(error).__name__}: {error}"
    code = re.search(r"status code: (\d{3})", text)
    status = int(code[1]) if code else 0
    if status in (301, 307) and scheme == "s3":
        return Problem(
            f"it is elsewhere ({status})", "Set AWS_REGION to the bucket's region", True
        )
    for words, fault, advice, kind in _FAILURES:
        if re.search(words, text, re.DOTALL):
            if advice is _ACCESS:
                advice = _access_to(scheme)
            return Problem(
                f"{fault} ({status})" if status in (401, 403) else fault,
                advice,
                True,
                kind,
            )
    if status:
        is_busy = status >= 500 or status in (408, 425, 429)
        return Problem(
            f"the server answered {status}",
            again if is_busy else "Check the URL",
            not is_busy,
        )
    cause = re.search(r"kind: (\w+)", text)
    return Problem(_KINDS.get(cause[1] if cause else "", "it could not be read"), again)


def _strong(tag: Any) -> str | None:
    """An ETag that `If-Match` can name."""
    return tag if isinstance(tag, str) and tag and not tag.startswith("W/") else None


def client() -> Any:
    """obstore, imported on first use: local sets do without it."""
    import obstore
    import obstore.exceptions

    return obstore


def _boto3_credentials() -> Any:
    """Those of a profile or of SSO, which boto3 knows; None where the environment holds some, or without boto3."""
    if any(
        os.environ.get(name)
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SKIP_SIGNATURE",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        )
    ):
        return None
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.Session()
    return (
        Boto3CredentialProvider(session)
        if session.get_credentials() is not None
        else None
    )


def expand_url(url: URL) -> list[URL]:
    """Expands a URL: itself, or the objects that match its shell wildcards, sorted by name.

    Raises:
        ArgumentError, RemoteError: as `Objects.list`.
    """
    folder, _, pattern = url.text.partition("://")[2].partition("/")
    if not _MAGIC.search(pattern):
        return [url]
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    root = URL("/".join([f"{url.scheme}://{folder}", *parts[:fixed]]))
    names = background().wait(Objects(root).list())
    return [root / name for name in names if _fits(name.split("/"), parts[fixed:])]


def _fits(name: list[str], pattern: list[str]) -> bool:
    """Whether each part of a name matches its part of the pattern: wildcards do not match slashes."""
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))


class Bucket(Objects):
    """Objects below a URL of a bucket, for one writer. run: what its objects are marked with."""

    retries = (
        4  # of each part, so that a large object is not sent again for one of them
    )
    again = "Check the network and the service"
    run: str

    @property
    def first_s(self) -> float:
        """How long requests before and after the work are retried: the URL may be mistyped."""
        return min(30, self.patience.give_up_s)

    async def create(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """Writes a small JSON object unless the name exists. Returns the object that is there afterwards.

        Raises:
            RemoteError: it cannot be written.
        """
        data = json.dumps(content).encode()
        with suppress(
            NoSuchObjectError
        ):  # a service without conditional writes would replace it
            return await self.read_json(name)

        async def once() -> None:
            failures = client().exceptions
            more = {"attributes": {_MARK: self.run}}
            try:
                await client().put_async(
                    self._store(), name, data, mode="create", **more
                )
            except failures.AlreadyExistsError:
                return
            except (NotImplementedError, failures.BaseError) as error:
                if isinstance(
                    error, failures.BaseError
                ) and "status code: 501" not in str(error):
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
        object_start = await self.read(name, 0, 1 << 16, give_up_s=self.first_s)
        try:
            content = json.loads(bytes(object_start.data))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    async def upload(
        self, name: str, path: Path, replaces: bool = False
    ) -> StoredObject:
        """Uploads a file in parts, and verifies the object: by its ETag, where that is the MD5 of what was sent, else
        by reading it back.

        Args:
            name: Of the object below the URL.
            path: Of the file.
            replaces: Whether an object of this name that another run wrote may be replaced.

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
        sha256, tags = await asyncio.to_thread(digests_of, path, part)

        async def once() -> str | None:
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
            tag = await self._persist(name, once)
            if (tag or "").strip('"') in tags or await self._sha256(name) == sha256:
                return StoredObject(size, tag)
        raise OutputError(
            f"{self.url / name}: arrives with other bytes than those that were sent, at {_TRIES} attempts. Check the "
            "network between here and the service"
        )

    async def is_same(
        self, name: str, uploaded: StoredObject, objects: dict[str, StoredObject]
    ) -> bool:
        """Whether an object, of those that `list` has found, is still the one that was uploaded."""
        there = objects.get(name)
        if there is None or there.size != uploaded.size:
            return False
        # Some services list other ETags than they answer an upload with.
        return there.tag == uploaded.tag or await self._mark(name) == self.run

    async def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; missing ones are ignored.

        Raises:
            RemoteError: one cannot be deleted.
        """
        for name in names:
            with suppress(NoSuchObjectError):
                await self._persist(
                    name,
                    partial(client().delete_async, self._store(), name),
                    self.first_s,
                )

    async def delete_own(self, names: Sequence[str]) -> None:
        """Deletes those objects that this run has written."""
        await self.delete(
            [name for name in names if await self._mark(name) == self.run]
        )

    async def _mark(self, name: str) -> str | None:
        """The run that wrote an object, "" for another program; None where there is none."""

        async def once() -> str:
            reply = await client().get_async(
                self._store(), name, options={"head": True}
            )
            return str(reply.attributes.get(_MARK, ""))

        try:
            return await self._persist(name, once)
        except NoSuchObjectError:
            return None

    async def _sha256(self, name: str) -> str:
        """Of an object, read as a whole; "" where it is replaced meanwhile."""
        digest = hashlib.sha256()
        hashed = 0
        turn = asyncio.Lock()
        pieces = dict[int, Any]()

        def begin(_: int) -> None:
            nonlocal digest, hashed
            digest = hashlib.sha256()
            hashed = 0
            pieces.clear()

        async def take(at: int, piece: Any) -> None:
            nonlocal hashed
            pieces[at] = piece
            async with turn:
                while (following := pieces.pop(hashed, None)) is not None:
                    await asyncio.to_thread(digest.update, following)
                    hashed += len(following)

        with suppress(ReplacedError):
            await self.copy(name, begin, take, at_a_time=_PARTS_AT_A_TIME)
            return digest.hexdigest()
        return ""


def digests_of(path: Path, part: int) -> tuple[str, tuple[str, str]]:
    """A file's SHA-256, and the ETags that S3 gives it as one part, and as parts of this size."""
    sha256 = hashlib.sha256()
    as_one_part = hashlib.md5(usedforsecurity=False)
    parts = []
    with path.open("rb") as file:
        while block := file.read(part):
            sha256.update(block)
            as_one_part.update(block)
            parts.append(hashlib.md5(block, usedforsecurity=False).digest())
    several = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return sha256.hexdigest(), (as_one_part.hexdigest(), f"{several}-{len(parts)}")
