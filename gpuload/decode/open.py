"""Chooses the decoder and the device, and opens the decoder."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuload.augment import Form
from gpuload.augment.schedule import Schedule
from gpuload.decode.arguments import Backend, DecoderName
from gpuload.decode.faults import FaultHandler, FindFaults, OnCorrupt
from gpuload.decode.interface import NoDecoder, Stored
from gpuload.decode.runner import OnPart, Runner, Stage
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, MissingPackageError
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.fields.motion import MovingField
from gpuload.functions.interface import Caller, Entries, InThreads
from gpuload.machine.installed import Fault, fault_of, has_driver, paused_collector, require
from gpuload.machine.ranks import Ranks, find_device
from gpuload.read.batch import Batch

if TYPE_CHECKING:  # needs torch
    from gpuload.decode.device import Device

_LOG = logging.getLogger(__name__)

_SPARE = 3  # batches beside those ahead whose memory is kept


def choose_backend(
    decoder: DecoderName,
    device: str,
    ranks: Ranks,
    decodes: bool = True,
    prefer: Callable[[int], Backend] = lambda device_id: "dali",
) -> tuple[Backend, int | None]:
    """The decoder, and the number of the GPU for the batches, or None for the CPU.

    "auto" on a CPU is "native" if it is usable: its images/s over DALI's, for random crops on 2 cores (2026-11), are
    1.7 with ImageNet's JPEGs, 1.5 at 64×64, and with raw images 1.7 at 64×64 and 128×128. Otherwise DALI decodes, with
    a log message. On a GPU, "auto" is the result of `prefer`, or the only usable decoder.

    decodes: whether anything needs decoding; if not, no packages are needed.

    Raises:
        DeviceError: there is no such GPU.
        MissingPackageError: the packages of the decoder, or with "auto" of both, are unusable.
    """
    uploads = decoder == "both" or (device != "cpu" and has_driver())
    native = native_fault(uploads) if decodes and decoder != "dali" else None
    if decoder in ("native", "both") and native is not None:
        raise MissingPackageError(f"decoder={decoder!r}: {native.reason}. {native.remedy}. Or use decoder='dali'")
    device_id = find_device(device, ranks, _count(decoder, device, by_torch=decodes and native is None))
    if not decodes:
        return ("native" if decoder == "native" or (decoder == "auto" and device_id is None) else "dali"), device_id
    if decoder == "native" or (decoder == "auto" and native is None and device_id is None):
        return "native", device_id
    dali = _dali_fault()
    if dali is None:
        if decoder != "auto":
            return decoder, device_id
        if native is None and device_id is not None:
            return prefer(device_id), device_id
        assert native is not None
        slower = "" if device_id is not None else ", which on a CPU is slower than the native decoder"
        _log(native, f"DALI decodes{slower}")
        return "dali", device_id
    if decoder != "auto":
        raise _without_dali(f"decoder={decoder!r}", dali)
    if native is not None:
        raise MissingPackageError(
            f"decoder='auto': no decoder can be used. 'native': {native.reason}; 'dali': {dali.reason}. {native.remedy}"
        )
    _log(dali, "the CPU decodes for the GPU")
    return "native", device_id


def _count(decoder: str, device: str, by_torch: bool) -> int:
    """Number of GPUs for a decoder: torch's for the native one, whose batches torch uploads, otherwise DALI's."""
    if device == "cpu":
        return 0
    if decoder == "native":
        return _count_torchs_gpus(device)
    return (_count_torchs_gpus(device) if decoder == "auto" and by_torch else 0) or _count_gpus(device)


@dataclass(frozen=True)
class Functions:
    """A loader's functions, and properties of their samples.

    all: of all epochs and views. processes: their number; 0 calls functions in threads. masks, moving: names of the
    mask fields, and the moving fields. entries: the same, by name. name_of_sample: for messages.
    """

    all: Sequence[Any]
    processes: int
    masks: Sequence[str]
    moving: Sequence[MovingField]
    entries: Entries
    name_of_sample: Callable[[Batch, int], str]


def find_functions(
    schedule: Schedule,
    masks: Sequence[str],
    moving: Sequence[MovingField],
    datasets: Sequence[Dataset],
) -> Functions | None:
    """The functions of all views and epochs; None if there are none.

    Raises:
        ArgumentError: a function of whole images with tiles as samples, or a field that it cannot move.
    """
    if not schedule.functions:
        return None
    if stays := [field for field in moving if field.stays]:
        raise ArgumentError(
            f"Boxes({stays[0].name!r}, {stays[0].stays}=True): functions of samples do not move {stays[0].stays}. Use "
            "a crop, or transform them in the training loop"
        )
    if any(dataset.tiling for dataset in datasets) and any(form.function == "before_crop" for form in schedule.forms):
        raise ArgumentError(
            "Function(before_crop=True): gets whole images, and the samples are tiles. Use before_crop=False"
        )
    boxes = tuple(field.name for field in moving if not field.points)
    keypoints = tuple((field.name, field.points) for field in moving if field.points)
    entries = Entries(boxes, tuple(masks), keypoints)
    return Functions(schedule.functions, schedule.processes, masks, moving, entries, partial(_name_of_sample, datasets))


def _name_of_sample(datasets: Sequence[Dataset], batch: Batch, row: int) -> str:
    dataset, sample = datasets[int(batch.sources[row])], int(batch.encoded.samples[row])
    shard = int(dataset.shards_of(sample))
    return f"{dataset.shard_paths[shard]}: sample {batch.encoded.columns['key'][row].as_py()!r}"


class Resources(NamedTuple):
    """The resources of a decoder.

    batch_size: maximum samples in a batch. num_threads: that decode. prefetch: batches ahead of the current one.
    hw_decoder_load: share of the images for a GPU's JPEG engines; None: DALI decides. cpu_share: share of the CPU
    decoder in "both".
    """

    batch_size: int
    num_threads: int
    prefetch: int
    hw_decoder_load: float | None = None
    cpu_share: float = 0.0


def find_stored(datasets: Sequence[Dataset], pixels: Pixels, mask_fills: tuple[int, ...]) -> Stored:
    """The properties in the manifests. pixels: of the batch. mask_fills: for each mask field, the class outside the
    image."""
    manifests, raw = [dataset.manifest for dataset in datasets], [dataset.manifest.is_raw for dataset in datasets]
    return Stored(
        max(manifest.width for manifest in manifests),
        max(manifest.height for manifest in manifests),
        plain=all(manifest.upright for manifest in manifests),
        raw=all(raw),
        mixes_raw=any(raw) and not all(raw),
        mask_fills=mask_fills,
        pixels=pixels,
        source=RGB if pixels == RGB else manifests[0].pixels,  # gray decodes to RGB as well
        others=any(manifest.has_others for manifest in manifests),
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
        return FaultHandler(NoDecoder())
    opening = _Opening(name, device_id, stored, resources, open_device(device_id))
    with paused_collector():
        stages = opening.stages(forms) if functions is None else opening.stages_around(functions, forms)
    runner = Runner(stages, resources.prefetch, opening.device)
    return FaultHandler(runner, on_corrupt, opening.find_faults, stored.source)


class _Opening:
    """Makes the stages of a decoder.

    device: where torch computes; None for the CPU, or if torch cannot use the GPU. find_faults: finds samples that the
    decoder must not get; None if it takes anything.
    """

    def __init__(
        self, name: Backend, device_id: int | None, stored: Stored, resources: Resources, device: "Device | None"
    ) -> None:
        self._name, self._device_id, self._stored, self._resources = name, device_id, stored, resources
        self.device = device
        self.find_faults: FindFaults | None = None

    def stages(self, forms: Sequence[Form]) -> list[Stage]:
        """The stages for batches of these forms."""
        stored = self._stored
        if self._name == "native":
            _check_gray("decoder='native'", stored)
            return self._native(forms)
        if self._name == "both" and any(form.places for form in forms):
            raise ArgumentError(
                "decoder='both': does not scale and pad, as one of the crops here does. Use decoder='native' or 'dali'"
            )
        if stored.mixes_raw:
            raise ArgumentError(
                f"decoder={self._name!r}: one of the data sets holds encoded images and another raw ones. Pack both in "
                "the same way, or use decoder='native'"
            )
        if self._name == "dali":
            return self._dali(forms)
        from gpuload.decode.both import DALI, NATIVE, Divide, Join, find_dalis_faults

        feed, *dali = [OnPart(DALI, stage) for stage in self._dali(forms)]
        begin, *native = [OnPart(NATIVE, stage) for stage in self._native(forms)]
        assert self.find_faults is not None
        self.find_faults = partial(find_dalis_faults, self.find_faults, self._resources.cpu_share)
        return [Divide(stored, self._resources.cpu_share), feed, begin, *dali, *native, Join()]

    def stages_around(self, functions: Functions, forms: Sequence[Form]) -> list[Stage]:
        """The stages with user functions, which run on the CPU; their results are copied to the GPU."""
        stored, device = self._stored, self.device
        befores = [form for form in forms if form.function == "before_crop"]
        if befores:
            if (fault := native_fault()) is not None:
                raise MissingPackageError(f"Function(before_crop=True): {fault.reason}. {fault.remedy}")
            _check_gray("Function(before_crop=True)", stored)
        from gpuload.decode.buffers import Buffers
        from gpuload.decode.function.decoder import CallFunctions, Inner
        from gpuload.decode.function.views import Setting
        from gpuload.decode.postprocess import Postprocess

        whole: Any = None
        if befores:
            from gpuload.decode.function.whole import WholeImages

            whole = WholeImages([form.levels(stored.pixels) for form in befores], stored)
        settings = {
            number: Setting(
                number,
                form,
                functions.masks,
                stored.mask_fills,
                functions.moving,
                None if device is not None else Postprocess(form, "cpu", stored.pixels),
                stored.pixels,
            )
            for number, form in enumerate(forms)
            if form.function
        }
        allocate = np.empty if device is None else device.allocate
        kept = self._resources.prefetch + _SPARE
        make_buffers = partial(Buffers, self._resources.batch_size, kept=kept, allocate=allocate)
        numbers = [number for number, form in enumerate(forms) if form.function != "before_crop"]
        stages: list[Stage] = [Inner(numbers, settings)]
        if numbers:
            inner = _Opening(self._name, None, stored, self._resources, None)
            stages += [OnPart(0, stage) for stage in inner.stages([self._inner(forms[number]) for number in numbers])]
            self.find_faults = inner.find_faults
        caller: Caller
        if functions.processes:
            from gpuload.functions.processes import InProcesses

            caller = InProcesses(functions.all, functions.entries, functions.processes)
        else:
            caller = InThreads(functions.all, functions.entries, self._resources.num_threads)
        stages.append(
            CallFunctions(numbers, settings, whole, functions.all, functions.name_of_sample, caller, make_buffers)
        )
        if device is None:
            return stages
        from gpuload.decode.device import Finish

        return [*stages, Finish(forms, stored, device, levels=True)]

    def _inner(self, form: Form) -> Form:
        """The decoder's output for a view: levels if a function follows, and always levels for a GPU."""
        if form.function:
            return form.levels(self._stored.pixels)._replace(layout="channels_last", flips_vertically=False)
        return form if self.device is None else form.levels(self._stored.pixels)

    def _native(self, forms: Sequence[Form]) -> list[Stage]:
        from gpuload.decode.native.decoder import NativeDecoder

        stored, (batch_size, threads, prefetch, *_) = self._stored, self._resources
        options: dict[str, Any] = {"batch_size": batch_size, "threads": threads, "kept": prefetch + _SPARE}
        if self.device is None:
            return [NativeDecoder(forms, stored, **options)]
        from gpuload.decode.device import Finish

        levels = [form.levels(stored.pixels) for form in forms]
        native = NativeDecoder(levels, stored, **options, allocate=self.device.allocate)
        return [native, Finish(forms, stored, self.device, levels=True)]

    def _dali(self, forms: Sequence[Form]) -> list[Stage]:
        is_plain = all(form.is_plain for form in forms)
        if not is_plain:
            require("decoder='dali': transforms, normalize='image', erasing and padding_mode need torch", "torch")
        from gpuload.decode.dali.decoder import DaliDecoder

        batch_size, num_threads, prefetch, hw_decoder_load, _ = self._resources
        dali = DaliDecoder(
            forms,
            self._stored,
            self.device,
            hw_decoder_load=hw_decoder_load,
            batch_size=batch_size,
            device_id=self._device_id,
            num_threads=num_threads,
            prefetch_queue_depth=prefetch,
        )
        self.find_faults = dali.find_faults
        if is_plain:
            return [dali.feed, dali]
        from gpuload.decode.device import Finish

        return [dali.feed, dali, Finish(forms, self._stored, self.device, levels=False)]


def open_device(device_id: int | None) -> "Device | None":
    """The GPU for torch; None for the CPU, or if torch cannot use the GPU."""
    if device_id is None or fault_of("torch") is not None or not import_module("torch").cuda.is_available():
        return None
    from gpuload.decode.device import Device

    return Device(device_id)


def _check_gray(subject: str, stored: Stored) -> None:
    if stored.source == GRAY and stored.mixes_raw:
        raise ArgumentError(
            f"{subject}: one of the data sets holds encoded gray images and another raw ones. Pack both in the same way"
        )


def _count_gpus(device: str) -> int:
    if not has_driver():  # DALI would find none either, and may not be installed
        return 0
    if (fault := _dali_fault()) is not None:
        if device != "auto":
            raise _without_dali(f"device={device!r}", fault)
        _log(fault, "the CPU decodes, although there is an NVIDIA driver")
        return 0
    from gpuload.decode.dali.decoder import count_gpus

    return count_gpus()


def _count_torchs_gpus(device: str) -> int:
    """Number of GPUs that torch can use, to which the CPU decoder's batches are copied."""
    if device == "auto" and not has_driver():
        return 0
    if fault_of("torch") is not None:  # if nothing is decoded: NumPy arrays
        return 0
    return int(import_module("torch").cuda.device_count())


def native_fault(uploads: bool = False) -> Fault | None:
    """Why the native decoder cannot be used here. uploads: whether torch is to bring its batches to a GPU."""
    for package in ("numba", "simplejpeg", *(["torch"] if uploads else [])):
        if (fault := fault_of(package)) is not None:
            return fault
    if getattr(getattr(import_module("numba"), "config", None), "DISABLE_JIT", False):
        return Fault("NUMBA_DISABLE_JIT disables numba", "Unset it")
    return fault_of("gpuload.decode.native.decoder")  # a version of numba that lacks something


def _dali_fault() -> Fault | None:
    """Why DALI cannot be used here."""
    return fault_of("nvidia.dali")


def _without_dali(subject: str, fault: Fault) -> MissingPackageError:
    return MissingPackageError(
        f"{subject}: {fault.reason}. {fault.remedy}; DALI decodes on machines without a GPU, too"
    )


def _log(fault: Fault, what: str) -> None:
    """Logs one line, as a warning if an installed package does not work."""
    _LOG.log(logging.INFO if fault.is_missing else logging.WARNING, "%s: %s", what, fault.reason)
