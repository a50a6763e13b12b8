"""Memory between two pages that may not be touched: what reads or writes one byte too far ends the process."""

import ctypes
import mmap

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Up to `size` bytes between two guard pages."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self.size + 2 * _PAGE)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + _PAGE
        for guard in (self._begin - _PAGE, self._begin + self.size):
            # PROT_NONE.
            if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, size: int, at_end: bool = True) -> int:
        """The address of `size` bytes that end, or begin, at a guard page."""
        return self._begin + (self.size - size if at_end else 0)

    def put(self, data: bytes, at_end: bool = True) -> int:
        """The address of these bytes."""
        address = self.place(len(data), at_end)
        ctypes.memmove(address, data, len(data))
        return address
