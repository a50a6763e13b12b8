"""The stored bytes of members, as views of their shards."""

from collections.abc import Iterator, Sequence
from typing import overload

from gpuload.types import I64, U8


class MemberViews(Sequence[U8]):
    """The stored bytes of N members: uint8 arrays, each made when it is asked for.

    DALI asks for all images, the CPU decoder for hardly any, and making a view takes a tenth of the time in which a
    small image is decoded.

    shards: the bytes of some shards. shard_of: int64 (N,), index into `shards` for each member. starts, stops: int64
    (N,), the member's bytes in its shard.
    """

    def __init__(self, shards: Sequence[U8], shard_of: I64, starts: I64, stops: I64) -> None:
        self._shards, self._shard_of, self._starts, self._stops = shards, shard_of, starts, stops

    def __len__(self) -> int:
        return len(self._shard_of)

    @overload
    def __getitem__(self, index: int) -> U8: ...

    @overload
    def __getitem__(self, index: slice) -> "MemberViews": ...

    def __getitem__(self, index: int | slice) -> "U8 | MemberViews":
        if isinstance(index, slice):
            return MemberViews(self._shards, self._shard_of[index], self._starts[index], self._stops[index])
        shard: U8 = self._shards[self._shard_of[index]]
        return shard[self._starts[index] : self._stops[index]]

    def take(self, rows: I64) -> "MemberViews":
        """Those at these rows."""
        return MemberViews(self._shards, self._shard_of[rows], self._starts[rows], self._stops[rows])

    def __iter__(self) -> Iterator[U8]:
        shards, ends = self._shards, zip(self._starts.tolist(), self._stops.tolist(), strict=True)
        for shard, (start, stop) in zip(self._shard_of.tolist(), ends, strict=True):
            yield shards[shard][start:stop]
