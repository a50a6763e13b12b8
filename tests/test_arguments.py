"""Every argument of every public call, given what it cannot be: the call says so, by the argument's name."""

import inspect
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

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
        """As often of its own kind as of all the others."""
        return (
            self.others if self.own is NOTHING else st.booleans().flatmap(lambda own: self.own if own else self.others)
        )


def wrong(*own: str, too: Values | list[Any] = NOTHING) -> Wrong:
    """Values of all kinds but these, and `too` of these."""
    others = st.one_of(*(values for kind, values in KINDS.items() if kind not in own))
    return Wrong(others, st.sampled_from(too) if isinstance(too, list) else too)


def outside(low: float, high: float = math.inf) -> Values:
    """Whole and other numbers that are not in low..high, half of them next to it; some are not finite."""
    nearest = [math.nextafter(low, -math.inf), *([math.nextafter(high, math.inf)] if math.isfinite(high) else [])]
    numbers: list[Values] = [
        st.sampled_from([math.nan, math.inf, -math.inf, np.float32(math.nan)]),
        st.integers(max_value=math.ceil(low) - 1),
        st.floats(max_value=low, exclude_max=True),
    ]
    if math.isfinite(high):
        numbers += [st.integers(min_value=math.floor(high) + 1), st.floats(min_value=high, exclude_min=True)]
    return st.booleans().flatmap(lambda is_next: st.sampled_from(nearest) if is_next else st.one_of(numbers))


def whole(least: int, most: int | None = None) -> Wrong:
    too = st.just(least - 1) | st.integers(max_value=least - 1).map(lambda n: n if n < -(2**62) else np.int64(n))
    return wrong("whole", too=too if most is None else too | st.just(most + 1) | st.integers(min_value=most + 1))


def number(low: float, high: float = math.inf) -> Wrong:
    return wrong("whole", "number", too=outside(low, high))


def or_none(values: Wrong) -> Wrong:
    return Wrong(values.others.filter(lambda value: value is not None), values.own)


def tuples(count: int, right: Any, bad: Wrong) -> Values:
    """With one entry that is wrong, or, a quarter of them, of another length."""
    lengths = st.integers(0, 5).filter(lambda n: n != count).map(lambda n: [right] * n)
    entry = st.tuples(bad.any, st.integers(0, count - 1)).map(
        lambda pair: tuple(pair[0] if place == pair[1] else right for place in range(count))
    )
    return st.integers(0, 3).flatmap(lambda number: entry if number else lengths)


def ascending(low: float, high: float, right: float) -> Wrong:
    descending = st.just((right, right / 2))
    return wrong("items", "array", too=tuples(2, right, number(low, high)) | descending | KINDS["items"])


def words(*allowed: str) -> Wrong:
    return wrong(
        "text", too=st.text().filter(lambda text: text not in allowed) | st.sampled_from(allowed).map(" {}".format)
    )


NAME = wrong("text", too=st.just(""))
FLAG = wrong("bool")
PROBABILITY = number(0, 1)
SIDE = whole(1, 65_535)
SIDES = wrong("whole", "items", "array", too=outside(1, 65_535) | tuples(2, 8, SIDE) | KINDS["items"])
COUNT = whole(1)
SAMPLES = wrong("items", "array", too=[[0.5], ["a"], [None], [[1]], [1, [2]], np.zeros(3), [-1], [97], [2**70]])
TRANSFORMS = st.sampled_from([[transforms.RandAugment], [3], [None], [transforms.RandAugment(), "x"], [len]])
FUNCTIONS = st.sampled_from([[batchwise.MixUp], ["MixUp"], [None], [batchwise.MixUp(), 3]])


def by_annotation(kind: Any) -> Wrong | None:
    """What an argument must refuse that is annotated as a flag or as some words; None: the table says it."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind is bool:
        return FLAG
    return words(*get_args(kind)) if get_origin(kind) is Literal else None


# What arguments of these names must refuse; "Call.argument" where another call has one of the same name.
ROWS: list[tuple[str, Wrong]] = [
    ("dropout label_smoothing min_visible p prob switch_prob vertical_flip", PROBABILITY),
    ("Cover.resize max_boxes max_instances max_length num_classes pad_to_multiple_of workers", or_none(COUNT)),
    ("Letterbox.fill RandomCrop.fill Resize.fill ScaleJitter.fill ZoomOut.fill",
     wrong("whole", "items", too=tuples(3, 1, whole(0, 255)) | whole(0, 255).own)),
    ("Shuffle.window lanes max_pixels maxcount", COUNT),
    ("Keypoints.min_visible overlap", whole(0)),
    ("brightness contrast saturation",
     wrong("whole", "number", "items", too=outside(0, 1e6) | tuples(2, 1, number(0, 1e6)) | st.just((2, 1)))),
    ("field name target", NAME),
    ("class_numbers", wrong("text", "items", "array", too=[["a", 3], [None]])),
    ("decoded.dataset", wrong()),
    ("threads", or_none(COUNT)),
    ("keypoints like", or_none(NAME)),
    ("scale", ascending(ABOVE_0, 1, 0.5)),
    ("Depth.scale Disparity.scale Flow.scale InstanceMap.scale Matte.scale Normals.scale Picture.scale Pictures.scale",
     number(1 / 64, 64)),
    ("unit", number(ABOVE_0, 1e30)),
    ("missing", wrong("whole", "number")),
    ("invalid", or_none(wrong("whole", "number"))),
    ("Picture.interpolation", or_none(words("nearest", "bilinear", "bicubic"))),
    ("Pictures.interpolation", or_none(words("bilinear", "bicubic"))),
    ("Picture.normalize Pictures.normalize Pictures.each", or_none(wrong())),
    ("Pictures.count", or_none(COUNT)),
    ("Pictures.colors", or_none(words("same", "own", "each", "none"))),
    ("cutmix_alpha mixup_alpha sharpness_factor", number(0, 1e6)),
    ("cpu flip hardware", or_none(PROBABILITY)),
    ("heights widths", wrong("items", "array", too=[[0.5], ["a"], [[1]], [0], [1, -2], np.zeros(3)])),
    ("time_limit_s timeout_s", number(ABOVE_0, 1e6)),
    ("max_size step", or_none(SIDE)),
    ("Augment.size resize", or_none(SIDES)),
    ("area world_size", or_none(whole(1))),
    ("num_threads prefetch", or_none(whole(1, 4096))),
    ("Mask.fill PadOrCrop.fill", whole(0, 255)),
    ("InstanceMap.fill", whole(0, 65_535)),
    ("function transform", wrong("function")),
    ("data folder url", wrong("text", too=["", "a\0b"])),
    ("classes out quarantine", or_none(wrong("text", too=["", "a\0b"]))),
    ("patterns", wrong("text", "items", too=["", "a\0b", [1], [None], ["a", b"b"], ("a", 2)])),
    ("watch", wrong("function")),
    ("cache", or_none(wrong("text", too=["", "a\0b"]))),
    ("cache_size limit",
     or_none(wrong("whole", "text", too=st.integers(max_value=-1)
      | st.sampled_from(["", "many", "-1", "1 GX", "inf", "nan"])))),
    ("degrees", wrong("whole", "number", "items", too=outside(0, 1e6) | tuples(2, 1, number(-1e6, 1e6)))),
    ("chain_depth", wrong("whole", too=st.just(-2) | st.just(0) | st.just(17))),
    ("fill", or_none(wrong("whole", "number", "items", too=outside(0, 255) | tuples(3, 1, number(0, 255))))),
    ("weights", wrong("text", "items", "array", too=st.just(""))),
    ("kernel_size",
     wrong("whole", "items", too=st.sampled_from([0, -3, 4, 1001])
      | tuples(2, 3, Wrong(st.sampled_from([2, 3.0, "3", True, None]))))),
    ("samples", SAMPLES),
    ("size", SIDES),
    ("config", wrong("text", too=["rand-", "rand-m", "m9", "rand-x1", "augmix-b1", "v2", "rand-p2", "rand-tz"])),
    ("Dataset.keys.samples", Wrong(SAMPLES.others, SAMPLES.own | st.just(np.ones(97, bool)))),
    ("RandomErasing.scale", ascending(0, 1, 0.5)),
    ("side_range", ascending(1, 100, 2)),
    ("ratio", ascending(1e-6, 1e6, 1.0)),
    ("ScaleJitter.scale", ascending(ABOVE_0, 100, 1)),
    ("CenterHole.fill", number(-1e6, 1e6)),
    ("distortion_scale", number(0, 1)),
    ("threshold", number(0, 255)),
    ("alpha", number(1e-6, 1e6)),
    ("AugMix.alpha", number(5e-324, 1e6)),
    ("Encoding.size",
     or_none(wrong("whole", "text", "items", "array", too=st.sampled_from([0, -1, "0", "x3", "1x2x3", "x"])
      | tuples(2, 8, whole(1)) | KINDS["items"]))),
    ("bands", or_none(wrong("text", "items", "array", too=["", "a", "0", "1,,2", "1.5", [0], ["x"], [1.5], [None]]))),
    ("Encoding.scale",
     or_none(wrong("text", "items", "array",
      too=["", "5", "5:5", "9:1", "a:b", "nan:1", (1,), (2, 1), (1, 2, 3), (0, math.inf), (None, 1)]))),
    ("Encoding.window", or_none(wrong("text", "items", "array", too=["", "40", "40:1", "a:2", (40, 1), (40,), (40, None)]))),
    ("Encoding.resize", wrong("text", "items", "mapping", too=["depth", "depth=x", "=nearest", [3], [None], {"depth": 3}])),
    ("splits",
     or_none(wrong("items", "text", too=st.sampled_from(["", "train", "a=1,a=0", "a=0.5"])
      | st.sampled_from([[("a", 1)] * 2, [("a", 2)], [("a",)], ["a"], [("", 1)], [("a", "1")], [(1, 1)], []])))),
    ("drop_last", or_none(FLAG)),
    ("shards", or_none(Wrong(SAMPLES.others, SAMPLES.own | st.just(np.ones(9, bool))))),
    ("RandomAffine.scale", or_none(ascending(0.01, 100, 1.0))),
    ("shorter", or_none(ascending(1, 65_535, 2))),
    ("max_aspect", or_none(number(1, 65_535))),
    ("fraction", or_none(number(ABOVE_0, 1))),
    ("rank", or_none(whole(0))),
    ("DaliIterator.preview.epoch", or_none(whole(0, 10**9))),
    ("steps_per_epoch", or_none(whole(1, 10**9))),
    ("quality", or_none(whole(1, 100))),
    ("page", or_none(whole(0, 1_000_000))),
    ("depth", or_none(whole(9, 16))),
    ("window", or_none(whole(1, 1000))),
    ("num_samples", or_none(whole(1, 2**31 - 1))),
    ("normalize", or_none(words("image"))),
    ("verify", or_none(words("sha256", "downloads"))),
    ("tokenizer", or_none(wrong("function"))),
    ("flip_pairs",
     or_none(wrong("items", "array",
      too=[[(1, 1)], [(1, 2), (2, 3)], [(1,)], [1, 2], [("1", "2")], [(0, -1)], [(0, 1.0)], [(0,
      True)]]))),
    ("translate", or_none(wrong("items", "array", too=tuples(2, 0.5, number(0, 1))))),
    ("RandomChoice.p RandomMixer.p", or_none(wrong("items", "array", too=tuples(2, 0.5, number(0, 1e6)) | st.just((0, 0))))),
    ("center", or_none(wrong("items", "array", too=tuples(2, 1, number(-1e6, 1e6))))),
    ("cover", or_none(wrong("items", "array", too=tuples(2, 8, COUNT) | KINDS["items"]))),
    ("sizes",
     or_none(wrong("items",
      too=[[], [8, 8], [(8,)], [(8, 8, 8)], [(8, 0)], [(8.0, 8)], [("8", 8)], [None], [(8,
      65_536)]]))),
    ("data_config", or_none(wrong("mapping"))),
    ("exclude", or_none(wrong("text", "items", too=["", "a\0b", [1], [None], ["a", b"b"], ("a", 2)]))),
    ("address", or_none(wrong("text", too=st.just("auto")))),
    ("mode", or_none(wrong("text", too=["", "CMYK", "uint8x0", "float64x3"]))),
    ("Resize.size", or_none(wrong("whole", "items", "array", too=outside(1, 65_535) | st.sampled_from([[], [0]])))),
    ("padding",
     or_none(wrong("whole", "items", too=whole(0, 65_535).own
      | st.sampled_from([(), (1,), (1, 2, 3), (1, -1), (1, 2, 3, 0.5), (1,) * 5])))),
    ("shear",
     or_none(wrong("whole", "number", "items", too=outside(0, 89)
      | st.sampled_from([(), (1,), (2, 1), (-90, 0), (1, 2, 3), (0, 1, 2, 1), (0, 1, 0, None)])))),
    ("maxsize",
     or_none(wrong("whole", "text", too=st.integers(max_value=0) | st.sampled_from(["", "many", "0", "1 GX"])))),
    ("batch", or_none(wrong())),
    ("sampling", or_none(wrong(too=[gpuload.Balance, [1.0] * 97]))),
    ("pad", whole(-(2**63), 2**63 - 1)),
    ("epoch", whole(0, 10**9)),
    ("point", number(0, 1e15)),
    ("magnitude", whole(0, 30)),
    ("processes", whole(0, 4096)),
    ("bits", whole(0, 8)),
    ("shard", whole(0, 9)),
    ("severity", whole(1, 10)),
    ("n", whole(1, 1024)),
    ("mixture_width", whole(1, 16)),
    ("batch_size Budget.tokens", whole(1, 2**31 - 1)),
    ("multiple", or_none(whole(1))),
    ("patch", whole(1, 1024)),
    ("max_tokens", whole(1, 65_535)),
    ("num_ops", whole(1, 64)),
    ("num_magnitude_bins", whole(2, 1000)),
    ("times", whole(2, 64)),
    ("decoder", words("auto", "dali", "native", "both")),
    ("on_corrupt", words("raise", "skip", "mark")),
    ("crop", words("random", "center", "none", "pad_or_crop", "cover", "center_cover", "letterbox", "keep")),
    ("value",
     wrong("whole", "number", "text", "items", too=outside(-1e6, 1e6) | tuples(3, 1, number(-1e6, 1e6))
      | st.text().filter(lambda x: x != "random"))),
    ("tiles", wrong("array")),
    ("corners", wrong("array", "items")),
    ("negate_on_flip", wrong("bool", "items", too=[[1], [], ["no"], [None]])),
    ("shuffle", wrong("bool", too=[gpuload.Shuffle])),
    ("count", wrong("items", "array", too=[(), (1,), (0, 1), (2, 1), (1, 2.5), (1, 2, 3)])),
    ("mean", wrong("items", "array", too=tuples(3, 0.5, number(-1e6, 1e6)) | KINDS["items"])),
    ("std", wrong("items", "array", too=tuples(3, 0.5, number(ABOVE_0, 1e6)) | KINDS["items"])),
    ("batch_transforms", wrong("items", too=FUNCTIONS | st.just(batchwise.MixUp()))),
    ("RandomMixer.transforms",
     wrong("items", too=FUNCTIONS | st.sampled_from([[], [batchwise.CenterHole()], [batchwise.MixUp()] * 32]))),
    ("parts",
     wrong("items", too=[[], ["a"], [("a",)], [("a", "b")], [(0.5, "a")], [("a", 1, 2)], [("a",
      0)], [("a", {1: 1})], [("a", {0: -1})], [("a", {0: 0})], [("a", {0: 1, 0.5: 1})], [("a", math.nan)], [(None, 1)]])),
    ("fields", wrong("items", too=[[gpuload.Boxes], ["image", 3], [None], [b"image"], [], ["image", len]])),
    ("transforms", wrong("items", too=TRANSFORMS | st.just(transforms.RandAugment()))),
    ("RandomApply.transforms", wrong("items", too=TRANSFORMS | st.sampled_from([[], [transforms.RandomErasing()]]))),
    ("RandomChoice.transforms", wrong("items", too=TRANSFORMS | st.sampled_from([[], [transforms.RandomErasing()]]))),
    ("RandomOrder.transforms", wrong("items", too=TRANSFORMS | st.sampled_from([[]]))),
    ("join_tiles.size", wrong("items", too=tuples(2, 8, SIDE))),
    ("state", wrong("mapping")),
    ("empty", wrong("text")),
    ("keep", wrong("text", "items", too=[["gif"], "gif", [3], ["webp"]])),
    ("Encoding.mode", wrong("text", too=["", "CMYK", "uint8x0", "RGBA"])),
    ("device", wrong("text", too=["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "", "0", "CUDA", "cuda:１"])),
    ("seed", wrong("whole")),
    ("hue", wrong("whole", "number", "items", too=outside(0, 0.5) | tuples(2, 0, number(-0.5, 0.5)))),
    ("sigma", wrong("whole", "number", "items", too=outside(ABOVE_0, 1e6) | tuples(2, 1, number(ABOVE_0, 1e6)))),
    ("max_rejected", wrong("whole", "number", "text", too=outside(0, 1) | st.sampled_from(["101%", "x", "inf"]))),
    ("val", wrong("whole", "number", "text", too=outside(0, 1) | st.sampled_from([1, "1", "-1%", "many", "nan"]))),
    ("most",
     wrong("whole", "number", too=st.integers(max_value=-1) | outside(0, 1).filter(lambda n: isinstance(n, float)))),
    ("expression", wrong()),
    ("augment",
     wrong(too=[[], [Augment], [Augment(8), None], {0: 8}, {"0": Augment(8)}, {-1: Augment(8)},
      {True: Augment(8)}])),
]  # fmt: skip
WRONG = {name: values for names, values in ROWS for name in names.split()}
# How messages name arguments, beside by their names.
OPTIONS = {"time_limit_s": "--time-limit", "name": "has no field ''"}

# What the loader calls or constructs by itself, for each batch.
BY_THE_LOADER = {"BatchForm", "BatchTransform", "FieldBatch", "Dataset.stored_samples", "Dataset.shards_of"}
BY_THE_LOADER |= {"Dataset.image_sizes", "Dataset.open_store", "Dataset.row", "Dataset.column"}
ITS_METHODS = {"reach", "draw", "check_pixels", "check_peak", "for_size", "plan", "check", "select", "kernel", "steps"}
ITS_METHODS |= {"draw_transforms", "chosen", "check_counts"}
# The arguments of `pack` are sources and settings: tests/sources, and PackOptions here. `mix` makes a Mixture.
ELSEWHERE = {"pack", "Mixture"}
SOURCES = {"Codec", "FilesSource", "Sight", "Source"}  # whose methods the packer calls: tests/sources, tests/formats


def usual(loader: gpuload.DaliIterator) -> dict[str, dict[str, Any]]:
    """What calls need beside the argument that is wrong."""
    data: Any = loader.dataset
    two, invert = [batchwise.MixUp(), batchwise.CutMix()], [transforms.RandomInvert()]
    return {
        "DaliIterator": {"data": data, "batch_size": 8, "augment": Augment(8), "device": "cpu", "num_threads": 1},
        "Dataset": {"folder": data.folder},
        "verify": {"folder": data.folder},
        "fetch": {"url": "https://localhost/set", "folder": data.folder},
        "index": {"patterns": "*.tar"},
        "mix": {"parts": [(data, 1)]},
        "join_tiles": {"tiles": np.zeros((1, 2, 3)), "corners": [(0, 0)], "size": (2, 3)},
        "Buckets": {"area": 64, "step": 8},
        "Buckets.numbers": {"widths": [1], "heights": [1]},
        "Function": {"function": lambda sample, rng: sample},
        "RandomOrder": {"transforms": invert},
        "RandomApply": {"transforms": invert},
        "RandomChoice": {"transforms": [transforms.RandomInvert(), transforms.RandomGrayscale()]},
        "RandomMixer": {"transforms": two},
        **{name: {"encode": "jpeg", "size": (8, 8)} for name in ("Encoding", "PackOptions")},
        "Boxes": {"as_targets": True},
        "OnCorrupt": {"action": "skip"},
        "Balance": {"field": "label"},
        "Budget": {"tokens": 8},
        "Weights": {"weights": "w"},
        "Target": {"name": "angle"},
        "Picture": {"name": "right"},
        "GaussianBlur": {"kernel_size": 3},
        "RandomPosterize": {"bits": 4},
        "RandomAdjustSharpness": {"sharpness_factor": 2},
        "TimmAutoAugment": {"config": "rand-m9"},
        "RandomRotation": {"degrees": 10},
        "RandomAffine": {"degrees": 10},
        **{name: {"size": 8} for name in ("Augment", "Resize", "Dataset.tiles")},
    }


def public_calls() -> dict[str, Callable[..., Any]]:
    found: dict[str, Any] = {"PackOptions": PackOptions, "Encoding": Encoding}
    for owner in (gpuload, transforms, batchwise):
        items = {name: getattr(owner, name) for name in owner.__all__}
        classes = {name for name, item in items.items() if isinstance(item, type) and issubclass(item, Exception)}
        found |= {name: item for name, item in items.items() if callable(item) and name not in classes}
    for name, item in list(found.items()):
        bases = item.__mro__ if name in ("Dataset", "Augment") else [item]  # which lie in two classes
        methods = {key: value for base in bases for key, value in vars(base).items()} if isinstance(item, type) else {}
        for method, value in methods.items():
            if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
                found[f"{name}.{method}"] = getattr(item, method)
    return found


CALLS = {
    name: call
    for name, call in public_calls().items()
    if name not in BY_THE_LOADER | ELSEWHERE
    and name.partition(".")[0] not in SOURCES
    and name.rpartition(".")[2] not in ITS_METHODS
}
PLACES = {
    (name, argument): by_annotation(parameter.annotation)
    for name, call in CALLS.items()
    for argument, parameter in inspect.signature(call).parameters.items()
    if argument != "self" and parameter.kind is not parameter.VAR_KEYWORD
}


def row_of(name: str, argument: str) -> str:
    owners = (name, "Encoding") if name == "PackOptions" else (name,)  # which has its fields, too
    return next((row for owner in owners if (row := f"{owner}.{argument}") in WRONG), argument)


def test_every_argument_of_every_public_call_is_in_the_table() -> None:
    """And nothing in the table is obsolete."""
    assert {row_of(*place) for place, values in PLACES.items() if values is None} == set(WRONG)


@pytest.fixture(scope="module")
def refuse(packed: Path) -> Iterator[Callable[[str, str, Any], None]]:
    """Checks that a call refuses a value of an argument."""

    with load(packed) as loader:
        owners = {"DaliIterator": loader, "Dataset": loader.dataset, "Buckets": gpuload.Buckets([(8, 8)])}
        owners["Mixture"] = gpuload.mix([(packed, 1)])
        options = usual(loader)

        def refuse(name: str, argument: str, value: Any) -> None:
            owner, _, method = name.partition(".")
            call = getattr(owners[owner], method) if method and owner in owners else CALLS[name]
            with pytest.raises(ArgumentError) as refused:
                call(**{**options.get(name, {}), argument: value})
            said, names = str(refused.value), (argument, f"--{argument.replace('_', '-')}")
            assert any(word in said for word in (*names, OPTIONS.get(argument, argument)))
            assert "\n" not in said and len(said) < 500

        yield refuse


@pytest.mark.parametrize(("name", "argument"), PLACES)
@settings(max_examples=32, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_cannot_be_is_refused(
    refuse: Callable[[str, str, Any], None], name: str, argument: str, data: st.DataObject
) -> None:
    """Values of other kinds, and those of the right kind that cannot be."""
    values = PLACES[name, argument] or WRONG[row_of(name, argument)]
    refuse(name, argument, data.draw(values.others))
    if values.own is not NOTHING:
        refuse(name, argument, data.draw(values.own))


def test_numpys_scalars_are_pythons(packed: Path) -> None:
    np64: Any = np.int64
    augment = {np.int32(0): Augment(np64(12), flip=np.float32(0.5), normalize=Normalize(np.array([0.5, 0.5, 0.5])))}
    flags = {"shuffle": np.True_, "drop_last": np.False_}
    with load(packed, np64(8), seed=np.uint32(3), steps_per_epoch=np.int16(5), augment=augment, **flags) as loader:
        assert json.loads(json.dumps(loader.state_dict()))["seed"] == 3
        assert type(loader.batch_size) is int and loader.drop_last is False and loader.shuffle is True
        loader.set_epoch(np64(2))
        assert len(list(loader)) == len(loader) == 5
        loader.load_state_dict(loader.state_dict())
    crop = gpuload.PadOrCrop(np64(3))
    assert (crop, Normalize(np.full(3, 0.5, np.float32))) == (gpuload.PadOrCrop(3), Normalize((0.5, 0.5, 0.5)))
    assert Augment((np64(8), 12), crop) == Augment([8, 12], crop)  # type: ignore[arg-type]
    assert gpuload.Keypoints(flip_pairs=np.array([[1, 2]]).tolist()).flip_pairs == ((1, 2),)
    assert Encoding("jpeg", np64(64)).size == (64, 64) and PackOptions(workers=np64(2)).workers == 2
    assert type(PackOptions(seed=np64(2)).seed) is int
    assert batchwise.MixUp(np.float32(0.5), num_classes=np64(3)) == batchwise.MixUp(0.5, num_classes=3)  # type: ignore[arg-type]


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpuload.Boxes(min_visible=10**400), r"Boxes\(min_visible=1000.*\): expected a fraction of"),
        (lambda: gpuload.Shuffle("a\nb"), r"Shuffle\(window='a\\nb'\): expected"),
        (lambda: gpuload.Shuffle(np.ones((2, 1))), r"Shuffle\(window=array\(\[\[1.\], \[1.\]\]\)\): expected"),
        (lambda: gpuload.Shuffle(Broken()), r"Shuffle\(window=<Broken>\): expected"),
        (lambda: gpuload.Shuffle(list(range(999))), r"^Shuffle\(window=.{79}…\): expected"),
        (lambda: gpuload.Augment(8, crop="centre"), "expected one of 'random', 'center', .*. Did you mean 'center'?"),
        (lambda: gpuload.Augment(8, dtype="flot32"), "expected one of .*. Did you mean 'float32'?"),
        (lambda: gpuload.Shuffle(windw=3), "Shuffle: has no argument 'windw'. Did you mean window?"),
        (lambda: gpuload.mix(sets=1), "mix: has no argument 'sets'. Its arguments are parts, batches, by, between"),
        (lambda: gpuload.DaliIterator(shuffel=1), "DaliIterator: has no argument 'shuffel'. Did you mean shuffle?"),
        (
            lambda: gpuload.mix(),
            "mix: missing a required argument: 'parts'. Its arguments are parts, batches, by, between",
        ),
        (
            lambda: gpuload.mix([], 3, 4),
            "mix: too many positional arguments. Its arguments are parts, batches, by, between",
        ),
    ],
)
def test_what_a_wrong_argument_is_told(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)
