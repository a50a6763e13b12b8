"""Chooses the decoder and the device, and opens the decoder."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

from gpuload.augment import Form
from gpuload.augment.schedule import Schedule
from gpuload.collector import paused_collector
from gpuload.decode.function.open import Functions, inner_forms, open_functions
from gpuload.decode.guard import FindFaults, Guard, OnCorrupt
from gpuload.decode.interface import Decoder, NoDecoder, Stored
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, MissingPackageError
from gpuload.fields.pixels import GRAY, RGB
from gpuload.installed import Fault, fault_of, has_driver, require
from gpuload.ranks import Ranks, find_device

DecoderName = Literal["auto", "dali", "native", "both"]
Backend = Literal["dali", "native", "both"]

_LOG = logging.getLogger(__name__)


def choose_backend(decoder: str, device: str, ranks: Ranks, decodes: bool = True) -> tuple[Backend, int | None]:
    """The decoder and the number of the GPU that batches are on, or None for the CPU.

    "auto" is DALI on a GPU. On a CPU it is "native" where that can be used: its images/s over DALI's, for random crops
    on 2 cores (2026-11), are 1.7 with ImageNet's JPEGs, 1.5 at 64×64, and with raw images 1.7 at 64×64 and 128×128.
    Where it cannot, DALI decodes, and that is logged.

    decodes: whether anything is to be decoded; if not, no packages are needed.

    Raises:
        DeviceError: there is no such GPU.
        MissingPackageError: the packages of the decoder cannot be used; with "auto" on a CPU, those of neither.
    """
    if decoder in ("native", "both") and decodes and (fault := native_fault()) is not None:
        raise MissingPackageError(f"decoder={decoder!r}: {fault.reason}. {fault.remedy}. Or use decoder='dali'")
    if decoder == "native":
        return "native", find_device(device, ranks, 0 if device == "cpu" else _count_torchs_gpus(device))
    device_id = find_device(device, ranks, 0 if device == "cpu" else _count_gpus(device))
    if not decodes:
        return ("native" if decoder == "auto" and device_id is None else "dali"), device_id
    if decoder == "auto" and device_id is None:
        if (fault := native_fault()) is None:
            return "native", None
        if (other := _dali_fault()) is not None:
            raise MissingPackageError(
                f"decoder='auto': no decoder can be used. 'native': {fault.reason}; 'dali': {other.reason}. "
                f"{fault.remedy}"
            )
        _log(fault, "DALI decodes, which on a CPU is slower than the native decoder")
    elif (fault := _dali_fault()) is not None:
        raise _without_dali(f"decoder={decoder!r}", fault)
    return ("both" if decoder == "both" else "dali"), device_id


def open_decoder(
    name: Backend,
    device_id: int | None,
    datasets: Sequence[Dataset],
    schedule: Schedule,
    mask_fills: tuple[int, ...] | None,
    graph: Callable[[Any, Any], Any] | None,
    hw_decoder_load: float | None,
    on_corrupt: OnCorrupt = "raise",
    cpu_share: float = 0.0,
    functions: Functions | None = None,
    **options: Any,
) -> Guard:
    """The decoder, guarded; options are batch_size, num_threads and prefetch.

    mask_fills: for each mask field the class of what lies outside the image; None where neither images nor masks are
        asked for, so that nothing is decoded. cpu_share: what "both" gives to the CPU decoder. functions: of the
        user's; None: there are none.

    Raises:
        ArgumentError: both encoded and raw images for DALI; DALI operators for another decoder.
    """
    if graph is not None and name != "dali":
        raise ArgumentError("graph: DALI operators need decoder='dali'")
    modes = {form.padding_mode for form in schedule.forms} - {"constant"}
    if graph is not None and modes:
        raise ArgumentError(
            f"graph: DALI operators come before the padding of RandomCrop(padding_mode={modes.pop()!r}). Use "
            "padding_mode='constant', or transforms"
        )
    if mask_fills is None:
        return Guard(NoDecoder())
    manifests = [dataset.manifest for dataset in datasets]
    stored = Stored(
        max(manifest.width for manifest in manifests),
        max(manifest.height for manifest in manifests),
        plain=all(manifest.upright for manifest in manifests),
        raw=all(_is_raw(dataset) for dataset in datasets),
        mask_fills=mask_fills,
        pixels=schedule.pixels,
        source=RGB if schedule.pixels == RGB else manifests[0].pixels,  # gray decodes to RGB as well
        others=any(manifest.has_others for manifest in manifests),
    )
    if functions is None:
        decoder, find_faults = _open(
            name, schedule.forms, datasets, stored, device_id, graph, hw_decoder_load, cpu_share, **options
        )
        return Guard(decoder, on_corrupt, find_faults, stored.source)
    if graph is not None:
        raise ArgumentError("graph: cannot be used where an Augment has a function. Use one of them")
    forms, inner, find_faults = inner_forms(schedule.forms, stored, device_id), None, None
    if len(forms) < len(schedule.forms):
        if (fault := native_fault()) is not None:
            raise MissingPackageError(f"Augment(function_at='before_crop'): {fault.reason}. {fault.remedy}")
        _check_gray("Augment(function_at='before_crop')", stored, datasets)
    if forms:  # on the CPU, where the functions are; what they have made is copied to a GPU
        ahead = {**options, "prefetch": 1}
        inner, find_faults = _open(name, forms, datasets, stored, None, None, None, cpu_share, **ahead)
    decoder = open_functions(inner, functions, schedule.forms, stored, device_id, **options)
    return Guard(decoder, on_corrupt, find_faults, stored.source)


def _open(
    name: Backend,
    forms: tuple[Form, ...],
    datasets: Sequence[Dataset],
    stored: Stored,
    device_id: int | None,
    graph: Callable[[Any, Any], Any] | None,
    hw_decoder_load: float | None,
    cpu_share: float,
    **options: Any,
) -> tuple[Decoder, FindFaults | None]:
    """The decoder, and what finds the samples that it must not be given; None where it takes anything."""
    if name == "native":
        _check_gray("decoder='native'", stored, datasets)
        return _open_native(forms, stored, device_id, **options), None
    if any(map(_is_raw, datasets)) and not stored.raw:
        raise ArgumentError(
            f"decoder={name!r}: one of the data sets holds encoded images and another raw ones. Pack both in the same "
            "way, or use decoder='native'"
        )
    dali, find_faults = _open_dali(forms, stored, device_id, graph=graph, hw_decoder_load=hw_decoder_load, **options)
    if name == "dali":
        return dali, find_faults
    from gpuload.decode.both import BothDecoder
    from gpuload.decode.share import find_dalis_faults

    native = _open_native(forms, stored, device_id, **options)
    both = BothDecoder(dali, native, stored, cpu_share)
    return both, partial(find_dalis_faults, find_faults, cpu_share)


def _check_gray(subject: str, stored: Stored, datasets: Sequence[Dataset]) -> None:
    if stored.source == GRAY and any(map(_is_raw, datasets)) and not stored.raw:
        raise ArgumentError(
            f"{subject}: one of the data sets holds encoded gray images and another raw ones. Pack both in the same way"
        )


def _open_native(forms: tuple[Form, ...], stored: Stored, device_id: int | None, **options: Any) -> Decoder:
    with paused_collector():
        if device_id is not None:
            from gpuload.decode.upload import open_uploading

            return open_uploading(forms, stored, device_id, **options)
        from gpuload.decode.native.decoder import NativeDecoder

        return NativeDecoder(forms, stored, **options)


def _open_dali(
    forms: tuple[Form, ...], stored: Stored, device_id: int | None, **options: Any
) -> tuple[Decoder, FindFaults]:
    """The decoder, and what finds the samples that it must not be given."""
    is_plain = all(form.is_plain for form in forms)
    if not is_plain:
        require("decoder='dali': transforms, normalize='image', erasing and padding_mode need torch", "torch")
    from gpuload.decode.dali.decoder import DaliDecoder

    dali = DaliDecoder(forms, stored, device_id=device_id, **options)
    if is_plain:
        return dali, dali.find_faults
    from gpuload.decode.dali.padding import PaddingDecoder
    from gpuload.decode.postprocess import PostprocessingDecoder

    pads = any(form.padding_mode != "constant" for form in forms)
    decoder = PaddingDecoder(dali, forms) if pads else dali
    return PostprocessingDecoder(decoder, forms, stored, device_id), dali.find_faults


def _is_raw(dataset: Dataset) -> bool:
    return dataset.require_field("image").kind == "raw"


def _count_gpus(device: str) -> int:
    if not has_driver():  # DALI would find none, too, and may not be installed
        return 0
    if (fault := _dali_fault()) is not None:
        if device != "auto":
            raise _without_dali(f"device={device!r}", fault)
        _log(fault, "the CPU decodes, although there is an NVIDIA driver")
        return 0
    from gpuload.decode.dali.decoder import count_gpus

    return count_gpus()


def _count_torchs_gpus(device: str) -> int:
    """GPUs that torch can use, which the CPU decoder's batches are copied to."""
    if device == "auto" and not has_driver():
        return 0
    if fault_of("torch") is not None:  # where nothing is decoded: NumPy's arrays
        return 0
    return int(import_module("torch").cuda.device_count())


def native_fault() -> Fault | None:
    """Why the native decoder cannot be used here."""
    for package in ("numba", "simplejpeg", "torch"):
        if (fault := fault_of(package)) is not None:
            return fault
    if getattr(getattr(import_module("numba"), "config", None), "DISABLE_JIT", False):
        return Fault("numba compiles nothing, since NUMBA_DISABLE_JIT is set", "Unset it")
    return fault_of("gpuload.decode.native.decoder")  # a version of numba that lacks something


def _dali_fault() -> Fault | None:
    """Why DALI cannot be used here."""
    return fault_of("nvidia.dali")


def _without_dali(subject: str, fault: Fault) -> MissingPackageError:
    return MissingPackageError(
        f"{subject}: {fault.reason}. {fault.remedy}; DALI decodes on machines without a GPU, too"
    )


def _log(fault: Fault, what: str) -> None:
    """One line; a warning where something that is installed does not work."""
    _LOG.log(logging.INFO if fault.is_missing else logging.WARNING, "%s: %s", what, fault.reason)
