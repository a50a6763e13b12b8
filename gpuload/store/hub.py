"""hf://datasets/OWNER/NAME[@REVISION]/PATH: data sets of the Hugging Face Hub, pinned to a commit.

The commit is resolved once, when a set is opened; files are then read by HTTP, without the Hub's API.
"""

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from gpuload.checks import shown
from gpuload.errors import ArgumentError, RemoteError
from gpuload.store.network import Patience, Problem, background, persist
from gpuload.store.url import URL

T = TypeVar("T")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FORM = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?")
_REQUEST_S = 20.0
_PATIENCE = Patience(first_wait_s=1, longest_wait_s=60)
_REACH_S = 30.0  # without any answer: the Hub may not be reachable from here
_TOKEN = "For a private or gated one, set HF_TOKEN, or run `hf auth login`, and accept its terms on its page"


class Place(NamedTuple):
    """A folder or file in a repository of the Hugging Face Hub.

    Attributes:
        repo: As OWNER/NAME.
        revision: A branch, tag or commit; None for the main branch.
        path: Within the repository.
    """

    repo: str
    revision: str | None
    path: str

    @property
    def url(self) -> URL:
        revision = f"@{self.revision}" if self.revision else ""
        below = f"/{self.path}" if self.path else ""
        return URL(f"hf://datasets/{self.repo}{revision}{below}")


def place_of(url: URL) -> Place:
    """The parts of a URL.

    Raises:
        ArgumentError: it names no data set.
    """
    match = _FORM.fullmatch(url.text)
    if match is None:
        raise ArgumentError(
            f"{url}: names no data set of the Hub, expected hf://datasets/OWNER/NAME and a path in it"
        )
    return Place(match[1], match[2], match[3] or "")


def is_pinned(url: URL) -> bool:
    """Whether a URL names a commit, or is not one of the Hub."""
    return (
        url.scheme != "hf"
        or _COMMIT.fullmatch(place_of(url).revision or "") is not None
    )


def pinned(url: URL, give_up_s: float = _PATIENCE.give_up_s) -> URL:
    """The URL with its revision resolved to a commit, in one request; other URLs unchanged.

    Raises:
        ArgumentError: it names no data set. RemoteError: the Hub cannot be asked, or has no such data set.
    """
    if is_pinned(url):
        return url
    place = place_of(url)

    def commit(api: Any) -> Any:
        return api.dataset_info(
            place.repo, revision=place.revision, expand=["sha"], timeout=_REQUEST_S
        ).sha

    revision = str(_ask(url, commit, give_up_s))
    if not _COMMIT.fullmatch(revision):
        raise RemoteError(
            f"{url}: the Hub names the commit {shown(revision)}, expected 40 hexadecimal digits"
        )
    return place._replace(revision=revision).url


def hub_files(url: URL) -> dict[str, int]:
    """The sizes of the files below a URL, by relative name. One request per thousand files.

    Raises:
        ArgumentError, RemoteError: as `pinned`.
    """
    place = place_of(url)

    def files(api: Any) -> dict[str, int]:
        entries = api.list_repo_tree(
            place.repo,
            place.path or None,
            recursive=True,
            revision=place.revision,
            repo_type="dataset",
        )
        return {entry.path: entry.size for entry in entries if hasattr(entry, "size")}

    below = f"{place.path}/" if place.path else ""
    return {
        name.removeprefix(below): size
        for name, size in _ask(url, files, _PATIENCE.give_up_s).items()
    }


def web_address(url: URL) -> str:
    """The HTTP address of a URL."""
    place = place_of(url)
    return f"{_endpoint()}/datasets/{place.repo}/resolve/{place.revision or 'main'}/{quote(place.path)}".rstrip(
        "/"
    )


def web_headers(url: URL) -> dict[str, str]:
    """The headers of HTTP requests: the user's token, if there is one."""
    from huggingface_hub import get_token

    token = get_token()
    return {"authorization": f"Bearer {token}"} if token else {}


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _ask(url: URL, call: Callable[[Any], T], give_up_s: float) -> T:
    """Calls the Hub's API, with retries."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    return background().wait(
        persist(
            f"{url}",
            lambda: asyncio.to_thread(call, api),
            _explain,
            _PATIENCE,
            give_up_s,
        )
    )


def _explain(error: Exception) -> Problem:
    from huggingface_hub.errors import HfHubHTTPError

    again = "Check the network, or try again later"
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        if status in (401, 403, 404):
            return Problem(
                f"the Hub answered {status}, there is no such data set, revision or file",
                _TOKEN,
                True,
            )
        return Problem(
            f"the Hub answered {status}", again, status < 500 and status != 429
        )
    # Errors of httpx are no OSErrors.
    if not isinstance(error, OSError) and not type(error).__module__.startswith(
        ("httpx", "httpcore", "huggingface_hub")
    ):
        raise error
    return Problem(
        f"the Hub cannot be reached ({type(error).__name__})", again, limit_s=_REACH_S
    )
