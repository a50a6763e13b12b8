"""Objects below a URL, read by obstore: a range, a whole object, again and again where that may help."""

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from gpuload.counted import counted
from gpuload.errors import RemoteError
from gpuload.store.background import background
from gpuload.store.hub import web_address, web_headers
from gpuload.store.url import URL

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long a request is tried, in seconds.

    silent_s: without a byte, until a request has failed. request_s: for a whole request, of a few MB. give_up_s: from
        the first attempt on, no further one is made. first_wait_s, longest_wait_s: between two attempts; they double.
    """

    silent_s: float = 20
    request_s: float = 120
    give_up_s: float = 300
    first_wait_s: float = 0.2
    longest_wait_s: float = 15


class Range(NamedTuple):
    """Bytes of an object. size: of the object. tag: its ETag, where the server tells one that identifies the bytes."""

    data: Any
    size: int
    tag: str | None


class Unchanged(Exception):  # noqa: N818 -- no error
    """The object still has the ETag that was given."""


class Replaced(Exception):  # noqa: N818
    """The object has another ETag than when its download began."""


class NoRanges(Exception):  # noqa: N818
    """The server gives whole objects only."""


class NoSuchObjectError(RemoteError):
    """There is no such object."""


class EmptyObjectError(RemoteError):
    """No range of an object without bytes can be had."""


class Objects:
    """Objects below a URL. It can be pickled and inherited over fork: each process opens connections of its own."""

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
                found = await _obstore().get_async(self._store(), name, options=options)
                data = await found.bytes_async()
            size = int(found.meta["size"])
            if len(data) != min(stop, size) - start:
                raise _TooShortError(len(data), min(stop, size) - start)
            return Range(data, size, _strong(found.meta.get("e_tag")))

        try:
            return await self._persist(name, once, give_up_s)
        except EmptyObjectError:
            return Range(b"", 0, None)

    async def stream(self, name: str, begin: Callable[[int], None], take: Callable[[int, Any], Awaitable[None]]) -> int:
        """A whole object piece by piece, from servers that know no ranges. Returns its size.

        begin: called with the size where an attempt begins. take: called with the position of each piece.
        """

        async def once() -> int:
            async with background().connections:
                found = await _obstore().get_async(self._store(), name)
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

    async def _persist(self, name: str, once: Callable[[], Awaitable[T]], give_up_s: float | None) -> T:
        """What `once` gives, at the first attempt that succeeds."""
        failures = _obstore().exceptions
        started, wait_s, attempt = time.monotonic(), self.patience.first_wait_s, 1
        give_up_s = self.patience.give_up_s if give_up_s is None else give_up_s
        while True:
            try:
                return await once()
            except failures.NotModifiedError:
                raise Unchanged from None
            except failures.PreconditionError:
                raise Replaced from None
            except (failures.BaseError, FileNotFoundError, _TooShortError) as error:
                problem = _problem(error, self.url.scheme)
                if problem.what == _NO_RANGES:
                    raise NoRanges from None
                passed = time.monotonic() - started
                if problem.final or passed + wait_s > give_up_s:
                    after = "" if problem.final else f" after {counted(attempt, 'attempt')} in {passed:.0f} s"
                    kind = _ERRORS.get(problem.what, RemoteError)
                    where = f"{self.url / name}".rstrip("/")
                    raise kind(f"{where}: {problem.what}{after}. {problem.advice or self.again}") from None
            await asyncio.sleep(wait_s * random.uniform(0.75, 1.25))
            wait_s, attempt = min(2 * wait_s, self.patience.longest_wait_s), attempt + 1

    def _store(self) -> Any:
        """obstore's own, opened by the process that uses it."""
        if self._opened is None or self._opened[0] != os.getpid():
            failures = _obstore().exceptions
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


# What names another server than the service's own, by scheme; obstore reads only some of them.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


class _TooShortError(Exception):
    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"{found:,} of {counted(expected, 'byte')} came")


class _Problem(NamedTuple):
    what: str
    advice: str
    final: bool


_MISSING, _EMPTY, _NO_RANGES = "does not exist", "has no such bytes", "the server knows no ranges"
_ERRORS = {_MISSING: NoSuchObjectError, _EMPTY: EmptyObjectError}
# How to be let in, by scheme.
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
_KINDS = {"Timeout": "timed out", "Interrupted": "the connection was cut", "Connect": "no connection"}


def _problem(error: Exception, scheme: str) -> _Problem:
    """What an error of obstore says, without anything that could be a secret."""
    if isinstance(error, _TooShortError):
        return _Problem(f"only {error}", _AGAIN, final=False)
    failures, text = _obstore().exceptions, str(error)
    credentials = _CREDENTIALS.get(scheme, _NO_CREDENTIALS)
    if isinstance(error, failures.NotSupportedError) and "Range" in text:
        return _Problem(_NO_RANGES, "", final=True)
    if isinstance(error, FileNotFoundError | failures.NotFoundError):
        return _Problem(_MISSING, "Check the URL", final=True)
    found = re.search(r"status code: (\d{3})", text)
    status = int(found.group(1)) if found else 0
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return _Problem("no credentials were found", credentials, final=True)
    if status in (401, 403) or isinstance(error, failures.PermissionDeniedError | failures.UnauthenticatedError):
        return _Problem(f"access was denied ({status or 403})", credentials, final=True)
    if "ExpiredToken" in text:
        return _Problem("the credentials have expired", credentials, final=True)
    if status in (301, 307):
        return _Problem(f"it is elsewhere ({status})", "Set AWS_REGION to the bucket's region", final=True)
    if status == 416:
        return _Problem(_EMPTY, "", final=True)
    if status:
        busy = status >= 500 or status in (408, 425, 429)
        return _Problem(f"the server answered {status}", _AGAIN if busy else "Check the URL", final=not busy)
    kind = re.search(r"kind: (\w+)", text)
    return _Problem(_KINDS.get(kind.group(1) if kind else "", "it could not be read"), _AGAIN, final=False)


def _first_line(error: Exception) -> str:
    return re.sub(r"\?\S*", "?…", str(error).splitlines()[0]) if str(error) else type(error).__name__


def _strong(tag: Any) -> str | None:
    """An ETag that `If-Match` can name."""
    return tag if isinstance(tag, str) and tag and not tag.startswith("W/") else None


def _obstore() -> Any:
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
