"""What a decoder is: the seam between `gpuload.pipeline` (DALI) and `gpuload.turbo` (libjpeg-turbo and torch)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gpuload.augment import Crops
from gpuload.reader import Bytes


class Request(Protocol):
    """What a decoder needs to know of a batch of N samples."""

    @property
    def images(self) -> Sequence[Bytes]: ...

    @property
    def crops(self) -> Crops: ...


R = TypeVar("R", bound=Request)


class Decoder(Protocol, Generic[R]):
    """Decodes batches in order, some of them ahead of the one asked for."""

    def decode(self, requests: Iterator[R]) -> Iterator[tuple[R, Any]]:
        """Pairs of a request and its batch: an array that speaks DLPack, (N, 3, height, width), or for channels_last
        (N, height, width, 3).

        Only one call is under way at a time; a new one ends the one before.

        Raises:
            BatchDecodeError: images of the next batch do not decode.
        """

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""


@dataclass(frozen=True)
class Largest:
    """The largest stored image, in pixels and bytes, so that memory can be had at the start. 0 is unknown."""

    width: int = 0
    height: int = 0
    bytes: int = 0


class BatchDecodeError(Exception):
    """Images at these places of a request do not decode."""

    def __init__(self, request: Request, places: list[int]) -> None:
        super().__init__(f"{len(places)} of {len(request.images)} images do not decode")
        self.request = request
        self.places = places
