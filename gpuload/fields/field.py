"""One field of a data set, as the manifest describes it."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from gpuload.checks import Rule, as_items, as_text, optional, several, whole

_MOST_TEXT = 4096
UNPRINTABLE = re.compile(
    r"[\\\x00-\x1f\x7f-\x9f]"
)  # and the backslash, which separates folders on Windows


def _as_stored_text(value: Any) -> str:
    text = as_text(value)
    text.encode()  # JSON can hold halves of surrogate pairs, which are no text
    if "\0" in text or len(text) > _MOST_TEXT:
        raise ValueError
    return text


def _as_member(value: Any) -> str:
    member = _as_stored_text(
        value
    )  # a part of the names in tars that are packed from this set
    if UNPRINTABLE.search(member) or "/" in member:
        raise ValueError
    return member


STORED_TEXT = Rule(f"a text of up to {_MOST_TEXT:,} characters", _as_stored_text)
_CATEGORY_IDS = optional(several(whole(-(2**63), 2**63 - 1), "a list of whole numbers"))
_COUNTS = optional(several(whole(0, 2**31 - 1), "two numbers of pictures"))
# What older versions do not write.
_NEWER = ("category_ids", "instances_of", "counts")
CLASS_NAMES = optional(
    Rule("a list of texts", lambda value: tuple(map(_as_stored_text, as_items(value))))
)


@dataclass(frozen=True)
class Field:
    """A field that every sample of a data set has.

    Attributes:
        name: In the data set, such as "label".
        kind: Name of its `Kind`, such as "class" or "boxes" (see `gpuload.fields.registry`).
        member: Extension of the tar member that holds it; alternatives are joined by ";" as in "jpg;jpeg;png".
        classes: Names by number: of the classes of "labels" and "boxes", of the points of "keypoints". The class names
            of a "class" field are in the manifest instead.
        size: How many values a sample has: of a "target" the numbers (0 is a single number without a dimension), of
            "keypoints" the points of an instance, of an "image" or "raw" the channels (0 is RGB).
        dtype: Type of an "array", and of the pixels of an "image" or "raw" that is not RGB, in NumPy's notation, such
            as "<i8".
        category_ids: The source's number of each class, where the set was packed from COCO's JSON or by --classes; -1
            for a class that the source lacks.
        instances_of: The field of boxes whose instances "keypoints" are, in the same order.
        counts: How many "pictures" a sample has: the least and the most; of an "image" or "raw" (0, 1) where samples
            may have none.
    """

    name: Annotated[str, STORED_TEXT]
    kind: Annotated[str, STORED_TEXT]
    member: Annotated[str, Rule("extensions of file names", _as_member)]
    classes: Annotated[tuple[str, ...] | None, CLASS_NAMES] = None
    size: Annotated[int, whole(0, 1_000_000)] = 0
    dtype: Annotated[str | None, optional(STORED_TEXT)] = None
    category_ids: Annotated[tuple[int, ...] | None, _CATEGORY_IDS] = None
    instances_of: Annotated[str | None, optional(STORED_TEXT)] = None
    counts: Annotated[tuple[int, ...] | None, _COUNTS] = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Field":
        """The inverse of `dataclasses.asdict` followed by JSON."""
        lists = {
            name: tuple(value)
            for name, value in entry.items()
            if isinstance(value, list)
        }
        return cls(**{**entry, **lists})

    def as_json(self) -> dict[str, Any]:
        """Its entry in a manifest, without what older versions of gpuload did not write."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in _NEWER
        }

    @property
    def offset_column(self) -> str:
        """Index column: byte offset of the member's data in its shard; of the first element for "raw" and "array"."""
        return f"{self.name}_offset"

    @property
    def bytes_column(self) -> str:
        """Index column: size in bytes of the member's data; of the elements alone for "raw" and "array"."""
        return f"{self.name}_bytes"


IMAGE = Field("image", "image", "jpg")
LABEL = Field("label", "class", "cls")
