"""`Function`: a user function among the transforms of an `Augment`; Albumentations' and torchvision's work as such."""

import copy
import inspect
import threading
from importlib import import_module
from typing import Annotated, Any

import numpy as np

from gpuload.checks import FLAG, Rule, function, settings, whole
from gpuload.errors import ArgumentError
from gpuload.functions.calls import Sample, SampleFunction, class_entry, name_of

_BOXES = ("pascal_voc", ["classes"])  # what Albumentations must know of them


class Albumentations:
    """An adapter for a transform of Albumentations, such as a `Compose`, made by `transforms.Function`.

    The transform gets the image as "image", "mask" as "mask", "boxes" as "bboxes" in the pascal_voc format, and the
    first two numbers of "keypoints" in the xy format: write `A.Compose(…, bbox_params=A.BboxParams("pascal_voc",
    label_fields=["classes"]), keypoint_params=A.KeypointParams("xy", remove_invisible=False))` if the loader's fields
    include them. Points outside the image become invisible. Each thread has a copy of the transform, which the sample's
    generator seeds for each call, so threads do not affect the random numbers.

    boxes, mask, keypoints: names of the fields to pass.


    Raises:
        ArgumentError: it is not a transform of Albumentations 2.
    """

    def __init__(self, transform: Any, boxes: str = "boxes", mask: str = "mask", keypoints: str = "keypoints") -> None:
        if not callable(transform) or not callable(getattr(transform, "set_random_seed", None)):
            raise ArgumentError(
                f"Albumentations({type(transform).__name__}): expected a transform of Albumentations 2, such as "
                "A.Compose([...])"
            )
        self._transform, self._names = transform, (boxes, mask, keypoints)
        self._own = threading.local()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """As `SampleFunction`."""
        boxes, mask, keypoints = self._names
        transform = self._in_this_thread()
        _check_params(transform, boxes in sample, keypoints in sample)
        transform.set_random_seed(int(rng.integers(1 << 32)))
        given: dict[str, Any] = {"image": sample["image"]}
        if mask in sample:
            given["mask"] = sample[mask]
        if boxes in sample:
            given |= {"bboxes": sample[boxes], "classes": sample[class_entry(boxes)]}
        elif _params(transform, "bboxes") is not None:  # a transform for boxes, in a loader without any
            given |= {"bboxes": np.empty((0, 4), np.float32), "classes": np.empty(0, np.int64)}
        if keypoints in sample:
            given["keypoints"] = sample[keypoints][..., :2].reshape(-1, 2)
        transformed = transform(**given)
        result: dict[str, Any] = {"image": np.ascontiguousarray(transformed["image"])}
        if mask in sample:
            result[mask] = np.ascontiguousarray(transformed["mask"])
        if boxes in sample:
            result[boxes] = np.asarray(transformed["bboxes"], np.float32).reshape(-1, 4)
            result[class_entry(boxes)] = np.asarray(transformed["classes"]).astype(np.int64)
        if keypoints in sample:
            result[keypoints] = _points(sample[keypoints], transformed["keypoints"], result["image"].shape)
        return result

    def __repr__(self) -> str:
        return f"Albumentations({type(self._transform).__name__})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_transform": self._transform, "_names": self._names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=threading.local())

    def _in_this_thread(self) -> Any:
        """A copy of the transform, which holds its generators."""
        if not hasattr(self._own, "transform"):
            self._own.transform = copy.deepcopy(self._transform)
        return self._own.transform


def _params(transform: Any, what: str) -> Any:
    """A transform's parameters for "bboxes" or "keypoints"; None if it has none."""
    processor = (getattr(transform, "processors", None) or {}).get(what)
    return None if processor is None else processor.params


def _check_params(transform: Any, has_boxes: bool, has_keypoints: bool) -> None:
    """Checks the parameters, without which Albumentations returns boxes and points in other units, without an error.

    Raises:
        ValueError: they are not those in the docstring of `Albumentations`.
    """
    boxes, points = (_params(transform, what) for what in ("bboxes", "keypoints"))
    fits = not has_boxes if boxes is None else (boxes.format, list(boxes.label_fields or ())) == _BOXES
    if not fits or (has_keypoints and (points is None or points.format != "xy" or points.label_fields)):
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
    inside = ((result[..., :2] >= 0) & (result[..., :2] <= [shape[1], shape[0]])).all(axis=-1)
    result[~(labelled & inside)] = 0
    return result


class Torchvision:
    """An adapter for a transform of `torchvision.transforms.v2`, made by `transforms.Function`.

    The transform gets the image as a `tv_tensors.Image` (channels × height × width, of the set's type). If the loader's
    fields include them, it also gets boxes as `tv_tensors.BoundingBoxes`, masks as `tv_tensors.Mask` and class numbers,
    in a dict. `v2.SanitizeBoundingBoxes` at the end drops empty boxes. torch's CPU draws come from the sample's
    generator in every thread.

    transform: must keep the image's type; `Augment` converts and normalises. boxes, mask: names of the fields to pass.

    Raises:
        ArgumentError: it is not callable.
    """

    def __init__(self, transform: Any, boxes: str = "boxes", mask: str = "mask") -> None:
        try:
            self._transform = function("").read(transform)
        except TypeError:
            raise ArgumentError(
                f"Torchvision({type(transform).__name__}): expected a transform, such as v2.Compose([...])"
            ) from None
        self._boxes, self._mask = boxes, mask

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """As `SampleFunction`."""
        torch, tv = import_module("torch"), import_module("torchvision.tv_tensors")
        seeded = import_module("gpuload.functions.torch_draws").seeded
        boxes, mask, image = self._boxes, self._mask, sample["image"]
        given: dict[str, Any] = {"image": tv.Image(torch.from_numpy(image).permute(2, 0, 1))}
        if mask in sample:
            given["mask"] = tv.Mask(torch.from_numpy(sample[mask]))
        if boxes in sample:
            corners = torch.from_numpy(sample[boxes])
            given["boxes"] = tv.BoundingBoxes(corners, format="XYXY", canvas_size=image.shape[:2])
            given["labels"] = torch.from_numpy(sample[class_entry(boxes)])
        with seeded(int(rng.integers(1 << 63))):
            transformed = self._transform(given) if len(given) > 1 else {"image": self._transform(given["image"])}
        moved = transformed["image"]
        if not isinstance(moved, torch.Tensor) or moved.dtype != given["image"].dtype:
            what = f"{moved.dtype}" if isinstance(moved, torch.Tensor) else type(moved).__name__
            raise ValueError(
                f"the transform made {what} of the image, expected a {image.dtype} tensor: leave ToDtype, ToTensor and "
                "Normalize to Augment"
            )
        result: dict[str, Any] = {"image": np.ascontiguousarray(moved.permute(1, 2, 0).numpy())}
        if mask in sample:
            result[mask] = np.ascontiguousarray(transformed["mask"].numpy())
        if boxes in sample:
            result |= {boxes: transformed["boxes"].numpy(), class_entry(boxes): transformed["labels"].numpy()}
        return result

    def __repr__(self) -> str:
        return f"Torchvision({type(self._transform).__name__})"


_ADAPTERS: dict[str, type[Any]] = {"albumentations": Albumentations, "torchvision": Torchvision}


def _as_function(value: Any) -> SampleFunction:
    """The function itself, or an adapter for a transform of a known library.

    Raises:
        ArgumentError: it does not take two arguments. TypeError: it cannot be called.
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError
    if isinstance(value, Albumentations | Torchvision):
        return value
    adapter = _ADAPTERS.get(type(value).__module__.partition(".")[0])
    if adapter is not None:
        adapted: SampleFunction = adapter(value)
        return adapted
    try:
        inspect.signature(value).bind({}, None)
    except TypeError:
        raise ArgumentError(
            f"Function(function): {name_of(value)} must accept (sample, rng), but takes "
            f"{inspect.signature(value)}. Give it these two arguments"
        ) from None
    except ValueError:  # no signature, as some built-in functions
        pass
    function: SampleFunction = value
    return function


_FUNCTION = Rule("a function f(sample, rng), or a transform of torchvision or Albumentations", _as_function)


@settings
class Function:
    """Your own function in `Augment(transforms=[Function(f), …])`, called on the CPU for each sample.

    An `Augment` has at most one, first in the list, since flips and all other transforms follow it.

    function: f(sample, rng), or a transform of torchvision's v2 or of Albumentations. It gets a dict with the image, of
        the set's type, boxes, masks and keypoints, and returns the image or a dict of the changed entries (see
        `gpuload.functions`).
    before_crop: if False, it gets the cropped and resized image and must keep its size. If True, it gets the whole
        decoded image and may change its size; crop and resize follow.
    processes: the number of processes that call it, for a function that holds the GIL. It must then be picklable, such
        as a function of a module. 0: the loader's num_threads threads call it. All functions of a loader have the same
        number.

    Raises:
        ArgumentError: it cannot be called with (sample, rng).
    """

    function: Annotated[SampleFunction, _FUNCTION]
    before_crop: Annotated[bool, FLAG] = False
    processes: Annotated[int, whole(0, 4096)] = 0
