"""The mode of a set that nobody asked for: it follows from the files, or the packer asks.

A few images of each extension are looked at once, before the plan is made, and the mode is a part of the run's state.
What the others hold is seen when they are packed: they are converted to this mode and counted, or rejected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import SourceError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.images import Pixels
from gpuload.fields.rows import numbers_of
from gpuload.formats import Conversion, FloatRange
from gpuload.formats.modes import FollowedMode, followed_mode
from gpuload.formats.raster import EIGHT_BITS
from gpuload.packing.options import AUTO, ENCODED_MODES, PackOptions
from gpuload.packing.workers import Workers
from gpuload.sources.listing import NAME, NO_IMAGE, Listing, addresses
from gpuload.sources.source import Source
from gpuload.types import I64

_LOOKED_AT = 16  # images of an extension
_EXTENSIONS = 8  # the most frequent ones
_EXTENSION = r"\.(?P<end>[0-9A-Za-z]{1,6})$"
_MOST_COLORS = 4  # bands that may be colours, with transparency
_WITH_ALPHA = (2, 4)

_Task = tuple[Source, str, Conversion, int, bool]
_Seen = dict[FollowedMode, list[int]]  # the rows with such images


def mode_of_set(
    source: Source,
    listing: Listing,
    options: PackOptions,
    base: Mapping[str, Manifest],
) -> tuple[str, list[str]]:
    """The mode of a run, and a sentence on it for the user where it is not RGB because of the files.

    Args:
        source: Of the run.
        listing: Its samples.
        options: Of the run, perhaps without a mode.
        base: The manifest of each split of the set that is extended.

    Raises:
        SourceError: images that are looked at have different modes, or the mode is RGB, and all images are floats that
            do not tell what is white; the message holds the options that decide.
    """
    mode, notes = _mode_of_images(source, listing, options, base)
    floats = listing.floats
    if mode != "RGB" or not floats.count:
        return mode, notes
    if floats.white:
        return mode, [*notes, _note_on_floats(floats)]
    if floats.count == len(listing):
        raise SourceError(_question_of_floats(source, floats))
    return mode, notes  # each of them is rejected when it is packed


def _mode_of_images(
    source: Source,
    listing: Listing,
    options: PackOptions,
    base: Mapping[str, Manifest],
) -> tuple[str, list[str]]:
    """As `mode_of_set`, whatever is white in floats."""
    if options.mode != AUTO:
        return options.mode, []
    for manifest in base.values():
        return manifest.pixels.mode, []
    is_answered = options.encode == "jpeg" or options.conversion.scales
    if is_answered or options.depth is not None or not len(listing):
        return "RGB", []
    seen = _look(source, listing, options)
    if not seen:
        return "RGB", []
    if len(seen) > 1:
        raise SourceError(_question(seen, listing))
    (found,) = seen
    return found.mode, [] if found.mode == "RGB" else [_note(found, listing.floats)]


def with_mode(options: PackOptions, mode: str) -> PackOptions:
    """The options with the mode that follows from the files; unchanged where a mode was asked for.

    Images that no JPEG or PNG holds are stored as pixels then, so that settings of such files have no part in it.

    Args:
        options: Of the run.
        mode: As the files have it, such as "I;16".
    """
    if options.mode != AUTO:
        return options
    if options.encode != "keep" or mode in ENCODED_MODES:
        return replace(options, mode=mode)
    return replace(
        options, mode=mode, encode="raw", lossless=False, png="keep", keep=()
    )


def _look(source: Source, listing: Listing, options: PackOptions) -> _Seen:
    """The rows of some images by their modes, without those whose mode cannot be told: packing says why."""
    rows = _rows_of_extensions(listing)
    places = addresses(listing.samples).take(array_of(rows)).to_pylist()
    tasks: list[_Task] = [
        (
            source,
            place,
            options.conversion,
            options.max_pixels,
            listing.floats.white > 0,
        )
        for place in places
    ]
    row_of = dict(zip(places, rows.tolist(), strict=True))
    seen = _Seen()
    if not tasks:
        return seen
    count = min(options.worker_count, len(tasks))
    need_main = type(source).__module__ == "__main__"
    with Workers[_Task, FollowedMode | None](count, look, need_main) as workers:
        # An image that kills its worker is rejected when it is packed.
        results = workers.run(tasks, died=lambda task, _: (task[0], "", *task[2:]))
        for task, found in results:
            if found is not None:
                seen.setdefault(found, []).append(row_of[task[1]])
    return {found: sorted(seen[found]) for found in sorted(seen)}


def look(task: _Task) -> FollowedMode | None:
    """The mode of one image, which a worker reads; None where it cannot be told."""
    source, place, conversion, max_pixels, floats_are_levels = task
    if not place:  # its worker has died
        return None
    source.expect([place])
    try:
        return followed_mode(
            source.read(place), conversion, max_pixels, floats_are_levels
        )
    except Exception:  # Pillow's many parsers may raise anything
        return None


def _rows_of_extensions(listing: Listing) -> I64:
    """Rows in equal distances among those of each frequent extension, in order, without those that have no image."""
    names = listing.samples.column(NAME)
    ends = pc.struct_field(pc.extract_regex(names, _EXTENSION), "end")
    lower = pa.chunked_array(pc.ascii_lower(ends)).combine_chunks()
    coded = lower.dictionary_encode("encode")  # names without an extension are one more
    codes = numbers_of(coded.indices)
    # By length, since pyarrow imports pandas to compare with a text.
    lengths = numbers_of(pc.binary_length(addresses(listing.samples)))
    has_image = lengths != len(NO_IMAGE)
    counts = np.bincount(codes[has_image])
    frequent = np.argsort(-counts, kind="stable")[:_EXTENSIONS]
    chosen = [
        _in_equal_distances(np.flatnonzero((codes == code) & has_image))
        for code in frequent[counts[frequent] > 0]
    ]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *chosen]))


def _in_equal_distances(rows: I64) -> I64:
    """As many of these rows as are looked at, or all."""
    steps = np.linspace(0, len(rows) - 1, _LOOKED_AT).astype(np.int64)
    return rows[np.unique(steps)]


def _note(found: FollowedMode, floats: FloatRange) -> str:
    pixels = Pixels.of_mode(found.mode)
    stored = "" if found.mode in ENCODED_MODES else ", stored as pixels"
    note = (
        f"the set has mode {found.mode} ({pixels.in_words}){stored}, as 8-bit colours hold less than its images: "
        f"{_for_8_bits([found], floats)}"
    )
    if found.is_inverted:
        note += "; small values are bright (MONOCHROME1), and stay as they are"
    return note


def _note_on_floats(floats: FloatRange) -> str:
    images = counted(floats.count, "image")
    if floats.white == EIGHT_BITS:
        return f"{images} of floats, whole numbers up to {EIGHT_BITS}, packed as these levels"
    return (
        f"{images} of floats in 0..1 packed as levels of 0..{EIGHT_BITS}, rounded: --mode F --encode raw keeps gray as "
        "it is, --mode float32x3 --encode raw colours"
    )


def _question_of_floats(source: Source, floats: FloatRange) -> str:
    """What the packer asks where floats are to become 8-bit colours, and do not tell how."""
    return (
        f"{source.title}: {counted(floats.count, 'image')} of floats, {floats.in_words}: neither in "
        f"0..1 nor whole numbers up to {EIGHT_BITS}, so that nothing tells which value is white. Give --scale "
        f"{floats.scale} or other ends, or keep the values in a set of their own by --mode F --encode raw (gray) or "
        "--mode float32x3 --encode raw (colours)"
    )


def _for_8_bits(found: Sequence[FollowedMode], floats: FloatRange) -> str:
    """The options that make 8-bit colours of images of these modes."""
    kinds = [Pixels.of_mode(of_images.mode) for of_images in found]
    most = max(pixels.channels for pixels in kinds)
    options = "--mode RGB"
    if most > _MOST_COLORS:
        options += " --bands 3,2,1"
    elif most in _WITH_ALPHA:
        options += " --alpha drop"
    has_range = all(pixels.dtype != "float32" for pixels in kinds)
    is_deep = any(pixels.dtype != "uint8" for pixels in kinds)
    if not has_range or (is_deep and most > _MOST_COLORS):
        options += f" --scale {floats.scale}"
    return f"{options} makes 8-bit colours of them"


def _question(seen: _Seen, listing: Listing) -> str:
    """What the packer asks where images have different modes."""
    names = listing.samples.column(NAME)
    looked_at = sum(map(len, seen.values()))
    kinds = list[str]()
    answers = list[str]()
    for found, rows in seen.items():
        bright = ", small values bright" if found.is_inverted else ""
        example = names[rows[0]].as_py()
        kinds.append(f"{len(rows):,} of mode {found.mode}{bright}, such as {example!r}")
        raw = "" if found.mode in ENCODED_MODES else " --encode raw"
        answer = f"--mode {quote(found.mode)}{raw} keeps values as they are, and rejects images that it does not hold"
        if found.mode != "RGB" and answer not in answers:
            answers.append(answer)
    options = "; ".join([*answers, _for_8_bits([*seen], listing.floats)])
    return (
        f"a set has one mode, and of {counted(looked_at, 'image')} that the packer looked at are {'; '.join(kinds)}. "
        f"Pack them apart, or say what they become: {options}"
    )
