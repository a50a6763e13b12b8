"""Access to memory by address in compiled functions, which numba lacks.

Indices from a pointer are not checked, and negative ones do not count from the end.
"""

from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic


def _pointer_to(kind: types.Type) -> Any:
    def make(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return intrinsic(make)


bytes_at, signed_at, halves_at, entries_at, numbers_at, longs_at, words_at, floats_at, doubles_at = (
    _pointer_to(kind)
    for kind in (
        types.uint8,
        types.int8,
        types.uint16,
        types.uint32,
        types.int32,
        types.int64,
        types.uint64,
        types.float32,
        types.float64,
    )
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


def _markers(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), MARKER_BYTES)

        def load(after: int) -> Any:
            at = builder.add(args[0], ir.Constant(args[0].type, after))
            return builder.load(builder.inttoptr(at, vector.as_pointer()), align=1)

        def all_of(number: int) -> Any:
            return ir.Constant(vector, [number] * MARKER_BYTES)

        code = load(1)
        is_restart = builder.icmp_unsigned("==", builder.and_(code, all_of(0xF8)), all_of(0xD0))
        is_other = builder.or_(is_restart, builder.icmp_unsigned("==", code, all_of(0)))
        begins = builder.icmp_unsigned("==", load(0), all_of(0xFF))
        return builder.bitcast(builder.and_(begins, builder.not_(is_other)), ir.IntType(MARKER_BYTES))

    return types.uint64(address), generate


def _add(_: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], args[1].type.as_pointer()), args[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


def _call(_: Any, function: Any, arguments: Any, begin: Any, end: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long = ir.IntType(64)
        return builder.call(builder.inttoptr(args[0], ir.FunctionType(long, [long] * 3).as_pointer()), args[1:])

    return types.int64(*[types.int64] * 4), generate


MARKER_BYTES = 64
# uint64: a bit for each of MARKER_BYTES bytes at an address, whether a JPEG's marker begins there that is neither a
# stuffed byte nor a restart marker; the byte after them is read, too.
find_markers: Any = intrinsic(_markers)
array_at: Any = carray  # the array of this shape that a pointer points to
add: Any = intrinsic(_add)  # adds to the int64 at an address, whatever other threads do, and returns what it was before
call: Any = intrinsic(_call)  # calls the function at an address with three int64, see `gpuload.decode.native.steps`
swapped: Any = intrinsic(_swap)  # a word with its bytes in reverse order
load_word: Any = intrinsic(_load_word)  # uint64: the 8 bytes at an address, big-endian
store_word: Any = intrinsic(_store_word)  # stores a word at an address, in the machine's byte order
