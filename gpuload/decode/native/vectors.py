"""Vectors of integers in functions that are being generated: operators that emit LLVM instructions."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()


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

    def narrow(self, kind: ir.IntType) -> "Lanes":
        """The low bits of the lanes, in a narrower type."""
        return self._make(self._builder.trunc(self.value, ir.VectorType(kind, self.value.type.count)))

    def __add__(self, other: "Lanes | int") -> "Lanes":
        return self._make(self._builder.add(self.value, self._as_lanes(other).value))

    def __sub__(self, other: "Lanes | int") -> "Lanes":
        return self._make(self._builder.sub(self.value, self._as_lanes(other).value))

    def __mul__(self, factor: int) -> "Lanes":
        return self._make(self._builder.mul(self.value, self.all(factor).value))

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
        return self._make(self._builder.fsub(self.value, self._filled(number)))

    def times(self, number: Any) -> "Lanes":
        """float32: multiplied by a number, a float32 value of the function."""
        return self._make(self._builder.fmul(self.value, self._filled(number)))

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

    def _filled(self, number: Any) -> Any:
        one = self._builder.insert_element(ir.Constant(self.value.type, ir.Undefined), number, ir.Constant(INT32, 0))
        return Lanes(self._builder, one).shuffled(Lanes(self._builder, one), [0] * self.value.type.count).value

    def _make(self, value: Any) -> "Lanes":
        return Lanes(self._builder, value)

    def _as_lanes(self, other: "Lanes | int") -> "Lanes":
        return self.all(other) if isinstance(other, int) else other


def _after(builder: ir.IRBuilder, address: Any, number: int) -> Any:
    return builder.add(address, ir.Constant(address.type, number)) if number else address
