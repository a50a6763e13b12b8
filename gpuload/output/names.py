"""The names of the fields of a batch, and the named tuple or dict that the training loop gets."""

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from gpuload.batchwise import BatchTransform
from gpuload.errors import ArgumentError
from gpuload.fields.kind import FieldSpec

CORRUPT = "corrupt"  # the field that on_corrupt="mark" adds


@lru_cache(maxsize=64)
def _batch_type(names: tuple[str, ...]) -> type[Any]:
    """A named tuple of these fields. A field such as "my-field" has no attribute, but `_asdict` includes it.

    It is made of its values, as torch makes named tuples anew, or of one list of them, as fastai does.
    """
    plain: Any = namedtuple("Batch", names, rename=True)  # type: ignore[misc]  # names of a run

    def new(batch_type: type[Any], *values: Any, **named: Any) -> Any:
        if len(values) == 1 < len(names) and isinstance(values[0], list | tuple):
            values = tuple(values[0])
        return plain.__new__(batch_type, *values, **named)

    traits = {
        "__slots__": (),
        "_fields": names,
        "__new__": new,
        "__reduce__": _reduce,
        "__module__": __name__,
    }
    return type("Batch", (plain,), traits)


def _reduce(batch: Any) -> tuple[Any, ...]:
    """Pickles without the class, which other processes recreate."""
    return make_batch, (batch._fields, tuple(batch))


def make_batch(names: tuple[str, ...], values: Iterable[Any]) -> Any:
    """The named tuple of a batch."""
    return _batch_type(names)(*values)


def name_of(field: str | FieldSpec) -> str:
    """The name of a requested field."""
    return field if isinstance(field, str) else field.name


@dataclass(frozen=True)
class BatchNames:
    """The names of the fields of a batch.

    Attributes:
        requested: By the user, in the order of a batch.
        added: By batch transforms.
        first_keys: In dicts, in place of the names of the first fields; None: batches are named tuples.
        marks: Whether a field tells which samples do not decode.
    """

    requested: tuple[str, ...]
    added: frozenset[str] = frozenset()
    first_keys: tuple[str, ...] | None = None
    marks: bool = False

    @staticmethod
    def of(
        fields: Sequence[str | FieldSpec],
        transforms: Iterable[BatchTransform],
        first_keys: tuple[str, ...] | None,
        marks: bool,
    ) -> "BatchNames":
        """The names for a loader.

        Args:
            fields: The requested ones, in the order of a batch.
            transforms: Of whole batches, of which some add fields.
            first_keys: As the attribute.
            marks: As the attribute.

        Raises:
            ArgumentError: two fields have the same name.
        """
        added = {
            name for transform in transforms for name in getattr(transform, "adds", ())
        }
        names = BatchNames(
            tuple(map(name_of, fields)), frozenset(added), first_keys, marks
        )
        names._refuse_twins(names.all)
        names._refuse_twins(names.keys)
        return names

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Those requested, then those that transforms add, in the order of a batch."""
        return (*self.requested, *sorted(self.added.difference(self.requested)))

    @cached_property
    def all(self) -> tuple[str, ...]:
        """Those of `fields`, and of the marks."""
        return (*self.fields, CORRUPT) if self.marks else self.fields

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of dicts: the given ones, then the names of further fields."""
        first_keys = self.first_keys or ()
        return (*first_keys, *self.all[len(first_keys) :])

    def batch_of(self, fields: Mapping[str, Any]) -> Any:
        """The named tuple, or the dict, of fields by name."""
        values = [fields[name] for name in self.all]
        if self.first_keys is None:
            return make_batch(self.all, values)
        return dict(zip(self.keys, values, strict=True))

    def fields_of(self, batch: Any) -> dict[str, Any]:
        """The fields of a batch by name; of anything else, what it has by name."""
        if isinstance(batch, tuple | list) and len(batch) == len(self.all):
            return dict(zip(self.all, batch, strict=True))
        fields = dict(batch) if isinstance(batch, Mapping) else {}
        if set(fields) != set(self.keys):
            return fields
        names_and_keys = zip(self.all, self.keys, strict=True)
        return {name: fields[key] for name, key in names_and_keys}

    def _refuse_twins(self, names: tuple[str, ...]) -> None:
        if len(set(names)) == len(names):
            return
        marks = ""
        if self.marks:
            marks = f", one of which on_corrupt='mark' adds as {CORRUPT!r}"
        raise ArgumentError(
            f"fields={names!r}: two have the same name{marks}. Rename one or leave it out"
        )
