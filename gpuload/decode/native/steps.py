"""What kernels do to a batch: steps, and the threads that share its rows.

Python's lock is held only between calls. One call per image would cost 49 to 66 µs of Python for each image of 500×375,
which would limit 16 threads to some 15,000 images/s (2 cores, 2026-11).
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from gpuload.kernels.images import EncodedImages
from gpuload.kernels.jpeg import Scratch
from gpuload.kernels.loading import address_of, kernel
from gpuload.kernels.structs import Blocks, ImageThread, KernelCall, address
from gpuload.types import I64, Array

_FAILED = -2


class Step:
    """A kernel with its arguments; calling it with `begin, end` processes these rows of a batch.

    Args:
        name: Of the kernel.
        arguments: Its structure.
        held: Owners of the addresses in it.

    Raises:
        MemoryError: on a call, if there is no memory.
    """

    def __init__(self, name: str, arguments: ctypes.Structure, *held: Any) -> None:
        self.arguments = arguments
        self.address = address(arguments)
        self.function_address = address_of(name)
        self._kernel = kernel(name)
        self._held = held

    def __call__(self, begin: int, end: int) -> None:
        if not self._kernel(self.address, begin, end):
            raise MemoryError


class DecodeStep:
    """What completes the pictures of a batch's images, in a thread that has memory for it."""

    def __init__(self, images: EncodedImages) -> None:
        self.address = images.address
        self._held = images

    def __call__(self, begin: int, end: int, thread: "ThreadMemory") -> None:
        kernel("decode_rows")(self.address, thread.address, begin, end)


class ThreadMemory:
    """What a thread decodes images with.

    Args:
        memory: uint8, for the pixels of as many images as are decoded in one call, and for what one needs beside.
        scratch: Of the thread.
    """

    def __init__(self, memory: Array, scratch: Scratch) -> None:
        self.size = len(memory)
        self._held = memory, scratch
        self._struct = ImageThread(memory.ctypes.data, scratch.address)
        self.address = address(self._struct)


class SharedBlocks:
    """What threads do to a batch, some rows of it at a time.

    Args:
        rows_at_once: Rows of a block.
        pictures: (N,) of `PICTURE`.
        decode: What completes those that are not decoded; None: nothing does.
        steps: What is made of pictures then.
        leaves_all: Each block is left to Python after `decode`.
    """

    def __init__(
        self,
        rows_at_once: int,
        pictures: Array,
        decode: DecodeStep | None,
        steps: Sequence[Step],
        leaves_all: bool,
    ) -> None:
        pairs = [KernelCall(step.function_address, step.address) for step in steps]
        array = (KernelCall * len(steps))(*pairs)
        images = None if decode is None else decode.address
        shape = (len(pictures), rows_at_once, pictures.ctypes.data)
        self._struct = Blocks(
            *shape, images, ctypes.addressof(array), len(steps), leaves_all
        )
        self._held = array, pictures, decode, steps

    def remaining(self, taken: I64, thread: ThreadMemory | None) -> Iterator[int]:
        """One thread's share of the batch: the next block that no other thread has taken, until none are left.

        Args:
            taken: int64 (1,), how many rows threads have taken.
            thread: What `decode` needs; None without it.

        Yields:
            Where a block begins that is left to the caller, since a picture is missing or `leaves_all` is set.

        Raises:
            MemoryError: there is no memory.
        """
        run = kernel("run_blocks")
        blocks = address(self._struct)
        memory = None if thread is None else thread.address
        while (begin := run(blocks, memory, taken.ctypes.data)) >= 0:
            yield begin
        if begin == _FAILED:
            raise MemoryError
