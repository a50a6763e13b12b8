"""The codecs that are installed, and which one reads a file.

A new one of gpuload's own is a class and a row in `BUILT_IN`; one of another package is an entry point.
"""

import warnings
from functools import cache

from gpuload.errors import MissingPackageError
from gpuload.formats.codec import Codec
from gpuload.machine.plugins import Plugin, plugins

GROUP = "gpuload.codecs"
# gpuload's own, as entry points of other packages declare theirs, in the order in which they are asked.
BUILT_IN = {
    "jpeg": "gpuload.formats.jpegs:JpegCodec",
    "png": "gpuload.formats.pngs:PngCodec",
    "tiff": "gpuload.formats.tiffs:TiffCodec",
    "jpeg2000": "gpuload.formats.jpeg2000s:Jpeg2000Codec",
    "avif": "gpuload.formats.boxed:AvifCodec",
    "heic": "gpuload.formats.boxed:HeicCodec",
    "raw": "gpuload.formats.boxed:RawCodec",
    "jxl": "gpuload.formats.jxl:JxlCodec",
    "qoi": "gpuload.formats.qoi:QoiCodec",
    "exr": "gpuload.formats.exr:ExrCodec",
    "dicom": "gpuload.formats.dicom:DicomCodec",
    "fits": "gpuload.formats.fits:FitsCodec",
}
# What no other codec recognises.
REST = {"pillow": "gpuload.formats.pillows:PillowCodec"}


@cache
def codecs(own_alone: bool = False) -> dict[str, Codec]:
    """By name, in the order in which they are asked: gpuload's own, those of other packages, and Pillow.

    So a package adds formats, and changes none that gpuload reads by a codec of its own.

    Args:
        own_alone: Without those of other packages, as shards that are read must mean the same everywhere.
    """
    names = {**BUILT_IN, **REST}
    others = plugins("" if own_alone else GROUP, names)
    rest = {name: others.pop(name) for name in REST}
    opened = dict[str, Codec]()
    for name, plugin in (others | rest).items():
        try:
            opened[name] = _made(plugin)
        except MissingPackageError as error:
            warnings.warn(str(error), stacklevel=2)
    return opened


def _made(plugin: Plugin) -> Codec:
    """Raises MissingPackageError for what cannot be imported, or is no codec."""
    kind = plugin.load()
    try:
        codec = kind()
    except TypeError as error:  # an abstract method is missing
        fault = str(error)
    else:
        if isinstance(codec, Codec):
            return codec
        fault = "it is no gpuload.Codec"
    raise MissingPackageError(
        f"{GROUP}: {plugin.name!r} of {plugin.package} is left out: {fault}. Correct it, or remove {plugin.package}"
    )


def codec_of(data: bytes, own_alone: bool = False) -> Codec:
    """The codec that reads a file; Pillow's where none recognises it."""
    for codec in codecs(own_alone).values():
        if codec.recognise(data):
            return codec
    raise AssertionError("Pillow's takes every file")


@cache
def image_extensions() -> frozenset[str]:
    """The extensions of files that are packed as images, in lower case, without their dots."""
    return frozenset(
        suffix.removeprefix(".")
        for codec in codecs().values()
        for suffix in codec.suffixes
    )
