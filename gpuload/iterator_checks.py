"""What `DaliIterator` accepts, and what people try who know torch's DataLoader or DALI's own iterators."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from gpuload.batchwise.apply import TRANSFORMS
from gpuload.checks import (
    ANYTHING,
    COUNT,
    FLAG,
    PATH,
    Rule,
    as_items,
    as_text,
    choice,
    either,
    function,
    instance,
    number,
    optional,
    text,
    unknown_attribute,
    whole,
)
from gpuload.decode.guard import OnCorrupt
from gpuload.decode.open import DecoderName
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, CallError, GpuloadError
from gpuload.fields import FieldSpec
from gpuload.order.buckets import BUCKETS
from gpuload.order.drawn import MOST_DRAWS
from gpuload.order.mixture import Mixture
from gpuload.output.arrays import Output
from gpuload.store.cache import CACHE_SIZE
from gpuload.store.url import LOCATION


def _as_data(value: Any) -> Any:
    return value if isinstance(value, Dataset | Mixture) else LOCATION.read(value)


def _as_fields(value: Any) -> tuple[str | FieldSpec, ...]:
    fields = as_items(value)
    if not fields or not all(isinstance(field, str | FieldSpec) for field in fields):
        raise TypeError
    return fields


def _as_device(value: Any) -> str:
    is_torchs = (type(value).__module__, type(value).__name__) == ("torch", "device")
    device = str(value) if is_torchs else as_text(value)
    if not re.fullmatch("auto|cpu|cuda(:[0-9]+)?", device):
        raise ValueError
    return device


def _as_keys(value: Any) -> tuple[str, ...]:
    return tuple(map(as_text, as_items(value)))


_MOST = 4096  # threads, and batches decoded ahead: more than any machine has a use for

ARGUMENTS: dict[str, Rule[Any]] = {
    "data": Rule("a packed folder, a gpuload.Dataset, or for several sets what gpuload.mix gives", _as_data),
    "batch_size": whole(1, 2**31 - 1),  # what DALI can count
    "augment": ANYTHING,  # checked by `Schedule`
    "device": Rule("'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …", _as_device),
    "decoder": choice(*get_args(DecoderName)),
    "fields": Rule("a list of names and specs, such as ['image', 'label'] or ['image', Boxes()]", _as_fields),
    "batch_transforms": TRANSFORMS,
    "output_dict": FLAG,
    "shuffle": FLAG,
    "seed": whole(),
    "drop_last": optional(FLAG),
    "steps_per_epoch": optional(whole(1, 10**9)),
    "balance": optional(text("the name of a field of classes, such as 'label'")),
    "weights": ANYTHING,  # checked by `find_samplings`
    "replacement": FLAG,
    "num_samples": optional(whole(1, MOST_DRAWS)),
    "rank": optional(whole(0)),
    "world_size": optional(COUNT),
    "num_threads": optional(whole(1, _MOST)),
    "prefetch": optional(whole(1, _MOST)),
    "hw_decoder_load": optional(number(0, 1, "a share of the images, in 0..1")),
    "cpu_share": optional(number(0, 1, "a share of the images, in 0..1")),
    "deterministic": FLAG,
    "graph": optional(function("a function of images and random numbers, made of DALI's operators")),
    "output": choice(*get_args(Output)),
    "window": COUNT,
    "function_processes": whole(0, _MOST),
    "lanes": COUNT,
    "cache": optional(PATH),
    "cache_size": optional(CACHE_SIZE),
    "verify": optional(choice("sha256")),
    "max_pixels": COUNT,
    "on_corrupt": choice(*get_args(OnCorrupt)),
    "max_corrupt": either(
        "a whole number of samples from 0, or a share as a float in 0..1", whole(0), number(0, 1, "a share")
    ),
    "corrupt_log": optional(PATH),
    "exclude": optional(
        either("a file that verify --quarantine wrote, or a list of keys", PATH, Rule("", _as_keys)),
    ),
    "buckets": optional(BUCKETS),
}
STATE: Rule[Mapping[str, Any]] = instance("what state_dict returned", Mapping)

# Arguments of DataLoader, and of loops that prepare one.
ADVICE = {
    "dataset": "The first argument is data: a packed folder or a gpuload.Dataset",
    "transform": "Use augment=gpuload.Augment(...); Augment.torchvision(transform) reads torchvision's",
    "num_workers": "Use num_threads: images are decoded by threads of this process, there are no workers",
    "prefetch_factor": "Use prefetch: the batches decoded ahead, of all threads together",
    "pin_memory": "Leave it out: batches are on the device already, whose memory they were made in",
    "pin_memory_device": "Use device",
    "collate_fn": "Use fields, which says what a batch holds, and batch_transforms, functions of a whole batch",
    "sampler": "Use weights or balance in place of a WeightedRandomSampler, Dataset.subset(...) or filter(...) to "
    "choose samples, gpuload.mix for shares, and shuffle and seed for the order. Ranks get their shares by rank and "
    "world_size",
    "batch_sampler": "Use batch_size, drop_last and shuffle; Dataset.subset(...) and gpuload.mix choose samples",
    "persistent_workers": "Leave it out: threads live as long as the loader",
    "timeout": "Leave it out: there are no workers to wait for",
    "worker_init_fn": "Leave it out: there are no workers, and all random numbers are those of seed",
    "multiprocessing_context": "Leave it out: there are no workers",
    "generator": "Use seed, which with the epoch decides the order and all other random numbers",
    "in_order": "Leave it out: batches always come in order",
    "reset": "Leave it out: each loop over the loader is an epoch",
    "epochs": "Write a loop over epochs, each of which loops over the loader",
}


class NotSupported:
    """What a loader is asked for by mistake: an error that says what to write instead of Python's own."""

    def __next__(self) -> NoReturn:
        raise CallError(
            "DaliIterator: next(loader) does not exist, since each loop is an epoch. Use a loop, or next(iter(loader))"
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise CallError(
            "DaliIterator: loader[...] does not exist, since batches come in the order of the epoch. Use a loop over "
            "it, or data=Dataset.subset([...]) with batch_size=1, shuffle=False for single samples"
        )

    def __contains__(self, item: object) -> NoReturn:
        raise CallError("DaliIterator: `in` does not exist, since it would decode a whole epoch. Use a loop")

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):  # called for what is not there
            raise AttributeError(unknown_attribute("DaliIterator", name, ADVICE), name=name, obj=self)

        def __setattr__(self, name, value):
            if name in ARGUMENTS and name in self.__dict__:
                raise CallError(f"DaliIterator: {name} cannot be changed after construction. Construct a new one")
            object.__setattr__(self, name, value)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CallError(
            "DaliIterator: cannot be pickled or copied, since it holds threads and the device's memory. Construct one "
            "in each process; state_dict() saves its position, and a gpuload.Dataset can be pickled"
        )


def check_shares(decoder: str, cpu_share: float | None, deterministic: bool, hw_decoder_load: float | None) -> None:
    """Raises ArgumentError for shares of images that contradict other arguments."""
    if cpu_share is not None and decoder != "both":
        raise ArgumentError(
            f"cpu_share={cpu_share:g}: divides batches between two decoders, found decoder={decoder!r}. Use "
            "decoder='both', or leave it out"
        )
    if deterministic and hw_decoder_load not in (None, 0, 1):
        raise ArgumentError(
            f"deterministic=True, hw_decoder_load={hw_decoder_load:g}: expected 0 or 1, since which of two units "
            "decodes an image depends on its batch. Use one of them, or leave either out"
        )


def check_process(process: int) -> None:
    """Raises GpuloadError in any other process than the one with this number: a forked child."""
    if os.getpid() != process:
        raise GpuloadError(
            f"this DaliIterator was constructed in process {process} and inherited over fork by {os.getpid()}, where "
            "its threads do not exist. Construct it in the child, or start the child by spawn"
        )
