"""Rules for the arguments of `Dataset`'s methods, and hints for users of other libraries' data sets."""

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from gpuload.checks import PATH, Rule, as_items, as_text, either, unknown_attribute
from gpuload.errors import CallError


def _as_array(value: Any) -> npt.NDArray[Any]:
    """bool or integers (n,)."""
    if isinstance(value, bytes | bytearray | memoryview):  # arrays of uint8, to NumPy
        raise TypeError
    try:
        found = np.asarray(value)
    except Exception:  # lists of unequal length, tensors on a GPU
        raise TypeError from None
    if found.ndim != 1 or (found.size and found.dtype.kind not in "biu"):
        raise TypeError
    return found if found.dtype == bool else found.astype(np.int64)


def _as_expression(value: Any) -> Any:
    import pyarrow.compute as pc

    if not isinstance(value, pc.Expression):
        raise TypeError
    return value


SAMPLES = Rule("sample numbers, whole numbers (n,), or a mask, bool (len,)", _as_array)
NUMBERS = Rule("sample numbers, whole numbers (n,)", _as_array)
SHARDS = Rule("shard numbers, whole numbers (n,)", _as_array)
EXCLUDE = either(
    "a file that verify --quarantine wrote, or a list of keys",
    PATH,
    Rule("", lambda value: tuple(map(as_text, as_items(value)))),
)
EXPRESSION = Rule("an Arrow expression, such as pyarrow.compute.field('label') < 10", _as_expression)

_NO_IMAGES = (
    "does not exist, since it would decode one image after another. Use gpuload.DaliIterator(dataset, ...) for images, "
    "or dataset[17] for one; dataset.subset([...]) chooses samples, dataset.rows(shard) is their index"
)
# Attributes of torchvision's ImageFolder and of Hugging Face's data sets.
_ATTRIBUTES = {
    "class_to_idx": "Use {name: number for number, name in enumerate(dataset.classes)}",
    "targets": "Use dataset.labels, the class number of every sample",
    "samples": "Use dataset.rows(shard), whose column source holds the names of the files",
    "imgs": "Use dataset.rows(shard), whose column source holds the names of the files",
    "transform": "Use DaliIterator(augment=gpuload.Augment(...))",
    "select": "Use dataset.subset([...])",
    "shuffle": "Use DaliIterator(shuffle=True), which shuffles anew in each epoch",
    "map": "Use DaliIterator(batch_transforms=[...])",
    "features": "Use dataset.fields",
    "column_names": "Use dataset.schema.names",
}


class NotSupported:
    """Operations that data sets of other libraries have: each raises an error that says what to write instead."""

    def __iter__(self) -> NoReturn:  # else Python would loop by Dataset.__getitem__
        raise CallError(f"Dataset: a loop over a dataset {_NO_IMAGES}")

    def __contains__(self, sample: object) -> NoReturn:
        raise CallError(f"Dataset: `in` {_NO_IMAGES}")

    def __add__(self, other: object) -> NoReturn:
        raise CallError(
            "Dataset: data sets are not added. Use gpuload.mix([(one, 0.5), (other, 0.5)]), or pack both into one set"
        )

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):  # called for what is not there
            raise AttributeError(unknown_attribute("Dataset", name, _ATTRIBUTES), name=name, obj=self)
