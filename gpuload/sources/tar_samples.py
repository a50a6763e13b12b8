"""Which members of a shard are one sample: where a name is divided into key and extension.

By WebDataset's rule a key ends at the first dot of the base name, and the members of a sample lie together. A tar of
files whose own names have dots, or that is not sorted, keeps neither: pictures and labels then are in other samples.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from gpuload.disk.tar import Member, split_name
from gpuload.errors import ShardError
from gpuload.fields.images import MaskKind
from gpuload.formats import image_extensions

KeyDot = Literal["", "first", "last"]
SplitName = Callable[[str], tuple[str, str]]


def split_at_last_dot(name: str) -> tuple[str, str]:
    """Key and extension by the last dot of the base name; that of a mask stays whole.

    >>> split_at_last_dot("a.b/1.5.png")
    ('a.b/1.5', 'png')
    >>> split_at_last_dot("1.5.seg.png")
    ('1.5', 'seg.png')
    """
    key, _ = split_name(name)
    base = name.removeprefix(key.rpartition("/")[0])
    for extension in MaskKind.members:
        if base.lower().endswith(f".{extension}"):
            end = len(name) - len(extension)
            return name[: end - 1], name[end:]
    if "." not in base:
        return name, ""
    stem, _, extension = name.rpartition(".")
    return stem, extension


KEY_DOTS: Mapping[KeyDot, SplitName] = {
    "": split_name,
    "first": split_name,
    "last": split_at_last_dot,
}


class SampleCheck:
    """Finds what the rule divides wrongly in a tar, as its samples come in stored order.

    Pictures may have members of their own name behind the first dot, as "1.5.png" with "1.5.cls". By the rule the key
    is "1", with the extensions "5.png" and "5.cls", so the class is of no field. Names that most samples have are those
    of pictures, as "1.left.png" with "1.left.json", unless they are numbers or the sample has no member that is called
    after its key alone.

    Args:
        title: Of the tar, in messages.
        unique: Whether a key that comes again is an error; else it is another sample, unless the two together would
            be one.
        advice: What to do about dots, as a sentence without its end.
    """

    def __init__(self, title: str, unique: bool, advice: str) -> None:
        self._title = title
        self._unique = unique
        self._advice = advice
        self._extensions = dict[str, frozenset[str]]()
        self._samples = 0
        self._counts = Counter[str]()  # of names between key and extension
        self._examples = dict[str, tuple[str, str]]()
        self._certain = ""

    def add(self, key: str, members: Mapping[str, Member]) -> None:
        """Adds members that lie together, by their extensions.

        Raises:
            ShardError: the same key came before, and these members belong to that sample.
        """
        earlier = self._extensions.get(key)
        if earlier is None:
            self._extensions[key] = frozenset(members)
        elif self._unique or earlier.isdisjoint(members):
            raise ShardError(
                f"{self._title}: key {key!r} comes again after other samples. Members of a sample must lie together: "
                "sort the names when packing, as in `tar --sort=name`, and keep keys unique"
            )
        self._samples += 1
        self._look_for_dots(members)

    def _look_for_dots(self, members: Mapping[str, Member]) -> None:
        is_keyed = any("." not in extension for extension in members)
        for extension, member in members.items():
            middle, _, encoding = extension.rpartition(".")
            if not middle or encoding.lower() not in image_extensions():
                continue
            beside = _beside(middle, extension, members)
            if not beside:
                continue
            self._counts[middle] += 1
            self._examples.setdefault(middle, (member.name, members[beside].name))
            if middle.replace(".", "").isdecimal() or not is_keyed:
                self._certain = self._certain or middle

    def refuse_dots(self) -> None:
        """Raises ShardError if names of files have dots; to be called after the last sample."""
        rare = (
            middle
            for middle, count in self._counts.items()
            if count * 2 <= self._samples
        )
        middle = self._certain or next(rare, "")
        if not middle:
            return
        picture, beside = self._examples[middle]
        key, _ = split_name(picture)
        raise ShardError(
            f"{self._title}: {beside!r} belongs to {picture!r} by its name, but a key ends at the first dot: by that "
            f"rule of WebDataset both are of sample {key!r}, and no field has the extension {split_name(beside)[1]!r}. "
            f"{self._advice}"
        )


def _beside(middle: str, extension: str, members: Collection[str]) -> str:
    """The extension of another member with the same middle part; "" if there is none."""
    start = f"{middle}."
    others = (
        other for other in members if other.startswith(start) and other != extension
    )
    return next(others, "")
