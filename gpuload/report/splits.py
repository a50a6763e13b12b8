"""The packed sets of a report: opened, and named."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuload.disk.dataset import Dataset
from gpuload.disk.manifest import FILE_NAME
from gpuload.errors import ArgumentError
from gpuload.store.url import LOCATION, URL

_USUAL = ("train", "val", "valid", "validation", "test")
_MOST = 16  # splits on a page


@dataclass(frozen=True)
class Split:
    """A packed set of a report. name: its folder's. given: the path or URL as it was given, all that a page tells."""

    name: str
    given: str
    dataset: Dataset


def open_splits(given: Sequence[str]) -> list[Split]:
    """Opens packed folders, folders that hold several, and URLs.

    Raises:
        ArgumentError: one is there twice, or there are more than 16.
        FormatError, ShardError, RemoteError: as `Dataset`.
    """
    locations = [location for text in given for location in _expand(text)]
    if len(locations) > _MOST:
        raise ArgumentError(f"report: {len(locations)} packed sets, expected at most {_MOST}. Name fewer")
    if len(set(locations)) < len(locations):
        raise ArgumentError(f"report: a packed set is there twice ({', '.join(locations)}). Name each once")
    names = [location.rstrip("/").rpartition("/")[2] or location for location in locations]
    shown = [name if names.count(name) == 1 else location for name, location in zip(names, locations, strict=True)]
    return [Split(name, location, Dataset(location)) for name, location in zip(shown, locations, strict=True)]


def training_split(splits: Sequence[Split]) -> Split:
    """The one called train, else the largest."""
    return next((s for s in splits if s.name == "train"), max(splits, key=lambda split: len(split.dataset)))


def _expand(text: str) -> list[str]:
    """The packed folders that a folder holds; itself where it is one, or cannot be told from here."""
    if isinstance(LOCATION.read(text), URL) or (Path(text) / FILE_NAME).exists():
        return [text]
    try:
        found = [path.parent.name for path in Path(text).glob(f"*/{FILE_NAME}")]
    except (OSError, ValueError):
        found = []
    order = sorted(found, key=lambda name: (_USUAL.index(name) if name in _USUAL else len(_USUAL), name))
    return [str(Path(text) / name) for name in order] or [text]
