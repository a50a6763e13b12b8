"""The images of other fields: each file in each mode has the numbers that were written, or is refused by its name.

The files are written by tifffile, imagecodecs, pydicom, astropy, OpenEXR, pillow-heif and Pillow with known values, and
read by others where two can: libvips, astropy, pydicom.
"""

import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from images import write_files
from PIL import Image

import gpuload
from gpuload import cli
from gpuload.formats import codecs
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.preview import preview
from gpuload.sources import open_source
from gpuload.types import Array

tifffile = pytest.importorskip("tifffile", reason="needs the extra 'codecs'")
imagecodecs = pytest.importorskip("imagecodecs", reason="needs the extra 'codecs'")

ROOT = Path(__file__).parents[2]
WIDTH = 40
HEIGHT = 30
DEEP = np.linspace(0, 65_535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)
TWELVE = DEEP >> 4
LEVELS = (DEEP >> 8).astype(np.uint8)
SIGNED = (DEEP.astype(int) - 20_000).clip(-20_000, 20_000).astype(np.int16)
FLOATS = (DEEP / 7).astype(np.float32)
SHARES = (DEEP / 65_535).astype(np.float32)
MODES = ("RGB", "L", "RGBA", "I;16", "F", "uint16x3", "uint16x5", "float32x3")


class File(NamedTuple):
    """data: the file. numbers: in it, (height, width) or (height, width, bands). peak: the value that is white, 0 where
    nothing says it. tolerance: of a lossy encoding, in parts of the peak. by_page: whether bands are pages, of which the
    first is packed where the mode has not as many channels, and the others counted."""

    data: bytes
    numbers: Array
    peak: float = 0
    tolerance: float = 0
    by_page: bool = False


def bands(numbers: Array, count: int = 3) -> Array:
    """Different bands of the same values."""
    turns = (numbers, numbers[::-1], numbers[:, ::-1], numbers[::-1, ::-1], numbers)
    return np.stack(turns[:count], axis=2)


def tiff(numbers: Array, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, numbers, **options)
    return file.getvalue()


def planes(numbers: Array, **options: Any) -> bytes:
    return tiff(np.moveaxis(numbers, 2, 0), planarconfig="separate", **options)


GRAY = {"photometric": "minisblack"}
COLOR = {"photometric": "rgb"}


def tiffs() -> Iterator[tuple[str, File]]:
    """Each layout of each type."""
    layouts: dict[str, dict[str, Any]] = {
        "strips": {}, "tiles": {"tile": (16, 16)}, "BigTIFF": {"bigtiff": True}, "big-endian": {"byteorder": ">"},
        "deflate": {"compression": "zlib", "predictor": True}, "LZW": {"compression": "lzw", "predictor": True},
        "zstd": {"compression": "zstd"}, "one row a strip": {"rowsperstrip": 1},
    }  # fmt: skip
    types = {
        "uint8": (LEVELS, 255), "uint16": (DEEP, 65_535), "int16": (SIGNED, 0), "uint32": (DEEP.astype(np.uint32), 0),
        "int32": (SIGNED.astype(np.int32), 0), "float32": (FLOATS, 0), "float64": (FLOATS.astype(np.float64), 0),
        "float16": (SHARES.astype(np.float16), 1), "int8": (LEVELS.view(np.int8), 0), "float in 0..1": (SHARES, 1),
    }  # fmt: skip
    for layout, options in layouts.items():
        for kind, (numbers, peak) in types.items():
            if "predictor" in options and numbers.dtype == np.float16:
                continue
            yield f"TIFF, {layout}, {kind}", File(tiff(numbers, **GRAY, **options), numbers, peak)
            if kind in ("uint8", "uint16", "float32"):
                three, five = bands(numbers), bands(numbers, 5)
                yield f"TIFF, {layout}, 3 bands, {kind}", File(tiff(three, **COLOR, **options), three, peak)
                yield f"TIFF, {layout}, 3 planes, {kind}", File(planes(three, **COLOR, **options), three, peak)
                many = tiff(five, **GRAY, planarconfig="contig", **options)
                yield f"TIFF, {layout}, 5 bands, {kind}", File(many, five, peak)
    yield "TIFF of 12 bits", File(tiff(TWELVE, bitspersample=12, **GRAY), TWELVE, 4095)
    yield "TIFF, white is zero", File(tiff(DEEP, photometric="miniswhite"), 65_535 - DEEP, 65_535)
    five = bands(DEEP, 5)
    for name, options in (("OME-TIFF", {"ome": True}), ("ImageJ", {"imagej": True})):
        channels = tiff(np.moveaxis(five, 2, 0), metadata={"axes": "CYX"}, photometric="minisblack", **options)
        yield f"{name} of 5 channels", File(channels, five, 65_535, by_page=True)


def by_imagecodecs() -> Iterator[tuple[str, File]]:
    for name, numbers in (("gray", DEEP), ("colours", bands(DEEP))):
        yield f"PNG of 16 bits, {name}", File(imagecodecs.png_encode(numbers), numbers, 65_535)
        jxl = imagecodecs.jpegxl_encode(numbers, lossless=True)
        yield f"JPEG XL of 16 bits, {name}", File(jxl, numbers, 65_535)
        jp2 = imagecodecs.jpeg2k_encode(numbers, reversible=True, level=0)
        yield f"JPEG 2000 of 16 bits, {name}", File(jp2, numbers, 65_535)
        htj2k = imagecodecs.htj2k_encode(numbers, reversible=True)
        yield f"HTJ2K of 16 bits, {name}", File(htj2k, numbers, 65_535)
    for name, numbers in (("gray", LEVELS), ("colours", bands(LEVELS))):
        jxl = imagecodecs.jpegxl_encode(numbers, lossless=True, usecontainer=True)
        yield f"JPEG XL of 8 bits, {name}", File(jxl, numbers, 255)
    yield "JPEG XL of floats", File(imagecodecs.jpegxl_encode(SHARES, lossless=True), SHARES, 1)
    twelve = imagecodecs.jpeg2k_encode(TWELVE, bitspersample=12, reversible=True, level=0)
    yield "JPEG 2000 of 12 bits", File(twelve, TWELVE, 4095)
    ten = bands(DEEP >> 6)
    avif = imagecodecs.avif_encode(ten, bitspersample=10, level=100)
    yield "AVIF of 10 bits", File(avif, ten, 1023)
    yield "QOI", File(imagecodecs.qoi_encode(bands(LEVELS)), bands(LEVELS), 255)
    yield "JPEG of 12 bits", File(imagecodecs.jpeg_encode(TWELVE, bitspersample=12, level=100), TWELVE, 4095, 0.001)
    yield "JPEG of 16 bits", File(imagecodecs.jpeg_encode(DEEP, lossless=True, bitspersample=16), DEEP, 65_535)


def by_pillow() -> Iterator[tuple[str, File]]:
    for name in ("PNG", "TIFF", "BMP", "PPM", "WEBP", "TGA", "SGI"):
        for numbers in (LEVELS, bands(LEVELS)):
            file = io.BytesIO()
            Image.fromarray(numbers).save(file, name, **({"lossless": True} if name == "WEBP" else {}))
            if name != "WEBP" or numbers.ndim == 3:
                yield f"{name}, {numbers.shape[2:]}", File(file.getvalue(), numbers, 255)


def heics() -> Iterator[tuple[str, File]]:
    heif = pytest.importorskip("pillow_heif", reason="needs the extra 'sources'")
    for bits in (10, 12):
        numbers = DEEP >> (16 - bits)
        picture = heif.from_bytes(mode="I;16", size=(WIDTH, HEIGHT), data=(numbers << (16 - bits)).tobytes())
        file = io.BytesIO()
        picture.save(file, quality=-1, bit_depth=bits)
        yield f"HEIC of {bits} bits", File(file.getvalue(), numbers, (1 << bits) - 1)


def dicom(
    numbers: Array, frames: list[bytes] | None = None, syntax: str = "ExplicitVRLittleEndian", **tags: Any
) -> bytes:
    pytest.importorskip("pydicom", reason="needs the extra 'dicom'")
    from pydicom import uid
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate

    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = getattr(uid, syntax)
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = uid.CTImageStorage
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = "1.2.3"
    file.Rows, file.Columns = HEIGHT, WIDTH
    file.BitsAllocated = numbers.dtype.itemsize * 8
    file.BitsStored = tags.pop("BitsStored", file.BitsAllocated)
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = int(numbers.dtype.kind == "i")
    is_color = numbers.shape[-1] == 3
    file.SamplesPerPixel = 3 if is_color else 1
    file.PhotometricInterpretation = "RGB" if is_color else "MONOCHROME2"
    if is_color:
        file.PlanarConfiguration = 0
    for name, value in tags.items():
        setattr(file, name, value)
    file.PixelData = numbers.tobytes() if frames is None else encapsulate(frames)
    if frames is not None:
        file["PixelData"].VR = "OB"
    written = io.BytesIO()
    file.save_as(written, enforce_file_format=True)
    return written.getvalue()


def palette(colors: Array, first: int = 0) -> dict[str, Any]:
    """The tags of a palette. colors: uint8 or uint16 (N, 3). first: the number of the first colour."""
    tags: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for band, name in enumerate(("Red", "Green", "Blue")):
        tags[f"{name}PaletteColorLookupTableDescriptor"] = [len(colors), first, colors.dtype.itemsize * 8]
        tags[f"{name}PaletteColorLookupTableData"] = colors[:, band].tobytes()
    return tags


CT = {"BitsStored": 12, "RescaleSlope": 1, "RescaleIntercept": -1024}


def dicoms() -> Iterator[tuple[str, File]]:
    units = TWELVE.astype(int) - 1024
    yield "DICOM, CT", File(dicom(TWELVE, **CT), units)
    yield "DICOM, signed", File(dicom(SIGNED), SIGNED)
    yield "DICOM, X-ray of 12 bits", File(dicom(TWELVE, BitsStored=12), TWELVE, 4095)
    yield "DICOM, PET", File(dicom(TWELVE, BitsStored=12, RescaleSlope=0.25, RescaleIntercept=0), TWELVE / 4)
    yield "DICOM, colours", File(dicom(bands(LEVELS)), bands(LEVELS), 255)
    yield "DICOM, ultrasound", File(dicom(LEVELS), LEVELS, 255)
    colors = np.random.default_rng(0).integers(0, 1 << 16, (256, 3), np.uint16)
    few = (colors[:200] >> 8).astype(np.uint8)
    many = few[(DEEP.astype(int) // 128 - 40).clip(0, 199)]
    yield "DICOM, palette of 16 bits", File(dicom(LEVELS, **palette(colors)), colors[LEVELS], 65_535)
    twice = np.concatenate([colors, colors])
    yield "DICOM, more colours than numbers", File(dicom(LEVELS, **palette(twice)), colors[LEVELS], 65_535)
    yield "DICOM, more numbers than colours", File(dicom(DEEP // 128, **palette(few, 40)), many, 255)
    frames = {
        "JPEGLosslessSV1": imagecodecs.ljpeg_encode(TWELVE, bitspersample=12),
        "JPEGLSLossless": imagecodecs.jpegls_encode(TWELVE),
        "JPEG2000Lossless": imagecodecs.jpeg2k_encode(TWELVE, bitspersample=12, reversible=True, level=0, codecformat="j2k"),
    }  # fmt: skip
    for syntax, frame in frames.items():
        yield f"DICOM, {syntax}", File(dicom(TWELVE, [frame], syntax, BitsStored=12), TWELVE, 4095)


def fits() -> Iterator[tuple[str, File]]:
    pytest.importorskip("astropy", reason="needs the extra 'fits'")
    from astropy.io import fits as library

    cube = bands(DEEP, 5)
    for name, numbers, stored, peak in (
        ("uint8", LEVELS, LEVELS, 255), ("uint16", DEEP, DEEP, 65_535), ("int16", SIGNED, SIGNED, 0),
        ("int32", SIGNED.astype(np.int32), SIGNED, 0), ("float32", FLOATS, FLOATS, 0),
        ("float64", FLOATS.astype(np.float64), FLOATS, 0), ("a cube", cube, np.moveaxis(cube, 2, 0), 65_535),
    ):  # fmt: skip
        file = io.BytesIO()
        library.PrimaryHDU(np.ascontiguousarray(stored)).writeto(file)
        yield f"FITS, {name}", File(file.getvalue(), numbers, peak)
    file = io.BytesIO()
    library.HDUList([library.PrimaryHDU(), library.CompImageHDU(DEEP)]).writeto(file)
    yield "FITS, compressed", File(file.getvalue(), DEEP, 65_535)


def exrs() -> Iterator[tuple[str, File]]:
    library = pytest.importorskip("OpenEXR", reason="needs the extra 'exr'")
    half = SHARES.astype(np.float16)
    for name, kind, numbers, peak in (
        ("R, G, B", "RGB", bands(SHARES), 1), ("half", "RGB", bands(half), 1), ("Y", "Y", FLOATS, 0),
    ):  # fmt: skip
        header = {"compression": library.ZIP_COMPRESSION, "type": library.scanlineimage}
        yield f"OpenEXR, {name}", File(written(library.File(header, {kind: numbers})), numbers, peak)


def written(file: Any) -> bytes:
    """What OpenEXR writes."""
    with tempfile.NamedTemporaryFile(suffix=".exr") as place:
        file.write(place.name)
        return Path(place.name).read_bytes()


GROUPS: dict[str, Callable[[], Iterator[tuple[str, File]]]] = {
    "TIFF": tiffs, "imagecodecs": by_imagecodecs, "Pillow": by_pillow, "HEIC": heics, "DICOM": dicoms, "FITS": fits,
    "OpenEXR": exrs,
}  # fmt: skip


@cache
def files(group: str) -> dict[str, File]:
    return dict(GROUPS[group]())


def pixels(data: bytes, mode: str, **options: Any) -> Array:
    stored = prepare_image(data, encoding=Encoding("raw", mode=mode, **options))
    read: Array = np.load(io.BytesIO(stored.data))
    return read


def as_read(data: bytes, mode: str, **options: Any) -> Array | str:
    """The pixels in the set, or the reason why the file is refused."""
    try:
        return pixels(data, mode, **options)
    except gpuload.DecodeError as error:
        return str(error)


# Of a refusal: each names what is wrong with the file for this mode.
REASONS = ("unknown range", "not converted to", "is a TIFF of", "is of mode", "no numbers")


def wanted(file: File, mode: str) -> Array:
    """The numbers that the pixels must be."""
    numbers = file.numbers if file.numbers.ndim == 3 else file.numbers[..., None]
    if file.by_page and not mode.endswith("x5"):
        numbers = numbers[..., :1]
    if mode in ("RGB", "L", "RGBA"):
        assert file.peak, "a file of unknown range became levels"
        levels = numbers.astype(np.float64) * 255 / file.peak
        if mode == "L" and levels.shape[2] == 3:
            return levels @ [[0.299], [0.587], [0.114]]
        if mode == "RGBA":
            levels = np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else levels
            return np.concatenate([levels, np.full((HEIGHT, WIDTH, 1), 255.0)], axis=2)
        return np.repeat(levels, 3, axis=2) if mode == "RGB" and levels.shape[2] == 1 else levels
    return numbers.astype(np.float64)


@pytest.mark.parametrize("group", GROUPS)
def test_each_file_is_right_or_refused_in_each_mode(group: str) -> None:
    """And right in at least one mode that a user would choose."""
    wrong = []
    for name, file in files(group).items():
        right = 0
        for mode in MODES:
            read = as_read(file.data, mode)
            if isinstance(read, str):
                if not any(reason in read for reason in REASONS):
                    wrong.append(f"{name} in {mode}: {read}")
                continue
            numbers = wanted(file, mode)
            is_level = mode in ("RGB", "L", "RGBA")
            limit = 1.01 if is_level else file.tolerance * file.peak + 1e-6 * np.abs(numbers).max()
            if read.shape != numbers.shape or np.abs(read - numbers).max() > limit:
                wrong.append(f"{name} in {mode}: other numbers")
            right += 1
        if not right and not any(isinstance(as_read(file.data, own), np.ndarray) for own in ("float32x5", "uint8x5")):
            wrong.append(f"{name}: refused in every mode")
    assert wrong == []


@pytest.mark.parametrize("group", GROUPS)
def test_each_file_is_scaled_as_is_said(group: str) -> None:
    """Its first band, from a quarter of its range to three quarters."""
    for name, file in files(group).items():
        numbers = (file.numbers if file.numbers.ndim == 2 else file.numbers[..., 0]).astype(np.float64)
        low, high = np.quantile(numbers, (0.25, 0.75))
        shares = ((numbers - low) / (high - low)).clip(0, 1)
        for mode, white in (("L", 255), ("I;16", 65_535), ("F", 1)):
            read = pixels(file.data, mode, bands=(1,), scale=(float(low), float(high)))[..., 0]
            limit = 0.51 + file.tolerance * file.peak * white / (high - low)
            assert np.abs(read - shares * white).max() <= (limit if mode != "F" else limit / 255), (name, mode)


def test_two_hundred_files_are_written() -> None:
    """So that nothing passes on nothing."""
    assert sum(len(files(group)) for group in ("TIFF", "imagecodecs", "Pillow")) >= 180


def test_libvips_reads_the_same() -> None:
    """What it reads of these TIFFs, PNGs and JPEG XLs; its TIFFs know no zstd."""
    pyvips = pytest.importorskip("pyvips", reason="needs libvips")
    compared = 0
    for group in ("TIFF", "imagecodecs"):
        for name, file in files(group).items():
            if not name.startswith(("TIFF, ", "PNG")) or "zstd" in name or "white is zero" in name:
                continue
            try:
                seen = pyvips.Image.new_from_buffer(file.data, "").numpy()
            except pyvips.Error:
                continue
            numbers = file.numbers if seen.ndim == 3 else file.numbers.reshape(HEIGHT, WIDTH)
            np.testing.assert_array_equal(seen, numbers, err_msg=name)
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("frame", [0, 2])
def test_frames_of_a_dicom_are_pages(frame: int) -> None:
    three = np.stack([TWELVE, TWELVE[::-1], TWELVE >> 1])
    data = dicom(three, BitsStored=12, NumberOfFrames=3)
    np.testing.assert_array_equal(pixels(data, "I;16", page=frame)[..., 0], three[frame])
    with pytest.raises(gpuload.DecodeError, match="has 3 pages or frames, and --page 3 counts from 0"):
        pixels(data, "I;16", page=3)


def test_palettes_of_a_dicom_that_are_refused() -> None:
    few = np.zeros((256, 3), np.uint8)
    for tags, reason in (
        ({**palette(few), "AlphaPaletteColorLookupTableData": bytes(256)}, "with transparency"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "that pydicom does not read"),
        (palette(np.zeros((300, 3), np.uint8)), "that pydicom does not read"),
    ):
        with pytest.raises(gpuload.DecodeError, match=f"is a DICOM file of PALETTE COLOR {reason}"):
            pixels(dicom(LEVELS, **tags), "RGB")


def test_windows_of_a_dicom() -> None:
    """As pydicom applies them; MONOCHROME1 is inverted, numbers are not."""
    pydicom = pytest.importorskip("pydicom", reason="needs the extra 'dicom'")
    from pydicom.pixels import apply_modality_lut, apply_windowing

    data = dicom(TWELVE, **CT, WindowCenter=[40, 400], WindowWidth=[400, 2000])
    file = pydicom.dcmread(io.BytesIO(data))
    units = apply_modality_lut(file.pixel_array, file)
    for index, options in enumerate(({"window": "file"}, {"window": (400, 2000)})):
        shown = apply_windowing(units, file, index=index)
        shares = (shown - shown.min()) / (shown.max() - shown.min())
        assert np.abs(pixels(data, "L", **options)[..., 0] - shares * 255).max() <= 0.51
    inverted = dicom(TWELVE, **CT, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(pixels(inverted, "F")[..., 0], units)
    dark = pixels(inverted, "L", window=(40, 400)).astype(int)
    np.testing.assert_array_equal(255 - dark, pixels(data, "L", window=(40, 400)))
    with pytest.raises(gpuload.DecodeError, match="states no window, as --window file asks"):
        pixels(inverted, "L", window="file")


def test_what_a_dicom_asks_for() -> None:
    data = dicom(TWELVE, **CT, WindowCenter=40, WindowWidth=400)
    with pytest.raises(gpuload.DecodeError, match="unknown range; --scale LOW:HIGH .* --window file takes the window"):
        pixels(data, "RGB")
    inks = dicom(LEVELS, PhotometricInterpretation="CMYK")
    with pytest.raises(gpuload.DecodeError, match="is a DICOM file of CMYK, which is not read"):
        pixels(inks, "RGB")


@pytest.mark.parametrize(
    ("numbers", "mode"), [(FLOATS, "F"), (SIGNED, "F"), (bands(FLOATS), "float32x3"), (bands(SIGNED), "float32x3")]
)
def test_a_refusal_says_what_keeps_the_numbers(numbers: Array, mode: str) -> None:
    """By options that do, where they are given to the next run."""
    data = tiff(numbers, photometric="rgb" if numbers.ndim == 3 else "minisblack")
    with pytest.raises(
        gpuload.DecodeError, match=f"--scale LOW:HIGH .* and --mode {mode} --encode raw keeps the numbers"
    ):
        pixels(data, "RGB")
    np.testing.assert_array_equal(pixels(data, mode).reshape(numbers.shape), numbers)


def test_alpha_of_a_jpeg_xl() -> None:
    """Laid over white, dropped, or kept."""
    colors = np.dstack([bands(DEEP), np.full_like(DEEP, 65_535 // 2)])
    data = imagecodecs.jpegxl_encode(colors, lossless=True)
    white = (colors[..., :3] * 0.5 + 65_535 * 0.5) * 255 / 65_535
    assert np.abs(pixels(data, "RGB") - white).max() <= 1.5
    assert np.abs(pixels(data, "RGB", alpha="drop") - colors[..., :3] / 257).max() <= 0.51
    np.testing.assert_array_equal(pixels(data, "uint16x4"), colors)


def test_frames_of_a_jpeg_xl_are_pages() -> None:
    frames = np.stack([LEVELS, LEVELS[::-1], LEVELS // 2])[..., None]
    data = imagecodecs.jpegxl_encode(frames, lossless=True)
    np.testing.assert_array_equal(pixels(data, "L", page=1)[..., 0], LEVELS[::-1])
    stored = prepare_image(data, encoding=Encoding("raw", mode="L"))
    assert any("pages or frames after the first" in remark for remark in stored.remarks)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (300, 200), (200, 300), (160, 90), (2000, 7)])
def test_a_large_jpeg_xl_is_refused_before_it_is_decoded(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the size in its header, with and without boxes."""
    for boxes in (False, True):
        data = imagecodecs.jpegxl_encode(np.zeros(size[::-1], np.uint8), lossless=True, usecontainer=boxes)
        with monkeypatch.context() as patched:
            patched.setattr(imagecodecs, "jpegxl_decode", None)
            if size != (1, 1):
                with pytest.raises(gpuload.DecodeError, match=f"{size[0]} x {size[1]} pixels, more than --max-pixels"):
                    pixels(data, "L", max_pixels=size[0] * size[1] - 1)
        assert pixels(data, "L").shape == (*size[::-1], 1)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"FUJIFILMCCD-RAW 0201", "RAF of Fujifilm"), (b"IIRO\x08\0\0\0", "ORF of Olympus"),
        (b"IIU\0\x18\0\0\0", "RW2 of Panasonic"), (b"\0\0\0\x18ftypcrx \0\0\0\1", "CR3 of Canon"),
        (b"FOVb\0\0\3\0", "X3F of Sigma"),
    ],
)  # fmt: skip
def test_raw_files_are_refused_by_their_names(start: bytes, name: str) -> None:
    with pytest.raises(gpuload.DecodeError, match=f"is a {name}, the values of a camera's sensor; develop it"):
        pixels(start.ljust(600, b"\0"), "RGB")


@pytest.mark.parametrize(("package", "group"), [("pydicom", "DICOM"), ("astropy", "FITS"), ("OpenEXR", "OpenEXR")])
def test_without_its_library_a_file_is_refused_by_name(
    package: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = {"DICOM": bytes(128) + b"DICM", "FITS": b"SIMPLE  =                    T", "OpenEXR": b"\x76\x2f\x31\x01"}
    monkeypatch.setitem(sys.modules, package, None)
    kind = {"DICOM": "a DICOM file", "FITS": "a FITS file", "OpenEXR": "an OpenEXR file"}[group]
    with pytest.raises(gpuload.DecodeError, match=f"is {kind}, .* {package} is not installed: `pip install"):
        pixels(starts[group].ljust(6_000, b" "), "F")


def test_bands_of_arrays_and_files(tmp_path: Path) -> None:
    """The command, on files and on arrays in class folders: both give the same pixels."""
    five = bands(DEEP, 5)
    file = io.BytesIO()
    np.save(file, five)
    write_files(tmp_path, {"in/a/1.tif": tiff(five, **GRAY, planarconfig="contig"), "in/a/2.npy": file.getvalue()})
    options = ("--bands", "4,3,2", "--scale", "0:30000", "--lossless", "--workers", "1")
    assert cli.main(["pack", str(tmp_path / "in"), str(tmp_path / "out"), *options]) == 0
    data = gpuload.Dataset(tmp_path / "out" / "train")
    shown = (five[..., [3, 2, 1]].astype(float) * 255 / 30_000).clip(0, 255)
    assert len(data) == 2
    for sample in (data[0], data[1]):
        assert np.abs(np.asarray(sample["image"]).astype(float) - shown).max() <= 0.51


def test_a_dry_run_and_show_draw_what_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that Pillow does not open; 16 bits are stretched, which is said."""
    dark = tiff(np.full((40, 40, 5), 30, np.uint16), **GRAY, planarconfig="contig")
    split = np.zeros((40, 40, 5), np.uint16)
    split[:, 20:] = 900
    write_files(tmp_path, {"in/a/1.tif": dark, "in/a/2.tif": tiff(split, **GRAY, planarconfig="contig")})
    options = PackOptions(bands=(4, 3, 2), scale=(0, 60))
    sheet = np.asarray(preview(open_source(tmp_path / "in"), options).sheet)
    assert (sheet == (128, 128, 128)).all(axis=2).sum() >= 1_000
    command = ["pack", str(tmp_path / "in"), str(tmp_path / "out"), "--mode", "uint16x5", "--encode", "raw"]
    assert cli.main([*command, "--workers", "1", "--no-shuffle"]) == 0
    assert cli.main(["show", str(tmp_path / "out" / "train"), "1", "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "shown: of each image, its 2nd percentile is black and its 98th is white" in said
    (picture,) = tmp_path.glob("*.png")
    levels = np.asarray(Image.open(picture))
    assert levels[:, :20].max() == 0 and levels[:, 20:40].min() == 255


def test_pil_images_are_scaled_as_their_files(tmp_path: Path) -> None:
    """Whether loaded or not."""
    data = io.BytesIO()
    Image.fromarray(DEEP).save(data, "PNG")
    for is_loaded in (False, True):
        image = Image.open(data)
        if is_loaded:
            image.load()
        out = tmp_path / f"{is_loaded}"
        samples = [{"image": image, "label": 0}]
        gpuload.pack(samples, out, scale=(0, 30_000), lossless=True, workers=1, progress=False)
        read = np.asarray(gpuload.Dataset(out / "train")[0]["image"])[..., 0]
        assert np.abs(read - (DEEP / 30_000 * 255).clip(0, 255)).max() <= 0.51


def test_values_that_are_clipped_are_counted() -> None:
    stored = prepare_image(imagecodecs.png_encode(DEEP), encoding=Encoding("raw", scale=(0, 1000)))
    assert list(stored.remarks) == [
        "values beyond --scale 0:1000: {} have some, which became the nearest end of the range"
    ]
    whole = prepare_image(imagecodecs.png_encode(DEEP), encoding=Encoding("raw", scale=(0, 65_535)))
    assert whole.remarks == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (5, 5)}, "--scale: expected two numbers, the lower first"),
        ({"scale": "a:b"}, "--scale: expected two numbers"),
        ({"window": "40"}, "--window: expected a center and a width"),
        ({"window": (40, 1)}, "--window: expected a center and a width of 2 or more"),
        ({"bands": "0,1,2"}, "--bands: expected numbers of bands, counted from 1"),
        ({"bands": "1,2"}, "--bands names 2, and --mode RGB has 3 channels"),
        ({"scale": "0:1", "window": "file"}, "--scale and --window exclude each other"),
        ({"scale": "0:1", "depth": 12}, "--depth is a scale"),
        ({"scale": "0:1", "check": "header"}, "need --check full"),
        ({"scale": "0:1", "keep": "tiff"}, "--keep keeps values"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        Encoding(**options)


def test_the_page_names_who_reads_each_format() -> None:
    page = (ROOT / "docs" / "pixels-and-encodings.md").read_text()
    for codec in codecs().values():
        assert f"| {codec.reads_with} | {codec.pillow} |" in page
        assert all(f"`{suffix}`" in page for suffix in codec.suffixes)
