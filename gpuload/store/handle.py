"""A file descriptor that is closed with the last reference to it."""

import os
from collections.abc import Callable


class Handle:
    """The descriptor of an open file; its locks end with it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)
