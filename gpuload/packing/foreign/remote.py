"""WebDataset shards at URLs: found, and scanned one by one in a temporary folder.

Each shard is read whole, once: its SHA-256, which names it in a loader's cache, needs all of its bytes, and reading
headers alone, with a range for each member, is slower unless the members are large (docs/lab/packing.md).
"""

import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from gpuload.errors import ArgumentError, OutputError, ShardError, SourceError
from gpuload.packing.foreign.scan import ScannedShard, scan_shard
from gpuload.sources.files import COMPRESSED_TARS
from gpuload.store.background import background
from gpuload.store.bucket import expand_url
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.objects import Objects
from gpuload.store.transfer import fetch_file
from gpuload.store.url import URL, as_location, root_of

_AHEAD = 2  # shards that are downloaded while one is scanned


def find_shards(name: str, commits: dict[str, str]) -> list[URL]:
    """The tars that a URL means, without braces: itself, or those that fit its wildcards.

    commits: those of the repositories of the Hub that were asked before, so that each is asked once.

    Raises:
        SourceError: there is none. ArgumentError, RemoteError: as `expand_url`.
    """
    url = as_location(name)
    assert isinstance(url, URL)
    if not is_pinned(url):
        place = place_of(url)
        repository = place._replace(path="").url
        if repository.text not in commits:
            commits[repository.text] = place_of(pinned(repository)).revision or ""
        url = place._replace(revision=commits[repository.text]).url
    found = expand_url(url)
    if not found:
        raise SourceError(f"{url}: fits no object there. Give tars, for instance 's3://bucket/train-{{000..127}}.tar'")
    for one in found:
        if one.text.lower().endswith(COMPRESSED_TARS):
            raise SourceError(
                f"{one}: is compressed, but only plain tars can be read where they lie. Unpack the compression, as "
                "with gunzip"
            )
        if not one.text.lower().endswith(".tar"):
            raise SourceError(f"{one}: is no tar by its name. Give tars, for instance '{one.text.rstrip('/')}/*.tar'")
    return found


def common_root(shards: Sequence[URL]) -> URL:
    """The folder below which all shards lie.

    Raises:
        ArgumentError: they lie in several buckets, or on several hosts.
    """
    root = root_of(shards)
    if root is None:
        raise ArgumentError(
            f"the shards lie in several places, as {shards[0]} and {shards[-1]}. Index those of each bucket by "
            "themselves, and mix the sets"
        )
    return root


def scan_shards(shards: Sequence[URL], skip_damaged: bool = False) -> Iterator[ScannedShard]:
    """What the shards hold, in their order.

    Raises:
        ShardError: as `scan_shard`. RemoteError: one cannot be read. OutputError: the temporary folder is full.
    """
    waiting = deque(shards)
    with tempfile.TemporaryDirectory(prefix="gpuload-index-") as scratch:
        coming: deque[tuple[URL, Path, Future[None]]] = deque()
        try:
            for number in range(len(shards)):
                while waiting and len(coming) <= _AHEAD:
                    url = waiting.popleft()
                    path = Path(scratch, str(number + len(coming)), url.name)
                    path.parent.mkdir()
                    objects = Objects(URL(url.text.rpartition("/")[0]))
                    coming.append((url, path, background().start(fetch_file(objects, url.name, path))))
                url, path, future = coming.popleft()
                yield _scan(url, path, future, skip_damaged)
                os.unlink(path)
        except OSError as error:
            raise OutputError(
                f"{scratch}: cannot be written ({error.strerror}), and shards lie there while they are scanned. Free "
                "some space, or set TMPDIR"
            ) from None
        finally:
            for _, _, future in coming:
                future.cancel()


def _scan(url: URL, path: Path, future: "Future[None]", skip_damaged: bool) -> ScannedShard:
    future.result()
    try:
        return replace(scan_shard(path, skip_damaged), path=url)
    except ShardError as error:
        raise ShardError(str(error).replace(str(path), str(url))) from None
