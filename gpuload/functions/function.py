"""`Function`: a user function among the transforms of an `Augment`, its samples and random numbers, the rules for its
results, and who calls it; Albumentations' and torchvision's work as such.

Functions should not draw from the global generators of NumPy, Python and torch, but some do. Threads share them, so a
function's numbers depend on which thread draws first; gpuload detects such draws and warns. A worker process calls one
function at a time and seeds them for each sample: otherwise all workers would inherit the fork server's state and draw
the same numbers.
"""

import copy
import inspect
import random
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from gpuload.checks import FLAG, Rule, settings, shown, whole
from gpuload.errors import ArgumentError
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


class _ThreadGenerators(threading.local):
    """Each thread's bit generator: setting its state takes 2 µs, making a new one 50 (2 cores, 2026-11)."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(_NoSeed())  # type: ignore[arg-type]  # any seed sequence will do
        self.state: Any = self.bits.state


_THREAD = _ThreadGenerators()


def generator_of(key: Sequence[int]) -> np.random.Generator:
    """Philox4x64-10 with this key, two 64-bit words, from its first number. Valid until the next call in this thread.

    J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    state = _THREAD.state
    state["state"]["key"][:] = key
    state["state"]["counter"][:] = 0
    state["buffer_pos"] = 4
    state["has_uint32"] = 0
    state["uinteger"] = 0
    _THREAD.bits.state = state
    return np.random.Generator(_THREAD.bits)


_WORD = (1 << 32) - 1


def seed_global(key: Sequence[int]) -> None:
    """Seeds the global generators from a sample's key; torch's only if torch is imported. 8 µs (2 cores, 2026-11)."""
    seed = key[0] ^ (key[1] >> 1)
    random.seed(seed)
    np.random.seed(seed & _WORD)  # noqa: NPY002 - the one that such functions use
    if (torch := sys.modules.get("torch")) is not None:
        # manual_seed, which looks for GPUs, takes 290 µs.
        torch.default_generator.manual_seed(seed)


def _states() -> dict[str, Any]:
    """Of the global generators."""
    numpys: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - as above
    states: dict[str, Any] = {
        "random": random.getstate(),
        "np.random": (numpys[1].tobytes(), numpys[2]),
    }
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

    Attributes:
        boxes: Names of fields of boxes; the class numbers of "boxes" are "boxes_class".
        masks: Of mask fields.
        keypoints: Of fields of keypoints, and the number of points of an instance.
        pictures: Of further pictures, and of lists of them.
    """

    boxes: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    keypoints: tuple[tuple[str, int], ...] = ()
    pictures: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all entries."""
        return (*self.places, *map(class_entry, self.boxes), *self.pictures)

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


class FailedCallError(Exception):
    """A function returned an invalid result, or its process died; the message, after its name, tells how."""


def call(
    function: SampleFunction,
    sample: Sample,
    key: tuple[int, int],
    entries: Entries,
    keeps_size: bool,
) -> dict[str, Array]:
    """The image and all entries of a sample after the function.

    Args:
        function: Of the user.
        sample: What it gets, with "image".
        key: Of the sample's generator.
        entries: The moving fields of the sample.
        keeps_size: Whether the image must keep its size.

    Raises:
        FailedCallError: it returned an invalid result. Otherwise, whatever it raises.
    """
    size = sample["image"].shape
    dtype = sample["image"].dtype
    # Before the call, which may change the arrays in place.
    forms = {
        name: (sample[name].shape, sample[name].dtype) for name in entries.pictures
    }
    returned = _as_entries(function(sample, generator_of(key)), entries)
    result: dict[str, Any] = {**sample, **returned}
    if missing := [name for name in ("image", *entries.names) if name not in result]:
        raise FailedCallError(
            f"removed {missing[0]!r} from the sample and did not return it: return it, or an empty array if none remain"
        )
    checked = {"image": _read_image(result["image"], size, dtype, keeps_size)}
    new_size = checked["image"].shape[:2]
    stays = [name for name in entries.places if name not in returned]
    if new_size != size[:2] and stays:
        raise FailedCallError(
            f"changed the image's size from {size[0]}×{size[1]} to {new_size[0]}×{new_size[1]} without returning "
            f"{stays[0]!r}, which has to follow it"
        )
    for name in entries.masks:
        checked[name] = _read(name, result[name], "uint8", new_size)
    for name in entries.boxes:
        checked |= _read_boxes(name, result)
    for name, points in entries.keypoints:
        checked[name] = _read(name, result[name], "float32", ("M", points, 3))
    for name, form in forms.items():
        checked[name] = _read_picture(name, result[name], *form)
    return checked


def _as_entries(returned: Any, entries: Entries) -> Mapping[str, Any]:
    """What a function returned, by entry."""
    if isinstance(returned, np.ndarray):
        return {"image": returned}
    if not isinstance(returned, Mapping):
        raise FailedCallError(
            f"returned {_kind(returned)}: expected the image as a NumPy array, or a dict of the entries that it changed"
        )
    names = ("image", *entries.names)
    if unknown := [name for name in returned if name not in (*names, "key", "index")]:
        raise FailedCallError(
            f"returned an entry {shown(unknown[0])}: the entries are {', '.join(map(repr, names))}"
        )
    return returned


def _read_image(
    image: Any, size: tuple[int, ...], dtype: np.dtype[Any], keeps_size: bool
) -> Array:
    pixels: Any = image
    # OpenCV and others omit a single channel.
    if isinstance(image, np.ndarray) and image.ndim == 2 and size[2] == 1:
        pixels = np.expand_dims(image, 2)
    expected: tuple[int | str, ...] = (
        size if keeps_size else ("height", "width", size[2])
    )
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != dtype
        or not _has_shape(pixels, expected)
        or not pixels.size
    ):
        raise FailedCallError(
            f"returned {_kind(image)} as 'image': expected {dtype} {_sides(expected)}, of at most {_LARGEST_SIDE:,} "
            "pixels a side. Leave conversion and normalisation to Augment, and use before_crop=True to change the size"
        )
    return pixels


def _read(name: str, value: Any, dtype: str, shape: tuple[int | str, ...]) -> Array:
    """The value as an array of this type and shape, in which a text stands for any number."""
    with suppress(TypeError, ValueError), np.errstate(over="ignore"):
        array = np.asarray(value)
        if array.size == 0 and shape[0] in ("M", 0):
            return np.empty(
                [0, *(side for side in shape[1:] if isinstance(side, int))], dtype
            )
        # Class 300 of uint16 would become 44.
        casting: Any = "safe" if dtype == "uint8" else "same_kind"
        if np.can_cast(array.dtype, dtype, casting) and _has_shape(array, shape):
            array = array.astype(dtype, copy=False)
            # Not sooner: casting may overflow.
            if dtype != "float32" or np.isfinite(array).all():
                return array
    raise FailedCallError(
        f"returned {_kind(value)} as {name!r}: expected finite {dtype} {_sides(shape)}"
    )


def _read_boxes(name: str, result: Mapping[str, Any]) -> dict[str, Array]:
    """A field of boxes, and its entry with their classes."""
    boxes = _read(name, result[name], "float32", ("M", 4))
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise FailedCallError(
            f"returned {name!r} with x1 < x0 or y1 < y0: expected x0, y0, x1, y1 in pixels"
        )
    classes = class_entry(name)
    numbers = _read(classes, result[classes], "int64", (len(boxes),))
    return {name: boxes, classes: numbers}


def _read_picture(
    name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """A further picture, in the shape and type in which the function got it; a map may have NaN."""
    with suppress(TypeError, ValueError):
        array = np.asarray(value)
        casting: Any = "same_kind" if dtype.kind == "f" else "safe"
        if array.shape == shape and np.can_cast(array.dtype, dtype, casting):
            return array.astype(dtype, copy=False)
    raise FailedCallError(
        f"returned {_kind(value)} as {name!r}: expected {dtype} {_sides(shape)}, as it was given"
    )


def _has_shape(array: Array, shape: tuple[int | str, ...]) -> bool:
    return array.ndim == len(shape) and all(
        side <= _LARGEST_SIDE if isinstance(wanted, str) else side == wanted
        for side, wanted in zip(array.shape, shape, strict=True)
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
    """Calls functions from several threads at once.

    Attributes:
        threads: The useful number of concurrent calls.
    """

    threads: int

    def call(
        self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool
    ) -> Mapping[str, Array]:
        """The image and all entries of a sample after the function with this number.

        The pixels of the result are valid until the next call in this thread.

        Args:
            number: Of the function.
            key: Of the sample's generator.
            sample: What the function gets, with "image".
            keeps_size: Whether the image must keep its size.

        Raises:
            FailedCallError: it returned an invalid result, or its process died.
            Exception: whatever it raises.
        """

    def close(self) -> None:
        """Releases its resources; calls in progress and later ones may fail."""


class InThreads:
    """Calls functions in the caller's thread."""

    def __init__(
        self, functions: Sequence[SampleFunction], entries: Entries, threads: int
    ) -> None:
        self._functions = functions
        self._entries = entries
        self.threads = threads
        self._watched = _WATCHED

    def call(
        self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool
    ) -> Mapping[str, Array]:
        """As `Caller`. Warns of draws from the global generators, by any thread, during the first calls."""
        function = self._functions[number]
        if self._watched <= 0:
            return call(function, sample, key, self._entries, keeps_size)
        self._watched -= 1
        before = _states()
        result = call(function, sample, key, self._entries, keeps_size)
        after = _states()
        drawn = [name for name, state in before.items() if state != after[name]]
        warning = (
            f"Function(function): {name_of(function)} draws from the global generator of {' and '.join(drawn)}, which "
            "threads share, so results differ from run to run. Draw from rng, or use Function(processes=...)"
        )
        if drawn and warning not in _TOLD:
            _TOLD.add(warning)
            warnings.warn(warning, stacklevel=2)
        return result

    def close(self) -> None:
        """Nothing was started."""


_BOXES = ("pascal_voc", ["classes"])  # what Albumentations must know of them


class _Adapter:
    """Base class of adapters for transforms of other libraries.

    Args:
        names: Of the fields to pass.
    """

    def __init__(self, transform: Any, is_one: bool, example: str, *names: str) -> None:
        if not is_one:
            raise ArgumentError(
                f"{type(self).__name__}({type(transform).__name__}): expected a transform, such as {example}"
            )
        self._transform = transform
        self._names = names

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._transform).__name__})"


class Albumentations(_Adapter):
    """An adapter for a transform of Albumentations, such as a `Compose`, made by `transforms.Function`.

    The transform gets the image as "image", "mask" as "mask", "boxes" as "bboxes" in the pascal_voc format, and the
    first two numbers of "keypoints" in the xy format: write `A.Compose(…, bbox_params=A.BboxParams("pascal_voc",
    label_fields=["classes"]), keypoint_params=A.KeypointParams("xy", remove_invisible=False))` if the loader's fields
    include them. Points outside the image become invisible. Each thread has a copy of the transform, which the sample's
    generator seeds for each call, so threads do not affect the random numbers.

    Args:
        transform: Any transform of Albumentations, which is copied for each thread.
        boxes: Name of the field of boxes to pass.
        mask: Name of the field of masks to pass.
        keypoints: Name of the field of keypoints to pass.

    Raises:
        ArgumentError: it is not a transform of Albumentations 2.
    """

    def __init__(
        self,
        transform: Any,
        boxes: str = "boxes",
        mask: str = "mask",
        keypoints: str = "keypoints",
    ) -> None:
        is_one = callable(transform) and callable(
            getattr(transform, "set_random_seed", None)
        )
        super().__init__(
            transform,
            is_one,
            "A.Compose([...]) of Albumentations 2",
            boxes,
            mask,
            keypoints,
        )
        self._own = threading.local()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """As `SampleFunction`."""
        boxes, mask, keypoints = self._names
        transform = self._in_this_thread()
        _check_params(transform, boxes in sample, keypoints in sample)
        transform.set_random_seed(int(rng.integers(1 << 32)))
        arguments: dict[str, Any] = {"image": sample["image"]}
        if mask in sample:
            arguments["mask"] = sample[mask]
        # A loader may have no boxes.
        if boxes in sample or _params(transform, "bboxes") is not None:
            empty = np.empty((0, 4), np.float32), np.empty(0, np.int64)
            arguments |= {
                "bboxes": sample.get(boxes, empty[0]),
                "classes": sample.get(class_entry(boxes), empty[1]),
            }
        if keypoints in sample:
            arguments["keypoints"] = sample[keypoints][..., :2].reshape(-1, 2)
        transformed = transform(**arguments)
        result: dict[str, Any] = {"image": np.ascontiguousarray(transformed["image"])}
        if mask in sample:
            result[mask] = np.ascontiguousarray(transformed["mask"])
        if boxes in sample:
            result[boxes] = np.asarray(transformed["bboxes"], np.float32).reshape(-1, 4)
            result[class_entry(boxes)] = np.asarray(transformed["classes"]).astype(
                np.int64
            )
        if keypoints in sample:
            result[keypoints] = _points(
                sample[keypoints], transformed["keypoints"], result["image"].shape
            )
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {"_transform": self._transform, "_names": self._names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=threading.local())

    def _in_this_thread(self) -> Any:
        """A copy of the transform, which holds its generators."""
        if not hasattr(self._own, "transform"):
            self._own.transform = copy.deepcopy(self._transform)
        return self._own.transform


def _params(transform: Any, kind: str) -> Any:
    """A transform's parameters for "bboxes" or "keypoints"; None if it has none."""
    processor = (getattr(transform, "processors", None) or {}).get(kind)
    return None if processor is None else processor.params


def _check_params(transform: Any, has_boxes: bool, has_keypoints: bool) -> None:
    """Checks the parameters, without which Albumentations returns boxes and points in other units, without an error.

    Raises:
        ValueError: they are not those in the docstring of `Albumentations`.
    """
    boxes = _params(transform, "bboxes")
    points = _params(transform, "keypoints")
    fits = not has_boxes
    if boxes is not None:
        fits = (boxes.format, list(boxes.label_fields or ())) == _BOXES
    if not fits or (
        has_keypoints
        and (points is None or points.format != "xy" or points.label_fields)
    ):
        raise ValueError(
            "it does not have the parameters of the loader's fields: expected A.Compose([...], "
            "bbox_params=A.BboxParams('pascal_voc', label_fields=['classes']), "
            "keypoint_params=A.KeypointParams('xy', remove_invisible=False))"
        )


def _points(before: Any, moved: Any, shape: tuple[int, ...]) -> Any:
    """float32 (M, K, 3) with the moved positions; points outside the image become invisible."""
    result = np.array(before, np.float32)
    positions = np.asarray(moved, np.float32).reshape(-1, 2)
    if len(positions) != result[..., 0].size:
        raise ValueError(
            f"{result[..., 0].size} keypoints went into the transform, and {len(positions)} came out: use "
            "A.KeypointParams('xy', remove_invisible=False)"
        )
    labelled = result[..., 2] > 0
    result[..., :2] = positions.reshape(*result.shape[:2], 2)
    inside = ((result[..., :2] >= 0) & (result[..., :2] <= [shape[1], shape[0]])).all(
        axis=-1
    )
    result[~(labelled & inside)] = 0
    return result


class Torchvision(_Adapter):
    """An adapter for a transform of `torchvision.transforms.v2`, made by `transforms.Function`.

    The transform gets the image as a `tv_tensors.Image` (channels × height × width, of the set's type). If the loader's
    fields include them, it also gets boxes as `tv_tensors.BoundingBoxes`, masks as `tv_tensors.Mask` and class numbers,
    in a dict. `v2.SanitizeBoundingBoxes` at the end drops empty boxes. torch's CPU draws come from the sample's
    generator in every thread.

    Args:
        transform: Must keep the image's type; `Augment` converts and normalises.
        boxes: Name of the field of boxes to pass.
        mask: Name of the field of masks to pass.

    Raises:
        ArgumentError: it is not callable.
    """

    def __init__(
        self, transform: Any, boxes: str = "boxes", mask: str = "mask"
    ) -> None:
        is_one = callable(transform) and not isinstance(transform, type)
        super().__init__(transform, is_one, "v2.Compose([...])", boxes, mask)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """As `SampleFunction`."""
        torch = import_module("torch")
        tv = import_module("torchvision.tv_tensors")
        seeded = import_module("gpuload.functions.torch_draws").seeded
        boxes, mask = self._names
        image = sample["image"]
        arguments: dict[str, Any] = {
            "image": tv.Image(torch.from_numpy(image).permute(2, 0, 1))
        }
        if mask in sample:
            arguments["mask"] = tv.Mask(torch.from_numpy(sample[mask]))
        if boxes in sample:
            corners = torch.from_numpy(sample[boxes])
            arguments["boxes"] = tv.BoundingBoxes(
                corners, format="XYXY", canvas_size=image.shape[:2]
            )
            arguments["labels"] = torch.from_numpy(sample[class_entry(boxes)])
        with seeded(int(rng.integers(1 << 63))):
            transformed = (
                self._transform(arguments)
                if len(arguments) > 1
                else {"image": self._transform(arguments["image"])}
            )
        moved = transformed["image"]
        dtype = moved.dtype if isinstance(moved, torch.Tensor) else type(moved).__name__
        if dtype != arguments["image"].dtype:
            raise ValueError(
                f"the transform made {dtype} of the image, expected a {image.dtype} tensor: leave ToDtype, ToTensor "
                "and Normalize to Augment"
            )
        result: dict[str, Any] = {
            "image": np.ascontiguousarray(moved.permute(1, 2, 0).numpy())
        }
        if mask in sample:
            result[mask] = np.ascontiguousarray(transformed["mask"].numpy())
        if boxes in sample:
            result |= {
                boxes: transformed["boxes"].numpy(),
                class_entry(boxes): transformed["labels"].numpy(),
            }
        return result


_ADAPTERS: dict[str, Callable[[Any], SampleFunction]] = {
    "albumentations": Albumentations,
    "torchvision": Torchvision,
}


def _as_function(value: Any) -> SampleFunction:
    """The function itself, or an adapter for a transform of a known library.

    Raises:
        ArgumentError: it does not take two arguments. TypeError: it cannot be called.
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError
    if isinstance(value, Albumentations | Torchvision):
        return value
    if (adapter := _ADAPTERS.get(type(value).__module__.partition(".")[0])) is not None:
        return adapter(value)
    try:
        inspect.signature(value).bind({}, None)
    except TypeError:
        raise ArgumentError(
            f"Function(function): {name_of(value)} must accept (sample, rng), but takes {inspect.signature(value)}"
        ) from None
    except ValueError:  # no signature, as some built-in functions
        pass
    function: SampleFunction = value
    return function


_FUNCTION = Rule(
    "a function f(sample, rng), or a transform of torchvision or Albumentations",
    _as_function,
)


@settings
class Function:
    """Your own function in `Augment(transforms=[Function(f), …])`, called on the CPU for each sample.

    An `Augment` has at most one, first in the list, since flips and all other transforms follow it.

    Args:
        function: f(sample, rng), or a transform of torchvision's v2 or of Albumentations. It gets a dict with the
            image, of the set's type, boxes, masks, keypoints and further pictures, and returns the image or a dict of
            the changed entries (see `gpuload.functions`).
        before_crop: If False, it gets the cropped and resized image and must keep its size. If True, it gets the whole
            decoded image and may change its size; crop and resize follow.
        processes: The number of processes that call it, for a function that holds the GIL. It must then be picklable,
            such as a function of a module. 0: the loader's num_threads threads call it. All functions of a loader have
            the same number.

    Raises:
        ArgumentError: it cannot be called with (sample, rng).
    """

    function: Annotated[SampleFunction, _FUNCTION]
    before_crop: Annotated[bool, FLAG] = False
    processes: Annotated[int, whole(0, 4096)] = 0
