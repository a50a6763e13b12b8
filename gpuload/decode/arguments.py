"""Arguments of decoding: the decoder, its resources, and the handling of samples that do not decode."""

from typing import Annotated, Literal

from gpuload.checks import FLAG, choice, either, number, optional, settings, whole
from gpuload.errors import ArgumentError

Backend = Literal["dali", "native", "both"]
DecoderName = Literal["auto", Backend]

_SHARE = number(0, 1, "a share of the images, in 0..1")


@settings
class Dali:
    """DALI as the decoder: nvJPEG on a GPU, otherwise its CPU operators: `DaliIterator(decoder=Dali(hardware=0.6))`.

    Args:
        hardware: On a GPU, the share of the images that its JPEG engines decode; CUDA cores decode the rest. By default
            DALI's choice.
        deterministic: On a GPU, CUDA cores decode all images. Otherwise the unit that decodes an image, and thus the
            rounding of its pixels, may depend on its batch. On a CPU pixels never depend on the batch.

    Raises:
        ArgumentError: a value out of its range; deterministic=True with a share for the JPEG engines.
    """

    hardware: Annotated[float | None, optional(_SHARE)] = None
    deterministic: Annotated[bool, FLAG] = False

    def __post_init__(self) -> None:
        _check_units(self)


@settings
class Both:
    """The native decoder on the CPU for a share of each batch, and DALI on the GPU for the rest:
    `DaliIterator(decoder=Both(cpu=0.3))`.

    Args:
        cpu: The share that the CPU decodes. The choice of images depends only on (seed, epoch, sample).
        hardware: As for `Dali`, of the images that DALI decodes.
        deterministic: As for `Dali`, of the images that DALI decodes.

    Raises:
        ArgumentError: as `Dali`.
    """

    cpu: Annotated[float, _SHARE] = 0.25
    hardware: Annotated[float | None, optional(_SHARE)] = None
    deterministic: Annotated[bool, FLAG] = False

    def __post_init__(self) -> None:
        _check_units(self)


def _check_units(decoder: Dali | Both) -> None:
    # Even with 1: CUDA cores decode what the engines reject.
    if decoder.deterministic and decoder.hardware:
        raise ArgumentError(
            f"{type(decoder).__name__}(hardware={decoder.hardware:g}, deterministic=True): which unit decodes an image "
            "depends on its batch. Leave either out"
        )


@settings
class OnCorrupt:
    """The handling of samples that do not decode, and their maximum number:
    `DaliIterator(on_corrupt=OnCorrupt("skip", most=0.001))`.

    Args:
        action: "skip" or "mark", as `DaliIterator` describes them.
        most: The number allowed per epoch on this rank, as an int, or as a share in 0..1 of this rank's samples per
            epoch; more raise DecodeError.

    Raises:
        ArgumentError: a value out of its range.
    """

    action: Annotated[Literal["skip", "mark"], choice("skip", "mark")]
    most: Annotated[
        float,
        either(
            "a whole number of samples from 0, or a share as a float in 0..1",
            whole(0),
            number(0, 1, "a share"),
        ),
    ] = 0.01
