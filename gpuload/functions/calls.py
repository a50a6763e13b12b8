"""Calls of user functions: their samples and random numbers, and the rules for their results.

Functions should not draw from the global generators of NumPy, Python and torch, but some do. Threads share them, so a
function's numbers depend on which thread draws first; gpuload detects such draws and warns. A worker process calls one
function at a time and seeds them for each sample: otherwise all workers would inherit the fork server's state and draw
the same numbers.
"""

import random
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from gpuload.checks import shown
from gpuload.types import Array

Sample = dict[str, Any]  # as described in `gpuload.functions`

_LARGEST_SIDE = 65_535  # pixels, as of a JPEG

# The number of first calls of a loader that are watched for global draws, 0.2 ms each (2 cores, 2026-11). The training
# loop is still waiting for its first batch then and draws nothing itself.
_WATCHED = 8
_TOLD: set[str] = set()  # warnings already given: each comes once in a process


class _NoSeed(ISeedSequence):
    """Replaces entropy, which would take 50 µs and is not used. Without entropy, `Generator.spawn` raises, whose
    children would not depend on the sample."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


class _Thread(threading.local):
    """Each thread's bit generator: setting its state takes 2 µs, making a new one 50 (2 cores, 2026-11)."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(_NoSeed())  # type: ignore[arg-type]
        self.state: Any = self.bits.state


_THREAD = _Thread()


def generator_of(key: Sequence[int]) -> np.random.Generator:
    """Philox4x64-10 with this key, two 64-bit words, from its first number. Valid until the next call in this thread.

    J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    state = _THREAD.state
    state["state"]["key"][:] = key
    state["state"]["counter"][:] = 0
    state["buffer_pos"], state["has_uint32"], state["uinteger"] = 4, 0, 0
    _THREAD.bits.state = state
    return np.random.Generator(_THREAD.bits)


_WORD = (1 << 32) - 1


def seed_global(key: Sequence[int]) -> None:
    """Seeds the global generators from a sample's key; torch's only if torch is imported. 8 µs (2 cores, 2026-11)."""
    seed = key[0] ^ (key[1] >> 1)
    random.seed(seed)
    np.random.seed(seed & _WORD)  # noqa: NPY002 - the one that such functions use
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)  # manual_seed, which looks for GPUs, takes 290 µs


def _states() -> dict[str, Any]:
    """Of the global generators."""
    numpys: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - as above
    states: dict[str, Any] = {"random": random.getstate(), "np.random": (numpys[1].tobytes(), numpys[2])}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


class SampleFunction(Protocol):
    """A function of one sample, called in several threads at once, or in processes."""

    def __call__(self, sample: Sample, rng: np.random.Generator, /) -> Any:
        """The new image, (height, width, channels) of the old one's type, or a dict of the entries of `sample` that it
        changed."""


class Entries(NamedTuple):
    """The entries of a sample besides its image, key and index, by the kind of their fields.

    boxes: names of fields of boxes; the class numbers of "boxes" are "boxes_class". masks: of mask fields. keypoints:
    of fields of keypoints, and the number of points of an instance.
    """

    boxes: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    keypoints: tuple[tuple[str, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all entries."""
        return (*self.places, *map(class_entry, self.boxes))

    @property
    def places(self) -> tuple[str, ...]:
        """The names of entries with positions in the image, which change with its size."""
        return (*self.boxes, *self.masks, *(name for name, _ in self.keypoints))


def class_entry(boxes: str) -> str:
    """The entry with the class numbers of a field of boxes."""
    return f"{boxes}_class"


def name_of(function: Any) -> str:
    """The name of a function in messages."""
    return getattr(function, "__qualname__", None) or type(function).__name__


class WrongResultError(Exception):
    """A function returned an invalid result; the message has the actual and the expected value."""


class CallFailedError(Exception):
    """A function's process died; the message tells how."""


def call(
    function: SampleFunction, sample: Sample, key: tuple[int, int], entries: Entries, keeps_size: bool
) -> dict[str, Array]:
    """The image and all entries of a sample after the function.

    keeps_size: whether the image must keep its size.

    Raises:
        WrongResultError: it returned an invalid result. Otherwise, whatever it raises.
    """
    size, dtype = sample["image"].shape, sample["image"].dtype
    returned = function(sample, generator_of(key))
    if isinstance(returned, np.ndarray):
        returned = {"image": returned}
    if not isinstance(returned, Mapping):
        raise WrongResultError(
            f"returned {_kind(returned)}: expected the image as a NumPy array, or a dict of the entries that it changed"
        )
    names = ("image", *entries.names)
    if unknown := [name for name in returned if name not in (*names, "key", "index")]:
        raise WrongResultError(f"returned an entry {shown(unknown[0])}: the entries are {', '.join(map(repr, names))}")
    result: dict[str, Any] = {**sample, **returned}
    if missing := [name for name in names if name not in result]:
        raise WrongResultError(
            f"removed {missing[0]!r} from the sample and did not return it: return it, or an empty array if none remain"
        )
    made = {"image": _read_image(result["image"], size, dtype, keeps_size)}
    height, width = made["image"].shape[:2]
    stays = [name for name in entries.places if name not in returned]
    if (height, width) != size[:2] and stays:
        raise WrongResultError(
            f"changed the image's size from {size[0]}×{size[1]} to {height}×{width} without returning {stays[0]!r}, "
            "which has to follow it"
        )
    for name in entries.masks:
        made[name] = _read(name, result[name], "uint8", (height, width))
    for name in entries.boxes:
        made[name] = boxes = _read(name, result[name], "float32", ("M", 4))
        if (boxes[:, 2:] < boxes[:, :2]).any():
            raise WrongResultError(f"returned {name!r} with x1 < x0 or y1 < y0: expected x0, y0, x1, y1 in pixels")
        made[class_entry(name)] = _read(class_entry(name), result[class_entry(name)], "int64", (len(boxes),))
    for name, points in entries.keypoints:
        made[name] = _read(name, result[name], "float32", ("M", points, 3))
    return made


def _read_image(image: Any, size: tuple[int, ...], dtype: np.dtype[Any], keeps_size: bool) -> Array:
    found: Any = image
    if isinstance(image, np.ndarray) and image.ndim == 2 and size[2] == 1:  # OpenCV and others omit a single channel
        found = np.expand_dims(image, 2)
    expected: tuple[int | str, ...] = size if keeps_size else ("height", "width", size[2])
    if not isinstance(found, np.ndarray) or found.dtype != dtype or not _has_shape(found, expected) or not found.size:
        raise WrongResultError(
            f"returned {_kind(image)} as 'image': expected {dtype} {_sides(expected)}, of at most {_LARGEST_SIDE:,} "
            "pixels a side. Leave conversion and normalisation to Augment, and use before_crop=True to change the size"
        )
    return found


def _read(name: str, value: Any, dtype: str, shape: tuple[int | str, ...]) -> Array:
    """The value as an array of this type and shape, in which a text stands for any number."""
    with suppress(TypeError, ValueError):
        found = np.asarray(value)
        if found.size == 0 and shape[0] in ("M", 0):
            return np.empty([0, *(side for side in shape[1:] if isinstance(side, int))], dtype)
        if np.can_cast(found.dtype, dtype, "same_kind") and _has_shape(found, shape) and np.isfinite(found).all():
            return found.astype(dtype, copy=False)
    raise WrongResultError(f"returned {_kind(value)} as {name!r}: expected finite {dtype} {_sides(shape)}")


def _has_shape(found: Array, shape: tuple[int | str, ...]) -> bool:
    return found.ndim == len(shape) and all(
        side <= _LARGEST_SIDE if isinstance(wanted, str) else side == wanted
        for side, wanted in zip(found.shape, shape, strict=True)
    )


def _sides(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _kind(value: Any) -> str:
    """A value in a message; of a large object only its type, which shows how to convert it to an array."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if value is None or isinstance(value, str | int | float):
        return shown(value)
    kind = type(value)
    return f"an object of type {'' if kind.__module__ == 'builtins' else kind.__module__ + '.'}{kind.__qualname__}"


class Caller(Protocol):
    """Calls functions from several threads at once. threads: the useful number of concurrent calls."""

    threads: int

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """The image and all entries of a sample after the function with this number.

        The pixels of the result are valid until the next call in this thread.

        Raises:
            WrongResultError: it returned an invalid result. CallFailedError: its process died.
            Exception: whatever it raises.
        """

    def close(self) -> None:
        """Releases its resources; calls in progress and later ones may fail."""


class InThreads:
    """Calls functions in the caller's thread."""

    def __init__(self, functions: Sequence[SampleFunction], entries: Entries, threads: int) -> None:
        self._functions, self._entries, self.threads = functions, entries, threads
        self._watched = _WATCHED

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """As `Caller`. Warns of draws from the global generators, by any thread, during the first calls."""
        function = self._functions[number]
        if self._watched <= 0:
            return call(function, sample, key, self._entries, keeps_size)
        self._watched -= 1
        before = _states()
        found = call(function, sample, key, self._entries, keeps_size)
        after = _states()
        told = (
            f"Function(function): {name_of(function)} draws from the global generator of "
            f"{' and '.join(name for name in before if before[name] != after.get(name))}, which threads share, so that "
            "its results differ from run to run. Draw from rng, or use Function(processes=...), where that generator "
            "is seeded for each sample"
        )
        if before != after and told not in _TOLD:
            _TOLD.add(told)
            warnings.warn(told, stacklevel=2)
        return found

    def close(self) -> None:
        """Nothing was started."""
