"""Objects below a URL, read by obstore with retries: ranges, whole objects, streams."""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from gpuload.counted import counted
from gpuload.errors import RemoteError
from gpuload.store.background import background
from gpuload.store.hub import web_address, web_headers
from gpuload.store.patience import Patience, Problem, persist
from gpuload.store.url import URL

T = TypeVar("T")

RANGE_BYTES = 8 << 20  # of a large object, asked for at a time
_MOST_BYTES = 1 << 30  # of an object that is read into memory


class Range(NamedTuple):
    """Bytes of an object. size: of the object. tag: its ETag, where the server tells one that identifies the bytes."""

    data: Any
    size: int
    tag: str | None


class Unchanged(Exception):  # noqa: N818 -- no error
    """The object still has the given ETag."""


class Replaced(Exception):  # noqa: N818
    """The object's ETag has changed since its download began."""


class NoRanges(RemoteError):  # noqa: N818
    """The server gives whole objects only."""


class NoSuchObjectError(RemoteError):
    """There is no such object."""


class EmptyObjectError(RemoteError):
    """No range of an object without bytes can be had."""


class Objects:
    """Objects below a URL. Survives pickling and fork: each process opens its own connections."""

    patience = Patience()
    retries = 0  # by obstore: `_persist` tries again, also after a body that was cut
    again = "Check the network and the server, then run it again: what was downloaded is kept"

    def __init__(self, url: URL) -> None:
        self.url = url
        self._opened: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url,)

    async def read(
        self, name: str, start: int, stop: int, tag: str | None = None, *, unless: str | None = None,
        give_up_s: float | None = None,
    ) -> Range:  # fmt: skip
        """Bytes start..stop-1 of an object, or fewer where it ends.

        tag: the ETag that it must have. unless: one with which it is not wanted. give_up_s: in place of the usual.

        Raises:
            RemoteError: it cannot be read. NoSuchObjectError, Unchanged, Replaced, NoRanges.
        """

        async def once() -> Range:
            options: dict[str, Any] = {"range": (start, stop), "if_match": tag, "if_none_match": unless}
            options = {option: value for option, value in options.items() if value is not None}
            async with background().connections:
                found = await client().get_async(self._store(), name, options=options)
                data = await found.bytes_async()
            size = int(found.meta["size"])
            if len(data) != min(stop, size) - start:
                raise _TooShortError(len(data), min(stop, size) - start)
            return Range(data, size, _strong(found.meta.get("e_tag")))

        try:
            return await self._persist(name, once, give_up_s, tag, unless)
        except EmptyObjectError:
            return Range(b"", 0, None)

    async def read_whole(
        self, name: str, *, unless: str | None = None, give_up_s: float | None = None,
        check: Callable[[bytearray], None] = lambda data: None,
    ) -> Range:  # fmt: skip
        """Reads a whole object into memory; arguments as for `read`. check: called with the bytes received so far.

        Raises:
            RemoteError: it cannot be read, or has more than 1 GiB. NoSuchObjectError, Unchanged. What `check` raises.
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

        tag, size = None, -1
        try:
            while size != len(data):
                asked = None if data else unless
                found = await self.read(
                    name, len(data), len(data) + RANGE_BYTES, tag, unless=asked, give_up_s=give_up_s
                )
                if not data:
                    begin(found.size)
                    tag, size = found.tag, found.size
                await take(len(data), found.data)
                if found.size != size:
                    raise Replaced
        except NoRanges:
            await self.stream(name, begin, take)
        except Replaced:
            raise RemoteError(f"{self.url / name}: was replaced while it was read. Try again") from None
        return Range(bytes(data), len(data), tag)

    async def stream(self, name: str, begin: Callable[[int], None], take: Callable[[int, Any], Awaitable[None]]) -> int:
        """Streams a whole object, from servers without ranges. Returns its size.

        begin: called with the size when an attempt begins. take: called with the position of each piece.
        """

        async def once() -> int:
            async with background().connections:
                found = await client().get_async(self._store(), name)
                size, at = int(found.meta["size"]), 0
                begin(size)
                pieces: AsyncIterator[Any] = found.stream()
                async for piece in pieces:
                    await take(at, piece)
                    at += len(piece)
            if at != size:
                raise _TooShortError(at, size)
            return size

        return await self._persist(name, once, None)

    async def _persist(
        self,
        name: str,
        once: Callable[[], Awaitable[T]],
        give_up_s: float | None,
        tag: str | None = None,
        unless: str | None = None,
    ) -> T:
        """The result of `once`, with retries. tag, unless: the conditions of its request."""

        def explain(error: Exception) -> Problem:
            failures = client().exceptions
            if isinstance(error, failures.NotModifiedError):
                raise (Unchanged if unless else self._unasked(name, 304)) from None
            if isinstance(error, failures.PreconditionError):
                raise (Replaced if tag else self._unasked(name, 412)) from None
            if not isinstance(error, failures.BaseError | FileNotFoundError | _TooShortError):
                raise error
            problem = _problem(error, self.url.scheme)
            return problem if problem.advice else problem._replace(advice=self.again)

        return await persist(f"{self.url / name}".rstrip("/"), once, explain, self.patience, give_up_s)

    def _unasked(self, name: str, status: int) -> RemoteError:
        return RemoteError(f"{self.url / name}: the server answered {status}, which was not asked for. {_OTHER_SERVER}")

    def _store(self) -> Any:
        """obstore's store, opened by the process that uses it."""
        if self._opened is None or self._opened[0] != os.getpid():
            failures = client().exceptions
            try:
                self._opened = os.getpid(), self._open()
            except (failures.BaseError, ValueError) as error:
                raise RemoteError(f"{self.url}: cannot be opened ({_first_line(error)}). Check the URL") from None
        return self._opened[1]

    def _open(self) -> Any:
        from obstore.store import from_url

        given = (os.environ.get(name) for name in _ENDPOINTS.get(self.url.scheme, ()))
        endpoint = next(filter(None, given), "")
        more: dict[str, Any] = {}
        address, headers = self.url.text, {}
        if self.url.scheme == "hf":
            address, headers = web_address(self.url), web_headers(self.url)
        if self.url.scheme == "s3":
            if (credentials := _boto3_credentials()) is not None:
                more["credential_provider"] = credentials
            if endpoint:
                more["endpoint"] = endpoint
        return from_url(
            address,
            client_options={
                "default_headers": headers,
                "timeout": timedelta(seconds=self.patience.request_s),
                "read_timeout": timedelta(seconds=self.patience.silent_s),
                "allow_http": address.startswith("http://") or endpoint.startswith("http://"),
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
    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"{found:,} of {counted(expected, 'byte')} came")


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
_AGAIN = ""  # `Objects.again`
_OTHER_SERVER = "Check the server, and what lies between it and here, such as a proxy"
# Permanent failures, by obstore's words for them.
_ANSWERS = {
    "MissingContentLength": ("the server does not say how long it is", "Use one that sends Content-Length with files"),
    "UnexpectedRange": ("the server sent other bytes than were asked for", _OTHER_SERVER),
    "ContentRange": ("the server does not say which bytes it sent", _OTHER_SERVER),
    "error following redirect": ("it is redirected in a circle", "Check the URL, and the server's redirects"),
    "builder error": ("it is redirected to what is no web address", "Check the URL, and the server's redirects"),
}
_KINDS = {"Timeout": "timed out", "Interrupted": "the connection was cut", "Connect": "no connection"}


def _problem(error: Exception, scheme: str) -> Problem:
    """Describes an error of obstore, without anything that could be a secret."""
    if isinstance(error, _TooShortError):
        return Problem(f"only {error}", _AGAIN, final=False)
    failures, text = client().exceptions, str(error)
    credentials = _CREDENTIALS.get(scheme, _NO_CREDENTIALS)
    if isinstance(error, failures.NotSupportedError) and "Range" in text:
        return Problem(
            "the server gives no ranges of it",
            "Use one that does, or copy the set by `python -m gpuload fetch`",
            True,
            NoRanges,
        )
    if isinstance(error, FileNotFoundError | failures.NotFoundError):
        return Problem("does not exist", "Check the URL", True, NoSuchObjectError)
    found = re.search(r"status code: (\d{3})", text)
    status = int(found.group(1)) if found else 0
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return Problem("no credentials were found", credentials, final=True)
    if status in (401, 403) or isinstance(error, failures.PermissionDeniedError | failures.UnauthenticatedError):
        return Problem(f"access was denied ({status or 403})", credentials, final=True)
    if "ExpiredToken" in text:
        return Problem("the credentials have expired", credentials, final=True)
    if status in (301, 307) and scheme == "s3":
        return Problem(f"it is elsewhere ({status})", "Set AWS_REGION to the bucket's region", final=True)
    if status == 416:
        return Problem("has no such bytes", "Check the URL", True, EmptyObjectError)
    if status:
        busy = status >= 500 or status in (408, 425, 429)
        return Problem(f"the server answered {status}", _AGAIN if busy else "Check the URL", final=not busy)
    for answer, (what, advice) in _ANSWERS.items():
        if answer in text:
            return Problem(what, advice, final=True)
    kind = re.search(r"kind: (\w+)", text)
    return Problem(_KINDS.get(kind.group(1) if kind else "", "it could not be read"), _AGAIN, final=False)


def _first_line(error: Exception) -> str:
    return re.sub(r"\?\S*", "?…", str(error).splitlines()[0]) if str(error) else type(error).__name__


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
    if any(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")):
        return None
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() is not None else None
