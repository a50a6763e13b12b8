"""Which decoder decodes, what it may use, and what becomes of samples that do not decode, as a user says it."""

from pathlib import Path
from typing import Annotated, Literal

from gpuload.checks import FLAG, PATH, choice, either, number, optional, settings, whole
from gpuload.errors import ArgumentError

DecoderName = Literal["auto", "dali", "native", "both"]

_SHARE = optional(number(0, 1, "a share of the images, in 0..1"))


@settings
class Dali:
    """DALI as the decoder: nvJPEG on a GPU, else its CPU operators: `DaliIterator(decoder=Dali(hardware=0.6))`.

    hardware: on a GPU, the share of the images that its JPEG engines decode; CUDA cores decode the rest. By default
        what `python -m gpuload tune` found on this device, if it ran, else what DALI decides.
    deterministic: on a GPU, CUDA cores decode all images. Otherwise the unit that decodes an image may depend on its
        batch, and its pixels by rounding. Tuned shares are not used. On a CPU pixels never depend on the batch.

    Raises:
        ArgumentError: a value out of its range; deterministic=True with a share for the JPEG engines.
    """

    hardware: Annotated[float | None, _SHARE] = None
    deterministic: Annotated[bool, FLAG] = False

    def __post_init__(self) -> None:
        _check_units(self)


@settings
class Both:
    """A share of each batch by the native decoder on the CPU, the rest by DALI on the GPU:
    `DaliIterator(decoder=Both(cpu=0.3))`.

    cpu: the share that the CPU decodes; by default what `python -m gpuload tune` found, else 0.25. Which images depends
        on (seed, epoch, sample) alone.
    hardware, deterministic: of the images that DALI decodes, as for `Dali`.

    Raises:
        ArgumentError: as `Dali`.
    """

    cpu: Annotated[float | None, _SHARE] = None
    hardware: Annotated[float | None, _SHARE] = None
    deterministic: Annotated[bool, FLAG] = False

    def __post_init__(self) -> None:
        _check_units(self)


def _check_units(decoder: Dali | Both) -> None:
    if decoder.deterministic and decoder.hardware:  # also with 1: what the engines refuse goes to CUDA cores
        raise ArgumentError(
            f"{type(decoder).__name__}(hardware={decoder.hardware:g}, deterministic=True): which unit decodes an image "
            "depends on its batch. Leave either out"
        )


@settings
class OnCorrupt:
    """What becomes of samples that do not decode, and how many there may be:
    `DaliIterator(on_corrupt=OnCorrupt("skip", most=0.001))`.

    action: "skip" or "mark", as `DaliIterator` describes them.
    most: how many may come in an epoch on this rank, as a whole number or as a share, in 0..1, of the samples that this
        rank gets in an epoch; more raise DecodeError.
    log: a file to which each of them is appended, as a line of JSON, whenever it comes.

    Raises:
        ArgumentError: a value out of its range.
    """

    action: Annotated[Literal["skip", "mark"], choice("skip", "mark")]
    most: Annotated[
        float,
        either("a whole number of samples from 0, or a share as a float in 0..1", whole(0), number(0, 1, "a share")),
    ] = 0.01
    log: Annotated[str | Path | None, optional(PATH)] = None
