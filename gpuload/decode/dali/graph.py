"""The DALI graph, the same for CPU and GPU. Only this file imports DALI.

    external_source ─► decode ─► crop ─► resize ─► flip, normalise, transpose ─► batch
                  │         └► the same for each further view
                  └► the same for each further picture of a sample

The CPU decodes only the crop (`decoders.image_slice`), unless several views share a picture. The GPU decodes whole
images, as its hardware engines do, and slices: cropped GPU decode crashes in nvImageCodec 0.9 (github
NVIDIA/nvImageCodec#55), which DALI 2.4 requires. From there on the operators are the same, so the devices differ only
in their JPEG decoder. A view that needs more than crop, flips and constants leaves the graph as uint8, for
`gpuload.decode.device`. Sizes are inputs, so one graph serves all output sizes.
"""

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nvidia.dali import Pipeline, backend, fn, pipeline_def, tensors, types

from gpuload.augment import Form
from gpuload.decode.dali.memory import preallocation
from gpuload.decode.interface import NUMPY_DTYPES, PictureForm, Stored
from gpuload.decode.postprocess import level_dtype
from gpuload.fields.images import GRAY, RGB, Pixels

__all__ = ["backend", "build_graph", "fn", "input_names", "open_pipeline", "tensors"]

_TYPES = {
    "uint8": types.UINT8,
    "uint16": types.UINT16,
    "float16": types.FLOAT16,
    "float32": types.FLOAT,
}
_IN_PIXELS = {"axes": [0, 1], "normalized_anchor": False, "normalized_shape": False}

# Inputs for each image: type and number of dimensions.
_INPUTS = {
    "start": (types.INT32, 1),
    "shape": (types.INT32, 1),
    "roi_start": (types.FLOAT, 1),
    "roi_end": (types.FLOAT, 1),
    "mirror": (types.INT32, 0),
    "mirror_y": (types.INT32, 0),
    "size": (types.FLOAT, 1),
    "cubic": (types.INT32, 0),
    "corner": (types.INT32, 1),
    "frame": (types.INT32, 1),
}


def build_graph(
    pictures: Sequence[PictureForm],
    feed: Callable[[], tuple[Any, ...]],
    hw_decoder_load: float | None = None,
) -> tuple[Any, ...]:
    """Defines the graph for the current pipeline's device. Its outputs: each picture in each of its views.

    Args:
        pictures: What is made of each of them.
        feed: Returns for each picture the encoded files of a batch, then for each of its views what `input_names`
            lists.
        hw_decoder_load: As in `Resources`.
    """
    inputs = _inputs(pictures, feed)
    outputs = []
    for picture in pictures:
        files = next(inputs)
        views = [
            {name: next(inputs) for name in input_names(form)} for form in picture.forms
        ]
        outputs += _views_of(picture, files, views, hw_decoder_load)
    return tuple(outputs)


def _inputs(
    pictures: Sequence[PictureForm], feed: Callable[[], tuple[Any, ...]]
) -> Iterator[Any]:
    """What `feed` returns, as inputs of the graph."""
    kinds = []
    for picture in pictures:
        stored = picture.stored
        of_files = (types.UINT8, 1)
        kinds.append((_TYPES[stored.source.dtype], 3) if stored.raw else of_files)
        for form in picture.forms:
            kinds += [_INPUTS[name] for name in input_names(form)]
    inputs = fn.external_source(
        feed,
        num_outputs=len(kinds),
        batch=True,
        no_copy=True,
        dtype=[dtype for dtype, _ in kinds],
        ndim=[ndim for _, ndim in kinds],
    )
    return iter(inputs)


def _views_of(
    picture: PictureForm,
    files: Any,
    views: Sequence[Mapping[str, Any]],
    hw_decoder_load: float | None,
) -> list[Any]:
    """The views of one picture of each sample."""
    stored = picture.stored
    forms = picture.forms
    window_of = _windows(
        files,
        stored,
        hw_decoder_load,
        whole=len(forms) > 1 or any(form.pads for form in forms),
    )
    outputs = []
    for form, view in zip(forms, views, strict=True):
        window = window_of(view["start"], view["shape"], form)
        if stored.source != stored.pixels:
            window = fn.color_space_conversion(
                window, image_type=types.RGB, output_type=types.GRAY
            )
        outputs.append(_view(window, form, view, stored.pixels))
    return outputs


def input_names(form: Form) -> list[str]:
    """The inputs of a view besides images: fields of its `Crops`, and its size. Of images that are placed, the size is
    that of the part that an image covers, `corner` where the frame begins as seen from there, and `frame` its size."""
    names = ["start", "shape", "roi_start", "roi_end", "mirror", "size"]
    if form.flips_vertically:
        names.append("mirror_y")
    if form.interpolation == "random":
        names.append("cubic")
    if form.places:
        names += ["corner", "frame"]
    return names


def _windows(
    images: Any, stored: Stored, load: float | None, whole: bool
) -> Callable[[Any, Any, Form], Any]:
    """A function that returns the window of decoded pixels for (start, shape, form).

    Args:
        whole: Decode the whole image, since several windows are cut from it, or since they reach outside of it.
    """
    on_gpu = Pipeline.current().device_id is not None
    mode = _mode(stored.source)
    if stored.raw:
        pixels = images.gpu() if on_gpu else images
    elif on_gpu:
        pixels = fn.decoders.image(
            images,
            device="mixed",
            # As libjpeg upsamples chroma on the CPU; without it, coloured edges differ between the devices.
            jpeg_fancy_upsampling=True,
            **preallocation(stored, Pipeline.current().max_batch_size, load),
            **({} if load is None else {"hw_decoder_load": load}),
            **mode,
        )
    elif whole:
        pixels = fn.decoders.image(images, device="cpu", **mode)
    else:
        return lambda start, shape, form: fn.decoders.image_slice(
            images, start, shape, device="cpu", **_IN_PIXELS, **mode
        )
    return lambda start, shape, form: fn.slice(
        pixels, start, shape, **_IN_PIXELS, **_padding(form, _fill(form, stored.source))
    )


def _mode(pixels: Pixels) -> dict[str, Any]:
    """A decoder's arguments for these pixels; RGB is its default."""
    if pixels in (RGB, GRAY):
        return {} if pixels == RGB else {"output_type": types.GRAY}
    return {"output_type": types.ANY_DATA, "dtype": _TYPES[pixels.dtype]}


def _fill(form: Form, pixels: Pixels) -> list[Any]:
    fills = form.fills(pixels.channels)
    return (
        list(fills)
        if pixels.dtype == "uint8"
        else [fill / 255 * pixels.peak for fill in fills]
    )


def _padding(form: Form, fill: list[Any]) -> dict[str, Any]:
    return {"out_of_bounds_policy": "pad", "fill_values": fill} if form.pads else {}


def _view(window: Any, form: Form, view: Mapping[str, Any], pixels: Pixels) -> Any:
    image = _resized(window, view, interp_type=_filter(form, view), antialias=True)
    if form.places:
        image = _flipped(image, form, view, _fill(form, pixels))
    elif form.flips_vertically:
        image = fn.flip(image, horizontal=0, vertical=view["mirror_y"])
    plain = form.is_plain
    as_is = form.dtype == "uint8" or form.normalize == "levels" or not plain
    return fn.crop_mirror_normalize(
        image,
        mirror=0 if form.places else view["mirror"],
        mean=[0.0] if as_is else [pixels.peak * value for value in form.mean],
        std=[1.0] if as_is else [pixels.peak * value for value in form.std],
        dtype=_TYPES[NUMPY_DTYPES[form.dtype] if plain else level_dtype(pixels)],
        output_layout="CHW" if form.layout == "NCHW" or not plain else "HWC",
    )


def _resized(window: Any, view: Mapping[str, Any], **filter_: Any) -> Any:
    return fn.resize(
        window,
        size=view["size"],
        roi_start=view["roi_start"],
        roi_end=view["roi_end"],
        **filter_,
    )


def _flipped(image: Any, form: Form, view: Mapping[str, Any], fill: list[Any]) -> Any:
    """The image, flipped; in its frame, if it has one."""
    flipped = fn.flip(
        image, horizontal=view["mirror"], vertical=view.get("mirror_y", 0)
    )
    if not form.places:
        return flipped
    return fn.slice(
        flipped,
        view["corner"],
        view["frame"],
        **_IN_PIXELS,
        out_of_bounds_policy="pad",
        fill_values=fill,
    )


def _filter(form: Form, view: Mapping[str, Any]) -> Any:
    linear = types.INTERP_LINEAR
    cubic = types.INTERP_CUBIC
    if form.interpolation == "random":
        return fn.cast(
            linear.value + view["cubic"] * (cubic.value - linear.value),
            dtype=types.INTERP_TYPE,
        )
    return linear if form.interpolation == "bilinear" else cubic


def open_pipeline(define: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Builds a pipeline of a graph. A child that is forked later forgets it.

    Args:
        define: Returns the graph's outputs.
        *args: Arguments of `define`.
        **settings: Arguments of DALI's `Pipeline`.
    """
    pipeline = pipeline_def(define)(*args, **settings)
    pipeline.build()
    _pipelines.add(pipeline)
    return pipeline


_pipelines: weakref.WeakSet[Any] = weakref.WeakSet()


def _keep_pipelines() -> None:
    """Keeps DALI from stopping its threads in forked children, which have none of them and would wait forever in the
    garbage collector or at exit.

    A pipeline forgets its C++ object, whose reference count is raised for good.
    """
    for pipeline in _pipelines:
        inner = getattr(pipeline, "_pipe", None)
        pipeline._pipe = None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inner))


os.register_at_fork(after_in_child=_keep_pipelines)
