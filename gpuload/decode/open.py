"""Chooses the decoder and the device, and opens the decoder."""

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from gpuload.augment.schedule import Schedule
from gpuload.collector import paused_collector
from gpuload.decode.interface import Decoder, NoDecoder, Stored
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, MissingPackageError
from gpuload.ranks import Ranks, find_device

DecoderName = Literal["auto", "dali", "native"]


def choose_backend(decoder: str, device: str, ranks: Ranks) -> tuple[Literal["dali", "native"], int | None]:
    """The decoder and the number of the GPU, or None for the CPU.

    "auto" is DALI on a GPU. On a CPU it is "native" where that is installed: its images/s over DALI's, for random crops
    on 2 cores (2026-11), are 1.7 with ImageNet's JPEGs, 1.5 at 64×64, and with raw images 1.7 at 64×64 and 128×128.

    Raises:
        ArgumentError: an unknown decoder, or one that does not run on that device.
        DeviceError: there is no such GPU.
        MissingPackageError: a GPU is asked for and DALI is not installed.
    """
    if decoder not in get_args(DecoderName):
        raise ArgumentError(f"decoder={decoder!r}: expected one of {', '.join(map(repr, get_args(DecoderName)))}")
    if decoder == "native" and device.startswith("cuda"):
        raise ArgumentError(f"decoder='native', device={device!r}: it runs on the CPU. Use decoder='dali'")
    device_id = find_device(device, ranks, 0 if device == "cpu" or decoder == "native" else _count_gpus(device))
    if decoder == "auto":
        has_native = all(_is_installed(name) for name in ("simplejpeg", "torch", "numba"))
        return ("native" if device_id is None and has_native else "dali"), device_id
    return ("native" if decoder == "native" else "dali"), device_id


def open_decoder(
    name: Literal["dali", "native"],
    device_id: int | None,
    datasets: Sequence[Dataset],
    schedule: Schedule,
    mask_fills: tuple[int, ...] | None,
    graph: Callable[[Any, Any], Any] | None,
    hw_decoder_load: float | None,
    **options: Any,
) -> Decoder:
    """The decoder; options are batch_size, num_threads and prefetch.

    mask_fills: for each mask field the class of what lies outside the image; None where neither images nor masks are
        asked for, so that nothing is decoded.

    Raises:
        ArgumentError: both encoded and raw images for DALI; DALI operators for another decoder.
        MissingPackageError: its packages are not installed.
    """
    if graph is not None and name != "dali":
        raise ArgumentError("graph: DALI operators need decoder='dali'")
    if mask_fills is None:
        return NoDecoder()
    manifests = [dataset.manifest for dataset in datasets]
    stored = Stored(
        max(manifest.width for manifest in manifests),
        max(manifest.height for manifest in manifests),
        plain=all(manifest.upright for manifest in manifests),
        raw=all(_is_raw(dataset) for dataset in datasets),
        mask_fills=mask_fills,
    )
    if name == "native":
        with paused_collector():
            from gpuload.decode.native.decoder import NativeDecoder

            return NativeDecoder(schedule.forms, stored, **options)
    from gpuload.decode.dali.decoder import DaliDecoder

    if any(map(_is_raw, datasets)) and not stored.raw:
        raise ArgumentError(
            "decoder='dali': one of the data sets holds encoded images and another raw ones. Pack both in the same "
            "way, or use decoder='native'"
        )
    decoder: Decoder = DaliDecoder(
        schedule.forms, stored, device_id=device_id, graph=graph, hw_decoder_load=hw_decoder_load, **options
    )
    if all(form.is_plain for form in schedule.forms):
        return decoder
    from gpuload.decode.postprocess import PostprocessingDecoder

    return PostprocessingDecoder(decoder, schedule.forms, mask_fills, device_id)


def _is_raw(dataset: Dataset) -> bool:
    return dataset.require_field("image").kind == "raw"


def _count_gpus(device: str) -> int:
    if device == "auto" and not _has_driver():
        return 0
    try:
        from gpuload.decode.dali.decoder import count_gpus
    except MissingPackageError:
        if device == "auto":
            return 0
        raise
    return count_gpus()


def _has_driver() -> bool:
    """Whether NVIDIA's driver is installed. This costs nothing, while asking DALI costs its import, 0.3 s."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ValueError, ModuleNotFoundError):  # sys.modules holds None for it, or its parent is missing
        return False
