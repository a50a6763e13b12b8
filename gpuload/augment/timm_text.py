"""timm's policies of augmentation: the text of which timm makes an object."""

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from gpuload import transforms
from gpuload.augment.foreign import error
from gpuload.transforms.timm import OPTIONS


class _Maker(NamedTuple):
    """A function of timm's that makes policies of texts, and how these begin and end; options are in between."""

    function: str
    beginnings: tuple[str, ...]
    endings: tuple[str, ...]


_MAKERS = {
    "timm's RandAugment": _Maker(
        "rand_augment_transform", ("rand",), ("", "-inc1", "-tweights", "-t3aw", "-t3a")
    ),
    "timm's AutoAugment": _Maker(
        "auto_augment_transform", ("original", "originalr", "v0", "v0r", "3a"), ("",)
    ),
    "timm's AugMixAugment": _Maker("augment_and_mix_transform", ("augmix",), ("",)),
}
NAMES = tuple(_MAKERS)
# By their letters in a text, the attributes that hold options in an object.
_ATTRIBUTES = {
    "m": "magnitude",
    "n": "num_layers",
    "w": "width",
    "d": "depth",
    "a": "alpha",
    "p": "prob",
    "mstd": "magnitude_std",
    "mmax": "magnitude_max",
}


def policy_of_timm(step: Any, name: str) -> transforms.TimmAutoAugment:
    """One of timm's policies, by the text of which timm itself makes an object with the same parts.

    Raises:
        ArgumentError: it was made by hand, or with options that no text has.
    """
    maker = _MAKERS[name]
    change = step.policy[0][0] if hasattr(step, "policy") else step.ops[0]
    if change.kwargs["resample"] != Image.Resampling.NEAREST:
        make = getattr(import_module(type(step).__module__), maker.function)
        parts = _parts_of(step)
        for text, options in _texts(maker, step, change):
            theirs: Any = None
            with suppress(ValueError, AssertionError):  # of a number that no text has
                theirs = make(text, options)
            if _parts_of(theirs) == parts:
                return transforms.TimmAutoAugment(
                    text, tuple(change.kwargs["fillcolor"])
                )
    raise error(
        f"{name} has no counterpart: timm makes no such policy of a text (without augmix's b1). Use one such as "
        "auto_augment='rand-m9-mstd0.5-inc1'"
    )


def _texts(
    maker: _Maker, step: Any, change: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The texts that may have made an object, and what its maker needs beside the text.

    Args:
        maker: The function that made it.
        step: The object.
        change: The first of its changes.
    """
    attributes = {**vars(step), **vars(change)}
    for beginning in maker.beginnings:
        defaults = OPTIONS[beginning]
        values = {
            option: attributes.get(_ATTRIBUTES.get(option, "")) for option in defaults
        }
        chosen = {
            option: value
            for option, value in values.items()
            if value not in (None, defaults[option])
        }
        sections = "".join(
            f"-{option}{101 if value == np.inf else value}"
            for option, value in chosen.items()
        )
        in_text = {"translate_pct", *(_ATTRIBUTES[option] for option in chosen)}
        beside = {
            key: value for key, value in change.hparams.items() if key not in in_text
        }
        if beginning == "augmix":
            beside["translate_pct"] = 0.3  # as `create_transform` has it
        for ending in maker.endings:
            yield beginning + sections + ending, dict(beside)


def _parts_of(value: Any) -> Any:
    """An object of timm's as the parts that it is made of, which can be compared."""
    if type(value).__module__.startswith("timm."):
        return {name: _parts_of(part) for name, part in vars(value).items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_parts_of(part) for part in value]
    return value
