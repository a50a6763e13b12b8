"""Every argument of every public call, given what it cannot be: the call says so, by the argument's name."""

import inspect
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from loaders import load

import gpuload
from gpuload import ArgumentError, Augment, Normalize, batchwise, transforms
from gpuload.packing.options import Encoding, PackOptions

Values = SearchStrategy[Any]
NOTHING: Values = st.nothing()
ABOVE_0 = math.nextafter(0, 1)


class Unprintable:
    def __repr__(self) -> str:
        return "U"


# Values by kind. An argument must refuse all kinds but its own.
KINDS: dict[str, Values] = {
    "none": st.none(),
    "bool": st.sampled_from([True, False, np.True_, np.False_]),
    "whole": st.integers(-(2**70), 2**70) | st.sampled_from([np.int8(3), np.uint64(2**64 - 1)]),
    "number": st.floats().filter(lambda x: x != x // 1) | st.floats(width=32).map(np.float32),
    "text": st.text() | st.sampled_from(["64", "0.5", "yes", "no", "train", "image", "None", "auto ", "CPU", "a\nb"]),
    "bytes": st.binary() | st.binary().map(bytearray),
    "items": st.lists(st.none() | st.booleans() | st.text() | st.binary()) | st.just([[]]) | st.just([()]),
    "mapping": st.dictionaries(st.integers() | st.text(), st.integers(), min_size=1),
    "array": st.sampled_from([np.zeros(()), np.ones((2, 2)), np.array("x"), np.array([None]), torch.ones(2, 2)]),
    "class": st.sampled_from([int, str, Augment, batchwise.MixUp, transforms.RandAugment, gpuload.Boxes]),
    "function": st.sampled_from([len, lambda: None, print]),
    "object": st.builds(object)
    | st.builds(Unprintable)
    | st.sampled_from([1j, Decimal(1), Fraction(1, 2), {1}, frozenset(), np.timedelta64(1, "s"), slice(2), ...])
    | st.builds(iter, st.just([1, 2])),
}


class Wrong(NamedTuple):
    """Values that an argument must refuse: of other kinds than its own, and of its own."""

    others: Values
    own: Values = NOTHING

    @property
    def any(self) -> Values:
        return self.others | self.own


def wrong(*own: str, too: Values = NOTHING) -> Wrong:
    """Values of all kinds but these, and `too` of these."""
    assert set(own) <= set(KINDS)
    return Wrong(st.one_of(*(values for kind, values in KINDS.items() if kind not in own)), too)


def outside(low: float, high: float = math.inf) -> Values:
    """Whole and other numbers that are not in low..high, among them those that are not finite."""
    numbers: list[Values] = [
        st.sampled_from([math.nan, math.inf, -math.inf, np.float32(math.nan), math.nextafter(low, -math.inf)]),
        st.integers(max_value=math.ceil(low) - 1),
        st.floats(max_value=low, exclude_max=True),
    ]
    if math.isfinite(high):
        numbers += [
            st.just(math.nextafter(high, math.inf)),
            st.integers(min_value=math.floor(high) + 1),
            st.floats(min_value=high, exclude_min=True),
        ]
    return st.one_of(numbers)


def whole(least: int, most: int | None = None) -> Wrong:
    too = st.just(least - 1) | st.integers(max_value=least - 1).map(lambda n: n if n < -(2**62) else np.int64(n))
    return wrong("whole", too=too if most is None else too | st.just(most + 1) | st.integers(min_value=most + 1))


def number(low: float, high: float = math.inf) -> Wrong:
    return wrong("whole", "number", too=outside(low, high))


def or_none(values: Wrong) -> Wrong:
    return Wrong(values.others.filter(lambda value: value is not None), values.own)


def tuples(count: int, right: Any, bad: Wrong) -> Values:
    """Of another length, or with one entry that is wrong."""
    lengths = st.integers(0, 5).filter(lambda n: n != count).map(lambda n: [right] * n)
    entry = st.tuples(bad.any, st.integers(0, count - 1)).map(
        lambda pair: tuple(pair[0] if place == pair[1] else right for place in range(count))
    )
    return lengths | entry


def ascending(low: float, high: float, right: float) -> Wrong:
    descending = st.just((right, right / 2))
    return wrong("items", "array", too=tuples(2, right, number(low, high)) | descending | KINDS["items"])


NAME = wrong("text", too=st.just(""))
FLAG = wrong("bool")
PROBABILITY = number(0, 1)
SIDE = whole(1, 65_535)
SIDES = wrong("whole", "items", "array", too=outside(1, 65_535) | tuples(2, 8, SIDE) | KINDS["items"])
COUNT = whole(1)
FACTOR = wrong("whole", "number", "items", too=outside(0, 1e6) | tuples(2, 1, number(0, 1e6)) | st.just((2, 1)))
FILL = or_none(wrong("whole", "number", "items", too=outside(0, 255) | tuples(3, 1, number(0, 255))))
SAMPLES = wrong(
    "items", "array", too=st.sampled_from([[0.5], ["a"], [None], [[1]], [1, [2]], np.zeros(3), [-1], [97], [2**70]])
)
SPECS = st.sampled_from([[gpuload.Boxes], ["image", 3], [None], [b"image"], [], ["image", len]])
TRANSFORMS = st.sampled_from([[transforms.RandAugment], [3], [None], [transforms.RandAugment(), "x"], [len]])
SIZES = st.sampled_from([[], [8, 8], [(8,)], [(8, 8, 8)], [(8, 0)], [(8.0, 8)], [("8", 8)], [None], [(8, 65_536)]])
PIXELS = wrong("items", "array", too=st.sampled_from([[0.5], ["a"], [[1]], [0], [1, -2], np.zeros(3)]))
FUNCTIONS = st.sampled_from([[batchwise.MixUp], ["MixUp"], [None], [batchwise.MixUp(), 3]])


def words(*allowed: str) -> Wrong:
    return wrong(
        "text", too=st.text().filter(lambda text: text not in allowed) | st.sampled_from(allowed).map(" {}".format)
    )


@dataclass
class Call:
    """A public call. usual: its arguments, of which one at a time is replaced. wrong: for each argument, values that it
    must refuse. said_as: how a message names an argument, where that is not its name."""

    make: Callable[..., Any]
    usual: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, Wrong] = field(default_factory=dict)
    said_as: dict[str, str] = field(default_factory=dict)


CACHE = or_none(wrong("text", too=st.sampled_from(["", "a\0b"])))
CACHE_SIZE = or_none(
    wrong("whole", "text", too=st.integers(max_value=-1) | st.sampled_from(["", "many", "-1", "1 GX", "inf", "nan"]))
)
LOADER: dict[str, Wrong] = {
    "data": wrong("text", too=st.sampled_from(["", "a\0b"])),
    "batch_size": whole(1, 2**31 - 1),
    "augment": wrong(too=st.sampled_from([[], [Augment], [Augment(8), None], {0: 8}, {"0": Augment(8)}, {-1: Augment(8)}, {True: Augment(8)}])),
    "device": wrong("text", too=st.sampled_from(["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "", "0", "CUDA", "cuda:１"])),
    "fields": wrong("items", too=SPECS),
    "batch_transforms": wrong("items", too=FUNCTIONS | st.just(batchwise.MixUp())),
    "seed": wrong("whole"),
    "drop_last": or_none(FLAG),
    "steps_per_epoch": or_none(whole(1, 10**9)),
    "rank": or_none(whole(0)),
    "world_size": or_none(whole(1)),
    "num_threads": or_none(whole(1, 4096)),
    "prefetch": or_none(whole(1, 4096)),
    "output": words("torch", "numpy", "cupy"),
    "decoder": words("auto", "dali", "native", "both"),
    "shuffle": wrong("bool", too=st.sampled_from([gpuload.Shuffle])),
    "sampling": or_none(wrong(too=st.sampled_from([gpuload.Balance, [1.0] * 97]))),
    "on_corrupt": words("raise", "skip", "mark"),
}  # fmt: skip
DATASET: dict[str, Wrong] = {
    "folder": wrong("text", too=st.sampled_from(["", "a\0b"])),
    "cache": CACHE,
    "cache_size": CACHE_SIZE,
    "verify": or_none(words("sha256", "downloads")),
    "max_pixels": COUNT,
    "exclude": or_none(wrong("text", "items", too=st.sampled_from(["", "a\0b", [1], [None], ["a", b"b"], ("a", 2)]))),
}
NO_WEIGHTS = wrong("text", "items", "array", too=st.just(""))
DRAWS = {"replacement": FLAG, "num_samples": or_none(whole(1, 2**31 - 1))}
UNITS = {"hardware": or_none(PROBABILITY), "deterministic": FLAG}
CORRUPT: dict[str, Wrong] = {
    "action": words("skip", "mark"),
    "most": wrong("whole", "number", too=st.integers(max_value=-1) | outside(0, 1).filter(lambda n: isinstance(n, float))),
    "log": or_none(wrong("text", too=st.sampled_from(["", "a\0b"]))),
}  # fmt: skip
AUGMENT: dict[str, Wrong] = {
    "size": or_none(SIDES),
    "crop": words("random", "center", "none", "pad_or_crop", "cover", "center_cover", "letterbox", "keep"),
    "flip": or_none(PROBABILITY),
    "vertical_flip": PROBABILITY,
    "interpolation": words("bilinear", "bicubic"),
    "transforms": wrong("items", too=TRANSFORMS | st.just(transforms.RandAugment())),
    "normalize": or_none(words("image")),
    "dtype": words("float32", "float16", "bfloat16", "uint8"),
    "layout": words("NCHW", "channels_last"),
    "mode": or_none(wrong("text", too=st.sampled_from(["", "CMYK", "uint8x0", "float64x3"]))),
}
CENTER = {
    "resize": or_none(SIDES),
    "cover": or_none(wrong("items", "array", too=tuples(2, 8, COUNT) | KINDS["items"])),
    "fraction": or_none(number(ABOVE_0, 1)),
}
CONSTANTS = {
    "mean": wrong("items", "array", too=tuples(3, 0.5, number(-1e6, 1e6)) | KINDS["items"]),
    "std": wrong("items", "array", too=tuples(3, 0.5, number(ABOVE_0, 1e6)) | KINDS["items"]),
}
FUNCTION = {"function": wrong("function"), "before_crop": FLAG, "processes": whole(0, 4096)}
PRESET = {"size": SIDES}
BITS = {"p": PROBABILITY}
SIDES_WRONG = whole(0, 65_535).own | st.sampled_from([(), (1,), (1, 2, 3), (1, -1), (1, 2, 3, 0.5), (1,) * 5])
SHEAR_WRONG = outside(0, 89) | st.sampled_from([(), (1,), (2, 1), (-90, 0), (1, 2, 3), (0, 1, 2, 1), (0, 1, 0, None)])
LEVELS = wrong("whole", "items", too=tuples(3, 1, whole(0, 255)) | whole(0, 255).own)
PADDED: dict[str, Wrong] = {
    "padding": or_none(wrong("whole", "items", too=SIDES_WRONG)),
    "pad_if_needed": FLAG,
    "fill": LEVELS,
    "padding_mode": words("constant", "edge", "reflect", "symmetric"),
}
DEGREES = wrong("whole", "number", "items", too=outside(0, 1e6) | tuples(2, 1, number(-1e6, 1e6)))
FILLED: dict[str, Wrong] = {"interpolation": words("nearest", "bilinear"), "fill": FILL}
WARP: dict[str, Wrong] = {
    **FILLED,
    "center": or_none(wrong("items", "array", too=tuples(2, 1, number(-1e6, 1e6)))),
}
ODD = wrong(
    "whole",
    "items",
    too=st.sampled_from([0, -3, 4, 1001]) | tuples(2, 3, Wrong(st.sampled_from([2, 3.0, "3", True, None]))),
)
DEPTH = wrong("whole", too=st.just(-2) | st.just(0) | st.just(17))
TIMM = wrong("text", too=st.sampled_from(["rand-", "rand-m", "m9", "rand-x1", "augmix-b1", "v2", "rand-p2", "rand-tz"]))
PACK: dict[str, Wrong] = {
    "val": wrong("whole", "number", "text", too=outside(0, 1) | st.sampled_from([1, "1", "-1%", "many", "nan"])),
    "splits": or_none(
        wrong("items", "text", too=st.sampled_from(["", "train", "a=1,a=0", "a=0.5"]) | st.sampled_from([[("a", 1)] * 2, [("a", 2)], [("a",)], ["a"], [("", 1)], [("a", "1")], [(1, 1)], []]))
    ),
    "shuffle": FLAG,
    "seed": wrong("whole"),
    "maxcount": COUNT,
    "maxsize": or_none(wrong("whole", "text", too=st.integers(max_value=0) | st.sampled_from(["", "many", "0", "1 GX"]))),
    "dedup": words("no", "report", "drop"),
    "max_rejected": wrong("whole", "number", "text", too=outside(0, 1) | st.sampled_from(["101%", "x", "inf"])),
    "workers": or_none(COUNT),
    "time_limit_s": number(ABOVE_0, 1e6),
    "measure": whole(0),
    "engine": words("local", "ray"),
    "address": or_none(wrong("text", too=st.just("auto"))),  # without engine="ray"
    "resume": FLAG,
    "append": FLAG,
    "overwrite": FLAG,
    "encoding": wrong(too=st.just(Encoding)),
}  # fmt: skip
ENCODING: dict[str, Wrong] = {
    "encode": words("keep", "jpeg", "raw"),
    "points": words("auto", "no"),
    "jpeg": words("keep", "baseline", "bare-baseline"),
    "size": or_none(
        wrong(
            "whole",
            "text",
            "items",
            "array",
            too=st.sampled_from([0, -1, "0", "x3", "1x2x3", "x"]) | tuples(2, 8, whole(1)) | KINDS["items"],
        )
    ),
    "fit": words("shortest", "longest", "center-crop", "stretch", "pad"),
    "enlarge": FLAG,
    "quality": or_none(whole(1, 100)),
    "lossless": FLAG,
    "check": words("full", "header"),
    "drop_gray": FLAG,
    "min_size": whole(0),
    "max_pixels": COUNT,
    "resizer": words("auto", "pillow", "torch"),
    "mode": wrong("text", too=st.sampled_from(["", "CMYK", "uint8x0", "RGBA"])),  # "RGBA": as a JPEG
    "keep": wrong("text", "items", too=st.sampled_from([["gif"], "gif", [3], ["webp"]])),  # "webp": as a JPEG
}
OPTIONS = {"time_limit_s": "--time-limit"} | {
    name: f"--{name.replace('_', '-')}" for name in (*PACK, *ENCODING) if name != "time_limit_s"
}

PAIRS = st.sampled_from([[], ["a"], [("a",)], [("a", "b")], [(0.5, "a")], [("a", 1, 2)], [("a", 0)], [("a", math.nan)], [(None, 1)]])  # fmt: skip
FLIP_PAIRS = st.sampled_from(
    [[(1, 1)], [(1, 2), (2, 3)], [(1,)], [1, 2], [("1", "2")], [(0, -1)], [(0, 1.0)], [(0, True)]]
)


def calls(packed: Path, loader: gpuload.DaliIterator) -> dict[str, Call]:
    dataset = loader.dataset
    usual: dict[str, Any] = {"data": packed, "batch_size": 8, "augment": Augment(8), "device": "cpu", "num_threads": 1}
    own = {name: getattr(transforms, name) for name in transforms.__all__}
    field_name = {"name": NAME}
    return {
        "DaliIterator": Call(gpuload.DaliIterator, usual, LOADER),
        "DaliIterator.set_epoch": Call(loader.set_epoch, {}, {"epoch": whole(0, 10**9)}),
        "DaliIterator.metrics": Call(loader.metrics, {}, {"window": or_none(whole(1, 1000))}),
        "DaliIterator.preview": Call(
            loader.preview,
            {},
            {"n": whole(1, 1024), "epoch": or_none(whole(0, 10**9)), "batch": or_none(wrong())},
        ),
        "DaliIterator.load_state_dict": Call(loader.load_state_dict, {}, {"state": wrong("mapping")}),
        "DaliIterator.check_ranks": Call(loader.check_ranks, {}, {"timeout_s": number(ABOVE_0, 1e6)}),
        "Augment": Call(Augment, {"size": 8}, AUGMENT),
        "RandomCrop": Call(gpuload.RandomCrop, {}, PADDED),
        "RandomResizedCrop": Call(
            gpuload.RandomResizedCrop, {}, {"scale": ascending(ABOVE_0, 1, 0.5), "ratio": ascending(1e-6, 1e6, 1.0)}
        ),
        "CenterCrop": Call(gpuload.CenterCrop, {}, CENTER),
        "Cover": Call(gpuload.Cover, {}, {"random": FLAG, "resize": or_none(COUNT)}),
        "Repeated": Call(gpuload.Repeated, {}, {"times": whole(2, 64)}),
        "TimmMixup": Call(
            batchwise.TimmMixup,
            {},
            {
                "mixup_alpha": number(0, 1e6),
                "cutmix_alpha": number(0, 1e6),
                "prob": PROBABILITY,
                "switch_prob": PROBABILITY,
                "mode": words("batch", "pair", "elem"),
                "label_smoothing": PROBABILITY,
                "num_classes": or_none(COUNT),
            },
        ),
        "RandomOrder": Call(
            own["RandomOrder"],
            {"transforms": [transforms.RandomInvert()]},
            {"transforms": wrong("items", too=TRANSFORMS | st.sampled_from([[]]))},
        ),
        "PadOrCrop": Call(gpuload.PadOrCrop, {}, {"fill": whole(0, 255)}),
        "Letterbox": Call(gpuload.Letterbox, {}, {"fill": LEVELS}),
        "Resize": Call(
            gpuload.Resize,
            {"size": 8},
            {
                "size": or_none(wrong("whole", "items", "array", too=outside(1, 65_535) | st.sampled_from([[], [0]]))),
                "max_size": or_none(SIDE),
                "pad_to_multiple_of": or_none(COUNT),
                "fill": LEVELS,
            },
        ),
        "ScaleJitter": Call(gpuload.ScaleJitter, {}, {"scale": ascending(ABOVE_0, 100, 1), "fill": LEVELS, "shorter": or_none(ascending(1, 65_535, 2))}),
        "ZoomOut": Call(
            gpuload.ZoomOut, {}, {"side_range": ascending(1, 100, 2), "p": PROBABILITY, "fill": LEVELS}
        ),
        "Normalize": Call(gpuload.Normalize, {}, CONSTANTS),
        "Function": Call(own["Function"], {"function": lambda sample, rng: sample}, FUNCTION),
        "Augment.imagenet_train": Call(Augment.imagenet_train, {}, PRESET),
        "Augment.imagenet_eval": Call(Augment.imagenet_eval, {}, PRESET),
        "Augment.inception": Call(Augment.inception, {"train": True}, {**PRESET, "train": FLAG}),
        "Augment.simclr": Call(Augment.simclr, {}, {"size": SIDE, "strength": number(0, 2.5)}),
        "Augment.dino": Call(
            Augment.dino,
            {},
            {
                "size": SIDE,
                "local_size": SIDE,
                "local_views": whole(0, 1000),
                **dict.fromkeys(("global_scale", "local_scale"), ascending(ABOVE_0, 1, 0.5)),
            },
        ),
        "Augment.deit": Call(Augment.deit, {}, PRESET),
        "Augment.segmentation": Call(
            Augment.segmentation, {}, {**PRESET, "base_size": SIDE, "train": FLAG}
        ),
        "Augment.detection": Call(Augment.detection, {}, {"policy": words("hflip", "lsj", "multiscale")}),
        "Augment.timm": Call(Augment.timm, {}, {"data_config": or_none(wrong("mapping"))}),
        "Augment.torchvision": Call(Augment.torchvision, {}, {"transform": wrong("function")}),
        "Dataset": Call(
            gpuload.Dataset,
            {"folder": packed},
            DATASET,
        ),
        "Shuffle": Call(gpuload.Shuffle, {}, {"window": COUNT, "lanes": COUNT}),
        "Balance": Call(gpuload.Balance, {"field": "label"}, {"field": NAME, **DRAWS}),
        "Weights": Call(gpuload.Weights, {"weights": "w"}, {"weights": NO_WEIGHTS, **DRAWS}),
        "Dali": Call(gpuload.Dali, {}, UNITS),
        "Both": Call(gpuload.Both, {}, {"cpu": or_none(PROBABILITY), **UNITS}),
        "OnCorrupt": Call(gpuload.OnCorrupt, {"action": "skip"}, CORRUPT),
        "Dataset.subset": Call(dataset.subset, {}, {"samples": SAMPLES}),
        "Dataset.tiles": Call(dataset.tiles, {"size": 8}, {"size": SIDES, "overlap": whole(0), "holding": or_none(NAME)}),
        "join_tiles": Call(
            batchwise.join_tiles,
            {"tiles": np.zeros((1, 2, 3)), "corners": [(0, 0)], "size": (2, 3)},
            {"tiles": wrong("array"), "corners": wrong("array", "items"), "size": wrong("items", too=tuples(2, 8, SIDE))},
        ),
        "Dataset.filter": Call(dataset.filter, {}, {"expression": wrong()}),
        "Dataset.rows": Call(dataset.rows, {}, {"shard": whole(0, 9)}),
        "Dataset.fetch_rows": Call(
            dataset.fetch_rows, {}, {"shards": or_none(Wrong(SAMPLES.others, SAMPLES.own | st.just(np.ones(9, bool))))}
        ),
        "Dataset.keys": Call(dataset.keys, {}, {"samples": Wrong(SAMPLES.others, SAMPLES.own | st.just(np.ones(97, bool)))}),
        "Dataset.require_field": Call(dataset.require_field, {}, {"name": NAME}, {"name": "has no field ''"}),
        "mix": Call(
            gpuload.mix,
            {"parts": [(dataset, 1)]},
            {"parts": wrong("items", too=PAIRS), "batches": words("shuffled", "stratified")},
        ),
        "Boxes": Call(
            gpuload.Boxes,
            {"as_targets": True},
            {
                **field_name,
                "format": words("xyxy", "xywh", "cxcywh"),
                "normalized": FLAG,
                "min_visible": PROBABILITY,
                "max_boxes": or_none(COUNT),
                "as_targets": FLAG,
                "masks": FLAG,
                "crowds": FLAG,
            },
        ),
        "Buckets": Call(
            gpuload.Buckets,
            {"area": 64, "step": 8},
            {
                "sizes": or_none(wrong("items", too=SIZES)),
                "area": or_none(whole(1)),
                "step": or_none(SIDE),
                "max_aspect": or_none(number(1, 65_535)),
            },
        ),
        "Buckets.numbers": Call(
            gpuload.Buckets([(8, 8)]).numbers, {"widths": [1], "heights": [1]}, {"widths": PIXELS, "heights": PIXELS}
        ),
        "Captions": Call(
            gpuload.Captions,
            {},
            {
                **field_name,
                "dropout": PROBABILITY,
                "lines": FLAG,
                "tokenizer": or_none(wrong("function")),
                "empty": wrong("text"),
            },
        ),
        "Keypoints": Call(
            gpuload.Keypoints,
            {},
            {
                **field_name,
                "format": words("xyv", "xy"),
                "normalized": FLAG,
                "flip_pairs": or_none(wrong("items", "array", too=FLIP_PAIRS)),
                "min_visible": whole(0),
                "max_instances": or_none(COUNT),
            },
        ),
        "Mask": Call(gpuload.Mask, {}, {**field_name, "fill": whole(0, 255)}),
        "MultiHot": Call(gpuload.MultiHot, {}, {**field_name, "num_classes": or_none(COUNT)}),
        "OneHot": Call(gpuload.OneHot, {}, {**field_name, "num_classes": or_none(COUNT), "background": FLAG}),
        "Target": Call(
            gpuload.Target,
            {"name": "angle"},
            {**field_name, "negate_on_flip": wrong("bool", "items", too=st.sampled_from([[1], [], ["no"], [None]]))},
        ),
        "Tokens": Call(gpuload.Tokens, {}, {**field_name, "pad": whole(-(2**63), 2**63 - 1), "max_length": or_none(COUNT)}),
        "ColorJitter": Call(
            own["ColorJitter"],
            {},
            {
                **dict.fromkeys(("brightness", "contrast", "saturation"), FACTOR),
                "hue": wrong("whole", "number", "items", too=outside(0, 0.5) | tuples(2, 0, number(-0.5, 0.5))),
                **BITS,
            },
        ),
        "GaussianBlur": Call(
            own["GaussianBlur"],
            {"kernel_size": 3},
            {
                "kernel_size": ODD,
                "sigma": wrong("whole", "number", "items", too=outside(ABOVE_0, 1e6) | tuples(2, 1, number(ABOVE_0, 1e6))),
                **BITS,
            },
        ),
        **{
            name: Call(own[name], {}, BITS)
            for name in ("RandomGrayscale", "RandomAutocontrast", "RandomEqualize", "RandomInvert")
        },
        "RandomSolarize": Call(own["RandomSolarize"], {}, {"threshold": number(0, 255), **BITS}),
        "RandomPosterize": Call(own["RandomPosterize"], {"bits": 4}, {"bits": whole(0, 8), **BITS}),
        "RandomAdjustSharpness": Call(
            own["RandomAdjustSharpness"], {"sharpness_factor": 2}, {"sharpness_factor": number(0, 1e6), **BITS}
        ),
        "RandAugment": Call(
            own["RandAugment"],
            {},
            {"num_ops": whole(1, 64), "magnitude": whole(0, 30), "num_magnitude_bins": whole(2, 1000), **FILLED},
        ),
        "TrivialAugmentWide": Call(own["TrivialAugmentWide"], {}, {"num_magnitude_bins": whole(2, 1000), **FILLED}),
        "AutoAugment": Call(own["AutoAugment"], {}, {"policy": words("imagenet", "cifar10", "svhn"), **FILLED}),
        "AugMix": Call(
            own["AugMix"],
            {},
            {
                "severity": whole(1, 10),
                "mixture_width": whole(1, 16),
                "chain_depth": DEPTH,
                "alpha": number(5e-324, 1e6),
                "all_ops": FLAG,
                **FILLED,
            },
        ),
        "TimmAutoAugment": Call(own["TimmAutoAugment"], {"config": "rand-m9"}, {"config": TIMM, "fill": FILL}),
        "RandomApply": Call(
            own["RandomApply"],
            {"transforms": [transforms.RandomInvert()]},
            {"transforms": wrong("items", too=TRANSFORMS | st.sampled_from([[], [transforms.RandomErasing()]])), **BITS},
        ),
        "RandomRotation": Call(
            own["RandomRotation"],
            {"degrees": 10},
            {"degrees": DEGREES, **WARP, "expand": FLAG},
        ),
        "RandomAffine": Call(
            own["RandomAffine"],
            {"degrees": 10},
            {
                "degrees": DEGREES,
                "translate": or_none(wrong("items", "array", too=tuples(2, 0.5, number(0, 1)))),
                "scale": or_none(ascending(0.01, 100, 1.0)),
                "shear": or_none(wrong("whole", "number", "items", too=SHEAR_WRONG)),
                **WARP,
            },
        ),
        "RandomPerspective": Call(
            own["RandomPerspective"],
            {},
            {
                "distortion_scale": number(0, 1),
                **BITS,
                **FILLED,
            },
        ),
        "RandomErasing": Call(
            own["RandomErasing"],
            {},
            {
                **BITS,
                "count": wrong("items", "array", too=st.sampled_from([(), (1,), (0, 1), (2, 1), (1, 2.5), (1, 2, 3)])),
                "scale": ascending(0, 1, 0.5),
                "ratio": ascending(1e-6, 1e6, 1.0),
                "value": wrong(
                    "whole",
                    "number",
                    "text",
                    "items",
                    too=outside(-1e6, 1e6) | tuples(3, 1, number(-1e6, 1e6)) | st.text().filter(lambda x: x != "random"),
                ),
            },
        ),
        **{
            name: Call(
                getattr(batchwise, name),
                {},
                {"alpha": number(1e-6, 1e6), "p": PROBABILITY, "num_classes": or_none(COUNT)},
            )
            for name in ("MixUp", "CutMix")
        },
        "RandomChoice": Call(
            batchwise.RandomChoice,
            {"transforms": [batchwise.MixUp(), batchwise.CutMix()]},
            {
                "transforms": wrong("items", too=FUNCTIONS | st.sampled_from([[], [batchwise.CenterHole()], [batchwise.MixUp()] * 32])),
                "p": or_none(wrong("items", "array", too=tuples(2, 0.5, number(0, 1e6)) | st.just((0, 0)))),
            },
        ),
        "CenterHole": Call(
            batchwise.CenterHole,
            {},
            {"size": SIDES, "fill": number(-1e6, 1e6), "target": NAME},
        ),
        "PackOptions": Call(PackOptions, {}, PACK, OPTIONS),
        "Encoding": Call(Encoding, {"encode": "jpeg", "size": (8, 8)}, ENCODING, OPTIONS),
    }  # fmt: skip


TABLE = {
    (name, argument): values
    for name, call in calls(Path(), type("Any", (), {"__getattr__": lambda self, name: self})()).items()  # type: ignore[arg-type]
    for argument, values in call.wrong.items()
}


@pytest.fixture(scope="module")
def call_of(packed: Path) -> Iterator[Callable[[str], Call]]:
    """A function and not the table, whose repr would be too large for Hypothesis's reports."""
    with load(packed) as loader:
        table = calls(packed, loader)
        yield lambda name: table[name]


def refuse(call: Call, argument: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as refused:
        call.make(**{**call.usual, argument: value})
    said = str(refused.value)
    assert argument in said or call.said_as.get(argument, argument) in said
    assert "\n" not in said and len(said) < 500


@pytest.mark.parametrize(("name", "argument"), TABLE)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_values_of_another_kind_are_refused(
    call_of: Callable[[str], Call], name: str, argument: str, data: st.DataObject
) -> None:
    refuse(call_of(name), argument, data.draw(call_of(name).wrong[argument].others))


@pytest.mark.parametrize(("name", "argument"), [place for place, values in TABLE.items() if values.own is not NOTHING])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_values_of_the_right_kind_that_cannot_be_are_refused(
    call_of: Callable[[str], Call], name: str, argument: str, data: st.DataObject
) -> None:
    refuse(call_of(name), argument, data.draw(call_of(name).wrong[argument].own))


# What the loader calls or constructs by itself, for each batch.
BY_THE_LOADER = {"BatchForm", "BatchTransform", "FieldBatch", "Dataset.stored_samples", "Dataset.shards_of"}
BY_THE_LOADER |= {"Dataset.image_sizes", "Dataset.open_store", "Dataset.row", "Dataset.column"}
ITS_METHODS = {"reach", "draw", "check_pixels", "check_peak", "for_size", "plan", "check", "select", "kernel", "steps"}
# The arguments of `pack` are sources and settings: tests/sources, and PackOptions here. `mix` makes a Mixture.
ELSEWHERE = {"pack", "Mixture"}


def public_calls() -> dict[str, Callable[..., Any]]:
    owners: list[tuple[Any, list[str]]] = [(module, module.__all__) for module in (gpuload, transforms, batchwise)]
    found: dict[str, Callable[..., Any]] = {"PackOptions": PackOptions, "Encoding": Encoding}
    for owner, names in owners:
        for name in names:
            item = getattr(owner, name)
            if isinstance(item, ModuleType) or (isinstance(item, type) and issubclass(item, Exception)):
                continue
            found[name] = item
    for name, item in list(found.items()):
        bases = item.__mro__ if name in ("Dataset", "Augment") else [item]  # which lie in two classes
        methods = {key: value for base in bases for key, value in vars(base).items()} if isinstance(item, type) else {}
        for method, value in methods.items():
            if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
                found[f"{name}.{method}"] = getattr(item, method)
    return found


def test_every_argument_of_every_public_call_is_in_the_table() -> None:
    missing, seen = [], 0
    for name, call in public_calls().items():
        if name in BY_THE_LOADER | ELSEWHERE or name.rpartition(".")[2] in ITS_METHODS:
            continue
        for argument, parameter in inspect.signature(call).parameters.items():
            if argument != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                seen += 1
                if (name, argument) not in TABLE:
                    missing.append(f"{name}({argument})")
    assert missing == []
    assert seen == len(TABLE)  # nothing in the table is obsolete, and the test saw them all


def test_numpys_scalars_are_pythons(packed: Path) -> None:
    with load(
        packed,
        np.int64(8),  # type: ignore[arg-type]
        seed=np.uint32(3),
        shuffle=np.True_,
        drop_last=np.False_,
        steps_per_epoch=np.int16(5),
        augment={
            np.int32(0): Augment(np.int64(12), flip=np.float32(0.5), normalize=Normalize(np.array([0.5, 0.5, 0.5])))
        },  # type: ignore[dict-item]
    ) as loader:
        assert json.loads(json.dumps(loader.state_dict()))["seed"] == 3
        assert type(loader.batch_size) is int and loader.drop_last is False and loader.shuffle is True
        loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
        assert len(list(loader)) == len(loader) == 5
        loader.load_state_dict(loader.state_dict())
    crop, normalize = gpuload.PadOrCrop(np.uint8(3)), Normalize(np.array([0.5, 0.5, 0.5], np.float32))  # type: ignore[arg-type]
    assert (crop, normalize) == (gpuload.PadOrCrop(3), Normalize((0.5, 0.5, 0.5)))
    assert Augment((np.int64(8), 12), crop) == Augment([8, 12], crop)  # type: ignore[arg-type]
    assert gpuload.Keypoints(flip_pairs=np.array([[1, 2]]).tolist()).flip_pairs == ((1, 2),)
    assert Encoding("jpeg", np.int64(64)).size == (64, 64) and PackOptions(workers=np.int8(2)).workers == 2  # type: ignore[arg-type]
    assert type(PackOptions(seed=np.int64(2)).seed) is int  # type: ignore[arg-type]
    assert batchwise.MixUp(np.float32(0.5), num_classes=np.int64(3)) == batchwise.MixUp(0.5, num_classes=3)  # type: ignore[arg-type]
