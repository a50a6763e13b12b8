"""The settings of the packer, from which the command line takes its defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from gpuload.checks import (
    FLAG,
    LARGEST,
    Rule,
    as_items,
    as_number,
    as_text,
    check_fields,
    instance,
    number,
    optional,
    several,
    whole,
)
from gpuload.checks import parse_size as parse_size
from gpuload.errors import ArgumentError
from gpuload.fields.pixels import EXPECTED, GRAY, RGB, Pixels
from gpuload.headers.limits import MAX_PIXELS
from gpuload.limits import count_cores
from gpuload.packing.image.placement import Fit
from gpuload.types import WidthHeight

Encode = Literal["keep", "jpeg", "raw"]
Dedup = Literal["no", "report", "drop"]
Resizer = Literal["auto", "pillow", "torch"]

KEEP = "keep"  # the mode that is decided by the first image
# Encodings that may be kept byte for byte, by the extension of their member. JPEGs and PNGs always are, where plain.
ENCODINGS = {"jpeg": "jpg", "png": "png", "webp": "webp", "avif": "avif", "tiff": "tif"}


_TEXT, _WHOLE = Rule("a text", as_text), whole()


def _as_size(value: Any) -> WidthHeight:
    """One number is the side of a square."""
    width, height = several(_WHOLE, "", count=2).read((value, value) if isinstance(value, int | np.integer) else value)
    return width, height


def _as_encodings(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else as_items(value)
    return tuple(as_text(item).strip() for item in items)


def _as_splits(value: Any) -> tuple[tuple[str, float], ...]:
    return tuple((as_text(name), as_number(share)) for name, share in map(as_items, as_items(value)))


# The types, which the command line gets right by itself. What is out of range, `__post_init__` says in its words.
_ENCODING: dict[str, Rule[Any]] = {
    "encode": _TEXT,
    "size": optional(Rule("pixels, one whole number or two (width, height)", _as_size)),
    "fit": _TEXT,
    "enlarge": FLAG,
    "quality": optional(_WHOLE),
    "lossless": FLAG,
    "check": _TEXT,
    "drop_gray": FLAG,
    "min_size": _WHOLE,
    "max_pixels": _WHOLE,
    "resizer": _TEXT,
    "mode": _TEXT,
    "keep": Rule(f"encodings, some of {', '.join(ENCODINGS)}", _as_encodings),
}


@dataclass(frozen=True)
class Encoding:
    """How images are stored, and which images are packed.

    encode: "keep" stores plain JPEGs and PNGs unchanged and re-encodes all other images; "jpeg" stores all images as
        JPEGs; "raw" stores uint8 RGB arrays (H, W, 3).
    size, fit, enlarge: see `placement.place`; size is in pixels, (width, height).
    quality: of re-encoded JPEGs; None: 95 with "keep" (the highest that Pillow recommends), else 92.
    lossless: re-encodes to PNG instead of JPEG.
    check: "full" decodes images that are kept; "header" reads only their headers, so that damage may go unnoticed, and
        mean and std are not measured.
    drop_gray, min_size: skip images without colour, and images with a side below this number of pixels.
    max_pixels: larger images are rejected before they are decoded. The default is Pillow's.
    resizer: the library that shrinks plain JPEGs: "torch" (extra `cpu`) or "pillow"; they differ in speed and rounding.
        "auto" is torch if the run shrinks JPEGs and torch is installed; a run decides it once, at its start.
    mode: what every image is stored as: "RGB"; "L" (gray), "RGBA", "I;16" (gray of 16 bits) and "F" (gray, float32), as
        Pillow calls them; for arrays such as "uint16x4" or "float32x7", type and channels; or "keep": what the first
        image is, where an image that would lose something by it is rejected. Others are converted as Pillow does.
        Where the mode is not "RGB" or "L", nothing is stored as JPEG.
    keep: with encode="keep", encodings that are kept byte for byte besides JPEG and PNG: "webp", "avif", "tiff". As
        these, images are kept if they are upright, a single frame, and of the mode.
    """

    encode: Encode = "keep"
    size: WidthHeight | None = None
    fit: Fit = "shortest"
    enlarge: bool = False
    quality: int | None = None
    lossless: bool = False
    check: Literal["full", "header"] = "full"
    drop_gray: bool = False
    min_size: int = 0
    max_pixels: int = MAX_PIXELS
    resizer: Resizer = "auto"
    mode: str = "RGB"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, **_ENCODING)
        self._check_mode()
        if self.encode not in get_args(Encode):
            raise ArgumentError(f"--encode must be one of {', '.join(get_args(Encode))}; got {self.encode!r}")
        if self.fit not in get_args(Fit):
            raise ArgumentError(f"--fit must be one of {', '.join(get_args(Fit))}; got {self.fit!r}")
        if self.size is not None and min(self.size) < 1:
            raise ArgumentError(f"--size must be at least 1 pixel; got {self.size[0]}x{self.size[1]}")
        if self.encode == "keep" and self.size is not None:
            raise ArgumentError("--size resizes images, but --encode keep does not; give --encode jpeg or raw")
        if self.size is None and (self.enlarge or self.fit != "shortest"):
            raise ArgumentError("--fit and --enlarge need --size, to which they fit the images; give it too")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ArgumentError(f"--quality must be from 1 to 100; got {self.quality}")
        if self.check not in ("full", "header"):
            raise ArgumentError(f"--check must be full or header; got {self.check!r}")
        if self.check == "header" and (self.encode != "keep" or self.drop_gray):
            raise ArgumentError(
                "--check header decodes no pixels, but --encode jpeg, --encode raw and --drop-gray need them; "
                "give --check full"
            )
        if self.lossless and self.encode == "raw":
            raise ArgumentError("--lossless chooses PNG over JPEG, but --encode raw stores neither; leave one out")
        if self.min_size < 0 or self.max_pixels < 1:
            raise ArgumentError(
                f"--min-size must be at least 0 and --max-pixels at least 1; got {self.min_size}, {self.max_pixels}"
            )
        if self.resizer not in get_args(Resizer):
            raise ArgumentError(f"--resizer must be one of {', '.join(get_args(Resizer))}; got {self.resizer!r}")
        if self.resizer == "torch" and not self.shrinks_jpegs:
            raise ArgumentError(
                "--resizer torch only shrinks JPEGs: give it with --encode jpeg and --size, or leave it out"
            )

    def _check_mode(self) -> None:
        mode = self.mode.removeprefix(f"{KEEP}=")
        try:
            pixels = RGB if mode == KEEP else Pixels.of_mode(mode)
        except ValueError:
            raise ArgumentError(f"--mode must be keep, or {EXPECTED}; got {self.mode!r}") from None
        if self.encode == "jpeg" and pixels not in (RGB, GRAY):
            raise ArgumentError(f"--encode jpeg: JPEGs are RGB or L, and --mode is {mode}. Give --encode keep or raw")
        if self.encode == "keep" and pixels.mode not in ("RGB", "L", "RGBA", "I;16"):
            raise ArgumentError(
                f"--encode keep: images of mode {mode} are packed as arrays of pixels alone. Give --encode raw"
            )
        if mode != "RGB" and (self.drop_gray or self.check == "header"):
            raise ArgumentError(f"--drop-gray and --check header are for --mode RGB; got --mode {mode}. Leave them out")
        if unknown := [name for name in self.keep if name not in ENCODINGS]:
            raise ArgumentError(f"--keep: must be some of {', '.join(ENCODINGS)}; got {unknown[0]!r}")
        if self.keep and self.encode != "keep":
            raise ArgumentError(
                f"--keep {','.join(self.keep)}: --encode {self.encode} keeps no files as they are. Leave one out"
            )

    @property
    def pixels(self) -> Pixels:
        """What the stored images decode to; of the mode "keep", once the first image has decided it."""
        return Pixels.of_mode(self.mode.removeprefix(f"{KEEP}="))

    @property
    def is_strict(self) -> bool:
        """Whether images that would lose something by the mode are rejected."""
        return self.mode.startswith(KEEP)

    @property
    def shrinks_jpegs(self) -> bool:
        """Whether plain JPEGs may be resized and stored as JPEGs, so that the resizer matters."""
        return self.encode == "jpeg" and self.size is not None and not self.lossless and self.mode == "RGB"

    @property
    def jpeg_quality(self) -> int:
        return self.quality or (95 if self.encode == "keep" else 92)


_PACKING: dict[str, Rule[Any]] = {
    "val": Rule("a number", as_number),
    "splits": optional(Rule('pairs of name and share, such as (("train", 0.8), ("val", 0.2))', _as_splits)),
    "shuffle": FLAG,
    "seed": _WHOLE,
    "maxcount": _WHOLE,
    "maxsize": optional(whole(expected="a whole number of bytes")),
    "dedup": _TEXT,
    "max_rejected": Rule("a number", as_number),
    "workers": optional(_WHOLE),
    "time_limit_s": number(-LARGEST, LARGEST, "a number of seconds, up to 1e6"),
    "measure": whole(0),
    "engine": _TEXT,
    "address": optional(_TEXT),
    "resume": FLAG,
    "append": FLAG,
    "overwrite": FLAG,
    "encoding": instance("an Encoding", Encoding),
}


@dataclass(frozen=True)
class PackOptions:
    """Settings of `packer.pack`. The same settings and images give the same bytes, whatever the number of workers.

    val: share of each class's images that goes into a validation split; an abbreviation for splits train and val.
    splits: names and shares, which add up to 1; instead of val.
    shuffle: whether the samples are shuffled over all shards before they are packed.
    seed: of the shuffle and the splits.
    maxcount, maxsize: largest number of samples and bytes in a shard; maxsize None: a sixteenth of all bytes, between
        16 MB and 1 GB. The limit applies to image sizes in the source; re-encoded images may be larger or smaller.
    dedup: "report" lists images with the same bytes as an earlier one, "drop" skips them, "no" does neither. Duplicates
        that are packed go into the same split in any case.
    max_rejected: largest share of the images that may be rejected before the run fails.
    workers: number of processes; None: one for each core that this process may use.
    time_limit_s: seconds after which an image is rejected.
    measure: approximate number of images from which mean and std are computed (see `plan.choose_measured`).
    engine, address: "local" processes, or "ray" on the cluster at this address (None: a running one, else a new one).
    resume: continue an interrupted run. append: add shards to a set. overwrite: replace a set.
    encoding: how images are stored.
    """

    val: float = 0.0
    splits: tuple[tuple[str, float], ...] | None = None
    shuffle: bool = True
    seed: int = 0
    maxcount: int = 10_000
    maxsize: int | None = None
    dedup: Dedup = "no"
    max_rejected: float = 1.0
    workers: int | None = None
    time_limit_s: float = 60.0
    measure: int = 4096
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    resume: bool = False
    append: bool = False
    overwrite: bool = False
    encoding: Encoding = field(default_factory=Encoding)

    def __post_init__(self) -> None:
        check_fields(self, **_PACKING)
        if not 0 <= self.val < 1:
            raise ArgumentError(
                f"--val must be a share of the images, from 0 to below 1; got {self.val}. A tenth is --val 0.1"
            )
        if self.splits is not None:
            self._check_splits(self.splits)
        if self.maxcount < 1:
            raise ArgumentError(f"--maxcount must be at least 1 sample per shard; got {self.maxcount}")
        if self.maxsize is not None and self.maxsize < 1:
            raise ArgumentError(f"--maxsize must be at least 1 byte; got {self.maxsize}. Write for instance 1GB")
        if self.dedup not in get_args(Dedup):
            raise ArgumentError(f"--dedup must be one of {', '.join(get_args(Dedup))}; got {self.dedup!r}")
        if not 0 <= self.max_rejected <= 1:
            raise ArgumentError(f"--max-rejected must be a share from 0% to 100%; got {self.max_rejected:.0%}")
        if self.workers is not None and self.workers < 1:
            raise ArgumentError(f"--workers must be at least 1; got {self.workers}. Leave it out to use every core")
        if not self.time_limit_s > 0:
            raise ArgumentError(f"--time-limit must be above 0 seconds; got {self.time_limit_s}")
        if self.engine not in ("local", "ray"):
            raise ArgumentError(f"--engine must be local or ray; got {self.engine!r}")
        if self.address is not None and self.engine != "ray":
            raise ArgumentError("--address is the address of a Ray cluster: give it with --engine ray")
        if self.append and self.overwrite:
            raise ArgumentError("--append keeps the existing set, --overwrite replaces it: give only one of them")

    def _check_splits(self, splits: tuple[tuple[str, float], ...]) -> None:
        names = [name for name, _ in splits]
        if self.val:
            raise ArgumentError("--val stands for splits train and val and excludes --splits; leave one of them out")
        for name in names:
            if not name or "/" in name or name.startswith(".") or name.strip() != name:
                raise ArgumentError(f"--splits: {name!r} is not a valid folder name; write train=0.8,val=0.2")
        if len(set(names)) < len(names):
            raise ArgumentError(f"--splits must name each split once; got {', '.join(names)}")
        total = sum(share for _, share in splits)
        if any(share <= 0 for _, share in splits) or abs(total - 1) > 1e-6:
            raise ArgumentError(f"--splits: shares must be above 0 and add up to 1; got {total:g}")

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """Name and share of each split."""
        if self.splits is not None:
            return self.splits
        return (("train", 1 - self.val), ("val", self.val)) if self.val else (("train", 1.0),)

    @property
    def worker_count(self) -> int:
        return self.workers or count_cores()


def parse_pixels(text: str) -> WidthHeight:
    """Width and height from "256" or "482x415".

    Raises:
        ArgumentError: the text has neither form.
    """
    width, _, height = text.lower().partition("x")
    if not width.isdecimal() or not (height or width).isdecimal():
        raise ArgumentError(f"{text!r} is not a size in pixels; write for instance 256, or 482x415")
    return int(width), int(height or width)


def parse_splits(text: str) -> tuple[tuple[str, float], ...]:
    """Names and shares from "train=0.8,val=0.1,test=0.1".

    Raises:
        ArgumentError: the text does not have this form.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return tuple((name.strip(), parse_share(share)) for name, share in pairs)
    except ValueError:
        raise ArgumentError(f"--splits {text!r}: write names and shares, as in train=0.8,val=0.1,test=0.1") from None


def parse_share(text: str) -> float:
    """A share from "1%" or "0.01".

    Raises:
        ArgumentError: the text has neither form.
    """
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ArgumentError(f"{text!r} is not a share; write for instance 1% or 0.01") from None
