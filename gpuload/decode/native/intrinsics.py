"""Access to memory by address, and vectors of integers, in compiled functions: numba has neither."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()

MARKER_BYTES = 64
TABLE_BYTES = 64
SOME_BYTES = 16

array_at: Any = carray  # the array of this shape that a pointer points to


class Lanes:
    """A vector of integers; operations work lane by lane."""

    def __init__(self, builder: ir.IRBuilder, value: Any) -> None:
        self._builder, self.value = builder, value

    @classmethod
    def load(cls, builder: ir.IRBuilder, address: Any, kind: ir.IntType, number: int, after: int = 0) -> "Lanes":
        """`number` lanes from `after` bytes after an address on."""
        pointer = builder.inttoptr(_after(builder, address, after), ir.VectorType(kind, number).as_pointer())
        return cls(builder, builder.load(pointer, align=1))

    def store(self, address: Any, after: int = 0) -> None:
        """Stores all lanes, from `after` bytes after an address on."""
        pointer = self._builder.inttoptr(_after(self._builder, address, after), self.value.type.as_pointer())
        self._builder.store(self.value, pointer, align=1)

    def store_lane(self, lane: int, kind: ir.IntType, address: Any, after: int = 0) -> None:
        """Stores the low bits of one lane."""
        word = self._builder.extract_element(self.value, ir.Constant(INT32, lane))
        word = word if kind is self.value.type.element else self._builder.trunc(word, kind)
        pointer = self._builder.inttoptr(_after(self._builder, address, after), kind.as_pointer())
        self._builder.store(word, pointer, align=1)

    def all(self, number: int) -> "Lanes":
        """A vector of as many lanes, each of this number."""
        return self._make(ir.Constant(self.value.type, [number] * self.value.type.count))

    def wide(self, kind: ir.IntType) -> "Lanes":
        """The lanes, which are not negative, in a wider type."""
        return self._make(self._builder.zext(self.value, ir.VectorType(kind, self.value.type.count)))

    def signed(self, kind: ir.IntType) -> "Lanes":
        """The lanes in a wider type."""
        return self._make(self._builder.sext(self.value, ir.VectorType(kind, self.value.type.count)))

    def narrow(self, kind: ir.IntType) -> "Lanes":
        """The low bits of the lanes, in a narrower type."""
        return self._make(self._builder.trunc(self.value, ir.VectorType(kind, self.value.type.count)))

    def __add__(self, other: "Lanes | int") -> "Lanes":
        return self._make(self._builder.add(self.value, self._as_lanes(other).value))

    def __sub__(self, other: "Lanes | int") -> "Lanes":
        return self._make(self._builder.sub(self.value, self._as_lanes(other).value))

    def __mul__(self, factor: int | list[int]) -> "Lanes":
        factors = self.all(factor).value if isinstance(factor, int) else ir.Constant(self.value.type, factor)
        return self._make(self._builder.mul(self.value, factors))

    def __lshift__(self, bits: int) -> "Lanes":
        return self._make(self._builder.shl(self.value, self.all(bits).value))

    def __rshift__(self, bits: int) -> "Lanes":
        return self._make(self._builder.ashr(self.value, self.all(bits).value))

    def __or__(self, other: "Lanes") -> "Lanes":
        return self._make(self._builder.or_(self.value, other.value))

    def __and__(self, bits: int) -> "Lanes":
        return self._make(self._builder.and_(self.value, self.all(bits).value))

    def as_floats(self) -> "Lanes":
        """float32; the operators do not take them, but `minus` and `times` do."""
        return self._make(self._builder.sitofp(self.value, ir.VectorType(FLOAT, self.value.type.count)))

    def minus(self, number: Any) -> "Lanes":
        """float32: less a number, a float32 value of the function."""
        return self._make(self._builder.fsub(self.value, self.filled(number)))

    def times(self, number: Any) -> "Lanes":
        """float32: multiplied by a number, a float32 value of the function."""
        return self._make(self._builder.fmul(self.value, self.filled(number)))

    def rounded(self, bits: int) -> "Lanes":
        """Shifted right by so many bits, rounded to the nearest."""
        return (self + (1 << (bits - 1))) >> bits

    def level(self) -> "Lanes":
        """Clamped to 0..255."""
        low, high = self.all(0).value, self.all(255).value
        value = self._builder.select(self._builder.icmp_signed("<", self.value, low), low, self.value)
        return self._make(self._builder.select(self._builder.icmp_signed(">", value, high), high, value))

    def shuffled(self, other: "Lanes", order: Sequence[int]) -> "Lanes":
        """The lanes with these indices, which count the lanes of this vector and then those of the other."""
        mask = ir.Constant(ir.VectorType(INT32, len(order)), list(order))
        return self._make(self._builder.shuffle_vector(self.value, other.value, mask))

    def filled(self, number: Any) -> Any:
        one = self._builder.insert_element(ir.Constant(self.value.type, ir.Undefined), number, ir.Constant(INT32, 0))
        return Lanes(self._builder, one).shuffled(Lanes(self._builder, one), [0] * self.value.type.count).value

    def _make(self, value: Any) -> "Lanes":
        return Lanes(self._builder, value)

    def _as_lanes(self, other: "Lanes | int") -> "Lanes":
        return self.all(other) if isinstance(other, int) else other


def _after(builder: ir.IRBuilder, address: Any, number: int) -> Any:
    return builder.add(address, ir.Constant(address.type, number)) if number else address


def _pointer_to(kind: types.Type) -> Any:
    def make(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return intrinsic(make)


bytes_at, signed_at, halves_at = _pointer_to(types.uint8), _pointer_to(types.int8), _pointer_to(types.uint16)
entries_at, numbers_at = _pointer_to(types.uint32), _pointer_to(types.int32)
longs_at, words_at = _pointer_to(types.int64), _pointer_to(types.uint64)
floats_at, doubles_at = _pointer_to(types.float32), _pointer_to(types.float64)


def emitted(*kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """An intrinsic of a function that emits LLVM's instructions: of a builder and of the arguments' values.

    kinds: of the result, void by default, and of the arguments, which are converted to them; as given by default.
    """
    result, *parameters = kinds or (types.void,)

    def make(emit: Callable[..., Any]) -> Any:
        def typed(_: Any, *given: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                made = emit(builder, *args)
                return context.get_dummy_value() if made is None else made

            return result(*(parameters or given)), generate

        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        return intrinsic(typed)

    return make


@emitted(types.uint64)
def load_word(builder: Any, address: Any) -> Any:
    """uint64: the 8 bytes at an address, big-endian."""
    return builder.bswap(builder.load(builder.inttoptr(address, INT64.as_pointer()), align=1))


@emitted()
def store_word(builder: Any, address: Any, value: Any) -> None:
    """Stores a word at an address, in the machine's byte order."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


@emitted(types.uint64)
def swapped(builder: Any, word: Any) -> Any:
    """A word with its bytes in reverse order."""
    return builder.bswap(word)


@emitted(types.uint64)
def find_markers(builder: Any, address: Any) -> Any:
    """uint64: a bit for each of MARKER_BYTES bytes at an address, whether a JPEG's marker begins there that is neither
    a stuffed byte nor a restart marker; the byte after them is read, too."""
    here, code = (Lanes.load(builder, address, INT8, MARKER_BYTES, after) for after in (0, 1))
    is_restart = builder.icmp_unsigned("==", (code & 0xF8).value, code.all(0xD0).value)
    is_other = builder.or_(is_restart, builder.icmp_unsigned("==", code.value, code.all(0).value))
    begins = builder.icmp_unsigned("==", here.value, here.all(0xFF).value)
    return builder.bitcast(builder.and_(begins, builder.not_(is_other)), ir.IntType(MARKER_BYTES))


@emitted(*[types.int64] * 3)
def add(builder: Any, address: Any, value: Any) -> Any:
    """Adds to the int64 at an address, whatever other threads do, and returns what it was before."""
    return builder.atomic_rmw("add", builder.inttoptr(address, value.type.as_pointer()), value, "monotonic")


@emitted(*[types.int64] * 5)
def call(builder: Any, function: Any, arguments: Any, begin: Any, end: Any) -> Any:
    """Calls the function at an address with three int64, see `gpuload.decode.native.steps`."""
    kind = ir.FunctionType(INT64, [INT64] * 3)
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [arguments, begin, end])


@emitted()
def look_up(builder: Any, table: Any, source: Any, target: Any) -> None:
    """Stores what a table of 256 bytes has for each of TABLE_BYTES bytes; at three addresses. One by one they take six
    times as long, where the processor has no instruction for it (AVX-512 VBMI)."""
    if "+avx512vbmi" not in cpu_target.target_context.codegen().magic_tuple()[-1]:
        entries, levels, to = (builder.inttoptr(address, INT8.as_pointer()) for address in (table, source, target))
        for at in range(TABLE_BYTES):
            place = [ir.Constant(INT64, at)]
            level = builder.zext(builder.load(builder.gep(levels, place)), INT64)
            builder.store(builder.load(builder.gep(entries, [level])), builder.gep(to, place))
        return
    vector = ir.VectorType(INT8, TABLE_BYTES)
    kind, name = ir.FunctionType(vector, [vector] * 3), "llvm.x86.avx512.vpermi2var.qi.512"
    of_half = cgutils.get_or_insert_function(builder.module, kind, name)
    parts = [Lanes.load(builder, table, INT8, TABLE_BYTES, TABLE_BYTES * part).value for part in range(4)]
    levels = Lanes.load(builder, source, INT8, TABLE_BYTES)
    low, high = (builder.call(of_half, [parts[part], levels.value, parts[part + 1]]) for part in (0, 2))
    is_high = builder.icmp_signed("<", levels.value, levels.all(0).value)
    Lanes(builder, builder.select(is_high, high, low)).store(target)


@emitted(types.void, *[types.int64] * 4)
def copy_some(builder: Any, target: Any, source: Any, first: Any, last: Any) -> None:
    """Copies, of SOME_BYTES bytes, those from one number to before another to an address from another."""
    of, to = (Lanes.load(builder, address, INT8, SOME_BYTES) for address in (source, target))
    numbers = Lanes(builder, ir.Constant(to.value.type, list(range(SOME_BYTES))))
    from_first, to_last = (numbers.filled(builder.trunc(number, INT8)) for number in (first, last))
    begun = builder.icmp_signed(">=", numbers.value, from_first)
    chosen = builder.and_(begun, builder.icmp_signed("<", numbers.value, to_last))
    Lanes(builder, builder.select(chosen, of.value, to.value)).store(target)
