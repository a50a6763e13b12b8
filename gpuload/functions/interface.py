"""The interface of user functions: their samples and random numbers, the rules for their results, and who calls them.

Functions should not draw from the global generators of NumPy, Python and torch, but some do. Threads share them, so a
function's numbers depend on which thread draws first; gpuload detects such draws and warns. A worker process calls one
function at a time and seeds them for each sample: otherwise all workers would inherit the fork server's state and draw
the same numbers.
"""

import random
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from gpuload.checks import shown
from gpuload.types import Array, HeightWidth

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


class Watch:
    """A context that detects draws from the global generators by any thread.

    drawn: after the context, the libraries whose generators were used.
    """

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def __enter__(self) -> "Watch":
        self._before = _states()
        return self

    def __exit__(self, *_: object) -> None:
        after = _states()
        self.drawn = [name for name, state in self._before.items() if state != after[name]]


def _states() -> dict[str, Any]:
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
    image = sample["image"]
    size, dtype = image.shape, image.dtype
    return read_result(function(sample, generator_of(key)), sample, size, dtype, entries, keeps_size)


def read_result(
    returned: Any,
    sample: Sample,
    size: tuple[int, ...],
    dtype: np.dtype[Any],
    entries: Entries,
    keeps_size: bool,
) -> dict[str, Array]:
    """As `call`, from a function's return value. size, dtype: of the image before the call."""
    if isinstance(returned, np.ndarray):
        returned = {"image": returned}
    if not isinstance(returned, Mapping):
        raise WrongResultError(
            f"returned {_kind(returned)}: expected the image as a NumPy array, or a dict of the entries that it changed"
        )
    names = ("image", *entries.names)
    for name in returned:
        if name not in names and name not in ("key", "index"):
            raise WrongResultError(f"returned an entry {shown(name)}: the entries are {', '.join(map(repr, names))}")
    for name in names:
        if name not in returned and name not in sample:
            raise WrongResultError(
                f"removed {name!r} from the sample and did not return it: return it, or an empty array if none remain"
            )
    result = {name: returned[name] if name in returned else sample[name] for name in names}
    result["image"] = image = _check_image(result["image"], size, dtype, keeps_size)
    if image.shape != size:
        for name in entries.places:
            if name not in returned:
                raise WrongResultError(
                    f"changed the image's size from {_sides(size)} to {_sides(image.shape)} without returning "
                    f"{name!r}, which has to follow it"
                )
    for name in entries.masks:
        _check_mask(name, result[name], image.shape[:2])
    for name in entries.boxes:
        classes = class_entry(name)
        result[name] = _check_boxes(name, result[name])
        result[classes] = _check_classes(name, result[classes], len(result[name]))
    for name, points in entries.keypoints:
        result[name] = _check_keypoints(name, result[name], points)
    return result


def _check_image(image: Any, size: tuple[int, ...], dtype: np.dtype[Any], keeps_size: bool) -> Array:
    if not isinstance(image, np.ndarray):
        raise WrongResultError(f"returned {_kind(image)} as 'image': expected a NumPy array")
    if image.dtype != dtype:
        levels = ", 0..255" if dtype == np.uint8 else ""
        raise WrongResultError(
            f"returned an image of {image.dtype}: expected {dtype}{levels}. Leave conversion and normalisation to "
            "Augment"
        )
    found: Array = image
    if found.ndim == 2 and size[2] == 1:  # OpenCV and others omit a single channel
        found = np.expand_dims(found, 2)
    if found.ndim != 3 or found.shape[2] != size[2] or not all(0 < side <= _LARGEST_SIDE for side in found.shape[:2]):
        last = ", with the channels last" if found.ndim == 3 and found.shape[0] == size[2] else ""
        raise WrongResultError(f"returned an image of shape {found.shape}: expected (height, width, {size[2]}){last}")
    if keeps_size and found.shape != size:
        raise WrongResultError(
            f"returned an image of {_sides(found.shape)} pixels (height×width): expected {_sides(size)}, since it is "
            "called after the crop. Use before_crop=True for a function that changes the size"
        )
    return found


def _kind(value: Any) -> str:
    """A value in a message; of a large object only its type, which shows how to convert it to an array."""
    if value is None or isinstance(value, str | int | float):
        return shown(value)
    kind = type(value)
    return f"an object of type {'' if kind.__module__ == 'builtins' else kind.__module__ + '.'}{kind.__qualname__}"


def _check_mask(name: str, mask: Any, size: HeightWidth) -> None:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.uint8 or mask.shape != size:
        what = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else shown(mask)
        raise WrongResultError(f"returned {what} as {name!r}: expected uint8 {size}, as its image")


def _check_boxes(name: str, boxes: Any) -> Array:
    found = _numbers(name, boxes, "float32 (M, 4), x0, y0, x1, y1")
    if found.size == 0:
        return np.empty((0, 4), np.float32)
    if found.ndim != 2 or found.shape[1] != 4:
        raise WrongResultError(f"returned {name!r} of shape {found.shape}: expected (M, 4)")
    if (found[:, 2:] < found[:, :2]).any():
        raise WrongResultError(f"returned {name!r} with x1 < x0 or y1 < y0: expected x0, y0, x1, y1 in pixels")
    return found


def _check_classes(boxes: str, classes: Any, count: int) -> Array:
    name = class_entry(boxes)
    found = np.asarray(classes)
    if found.size == 0:
        found = np.empty(0, np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise WrongResultError(f"returned {shown(classes)} as {name!r}: expected whole numbers (M,)")
    if len(found) != count:
        raise WrongResultError(f"returned {count} {boxes!r} and {len(found)} {name!r}: expected one for each box")
    return found.astype(np.int64)


def _check_keypoints(name: str, keypoints: Any, points: int) -> Array:
    found = _numbers(name, keypoints, f"float32 (M, {points}, 3)")
    if found.size == 0:
        return np.empty((0, points, 3), np.float32)
    if found.ndim != 3 or found.shape[1:] != (points, 3):
        raise WrongResultError(f"returned {name!r} of shape {found.shape}: expected (M, {points}, 3)")
    return found


def _numbers(name: str, values: Any, expected: str) -> Array:
    try:
        found = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise WrongResultError(f"returned {shown(values)} as {name!r}: expected {expected}") from None
    if not np.isfinite(found).all():
        raise WrongResultError(f"returned {name!r} with numbers that are not finite")
    return found


def _sides(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}×{shape[1]}"


class Caller(Protocol):
    """Calls functions from several threads at once.

    threads: the useful number of concurrent calls. notices: warnings for the user.
    """

    threads: int
    notices: deque[str]

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """The image and all entries of a sample after the function with this number.

        The arrays of the result are valid until the next call in this thread.

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
        self.notices: deque[str] = deque()
        self._watched = _WATCHED

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """As `Caller`."""
        function = self._functions[number]
        if self._watched <= 0:
            return call(function, sample, key, self._entries, keeps_size)
        self._watched -= 1
        with Watch() as watch:
            found = call(function, sample, key, self._entries, keeps_size)
        if watch.drawn:
            told = (
                f"Function(function): {name_of(function)} draws from the global generator of "
                f"{' and '.join(watch.drawn)}, which threads share, so that its results differ from run to run. Draw "
                "from rng, or use Function(processes=...), where that generator is seeded for each sample"
            )
            if told not in _TOLD:
                _TOLD.add(told)
                self.notices.append(told)
        return found

    def close(self) -> None:
        """Nothing was started."""
