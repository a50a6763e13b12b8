"""What the pixels of a set are: how many channels of which type, called by Pillow's modes where it has one."""

import re
from typing import Any, NamedTuple

import numpy as np

from gpuload.checks import Rule, as_text
from gpuload.fields.field import Field

# 16 bits and floats with several channels have no mode in Pillow.
_MODES = {"L": (1, "uint8"), "RGB": (3, "uint8"), "RGBA": (4, "uint8"), "I;16": (1, "uint16"), "F": (1, "float32")}
_PEAKS = {"uint8": 255, "uint16": 65_535, "float32": 1}
DTYPES = tuple(_PEAKS)
_STORED = {"uint8": "|u1", "uint16": "<u2", "float32": "<f4"}  # as NumPy writes them, little-endian
MOST_CHANNELS = 256
EXPECTED = "one of L, RGB, RGBA, I;16, F, or for arrays type and channels, such as uint16x4 or float32x7"


class Pixels(NamedTuple):
    """Pixels of `channels` values each, of dtype "uint8", "uint16" or "float32"."""

    channels: int = 3
    dtype: str = "uint8"

    @property
    def is_rgb(self) -> bool:
        return self == RGB

    @property
    def mode(self) -> str:
        """Pillow's mode, or such as "float32x7"."""
        return next((name for name, one in _MODES.items() if one == self), f"{self.dtype}x{self.channels}")

    @property
    def peak(self) -> int:
        """The value that `Augment` takes for 1: the largest whole number; floats are taken as they are."""
        return _PEAKS[self.dtype]

    @property
    def stored(self) -> str:
        """The dtype of raw pixels in a shard, in NumPy's notation."""
        return _STORED[self.dtype]

    @property
    def bytes(self) -> int:
        """Of one pixel."""
        return self.channels * np.dtype(self.dtype).itemsize

    @property
    def in_words(self) -> str:
        return f"{self.channels} {'channel' if self.channels == 1 else 'channels'} of {self.dtype}"

    @classmethod
    def of_field(cls, field: Field) -> "Pixels":
        """Those of an image field; a field that says nothing of them holds RGB, as all did before 2026-11-22.

        Raises:
            ValueError: it says what cannot be; the message is the reason.
        """
        if field.dtype is None and not field.size:
            return RGB
        dtype = next((name for name, stored in _STORED.items() if stored == field.dtype), None)
        if dtype is None or not 1 <= field.size <= MOST_CHANNELS:
            raise ValueError(f"its pixels cannot be {field.size} × {field.dtype!r}")
        return cls(field.size, dtype)

    @classmethod
    def of_mode(cls, mode: str) -> "Pixels":
        """The inverse of `mode`.

        Raises:
            ValueError: there is no such mode.
        """
        if mode in _MODES:
            return cls(*_MODES[mode])
        found = re.fullmatch(r"(uint8|uint16|float32)x([1-9][0-9]{0,2})", mode)
        if found is None or int(found[2]) > MOST_CHANNELS:
            raise ValueError(f"there is no mode {mode!r}")
        return cls(int(found[2]), found[1])

    def in_field(self) -> dict[str, Any]:
        """The attributes of a `Field` that tell of them; RGB is told by none, as older versions wrote it."""
        return {} if self == RGB else {"size": self.channels, "dtype": self.stored}


RGB = Pixels()
GRAY = Pixels(1)
MODE = Rule(EXPECTED, lambda value: Pixels.of_mode(as_text(value)).mode)
