"""Memory by its address, in compiled functions: what numba has no expression for.

Indices into what a pointer points to are not checked, nor counted from the end where they are negative.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _pointer_to(kind: types.Type) -> Any:
    def make(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return intrinsic(make)


bytes_at, entries_at, numbers_at, longs_at, words_at = (
    _pointer_to(kind) for kind in (types.uint8, types.uint32, types.int32, types.int64, types.uint64)
)


def _load_word(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.bswap(builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1))

    return types.uint64(address), generate


def _store_word(_: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(address, value), generate


def _swap(_: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return word(word), generate


swapped: Any = intrinsic(_swap)  # a word with its bytes in reverse order
load_word: Any = intrinsic(_load_word)  # uint64: the 8 bytes at an address, big-endian
store_word: Any = intrinsic(_store_word)  # stores a word at an address, in the machine's byte order
