"""hf://datasets/OWNER/NAME[@REVISION]/PATH: data sets of the Hugging Face Hub, by the commit that a name means now.

A commit is asked for once, where a set is opened; from then on files are read by HTTP, without the Hub's API.
"""

import os
import random
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from gpuload.errors import ArgumentError, RemoteError
from gpuload.store.url import URL

T = TypeVar("T")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FORM = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?")
_GIVE_UP_S, _LONGEST_WAIT_S, _REQUEST_S = 300.0, 120.0, 20.0
_REACH_S = 30.0  # without any answer: the Hub may not be reachable from here
_NO_HUB = "the Hub cannot be reached"
_TOKEN = "For a private or gated one, set HF_TOKEN, or run `hf auth login`, and accept its terms on its page"


class Place(NamedTuple):
    """repo: OWNER/NAME. revision: a branch, tag or commit; None for the main branch. path: in the repository."""

    repo: str
    revision: str | None
    path: str

    @property
    def url(self) -> URL:
        at, below = f"@{self.revision}" if self.revision else "", f"/{self.path}" if self.path else ""
        return URL(f"hf://datasets/{self.repo}{at}{below}")


def place_of(url: URL) -> Place:
    """The parts of a URL.

    Raises:
        ArgumentError: it names no data set.
    """
    found = _FORM.fullmatch(url.text)
    if found is None:
        raise ArgumentError(f"{url}: names no data set of the Hub, expected hf://datasets/OWNER/NAME and a path in it")
    return Place(found[1], found[2], found[3] or "")


def is_pinned(url: URL) -> bool:
    """Whether a URL names a commit, or is not one of the Hub."""
    return url.scheme != "hf" or _COMMIT.fullmatch(place_of(url).revision or "") is not None


def pinned(url: URL, give_up_s: float = _GIVE_UP_S) -> URL:
    """The URL with the commit that its revision means now; others as they are. One request.

    Raises:
        ArgumentError: it names no data set. RemoteError: the Hub cannot be asked, or has no such data set.
    """
    if is_pinned(url):
        return url
    place = place_of(url)
    found = _ask(
        url,
        lambda api: api.dataset_info(place.repo, revision=place.revision, expand=["sha"], timeout=_REQUEST_S),
        give_up_s,
    )
    return place._replace(revision=str(found.sha)).url


def hub_files(url: URL) -> dict[str, int]:
    """The files below a URL, by the rest of their names, and their sizes. A request for each thousand of them.

    Raises:
        ArgumentError, RemoteError: as `pinned`.
    """
    place = place_of(url)

    def files(api: Any) -> dict[str, int]:
        found = api.list_repo_tree(
            place.repo, place.path or None, recursive=True, revision=place.revision, repo_type="dataset"
        )
        return {one.path: one.size for one in found if hasattr(one, "size")}

    below = f"{place.path}/" if place.path else ""
    return {name.removeprefix(below): size for name, size in _ask(url, files, _GIVE_UP_S).items()}


def web_address(url: URL) -> str:
    """Where the files below a URL are read by HTTP."""
    place = place_of(url)
    return f"{_endpoint()}/datasets/{place.repo}/resolve/{place.revision or 'main'}/{quote(place.path)}".rstrip("/")


def web_headers(url: URL) -> dict[str, str]:
    """What HTTP requests carry: the token of this machine's user, if there is one."""
    from huggingface_hub import get_token

    token = get_token()
    return {"authorization": f"Bearer {token}"} if token else {}


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _ask(url: URL, call: Callable[[Any], T], give_up_s: float) -> T:
    """What the Hub's API answers, at the first attempt that succeeds."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api, started, wait_s = HfApi(endpoint=_endpoint()), time.monotonic(), 1.0
    while True:
        try:
            return call(api)
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            what, asked_s = f"the Hub answered {status}", _retry_after(error)
            if status in (401, 403, 404):
                raise RemoteError(f"{url}: {what}, there is no such data set, revision or file. {_TOKEN}") from None
            final = 0 < status < 500 and status != 429
        except OSError as error:  # of the network; those of httpx are none
            what, asked_s, final = f"{_NO_HUB} ({type(error).__name__})", None, False
        except Exception as error:
            if not type(error).__module__.startswith(("httpx", "httpcore")):
                raise
            what, asked_s, final = f"{_NO_HUB} ({type(error).__name__})", None, False
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        pause_s = wait_s * random.uniform(0.25, 0.5) if asked_s is None else asked_s
        until_s = min(give_up_s, _REACH_S) if what.startswith(_NO_HUB) else give_up_s
        if final or time.monotonic() - started + pause_s > until_s:
            raise RemoteError(f"{url}: {what}. Check the network, or try again later") from None
        time.sleep(pause_s)


def _retry_after(error: Any) -> float | None:
    """Seconds that the Hub asks to wait."""
    text = error.response.headers.get("Retry-After") if error.response is not None else None
    if text is None:
        return None
    try:
        return float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError):
        return None
