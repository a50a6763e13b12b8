"""The rules of `DaliIterator`'s arguments, and advice for users of torch's DataLoader or DALI's own iterators."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from gpuload import checks
from gpuload.augment import Augment
from gpuload.batchwise.transforms import TRANSFORMS
from gpuload.checks import (
    ANYTHING,
    COUNT,
    FLAG,
    Rule,
    choice,
    either,
    instance,
    optional,
    whole,
)
from gpuload.decode.arguments import Both, Dali, DecoderName, OnCorrupt
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, some_of
from gpuload.fields.kind import FieldSpec
from gpuload.order.arguments import Balance, Mixture, Repeated, Shuffle, Weights
from gpuload.order.budget import Budget
from gpuload.output.arrays import Output
from gpuload.store.url import LOCATION


def _as_fields(value: Any) -> Any:
    """A tuple of fields, or a dict of them by their new names."""
    fields = (
        tuple(value.values()) if isinstance(value, Mapping) else checks.as_items(value)
    )
    if not fields or not all(isinstance(field, str | FieldSpec) for field in fields):
        raise TypeError
    return (
        {checks.as_text(name): field for name, field in value.items()}
        if isinstance(value, Mapping)
        else fields
    )


def by_pictures(augment: Any, image: str) -> tuple[Any, dict[str, Augment]]:
    """The augmentations of the image, and of pictures that move by themselves, by name.

    Args:
        augment: As of `DaliIterator`.
        image: The name of the image.

    Raises:
        ArgumentError: There is none for the image, or one of another picture is no `Augment`.
    """
    if not isinstance(augment, Mapping) or not any(
        isinstance(name, str) for name in augment
    ):
        return augment, {}
    others = dict(augment)
    if image not in others:
        raise ArgumentError(
            f"augment: has {some_of([str(key) for key in augment])}, and none for {image!r}, by whose size crops are "
            f"drawn. Give {{{image!r}: gpuload.Augment(…), …}}"
        )
    of_image = others.pop(image)
    for name, alone in others.items():
        if not isinstance(alone, Augment) or not isinstance(name, str):
            raise ArgumentError(
                f"augment: expected one gpuload.Augment for {name!r}, got {checks.shown(alone)}"
            )
    return of_image, others


def _as_device(value: Any) -> str:
    is_torchs = (type(value).__module__, type(value).__name__) == ("torch", "device")
    device = str(value) if is_torchs else checks.as_text(value)
    if not re.fullmatch("auto|cpu|cuda(:[0-9]+)?", device):
        raise ValueError
    return device


def _as_on_corrupt(value: Any) -> Any:
    """ "raise", or an `OnCorrupt`."""
    if isinstance(value, OnCorrupt):
        return value
    action: Any = _ACTIONS.read(value)
    return action if action == "raise" else OnCorrupt(action)


_ACTIONS = choice("raise", "skip", "mark")
_DECODERS = choice(*get_args(DecoderName))
_MOST = 4096  # threads, and batches decoded ahead: more than any machine can use

ARGUMENTS: dict[str, Rule[Any]] = {
    "data": either(
        "a packed folder, a gpuload.Dataset, or for several sets a gpuload.mix",
        instance("", Dataset, Mixture),
        LOCATION,
    ),
    "batch_size": either(
        "a whole number in 1..2,147,483,647, or a gpuload.Budget of tokens",
        instance("", Budget),
        whole(1, 2**31 - 1),  # DALI's limit
    ),
    "augment": ANYTHING,  # checked by `Schedule`
    "fields": Rule(
        "a list of names and specs, such as ['image', 'label'] or ['image', Boxes()], or a dict of them by other names",
        _as_fields,
    ),
    "batch_transforms": TRANSFORMS,
    "shuffle": either(
        "True, False or gpuload.Shuffle(...)", instance("", Shuffle), FLAG
    ),
    "seed": whole(),
    "drop_last": optional(
        either("True, False, 'exact' or 'even'", FLAG, choice("exact", "even"))
    ),
    "steps_per_epoch": optional(whole(1, 10**9)),
    "sampling": optional(
        instance(
            "gpuload.Balance(...), gpuload.Weights(...) or gpuload.Repeated(...)",
            Balance,
            Weights,
            Repeated,
        )
    ),
    "on_corrupt": Rule(
        f"{_ACTIONS.expected}, or gpuload.OnCorrupt(...)",
        _as_on_corrupt,
        _ACTIONS.words,
    ),
    "decoder": either(
        f"{_DECODERS.expected}, gpuload.Dali(...) or gpuload.Both(...)",
        instance("", Dali, Both),
        _DECODERS,
    ),
    "num_threads": optional(whole(1, _MOST)),
    "prefetch": optional(whole(1, _MOST)),
    "device": Rule("'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …", _as_device),
    "output": choice(*get_args(Output)),
    "rank": optional(whole(0)),
    "world_size": optional(COUNT),
}
STATE: Rule[Mapping[str, Any]] = instance("what state_dict returned", Mapping)

_LEFT_OUT = "Leave it out: threads decode (num_threads), there are no workers; batches come in order and on the device"
_CHOSEN = (
    "Use sampling=gpuload.Weights(...) or Balance(...) in place of a WeightedRandomSampler, Dataset.subset(...) or "
    "filter(...) to choose samples, gpuload.mix for shares, and shuffle, seed and drop_last for the order. Ranks get "
    "their shares by rank and world_size"
)

# For arguments of torch's DataLoader.
ADVICE = {
    "dataset": "The first argument is data: a packed folder or a gpuload.Dataset",
    "transform": "Use augment=gpuload.Augment(...); Augment.torchvision(transform) reads torchvision's",
    "num_workers": "Use num_threads: threads of this process decode images, there are no workers",
    "prefetch_factor": "Use prefetch: the batches decoded ahead, of all threads together",
    "collate_fn": "Use fields, which selects the fields of a batch, and batch_transforms, functions of a whole batch",
    "generator": "Use seed, which with the epoch determines the order and all other random numbers",
    **dict.fromkeys(("sampler", "batch_sampler"), _CHOSEN),
    **dict.fromkeys(
        (
            "pin_memory",
            "pin_memory_device",
            "in_order",
            "persistent_workers",
            "timeout",
        ),
        _LEFT_OUT,
    ),
    **dict.fromkeys(("worker_init_fn", "multiprocessing_context"), _LEFT_OUT),
}
