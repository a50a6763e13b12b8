"""`DaliIterator.preview`: a contact sheet of what training sees, made beside the loader and not by it.

A loader decodes one epoch at a time, and a second one would end it. So the sheet comes from a loader of its own with
the same arguments, which decodes on the CPU and begins where this one is: order, crops and transforms are functions of
(seed, epoch, sample), and so the same.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from gpuload.errors import ArgumentError
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures.sheet import Cell

MOST_SHOWN = 1024  # samples on a sheet
_MOST_THREADS = 4
# Of the arguments of a loader those that a preview replaces: by nothing, since its data are open already, or what they
# choose is the device's.
_LEFT_OUT = ("data", "exclude", "cache", "cache_size", "corrupt_log", "hw_decoder_load", "cpu_share", "deterministic")


def named_fields(batch: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The fields of a batch by their names.

    Raises:
        ArgumentError: it is no batch of a loader with these fields.
    """
    fields = dict(batch) if isinstance(batch, Mapping) else {}
    if isinstance(batch, tuple | list) and len(batch) == len(names):
        fields = dict(zip(names, batch, strict=True))
    if set(fields) != set(names) or not hasattr(_first_view(fields.get("image")), "shape"):
        raise ArgumentError(
            f"DaliIterator.preview(batch={type(batch).__name__}): expected a batch of this loader, with the fields "
            f"{', '.join(map(repr, names))}. Give one as it comes from a loop, or leave it out"
        )
    return fields


def preview_cells(
    construct: Callable[..., Any], loader: Any, arguments: Mapping[str, Any], drawing: BatchDrawing, n: int, start: Any
) -> list[Cell]:
    """Pictures of the next n samples, or of those that are left of the epoch.

    construct: makes a loader. loader, arguments: the loader and what it was made with. start: brings the new loader to
    the place where the pictures begin.
    """
    options = {name: value for name, value in arguments.items() if name not in _LEFT_OUT}
    changes = {
        "device": "cpu",
        "decoder": "auto" if options["graph"] is None else "dali",
        "rank": loader.ranks.rank,
        "world_size": loader.ranks.world_size,
        "num_threads": min(loader.num_threads, _MOST_THREADS),
        "prefetch": 1,
        "output": "torch" if options["output"] == "torch" else "numpy",
        "output_dict": True,
        "on_corrupt": "skip" if options["on_corrupt"] == "skip" else "mark",
        "max_corrupt": 1.0,
    }
    cells: list[Cell] = []
    with warnings.catch_warnings():  # what the loader has said already
        warnings.simplefilter("ignore", UserWarning)
        beside = construct(loader.dataset, **{**options, **changes})
    with beside:
        start(beside)
        samples = 0
        for _ in range(2):  # a loop that has handed out all of its epoch shows the next one
            for batch in beside:
                cells += drawing.cells(batch, n - samples)
                samples += len(_first_view(batch["image"]))
                if samples >= n:
                    return cells
            if cells:
                break
    return cells


def _first_view(images: Any) -> Any:
    return images[0] if isinstance(images, tuple) and images else images
