"""How to pack: values with all the settings, from which the command line takes its defaults."""

import os
from dataclasses import dataclass, field
from typing import Literal, get_args

from gpuload.errors import ArgumentError
from gpuload.packing.image.placement import Fit
from gpuload.types import WidthHeight

Encode = Literal["keep", "jpeg", "raw"]
Dedup = Literal["no", "report", "drop"]
Resizer = Literal["auto", "pillow", "torch"]


@dataclass(frozen=True)
class Encoding:
    """How images are stored, and which are wanted.

    encode: "keep" leaves plain JPEGs and PNGs untouched and makes others plain; "jpeg" makes all JPEGs; "raw" stores
        uint8 RGB arrays (H, W, 3).
    size, fit, enlarge: see `fit.place`; size in pixels, (width, height).
    quality: of JPEGs that are made; None: 95 with "keep" (Pillow's advice for the highest useful one), else 92.
    lossless: PNG instead of JPEG.
    check: "full" decodes what is kept; "header" reads only what stands before its pixels, so that damage may stay
        unseen, and mean and std are not measured.
    drop_gray, min_size: leave out images without colour, or with a side below so many pixels.
    max_pixels: of one image; a larger one is rejected before it is decoded. The default is that of Pillow.
    resizer: what makes plain JPEGs smaller: "torch" (extra `cpu`) or "pillow"; they differ in speed and by rounding.
        "auto" is torch where a run makes JPEGs smaller and torch is installed; a run decides it once, as it begins.
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
    max_pixels: int = 178_956_970
    resizer: Resizer = "auto"

    def __post_init__(self) -> None:
        if self.encode not in get_args(Encode):
            raise ArgumentError(f"--encode is one of {', '.join(get_args(Encode))}; got {self.encode!r}")
        if self.fit not in get_args(Fit):
            raise ArgumentError(f"--fit is one of {', '.join(get_args(Fit))}; got {self.fit!r}")
        if self.size is not None and min(self.size) < 1:
            raise ArgumentError(f"--size must be at least 1 pixel; got {self.size[0]}x{self.size[1]}")
        if self.encode == "keep" and self.size is not None:
            raise ArgumentError("--size changes images, but --encode keep leaves them; give --encode jpeg or raw")
        if self.size is None and (self.enlarge or self.fit != "shortest"):
            raise ArgumentError("--fit and --enlarge say how images come to their --size; give that too")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ArgumentError(f"--quality is from 1 to 100; got {self.quality}")
        if self.check not in ("full", "header"):
            raise ArgumentError(f"--check is full or header; got {self.check!r}")
        if self.check == "header" and (self.encode != "keep" or self.drop_gray):
            raise ArgumentError("--check header looks at no pixels, but --encode jpeg, raw and --drop-gray must")
        if self.lossless and self.encode == "raw":
            raise ArgumentError("--lossless chooses PNG over JPEG, but --encode raw stores neither; leave one out")
        if self.min_size < 0 or self.max_pixels < 1:
            raise ArgumentError(
                f"--min-size must be at least 0 and --max-pixels at least 1; got {self.min_size}, {self.max_pixels}"
            )
        if self.resizer not in get_args(Resizer):
            raise ArgumentError(f"--resizer is one of {', '.join(get_args(Resizer))}; got {self.resizer!r}")
        if self.resizer == "torch" and not self.makes_jpegs_smaller:
            raise ArgumentError(
                "--resizer torch makes JPEGs smaller: give it with --encode jpeg and --size, or leave it out"
            )

    @property
    def makes_jpegs_smaller(self) -> bool:
        return self.encode == "jpeg" and self.size is not None and not self.lossless

    @property
    def jpeg_quality(self) -> int:
        return self.quality or (95 if self.encode == "keep" else 92)


@dataclass(frozen=True)
class PackOptions:
    """Settings of `packer.pack`. The same settings and images give the same bytes, however many workers there are.

    val: share of each class's images that goes into a validation split; short for splits train and val.
    splits: names and shares that add up to 1, in place of val.
    shuffle: whether the samples are shuffled over all shards before they are packed.
    seed: of the shuffle and the splits.
    maxcount, maxsize: most samples and bytes in a shard; maxsize None: a sixteenth of all, between 16 MB and 1 GB.
        Sizes count as images lie in the source: one that is not kept may come out larger or smaller.
    dedup: whether images with the same bytes are looked for, and reported, or all but the first left out.
    max_rejected: share of the images that may be rejected before the run counts as failed.
    workers: processes; None: one for each core that this process may use.
    time_limit_s: seconds after which an image is given up.
    measure: about how many images mean and std are taken from (see `plan.choose_measured`).
    engine, address: "local" processes, or "ray" on the cluster at this address (None: a running one, else a new one).
    resume: go on with a run that was broken off. append: add shards to a set. overwrite: replace a set.
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
        if not 0 <= self.val < 1:
            raise ArgumentError(
                f"--val is a share of the images, from 0 to below 1; got {self.val}. A tenth is --val 0.1"
            )
        if self.splits is not None:
            self._check_splits(self.splits)
        if self.maxcount < 1:
            raise ArgumentError(f"--maxcount must be at least 1 sample a shard; got {self.maxcount}")
        if self.maxsize is not None and self.maxsize < 1:
            raise ArgumentError(f"--maxsize must be at least 1 byte; got {self.maxsize}. Write for instance 1GB")
        if self.dedup not in get_args(Dedup):
            raise ArgumentError(f"--dedup is one of {', '.join(get_args(Dedup))}; got {self.dedup!r}")
        if not 0 <= self.max_rejected <= 1:
            raise ArgumentError(f"--max-rejected is a share from 0% to 100%; got {self.max_rejected:.0%}")
        if self.workers is not None and self.workers < 1:
            raise ArgumentError(f"--workers must be at least 1; got {self.workers}. Leave it out to use every core")
        if not self.time_limit_s > 0:
            raise ArgumentError(f"--time-limit must be above 0 seconds; got {self.time_limit_s}")
        if self.engine not in ("local", "ray"):
            raise ArgumentError(f"--engine is local or ray; got {self.engine!r}")
        if self.address is not None and self.engine != "ray":
            raise ArgumentError("--address is that of a Ray cluster: give it with --engine ray")
        if self.append and self.overwrite:
            raise ArgumentError("--append keeps the set that is there, --overwrite replaces it: give one of them")

    def _check_splits(self, splits: tuple[tuple[str, float], ...]) -> None:
        names = [name for name, _ in splits]
        if self.val:
            raise ArgumentError("--val is short for two splits; leave it out where --splits names them")
        for name in names:
            if not name or "/" in name or name.startswith(".") or name.strip() != name:
                raise ArgumentError(f"--splits: {name!r} cannot be the name of a folder; write train=0.8,val=0.2")
        if len(set(names)) < len(names):
            raise ArgumentError(f"--splits names a split twice: {', '.join(names)}")
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
        return self.workers or len(os.sched_getaffinity(0))


_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_size(text: str) -> int:
    """Bytes in a size such as "1GB", "256 MiB", "1e9" or "500000".

    Raises:
        ArgumentError: it is no size.
    """
    upper = text.strip().upper()
    digits = upper.rstrip("BKMGTI ")
    try:
        return int(float(digits) * _UNITS[upper[len(digits) :].strip().removesuffix("B")])
    except (ValueError, KeyError, OverflowError):
        raise ArgumentError(f"{text!r} is not a size in bytes; write for instance 1GB, 256MiB or 500000") from None


def parse_pixels(text: str) -> WidthHeight:
    """Width and height in "256" or "482x415".

    Raises:
        ArgumentError: it is neither.
    """
    width, _, height = text.lower().partition("x")
    if not width.isdecimal() or not (height or width).isdecimal():
        raise ArgumentError(f"{text!r} is not a size in pixels; write for instance 256, or 482x415")
    return int(width), int(height or width)


def parse_splits(text: str) -> tuple[tuple[str, float], ...]:
    """Names and shares in "train=0.8,val=0.1,test=0.1".

    Raises:
        ArgumentError: it is no such list.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return tuple((name.strip(), parse_share(share)) for name, share in pairs)
    except ValueError:
        raise ArgumentError(f"--splits {text!r}: write names and shares, as in train=0.8,val=0.1,test=0.1") from None


def parse_share(text: str) -> float:
    """A share in "1%" or "0.01".

    Raises:
        ArgumentError: it is neither.
    """
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ArgumentError(f"{text!r} is not a share; write for instance 1% or 0.01") from None
