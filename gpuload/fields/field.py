"""One field of a data set, as the manifest describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """A field that every sample of a data set has.

    kind: name of its `Kind`, such as "class" or "boxes" (see `gpuload.fields.registry`).
    member: extension of the tar member that holds it; alternatives are joined by ";" as in "jpg;jpeg;png".
    classes: names by number: of the classes of "labels" and "boxes", of the points of "keypoints". The class names of a
        "class" field are in the manifest instead.
    size: how many values a sample has: of a "target" the numbers (0 is a single number without a dimension), of
        "keypoints" the points of an instance, of an "image" or "raw" the channels (0 is RGB).
    dtype: of an "array", and of the pixels of an "image" or "raw" that is not RGB, in NumPy's notation, such as "<i8".
    """

    name: str
    kind: str
    member: str
    classes: tuple[str, ...] | None = None
    size: int = 0
    dtype: str | None = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Field":
        """The inverse of `dataclasses.asdict` followed by JSON."""
        classes = entry.get("classes")
        return cls(**{**entry, "classes": None if classes is None else tuple(classes)})

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
