"""Tells paths from URLs, and which URLs can be read."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from gpuload import errors
from gpuload.checks import PATH, Rule
from gpuload.errors import ArgumentError
from gpuload.machine.installed import require
from gpuload.store.schemes import readable_schemes

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# What pathlib makes of a URL. Such a folder may exist, so only these schemes, of which nobody calls a folder.
_BY_PATHLIB = re.compile(r"(s3|gs|az|hf|https?|ftp|file):/(?!/)", re.IGNORECASE)


@dataclass(frozen=True)
class URL:
    """A file or folder at a URL without credentials."""

    text: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Of the name, as of a path: with its dot, or ""."""
        return PurePosixPath(self.name).suffix

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0]

    def __truediv__(self, name: str) -> "URL":
        return URL(f"{self.text}/{name}")

    def __str__(self) -> str:
        return self.text


def scheme_of(path: Any) -> str | None:
    """The scheme of a URL, in lower case; None for a path."""
    try:
        text = os.fspath(path)
    except TypeError:
        return None
    match = _URL.match(text) or _BY_PATHLIB.match(text)
    return match.group(1).lower() if match else None


def without_secrets(path: Any) -> str:
    """A URL for a message. Unlike in a message, all of it is one URL, whatever it holds."""
    text = str(path)
    return errors.without_secrets(
        _unbroken(text) if scheme_of(text) and set("@?#") & set(text) else text
    )


def _unbroken(text: str) -> str:
    """A URL in which nothing ends it, as blanks and quotes do in a message."""
    return re.sub(r"[\s'\"]", "_", text)


def joined(folder: Path | URL, name: str) -> Path | URL:
    """Where a file lies that is named relative to a folder, or by a URL of its own."""
    return URL(name) if _URL.match(name) else folder / name


def root_of(urls: Sequence[URL]) -> URL | None:
    """The innermost folder in which all of them lie; None where they lie in several buckets or on several hosts."""
    parts = [url.text.split("/")[:-1] for url in urls]
    same = list(
        takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))
    )
    least = 5 if urls[0].scheme == "hf" else 3  # hf:, "", datasets, OWNER, NAME
    return URL("/".join(level[0] for level in same)) if len(same) >= least else None


def refuse_urls(name: str, path: Any, instead: str) -> None:
    """Raises ArgumentError for a URL.

    Args:
        name: Of the argument, for the message.
        path: What the user gave.
        instead: What to do instead, for the message.
    """
    if scheme_of(path) is not None:
        raise ArgumentError(
            f"{name} {without_secrets(path)}: is a URL, expected a path. {instead}"
        )


def as_location(value: Any) -> Path | URL | Any:
    """A path as it is given, or a URL that can be read here.

    Raises:
        TypeError, ValueError: it is neither. ArgumentError: a scheme that is not known, or credentials in the URL.
        MissingPackageError: the packages of the extra "remote" are not installed.
    """
    if isinstance(value, URL):
        return value
    path = PATH.read(value)
    scheme = scheme_of(path)
    if scheme is None:
        return path
    subject = without_secrets(path)
    schemes = readable_schemes()
    if scheme not in schemes:
        raise ArgumentError(
            f"{subject}: cannot be read from here, expected a path, or a URL of {', '.join(schemes)}. Copy it to a disk"
        )
    text = os.fspath(path)
    if not _URL.match(text):
        raise ArgumentError(
            f"{subject}: pathlib has removed a slash of the URL. Give it as a text"
        )
    unbroken = _unbroken(text)
    if set("?#") & set(text) or unbroken != errors.without_secrets(unbroken):
        raise ArgumentError(
            f"{subject}: has a user, a query or a fragment, in which credentials may be. Leave it out: credentials are "
            "taken from the environment variables and files of the service"
        )
    require(subject, "obstore", *(["huggingface_hub"] if scheme == "hf" else []))
    if not text.partition("://")[2].strip("/"):
        raise ArgumentError(
            f"{subject}: names no bucket or host. Give the URL of a packed set"
        )
    return URL(scheme + text[len(scheme) :].rstrip("/"))


LOCATION: Rule[Any] = Rule("a path or URL", as_location)
