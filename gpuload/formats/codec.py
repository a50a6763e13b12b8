"""What a codec is: the interface that gpuload's own and those of other packages implement.

A codec tells files of its format by their first bytes, and opens one: first its size, so that a file with too many
pixels is refused before there is memory for them, then its values. `docs/own-codec.md` shows how to write one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats.raster import Conversion, Raster
from gpuload.machine.installed import fault_of
from gpuload.types import WidthHeight


@dataclass
class OpenedFile:
    """A file whose header was read.

    Args:
        name: Of its format, such as "tiff", for the summary.
        size: (width, height) in pixels as stored, before the image is turned upright.
        load: Decodes it, upright.
        image: Pillow's, not loaded; None where another library decodes it.
        exact: Whether Pillow's pixels are what the file says, so that the file may be kept as it is.
        pages: How many images the file holds, of which `Conversion.page` names one; None where that is known only once
            it is decoded.
        remarks: Counts of images by a sentence for the user, in which {} stands for the count.
    """

    name: str
    size: WidthHeight
    load: Callable[[], Raster]
    image: Image.Image | None = None
    exact: bool = False
    pages: int | None = 1
    remarks: dict[str, int] = field(default_factory=dict)


class Codec(ABC):
    """Reads the files of one format.

    title: of such a file in messages, with its article: "a FITS file".
    suffixes: of its files, with their dots, by which folders are searched.
    needs: packages that decode it; a file is refused with their names where one cannot be used.
    reads_with: the library that gives the values.
    pillow: what Pillow, which reads all formats without a codec, does with such files: the reason for this one.
    for_display: whether files are photos for a display, of which 10 or 12 bits make no set of 16 by themselves.
    """

    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    reads_with: ClassVar[str]
    pillow: ClassVar[str] = ""
    for_display: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def recognise(cls, data: bytes) -> bool:
        """Whether a file is of this format, by its first bytes.

        Args:
            data: The whole file.
        """

    @abstractmethod
    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        """Reads the header.

        Args:
            data: The whole file, which may be damaged, or made to do harm.
            conversion: What the values become. Most codecs look at `page` alone: the conversion is not theirs.

        Raises:
            DecodeError: the file is not read; the message goes on after the name of the file, as "is a FITS file
                without an image".
        """

    def require(self, conversion: Conversion) -> None:
        """Raises DecodeError unless all packages of `needs` can be used, and may be."""
        if not conversion.codecs:
            raise DecodeError(f"is {self.title}, which is not read in place")
        if reason := fault(*self.needs):
            raise DecodeError(f"is {self.title}, and {reason}")


def require(kind: str, conversion: Conversion, *packages: str) -> None:
    """Raises DecodeError if a package cannot be used, or none may be.

    Args:
        kind: Of the file, the beginning of the message.
        conversion: Says whether other libraries may be used.
        *packages: Names as they are imported.
    """
    if not conversion.codecs:
        raise DecodeError(f"{kind}, which Pillow does not read right")
    if reason := fault(*packages):
        raise DecodeError(f"{kind}, which Pillow does not read right, and {reason}")


def check_page(conversion: Conversion, count: int) -> None:
    """Raises DecodeError unless a file of so many pages has the one that is asked for."""
    if conversion.page is not None and conversion.page >= count:
        raise DecodeError(
            f"has {count} pages or frames, and --page {conversion.page} counts from 0"
        )


def fault(*packages: str) -> str:
    """Why one of these cannot be used, with the remedy; "" if all can."""
    for package in packages:
        package_fault = fault_of(package)
        if package_fault is not None:
            return f"{package_fault.reason}: {package_fault.remedy}"
    return ""
