"""What a batch transform gets, and what it may say of itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from gpuload.checks import shown, unknown_attribute
from gpuload.draws import Draws
from gpuload.errors import ArgumentError, CallError
from gpuload.fields import COMPUTED
from gpuload.types import HeightWidth


class BatchForm(NamedTuple):
    """What is known of every batch before the first.

    fields: names, in the order asked for. image_size: (height, width) of "image" in pixels. dtype: of "image".
    num_classes: of "label", where the packer was told. class_fields: the fields that hold one class number of each
    sample, whole numbers (N,); those that an earlier transform adds are among them, since nothing is known of them.
    """

    fields: tuple[str, ...]
    image_size: HeightWidth
    dtype: str
    num_classes: int | None
    class_fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class FieldBatch:
    """A batch of N samples on its way to the user.

    fields: by name, in the order asked for: NumPy arrays, or on a GPU CuPy arrays, (N, ...), or lists. "image" is
        (N, 3, height, width), of float32, float16 or uint8, in either memory layout; "label" is int64 (N,). Transforms
        change them in place or replace them; fields that they add come after those asked for.
    num_classes: of "label", where the packer was told.
    draws: gives float64 (N,) in [0, 1), a NumPy array also on a GPU, for each of the numbers 0..255: a pure function of
        (seed, epoch, sample, number). Each transform of a list has its own numbers.
    """

    fields: dict[str, Any]
    num_classes: int | None
    draws: Draws

    def __getitem__(self, name: object) -> NoReturn:
        raise CallError(f"FieldBatch: its fields are in a dict. Write batch.fields[{shown(name)}]")

    def __setitem__(self, name: object, value: object) -> NoReturn:
        raise CallError(f"FieldBatch: its fields are in a dict. Write batch.fields[{shown(name)}] = …")

    def __len__(self) -> NoReturn:
        raise CallError("FieldBatch: its fields are in a dict. Write len(batch.fields['image']), or of another field")

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):  # called for what is not there
            advice = {field: f"Write batch.fields[{field!r}]" for field in self.__dict__.get("fields", ())}
            raise AttributeError(unknown_attribute("FieldBatch", name, advice), name=name, obj=self)

    @property
    def form(self) -> BatchForm:
        """The form of this batch."""
        names = tuple(self.fields)
        others = (*COMPUTED, "bucket")
        classes = tuple(name for name in names if name not in others and _is_class_numbers(self.fields[name]))
        images = self.fields.get("image")
        size, dtype = ((0, 0), "") if images is None else (images.shape[-2:], str(images.dtype))
        return BatchForm(names, size, dtype, self.num_classes, classes)


class BatchTransform(Protocol):
    """A function that changes a batch. It may also have these attributes:

    adds: names of the fields that it adds to the batch.
    softens: names of class fields that it replaces by soft labels, float32 (N, classes).
    check: a function of a `BatchForm` that raises ArgumentError where it cannot work on such batches; called before the
        first batch.
    """

    def __call__(self, batch: FieldBatch, /) -> None:
        """Changes the batch's fields; sets those that `adds` names."""


def require_fields(transform: object, form: BatchForm, *names: str) -> None:
    """Raises ArgumentError where the batch lacks one of these fields."""
    for name in names:
        if name not in form.fields:
            raise ArgumentError(
                f"{transform}: needs the field {name!r}; fields are {', '.join(map(repr, form.fields))}"
            )


def _is_class_numbers(values: Any) -> bool:
    return getattr(values, "ndim", 0) == 1 and values.dtype.kind in "iu"
