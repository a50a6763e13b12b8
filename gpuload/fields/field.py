"""One field of a data set, as the manifest describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One field of every sample of a data set.

    kind: name of its `Kind`, such as "class" or "boxes" (see `gpuload.fields.registry`).
    member: extension of the tar member that holds it; alternatives are joined by ";" as in "jpg;jpeg;png".
    classes: what the field's numbers stand for, by number: class names of "labels" and "boxes", names of the points of
        "keypoints"; those of a "class" are the manifest's.
    size: values in each sample: the numbers of a "target" (0 is a single number without a dimension), the points of an
        instance in "keypoints".
    dtype: of an "array", as NumPy writes it, such as "<i8".
    """

    name: str
    kind: str
    member: str
    classes: tuple[str, ...] | None = None
    size: int = 0
    dtype: str | None = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Field":
        """Reverses `dataclasses.asdict` followed by JSON."""
        classes = entry.get("classes")
        return cls(**{**entry, "classes": None if classes is None else tuple(classes)})

    @property
    def offset_column(self) -> str:
        """Index column: byte offset of the member's data in its shard; of "raw" and "array", of the first element."""
        return f"{self.name}_offset"

    @property
    def bytes_column(self) -> str:
        """Index column: size of the member's data in bytes; of "raw" and "array", of the elements alone."""
        return f"{self.name}_bytes"


IMAGE = Field("image", "image", "jpg")
LABEL = Field("label", "class", "cls")
