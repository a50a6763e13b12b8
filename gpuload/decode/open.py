"""Chooses the decoder and the device, and opens the decoder."""

import logging
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuload.augment import Form
from gpuload.decode.arguments import Backend, Both, Dali, DecoderName
from gpuload.decode.dali.memory import Made, fits
from gpuload.decode.faults import FaultHandler, OnCorrupt, Prepare
from gpuload.decode.functions import CallFunctions, Functions
from gpuload.decode.interface import Buffers, Resources, Stored
from gpuload.decode.runner import OnPart, Runner, Split, Stage
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, MissingPackageError
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.functions.function import Caller, InThreads
from gpuload.machine.installed import (
    PackageFault,
    fault_of,
    has_driver,
    paused_collector,
    require,
)
from gpuload.machine.ranks import Ranks, count_threads, find_device

if TYPE_CHECKING:  # they need torch and DALI
    from gpuload.decode.dali.screen import Screen
    from gpuload.decode.device import Device

_LOG = logging.getLogger(__name__)

PREFETCH = 2

# With at least this many threads that decode, each on a core of the rank, the native decoder is the default for a GPU.
# Estimate: ResNet-50 on an H100 takes some 2,800 images/s; the native decoder makes about 1,200 a core from JPEGs like
# ImageNet's. Three cores decode enough, and three remain for reading, the training thread and peaks.
NATIVE_CORES = 6


def plan_resources(
    decoder: DecoderName | Dali | Both,
    ranks: Ranks,
    batch_size: int,
    num_threads: int | None,
    prefetch: int | None,
) -> Resources:
    """The resources of a decoder; None is the default."""
    units = Both() if isinstance(decoder, str) else decoder
    hardware = (
        0.0 if units.deterministic else units.hardware
    )  # 0: the CUDA cores, which every GPU has
    cpu = units.cpu if isinstance(units, Both) else 0.0
    return Resources(
        batch_size,
        num_threads or count_threads(ranks),
        prefetch or PREFETCH,
        hardware,
        cpu,
    )


def choose_decoder(
    decoder: DecoderName | Dali | Both,
    device: str,
    ranks: Ranks,
    datasets: Sequence[Dataset],
    resources: Resources,
    decodes: bool = True,
    made: Made = Made(),  # noqa: B008 -- it is immutable
) -> tuple[Backend, int | None]:
    """The decoder, and the number of the GPU for the batches, or None for the CPU.

    "auto" on a CPU is "native": its images/s over DALI's, for random crops on 2 cores (2026-11), are 1.7 with
    ImageNet's JPEGs, 1.5 at 64×64, and with raw images 1.7 at 64×64 and 128×128. On a GPU, "auto" is "native" if
    DALI's whole images do not fit into its memory, or if enough threads decode, each on a core of this rank, which
    leaves the GPU to training; otherwise "dali"; or the only usable decoder.

    decodes: whether anything needs decoding; if not, no packages are needed. made: of each image.

    Raises:
        DeviceError: there is no such GPU.
        MissingPackageError: the packages of the decoder, or with "auto" of both, are unusable.
    """
    name: DecoderName = (
        decoder
        if isinstance(decoder, str)
        else "dali"
        if isinstance(decoder, Dali)
        else "both"
    )
    uploads = name == "both" or (device != "cpu" and has_driver())
    native_fault = (
        fault_of("torch") if uploads and decodes and name != "dali" else None
    )  # torch brings batches to a GPU
    by_torch = name == "native" or (name == "auto" and decodes and native_fault is None)
    if native_fault is not None and name != "auto":
        raise _missing(name, native_fault)
    device_id = find_device(
        device, ranks, _count_gpus(device, by_torch, by_dali=name != "native")
    )
    if name == "native" or (
        name == "auto" and native_fault is None and device_id is None
    ):
        return "native", device_id
    missing_dali = dali_fault() if decodes else None
    if name != "auto":
        if missing_dali is not None:
            raise _missing(name, missing_dali)
        return name, device_id
    if native_fault is not None and missing_dali is not None:
        raise MissingPackageError(
            f"decoder='auto': no decoder can be used. 'native': {native_fault.reason}; 'dali': {missing_dali.reason}. "
            f"{native_fault.remedy}"
        )
    if native_fault is not None:
        _log(native_fault, "decoder='dali' is used")
        return "dali", device_id
    if missing_dali is not None:
        _log(missing_dali, "decoder='native' is used")
        return "native", device_id
    if device_id is None or not decodes:
        return "dali", device_id
    is_small = fits(datasets, resources.batch_size, resources.prefetch, device_id, made)
    at_work = min(resources.num_threads, count_threads(ranks))
    return ("dali" if is_small and at_work < NATIVE_CORES else "native"), device_id


def _missing(decoder: str, fault: PackageFault) -> MissingPackageError:
    return MissingPackageError(f"decoder={decoder!r}: {fault.reason}. {fault.remedy}")


def _log(fault: PackageFault, what: str) -> None:
    """Logs one line, as a warning if an installed package does not work."""
    _LOG.log(
        logging.INFO if fault.is_missing else logging.WARNING,
        "%s: %s",
        what,
        fault.reason,
    )


def _count_gpus(device: str, by_torch: bool, by_dali: bool) -> int:
    """Number of GPUs that torch can use, which uploads the native decoder's batches, or else DALI."""
    if (
        device == "cpu" or not has_driver()
    ):  # DALI would find none either, and may not be installed
        return 0
    if by_torch and (gpus := _count_torchs_gpus()):
        return gpus
    if not by_dali:
        return 0
    if (fault := dali_fault()) is None:
        return _count_dalis_gpus()
    if device != "auto":
        raise _missing("dali", fault)
    _log(fault, "the CPU decodes, although there is an NVIDIA driver")
    return 0


def _count_torchs_gpus() -> int:
    return (
        0
        if fault_of("torch") is not None
        else int(import_module("torch").cuda.device_count())
    )


def _count_dalis_gpus() -> int:
    from gpuload.decode.dali.decoder import count_gpus

    return count_gpus()


def dali_fault() -> PackageFault | None:
    """Why DALI cannot be used here."""
    return fault_of("nvidia.dali")


def find_stored(
    datasets: Sequence[Dataset], pixels: Pixels, mask_fills: tuple[int, ...]
) -> Stored:
    """The properties in the manifests. pixels: of the batch. mask_fills: for each mask field, the class outside the
    image."""
    manifests, raw = (
        [dataset.manifest for dataset in datasets],
        [dataset.manifest.is_raw for dataset in datasets],
    )
    return Stored(
        max(manifest.width for manifest in manifests),
        max(manifest.height for manifest in manifests),
        plain=all(manifest.upright for manifest in manifests),
        raw=all(raw),
        mixes_raw=any(raw) and not all(raw),
        mask_fills=mask_fills,
        pixels=pixels,
        source=RGB
        if pixels == RGB
        else manifests[0].pixels,  # gray decodes to RGB as well
    )


def open_decoder(
    name: Backend,
    device_id: int | None,
    forms: Sequence[Form],
    stored: Stored | None,
    resources: Resources,
    functions: Functions | None = None,
    on_corrupt: OnCorrupt = "raise",
) -> FaultHandler:
    """Opens the decoder, with its faults handled.

    stored: None if neither images nor masks are requested, so nothing is decoded. functions: user functions, or None.

    Raises:
        ArgumentError: both encoded and raw images for DALI.
    """
    if stored is None:
        return FaultHandler(Runner([Split(lambda job: ())], resources.prefetch))
    opening = _Opening(device_id, open_device(device_id), stored, resources)
    with paused_collector():
        stages, prepare = (
            opening.around(functions, name, forms)
            if functions
            else opening.stages(name, forms)
        )
    return FaultHandler(
        Runner(stages, resources.prefetch, opening.device),
        on_corrupt,
        prepare,
        stored.source,
    )


# The stages of a decoder, and what its `FaultHandler` calls first; None if the decoder takes anything.
Stages = tuple[list[Stage], Prepare | None]


class _Opening(NamedTuple):
    """Makes the stages of a decoder. device: where torch computes; None for the CPU, or if torch cannot use the GPU."""

    device_id: int | None
    device: "Device | None"
    stored: Stored
    resources: Resources

    def stages(self, name: Backend, forms: Sequence[Form]) -> Stages:
        """The stages for batches of these forms.

        Raises:
            ArgumentError: the decoder does not take such images or forms.
        """
        if name == "both" and any(form.places for form in forms):
            raise ArgumentError(
                "decoder='both': does not scale and pad, as one of the crops here does. Use decoder='native' or 'dali'"
            )
        if name != "native" and any(form.padding_mode != "constant" for form in forms):
            raise ArgumentError(
                f"decoder={name!r}: does not pad with pixels of the image, as a padding_mode here says. Use "
                "decoder='native'"
            )
        if name == "native":
            self.check_mixed(
                f"decoder={name!r}", self.stored.source == GRAY, "gray images"
            )
            return self.native(forms), None
        self.check_mixed(
            f"decoder={name!r}", True, "images", ", or use decoder='native'"
        )
        stages, screen = self.dali(forms)
        if name == "dali":
            return stages, lambda batch: screen.prepare(batch, np.arange(len(batch)))
        from gpuload.decode.in_torch import DALI, NATIVE, Join, divide, is_for_cpu

        share = self.resources.cpu_share
        feed, *dali = [OnPart(DALI, stage) for stage in stages]
        begin, *native = [OnPart(NATIVE, stage) for stage in self.native(forms)]
        stages = [Split(partial(divide, share)), feed, begin, *dali, *native, Join()]
        return stages, lambda batch: screen.prepare(
            batch, np.flatnonzero(~is_for_cpu(batch, share))
        )

    def around(
        self, functions: Functions, name: Backend, forms: Sequence[Form]
    ) -> Stages:
        """The stages with user functions, which run on the CPU; their results are copied to the GPU."""
        stored, device = self.stored, self.device
        if any(form.function == "before_crop" for form in forms):
            self.check_mixed(
                "Function(before_crop=True)", stored.source == GRAY, "gray images"
            )
        inner = [self._inner(form) for form in forms if form.function != "before_crop"]
        decoding, prepare = (
            self._replace(device_id=None, device=None).stages(name, inner)
            if inner
            else ([], None)
        )
        caller: Caller
        if functions.processes:
            from gpuload.functions.processes import InProcesses

            caller = InProcesses(functions.all, functions.entries, functions.processes)
        else:
            caller = InThreads(
                functions.all, functions.entries, self.resources.num_threads
            )
        call = CallFunctions(
            forms, stored, functions, caller, self.buffers, finishes=device is None
        )
        stages = [Split(call.inner), *(OnPart(0, stage) for stage in decoding), call]
        return [*stages, *([] if device is None else [self.finish(forms)])], prepare

    def _inner(self, form: Form) -> Form:
        """The decoder's output for a view: levels if a function follows, and always levels for a GPU."""
        if form.function:
            return form.levels(self.stored.pixels)._replace(
                layout="channels_last", flips_vertically=False
            )
        return form if self.device is None else form.levels(self.stored.pixels)

    def native(self, forms: Sequence[Form]) -> list[Stage]:
        """The stages of the native decoder."""
        from gpuload.decode.native.decoder import NativeDecoder

        made = (
            forms
            if self.device is None
            else [form.levels(self.stored.pixels) for form in forms]
        )
        decoder = NativeDecoder(
            made, self.stored, self.resources.num_threads, self.buffers
        )
        return [decoder] if self.device is None else [decoder, self.finish(forms)]

    def dali(self, forms: Sequence[Form]) -> "tuple[list[Stage], Screen]":
        """The stages of DALI, and what a batch must pass first."""
        is_plain = all(form.is_plain for form in forms)
        if not is_plain:
            require(
                "decoder='dali': transforms, normalize='image' and erasing need torch",
                "torch",
            )
        from gpuload.decode.dali.decoder import DaliDecoder

        dali = DaliDecoder(
            forms, self.stored, self.resources, self.device_id, self.device
        )
        return [
            dali.feed,
            dali,
            *([] if is_plain else [self.finish(forms, levels=False)]),
        ], dali.screen

    def finish(self, forms: Sequence[Form], *, levels: bool = True) -> Stage:
        """The last stage, in torch."""
        from gpuload.decode.in_torch import Finish

        return Finish(forms, self.stored, self.device, levels=levels)

    def buffers(self, dtype: str) -> Buffers:
        """Memory for batches of a dtype, those ahead and three more, from which copies to a GPU are asynchronous."""
        allocate = np.empty if self.device is None else self.device.allocate
        return Buffers(
            self.resources.batch_size, dtype, self.resources.prefetch + 3, allocate
        )

    def check_mixed(
        self, subject: str, refuses: bool, what: str, remedy: str = ""
    ) -> None:
        """Raises ArgumentError if some images are raw and others encoded, where that `refuses`."""
        if refuses and self.stored.mixes_raw:
            raise ArgumentError(
                f"{subject}: one of the data sets holds encoded {what} and another raw ones. Pack both in the same "
                f"way{remedy}"
            )


def open_device(device_id: int | None) -> "Device | None":
    """The GPU for torch; None for the CPU, or if torch cannot use the GPU."""
    if (
        device_id is None
        or fault_of("torch") is not None
        or not import_module("torch").cuda.is_available()
    ):
        return None
    from gpuload.decode.device import Device

    return Device(device_id)
