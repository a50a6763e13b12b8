"""Images in boxes (ISO 14496-12) and what looks like them or like a TIFF: AVIF, HEIC, and cameras' raw files."""

from importlib import import_module

import numpy as np

from gpuload.errors import DecodeError
from gpuload.formats.codec import Codec, OpenedFile, require
from gpuload.formats.pillows import open_by_pillow
from gpuload.formats.raster import Conversion, Raster

_AVIF = (b"avif", b"avis")
_HEIF = (b"he", b"mi", b"ms")  # what brands begin with
_CROP_BOX = b"\0\0\0\x28clap"
_BOXES_BYTES = 1 << 16  # in which the boxes about an image are
_AV1 = b"av1C"  # the configuration of AV1: version, profile, then a byte of flags
_MORE_THAN_8_BITS = 0x40
_TWELVE_BITS = 0x20
# By the bytes at the beginning: which camera's raw files they are. Those like TIFF are told by `tiffs`.
_RAW = {
    b"FUJIFILMCCD-RAW": "RAF of Fujifilm",
    b"IIRO": "ORF of Olympus",
    b"IIRS": "ORF of Olympus",
    b"MMOR": "ORF of Olympus",
    b"IIU\0": "RW2 of Panasonic",
    b"FOVb": "X3F of Sigma",
}
_CANON = b"crx "


class AvifCodec(Codec):
    """Of 10 and 12 bits by imagecodecs, where 8 bits are not enough; else Pillow."""

    title = "an AVIF"
    suffixes = (".avif", ".avifs")
    needs = ("imagecodecs",)
    reads_with = "Pillow; all 10 or 12 bits imagecodecs"
    pillow = (
        "reduces 10 and 12 bits to 8, and does not apply a crop box: that is refused"
    )
    for_display = True

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data[4:8] == b"ftyp" and data[8:12] in _AVIF

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        boxes = data[:_BOXES_BYTES]
        if _CROP_BOX in boxes:
            raise DecodeError(
                "is an AVIF with a crop box (clap), which Pillow does not apply; convert it to PNG"
            )
        opened = open_by_pillow(data, conversion)
        bits = _bits_of_av1(boxes)
        if bits == 8 or not conversion.needs_every_bit:
            return opened
        require(f"is an AVIF of {bits} bits", conversion, *self.needs)
        image = opened.image
        assert image is not None
        if image.getexif().get(274, 1) != 1:
            raise DecodeError(
                f"is an AVIF of {bits} bits that is turned; convert it to TIFF or PNG"
            )
        has_alpha = image.mode == "RGBA"

        def load() -> Raster:
            values = import_module("imagecodecs").avif_decode(
                data, index=conversion.page or 0
            )
            return Raster(values=values, peak=(1 << bits) - 1, has_alpha=has_alpha)

        return OpenedFile("avif", opened.size, load, pages=opened.pages)


def _bits_of_av1(boxes: bytes) -> int:
    place = boxes.find(_AV1)
    flags = boxes[place + 6 : place + 7]
    if place < 0 or not flags or not flags[0] & _MORE_THAN_8_BITS:
        return 8
    return 12 if flags[0] & _TWELVE_BITS else 10


class HeicCodec(Codec):
    """By pillow-heif, all bits where 8 are not enough."""

    title = "HEIC"
    suffixes = (".heic", ".heif", ".hif")
    needs = ("pillow_heif",)
    reads_with = "pillow-heif"
    pillow = "reads none"
    for_display = True

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data[4:8] == b"ftyp" and data[8:10] in _HEIF

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        self.require(conversion)
        heif = import_module("pillow_heif")
        heif.register_heif_opener()
        opened = open_by_pillow(data, conversion)
        if not conversion.needs_every_bit:
            return opened
        file = heif.open_heif(data, convert_hdr_to_8bit=False)
        picture = file[conversion.page or file.primary_index]
        bits = picture.info.get("bit_depth", 8)
        if bits <= 8:
            return opened

        def load() -> Raster:
            values = np.asarray(picture) >> (16 - bits)
            return Raster(
                values=values,
                peak=(1 << bits) - 1,
                has_alpha=picture.has_alpha,
                profile=picture.info.get("icc_profile") or b"",
            )

        return OpenedFile("heif", picture.size, load, pages=opened.pages)


class RawCodec(Codec):
    """Cameras' raw files, which are refused by name: what their values look like is a decision."""

    title = "a camera's raw file"
    reads_with = "none: develop them"
    pillow = "shows the thumbnail of some"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return bool(_camera(data))

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        raise DecodeError(
            f"is a {_camera(data)}, the values of a camera's sensor; develop it to TIFF, PNG or JPEG"
        )


def _camera(data: bytes) -> str:
    if data[4:8] == b"ftyp" and data[8:12] == _CANON:
        return "CR3 of Canon"
    return next((name for start, name in _RAW.items() if data.startswith(start)), "")
