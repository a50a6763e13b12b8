"""Where the shards of an index lie that are not beside it."""

from pathlib import Path

from gpuload.disk.manifest import Manifest
from gpuload.errors import FormatError
from gpuload.store.url import URL, as_location, joined, root_of


def shards_root(manifest: Manifest, folder: Path) -> URL | None:
    """The URL below which all shards lie; None where they are files.

    Raises:
        FormatError: only some lie at URLs, or they lie in several places.
        ArgumentError, MissingPackageError: a URL cannot be read from here.
    """
    places = [joined(folder, shard.name) for shard in manifest.shards]
    urls = [place for place in places if isinstance(place, URL)]
    if not urls:
        return None
    root = root_of(urls)
    if len(urls) < len(places) or root is None:
        raise FormatError(
            f"{folder}: its shards lie in several places, as {places[0]} and {places[-1]}. Index the shards of each "
            "bucket by themselves, and mix the sets"
        )
    as_location(root.text)
    return root
