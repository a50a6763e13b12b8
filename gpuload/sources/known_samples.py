"""What the index of a packed folder says of its tars: what a tar has lost since it was packed is missed by that.

A tar that was damaged, and written again from what could be read of it, is whole. That a list has lost its last
pictures cannot be seen in it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuload.disk import Manifest
from gpuload.disk.commit import open_index
from gpuload.disk.manifest import FILE_NAME
from gpuload.errors import FormatError
from gpuload.fields.picture_lists import PicturesKind, list_columns
from gpuload.fields.rows import lengths_of

LOST = "is in the index of its folder, and its shard has lost it"


class KnownSamples:
    """The samples of a shard, as the index of its folder lists them.

    Args:
        counts: By the key of a sample, the number of pictures in each of its lists.
    """

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        self._counts = counts

    def fault(self, key: str, counts: Mapping[str, int]) -> str:
        """Which list of a sample has lost pictures; "" if none has, or nothing is known of it.

        Args:
            key: Of the sample.
            counts: Of the pictures in each of its lists now.
        """
        for name, expected in self._counts.get(key, {}).items():
            count = counts.get(name, 0)
            if count != expected:
                return f"has {count} of the {expected} pictures in its list {name} that the index of its folder has"
        return ""

    def lost(self, keys: Iterable[str]) -> list[str]:
        """The keys of the samples that are not among these."""
        there = set(keys)
        return [key for key in self._counts if key not in there]


NOTHING_KNOWN = KnownSamples({})


class KnownFolder:
    """What the index of a folder says of the tars in it.

    Args:
        folder: Any one.

    Attributes:
        fault: Why nothing is known of a folder that gpuload packed; "" where something is, or others packed it.
    """

    def __init__(self, folder: Path) -> None:
        self.fault = ""
        self._numbers: dict[str, int] = {}
        self._lists: list[str] = []
        if not (folder / FILE_NAME).exists():
            return
        try:
            manifest = Manifest.read(folder)
            if not manifest.upright:  # whose shards are what they are
                return
            self._index = open_index(folder, manifest)
        except FormatError as error:
            self.fault = str(error)
            return
        self._lists = [
            field.name for field in manifest.fields if field.kind == PicturesKind.name
        ]
        self._numbers = {
            shard.name: number for number, shard in enumerate(manifest.shards)
        }

    @property
    def shards(self) -> list[str]:
        """The names of its shards."""
        return list(self._numbers)

    def shard(self, name: str) -> KnownSamples:
        """The samples of a shard; of any other tar nothing is known.

        Raises:
            FormatError: the index is damaged.
        """
        number = self._numbers.get(name)
        if number is None:
            return NOTHING_KNOWN
        rows = self._index.shard(number)
        lengths = {
            name: lengths_of(rows.column(list_columns(name).offsets)).tolist()
            for name in self._lists
        }
        return KnownSamples(
            {
                key: {name: counts[row] for name, counts in lengths.items()}
                for row, key in enumerate(rows.column("key").to_pylist())
            }
        )
