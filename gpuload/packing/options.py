"""The settings of the packer, from which the command line takes its defaults.

Sizes and shares may be texts, as on the command line: "482x415", "1GB", "10%", "train=0.8,val=0.2".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Annotated, Any, Literal, get_args

import numpy as np

from gpuload.checks import (
    COUNT,
    FLAG,
    LARGEST,
    POSITIVE,
    PROBABILITY,
    Rule,
    as_items,
    as_number,
    as_text,
    choice,
    fitting,
    number,
    optional,
    parse_size,
    several,
    shown,
    whole,
)
from gpuload.errors import ArgumentError
from gpuload.fields.images import GRAY, MODE, RGB, MaskRules, Pixels
from gpuload.fields.motion import Fit
from gpuload.formats import Conversion
from gpuload.machine.limits import count_cores
from gpuload.pictures import MAX_PIXELS
from gpuload.types import WidthHeight

AUTO = "auto"  # the mode that follows from the files
ENCODED_MODES = ("RGB", "L", "RGBA", "I;16")  # those that a file of JPEG or PNG holds

# Encodings that may be kept byte for byte, by the extension of their member. JPEGs and PNGs always are, where plain.
ENCODINGS = {"jpeg": "jpg", "png": "png", "webp": "webp", "avif": "avif", "tiff": "tif"}

Resizing = Literal["smooth", "nearest", "width", "flow", "own", "keep"]

_LARGEST_VALUE = 1e30  # of a file that --scale can name


def _as_size(value: Any) -> WidthHeight:
    """One number is the side of a square."""
    if isinstance(value, str):
        wide, _, high = value.lower().partition("x")
        value = int(wide), int(high or wide)
    width, height = several(COUNT, "", count=2).read(
        (value, value) if isinstance(value, int | np.integer) else value
    )
    return width, height


# What becomes of a sample that lacks what others have, where shards stay as they are.
Missing = Literal["fail", "skip"]


def _as_bytes(value: Any) -> int:
    return COUNT.read(parse_size(value) if isinstance(value, str) else value)


def _as_share(value: Any) -> float:
    if isinstance(value, str):
        return float(value.strip().removesuffix("%")) / (
            100 if value.strip().endswith("%") else 1
        )
    return as_number(value)


def _as_encodings(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else as_items(value)
    return tuple(choice(*ENCODINGS).read(as_text(item).strip()) for item in items)


def _as_resize(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        value = [f"{name}={how}" for name, how in value.items()]
    entries = value.split(",") if isinstance(value, str) else as_items(value)
    texts = tuple(as_text(entry) for entry in entries if entry != "")
    for entry in texts:
        name, _, how = entry.partition("=")
        if not name or how not in get_args(Resizing):
            raise ValueError
    return texts


def _as_names(value: Any) -> tuple[str, ...]:
    entries = value.split(",") if isinstance(value, str) else as_items(value)
    return tuple(as_text(entry) for entry in entries if entry != "")


def _as_bands(value: Any) -> tuple[int, ...]:
    items = value.split(",") if isinstance(value, str) else as_items(value)
    return tuple(
        COUNT.read(int(item) if isinstance(item, str) else item) for item in items
    )


def _as_scale(value: Any) -> tuple[float, float]:
    low, high = _two_numbers(value)
    if not -_LARGEST_VALUE <= low < high <= _LARGEST_VALUE:
        raise ValueError
    return low, high


def _as_window(value: Any) -> tuple[float, float] | Literal["file"]:
    if value == "file":
        return "file"
    center, width = _two_numbers(value)
    if not (abs(center) <= _LARGEST_VALUE and 2 <= width <= _LARGEST_VALUE):
        raise ValueError
    return center, width


def _two_numbers(value: Any) -> tuple[float, float]:
    if isinstance(value, str):
        value = [float(part) for part in value.split(":")]
    first, second = map(as_number, as_items(value))
    return first, second


def _as_splits(value: Any) -> tuple[tuple[str, float], ...]:
    if isinstance(value, str):
        pairs = [part.split("=") for part in value.split(",")]
        value = [(name.strip(), _as_share(share)) for name, share in pairs]
    splits = tuple(
        (as_text(name), as_number(share))
        for name, share in map(as_items, as_items(value))
    )
    names = [name for name, _ in splits]
    shares = [share for _, share in splits]
    if not all(map(_is_folder_name, names)) or len(set(names)) < len(names):
        raise ValueError
    if any(share <= 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError
    return splits


def _is_folder_name(name: str) -> bool:
    return (
        name != ""
        and "/" not in name
        and not name.startswith(".")
        and name.strip() == name
    )


def _check(settings: object, contradictions: Iterable[tuple[object, str]]) -> None:
    """Sets the fields to the values that the rules in their annotations return. Words and flags need none.

    Args:
        contradictions: Gives conditions that must not hold, with their messages, once all fields are checked.

    Raises:
        ArgumentError: a field is not what its rule expects, or two contradict each other.
    """
    annotations = [
        annotation
        for parent in type(settings).__mro__
        for annotation in get_annotations(parent).items()
    ]
    for name, kind in annotations:
        usual = FLAG if kind is bool else choice(*get_args(kind))
        rule = kind.__metadata__[0] if hasattr(kind, "__metadata__") else usual
        value = getattr(settings, name)
        try:
            object.__setattr__(settings, name, rule.read(value))
        except (TypeError, ValueError, OverflowError):
            option = (
                "--time-limit"
                if name == "time_limit_s"
                else f"--{name.replace('_', '-')}"
            )
            raise ArgumentError(
                f"{option}: expected {rule.expected}; got {shown(value)}{rule.meant(value)}"
            ) from None
    for is_wrong, message in contradictions:
        if is_wrong:
            raise ArgumentError(message)


_MODE = Rule(
    f"{MODE.expected}, or {AUTO}",
    lambda value: value if value == AUTO else MODE.read(value),
)
_SIZE = optional(
    Rule(
        "pixels, one positive whole number or two (width, height), such as 256 or 482x415",
        _as_size,
    )
)
_ENCODINGS = Rule(f"encodings, some of {', '.join(ENCODINGS)}", _as_encodings)
_SPLITS = optional(
    Rule(
        'names of folders, each once, with shares that add up to 1, such as (("train", 0.8), ("val", 0.2))',
        _as_splits,
    )
)
_BYTES = optional(Rule("a positive number of bytes, such as 1GB", _as_bytes))
_RESIZE = Rule(
    "a list such as depth=nearest,flow=flow: smooth, nearest, width, flow, own or keep",
    _as_resize,
)
_PICTURE_NAMES = Rule("names of further pictures, such as masks,ids", _as_names)
_BANDS = optional(Rule("numbers of bands, counted from 1, such as 4,3,2", _as_bands))
_SCALE = optional(Rule("two numbers, the lower first, such as 0:4095", _as_scale))
_WINDOW = optional(
    Rule("a center and a width of 2 or more, such as 40:400, or file", _as_window)
)
_VAL = fitting(
    "a share of the images, from 0 to below 1, such as 0.1 or 10%",
    _as_share,
    lambda share: 0 <= share < 1,
)
_REJECTED = Rule(
    "a share from 0 to 1, which is 100%",
    lambda value: PROBABILITY.read(_as_share(value)),
)
_SECONDS = number(POSITIVE, LARGEST, "a number of seconds above 0, up to 1e6")


@dataclass(frozen=True)
class Encoding:
    """How images are stored, and which images are packed.

    Attributes:
        encode: "keep" stores plain JPEGs and PNGs unchanged and re-encodes all other images; "jpeg" stores all images
            as JPEGs; "raw" stores uint8 RGB arrays (H, W, 3).
        size: (width, height) in pixels, see `placement.place`.
        fit: See `placement.place`.
        enlarge: See `placement.place`.
        quality: JPEG quality of re-encoded images; None: 95 with "keep" (the highest that Pillow recommends), else 92.
        lossless: Re-encodes to PNG instead of JPEG.
        check: "full" decodes images that are kept; "header" reads only their headers, so that damage may go unnoticed,
            and mean and std are not measured.
        max_pixels: Larger images are rejected before they are decoded. The default is Pillow's.
        mode: What every image is stored as: "RGB"; "L" (gray), "RGBA", "I;16" (gray of 16 bits) and "F" (gray,
            float32), as Pillow calls them; for arrays such as "uint16x4" or "float32x7", type and channels. Others are
            converted as Pillow does. Where the mode is not "RGB" or "L", nothing is stored as JPEG. "auto", which only
            a run of the packer has until its samples are listed, follows from the files.
        keep: With encode="keep", encodings that are kept byte for byte besides JPEG and PNG: "webp", "avif", "tiff". As
            these, images are kept if they are upright, a single frame, and of the mode.
        points: "auto" writes seek points of JPEGs and PNGs of 100,000 pixels or more into the index, where they are
            decoded as a check. PNGs have some only where their writer has made them.
        jpeg: What becomes of kept progressive JPEGs: "baseline" stores their coefficients as baseline, without loss.
        png: What becomes of PNGs without seek points: "points" compresses the same rows with some, without loss.
        page: Which page or frame of a file is packed, from 0; None: the first that is no thumbnail.
        depth: How many bits of 16 hold values, where they become 8: 12 for values up to 4,095, which are then white.
        alpha: What becomes of transparency without a channel for it: "white" lays the image over white, "drop" takes
            the colours alone. "ask" is "white", but refuses TIFFs whose further bands may be something else.
        bands: Which bands of a file become the channels, counted from 1 and in this order, such as (4, 3, 2); None:
            all, or its colours.
        scale: The values (low, high) that become the smallest and the largest of the mode, those between in proportion.
        window: (center, width), as DICOM has it, instead of `scale`; "file" takes the window that each file states.
        icc: "keep" stores a colour profile with re-encoded images, "srgb" converts the image to sRGB.
        damaged: What becomes of JPEGs that lack data, of which libjpeg warns: "reject", or "keep" with gray or false
            rows.
        masks: What the numbers of masks are where a file has two readings: "stored" takes indices and small numbers as
            they are in the file, "levels" takes the gray that is shown. "ask" rejects such files, or ends a run in
            which masks of fewer than 8 bits lie beside others.
        turn_masks: Whether masks are turned as the Exif orientation of their image says. "auto" does where their sizes
            tell, and rejects those where they do not.
        resize: With a size, what becomes of further pictures, as "NAME=HOW": "smooth" as images, the default for
            colours; "nearest" pixels, whose values stay; "width" for disparities, which are scaled; "flow"; "own", by
            its own size and not that of its image; "keep", not resized.
        class_numbers: Further pictures and lists that hold class numbers or ids, as masks do: of files with a palette
            the indices are packed, and of few bits the numbers, as `masks` says. Lists called "mask" or "masks" with
            such files are read so without it.
    """

    encode: Literal["keep", "jpeg", "raw"] = "keep"
    size: Annotated[WidthHeight | None, _SIZE] = None
    fit: Fit = "shortest"
    enlarge: bool = False
    quality: Annotated[int | None, optional(whole(1, 100))] = None
    lossless: bool = False
    check: Literal["full", "header"] = "full"
    max_pixels: Annotated[int, COUNT] = MAX_PIXELS
    mode: Annotated[str, _MODE] = "RGB"
    keep: Annotated[tuple[str, ...], _ENCODINGS] = ()
    points: Literal["auto", "no"] = "auto"
    jpeg: Literal["keep", "baseline"] = "keep"
    png: Literal["keep", "points"] = "keep"
    page: Annotated[
        int | None,
        optional(whole(0, 1_000_000, "the number of a page or frame, 0 to 1,000,000")),
    ] = None
    depth: Annotated[
        int | None, optional(whole(9, 16, "a number of bits, 9 to 16"))
    ] = None
    alpha: Literal["ask", "white", "drop"] = "ask"
    bands: Annotated[tuple[int, ...] | None, _BANDS] = None
    scale: Annotated[tuple[float, float] | None, _SCALE] = None
    window: Annotated[tuple[float, float] | Literal["file"] | None, _WINDOW] = None
    icc: Literal["keep", "srgb"] = "keep"
    damaged: Literal["reject", "keep"] = "reject"
    masks: Literal["ask", "stored", "levels"] = "ask"
    turn_masks: Literal["auto", "yes", "no"] = "auto"
    resize: Annotated[tuple[str, ...], _RESIZE] = ()
    class_numbers: Annotated[tuple[str, ...], _PICTURE_NAMES] = ()

    def __post_init__(self) -> None:
        _check(self, self._contradictions())

    def _contradictions(self) -> Iterator[tuple[object, str]]:
        keeps = self.encode == "keep"
        raw = self.encode == "raw"
        rgb = self.mode in ("RGB", AUTO)
        yield (
            keeps and self.size,
            "--size needs --encode jpeg or raw, which resize images",
        )
        yield (
            not self.size and (self.enlarge or self.fit != "shortest"),
            "--fit and --enlarge need --size",
        )
        yield self.resize and not self.size, "--resize needs --size"
        yield (
            self.check == "header" and not (keeps and rgb),
            "--check header needs --encode keep and --mode RGB",
        )
        yield (
            self.check == "header" and self.icc == "srgb",
            "--icc srgb needs --check full, which decodes images",
        )
        yield (
            self.png == "points" and not self.seek_points,
            "--png points needs --points auto and --check full",
        )
        yield self.png == "points" and raw, "--png points needs --encode keep or jpeg"
        yield self.lossless and raw, "--lossless needs --encode keep or jpeg"
        jpeg = self.encode == "jpeg" and self.pixels not in (RGB, GRAY)
        yield jpeg, f"--mode {self.mode} needs --encode keep or raw"
        yield (
            keeps and self.mode not in (*ENCODED_MODES, AUTO),
            f"--mode {self.mode} needs --encode raw",
        )
        yield (
            self.depth and self.pixels not in (RGB, GRAY),
            f"--depth is for --mode RGB and L; {self.mode} keeps all bits",
        )
        yield self.keep and not keeps, "--keep needs --encode keep"
        yield from self._contradictions_of_values()

    def _contradictions_of_values(self) -> Iterator[tuple[object, str]]:
        """Of the options that choose and scale values."""
        by_scale = self.scale is not None
        by_window = self.window is not None
        changes = self.conversion.changes_values
        yield by_scale and by_window, "--scale and --window exclude each other"
        scales = by_scale or by_window
        yield scales and self.depth, "--depth is a scale: leave it or --scale out"
        yield (
            changes and self.check == "header",
            "--bands, --scale and --window need --check full, which decodes images",
        )
        yield changes and self.keep, "--keep keeps values: leave it or --bands out"
        channels = self.pixels.channels
        count = len(self.bands or ())
        is_gray = self.pixels == RGB and count == 1
        follows = self.mode == AUTO and not scales
        yield (
            count and count != channels and not is_gray and not follows,
            f"--bands names {count}, and --mode {self.mode} has {channels} channels",
        )

    @property
    def pixels(self) -> Pixels:
        """What the stored images decode to; RGB while the mode is "auto"."""
        return RGB if self.mode == AUTO else Pixels.of_mode(self.mode)

    @property
    def conversion(self) -> Conversion:
        """What the values of a file become."""
        pixels = self.pixels
        return Conversion(
            pixels.channels,
            pixels.dtype,
            pixels.mode,
            self.page,
            self.depth,
            self.alpha,
            self.icc,
            bands=self.bands,
            scale=self.scale,
            window=self.window,
        )

    @property
    def keeps_arrays(self) -> bool:
        """Whether arrays stay as they are until they are packed, of any type and number of channels."""
        is_rgb = self.mode in ("RGB", AUTO)
        return not is_rgb or self.conversion.changes_values

    @property
    def mask_rules(self) -> MaskRules:
        """How masks are read."""
        return MaskRules(self.masks, self.turn_masks)

    @property
    def seek_points(self) -> bool:
        """Whether to look for seek points."""
        return self.points == "auto" and self.check == "full"

    @property
    def jpeg_quality(self) -> int:
        return self.quality or (95 if self.encode == "keep" else 92)


@dataclass(frozen=True)
class PackOptions(Encoding):
    """Settings of `packer.pack`, with those of `Encoding`. The same settings and images give the same bytes, whatever
    the number of workers.

    Attributes:
        mode: As of `Encoding`.
        val: Share of each class's images that goes into a validation split; an abbreviation for splits train and val.
        splits: Names and shares, which add up to 1; instead of val.
        shuffle: Whether the samples are shuffled over all shards before they are packed.
        seed: Decides the shuffle and the splits.
        maxcount: Largest number of samples in a shard.
        maxsize: Largest size of a shard in bytes, by the sizes of images in the source; re-encoded images may be larger
            or smaller. None: a sixteenth of all bytes, between 16 MB and 1 GB.
        dedup: Whether images with the same bytes as an earlier one are skipped; otherwise they go into the same split.
        max_rejected: Largest share of the images that may be rejected before the run fails.
        workers: Number of processes; None: one for each core that this process may use.
        time_limit_s: Seconds after which an image is rejected.
        engine: Where images are packed: "local" processes, or "ray".
        address: Of the Ray cluster; None: a running one, else a new one.
        resume: Whether to continue an interrupted run.
        append: Whether to add shards to a set.
        overwrite: Whether to replace a set.
    """

    mode: Annotated[str, _MODE] = AUTO
    val: Annotated[float, _VAL] = 0.0
    splits: Annotated[tuple[tuple[str, float], ...] | None, _SPLITS] = None
    shuffle: bool = True
    seed: Annotated[int, whole()] = 0
    maxcount: Annotated[int, COUNT] = 10_000
    maxsize: Annotated[int | None, _BYTES] = None
    dedup: bool = False
    max_rejected: Annotated[float, _REJECTED] = 1.0
    workers: Annotated[int | None, optional(COUNT)] = None
    time_limit_s: Annotated[float, _SECONDS] = 60.0
    engine: Literal["local", "ray"] = "local"
    address: Annotated[str | None, optional(Rule("a text", as_text))] = None
    resume: bool = False
    append: bool = False
    overwrite: bool = False

    def _contradictions(self) -> Iterator[tuple[object, str]]:
        yield from super()._contradictions()
        yield (
            self.val and self.splits,
            "--val stands for splits train and val and excludes --splits",
        )
        yield (
            self.address is not None and self.engine != "ray",
            "--address needs --engine ray",
        )
        yield (
            self.append and self.overwrite,
            "--append keeps the existing set, --overwrite replaces it: give only one",
        )

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """Name and share of each split."""
        if self.splits is not None:
            return self.splits
        return (
            (("train", 1 - self.val), ("val", self.val))
            if self.val
            else (("train", 1.0),)
        )

    @property
    def worker_count(self) -> int:
        return self.workers or count_cores()
