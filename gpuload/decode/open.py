"""Chooses the decoder and the device, and opens the decoder."""

import logging
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuload.augment import Form
from gpuload.decode.arguments import Backend, Both, Dali, DecoderName
from gpuload.decode.dali.memory import IMAGE_ALONE, OutputImages, fits
from gpuload.decode.faults import FaultHandler, OnCorrupt, Screening
from gpuload.decode.functions import CallFunctions, Functions
from gpuload.decode.interface import (
    Buffers,
    Fault,
    PictureForm,
    Resources,
    Stored,
)
from gpuload.decode.runner import OnPart, Runner, SplitParts, Stage
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, MissingPackageError
from gpuload.fields.images import GRAY, RGB, Pixels, is_raw
from gpuload.functions.function import Caller, InThreads
from gpuload.machine.installed import (
    PackageFault,
    fault_of,
    has_driver,
    paused_collector,
    require,
)
from gpuload.machine.ranks import Ranks, count_threads, find_device
from gpuload.read.batch import Batch

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
    """The resources of a decoder; None is the default.

    Args:
        decoder: As of `DaliIterator`.
        ranks: This process among those that train together.
        batch_size: Samples in a batch, at most.
        num_threads: Threads that decode; None: this rank's share of the cores.
        prefetch: Batches ahead of the current one; None: 2.
    """
    units = Both() if isinstance(decoder, str) else decoder
    # 0: the CUDA cores, which every GPU has.
    hardware = 0.0 if units.deterministic else units.hardware
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
    outputs: Sequence[OutputImages] = IMAGE_ALONE,
) -> tuple[Backend, int | None]:
    """The decoder, and the number of the GPU for the batches, or None for the CPU.

    "auto" on a CPU is "native": its images/s over DALI's, for random crops on 2 cores (2026-11), are 1.7 with
    ImageNet's JPEGs, 1.5 at 64×64, and with raw images 1.7 at 64×64 and 128×128. On a GPU, "auto" is "native" if
    DALI's whole images do not fit into its memory, or if enough threads decode, each on a core of this rank, which
    leaves the GPU to training; otherwise "dali"; or the only usable decoder.

    Args:
        decoder: As of `DaliIterator`.
        device: As of `DaliIterator`.
        ranks: This process among those that train together.
        datasets: Of which samples are.
        resources: Of the decoder.
        decodes: Whether anything needs decoding; if not, no packages are needed.
        outputs: What DALI would make of pictures.

    Raises:
        DeviceError: there is no such GPU.
        MissingPackageError: the packages of the decoder, or with "auto" of both, are unusable.
    """
    name = _name_of(decoder)
    native_fault = _find_native_fault(name, device) if decodes else None
    by_torch = name == "native" or (name == "auto" and decodes and native_fault is None)
    gpus = _count_gpus(device, by_torch, by_dali=name != "native")
    device_id = find_device(device, ranks, gpus)
    if name == "native" or (name == "auto" and device_id is None and not native_fault):
        return "native", device_id
    if name != "auto":
        missing_dali = dali_fault() if decodes else None
        if missing_dali is not None:
            raise _missing(name, missing_dali)
        return name, device_id
    if not decodes:
        return "dali", device_id
    usable = _find_only_usable(native_fault)
    if usable is None:
        assert device_id is not None
        usable = _choose_for_gpu(device_id, ranks, datasets, resources, outputs)
    return usable, device_id


def _name_of(decoder: DecoderName | Dali | Both) -> DecoderName:
    if isinstance(decoder, str):
        return decoder
    return "dali" if isinstance(decoder, Dali) else "both"


def _find_native_fault(name: DecoderName, device: str) -> PackageFault | None:
    """Why the native decoder cannot be used: it needs torch to bring batches to a GPU.

    Raises:
        MissingPackageError: it cannot, and "auto" may not choose another.
    """
    may_upload = name == "both" or (device != "cpu" and has_driver())
    if name == "dali" or not may_upload:
        return None
    fault = fault_of("torch")
    if fault is not None and name != "auto":
        raise _missing(name, fault)
    return fault


def _find_only_usable(native_fault: PackageFault | None) -> Backend | None:
    """The only decoder that can be used here; None if both can.

    Raises:
        MissingPackageError: none can.
    """
    missing_dali = dali_fault()
    if native_fault is None and missing_dali is None:
        return None
    if native_fault is None:
        assert missing_dali is not None
        _log(missing_dali, "decoder='native' is used")
        return "native"
    if missing_dali is None:
        _log(native_fault, "decoder='dali' is used")
        return "dali"
    raise MissingPackageError(
        f"decoder='auto': no decoder can be used. 'native': {native_fault.reason}; 'dali': {missing_dali.reason}. "
        f"{native_fault.remedy}"
    )


def _choose_for_gpu(
    device_id: int,
    ranks: Ranks,
    datasets: Sequence[Dataset],
    resources: Resources,
    outputs: Sequence[OutputImages],
) -> Backend:
    """The decoder for a GPU where both can be used, by memory and cores alone."""
    is_small = fits(
        datasets, resources.batch_size, resources.prefetch, device_id, outputs
    )
    threads = min(resources.num_threads, count_threads(ranks))
    return "dali" if is_small and threads < NATIVE_CORES else "native"


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
    # Without a driver DALI would find none either, and may not be installed.
    if device == "cpu" or not has_driver():
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
    datasets: Sequence[Dataset], name: str, pixels: Pixels, *, is_mask: bool = False
) -> Stored:
    """The properties of a picture of each sample, from the manifests.

    Args:
        datasets: Of which the samples are.
        name: Of the picture.
        pixels: Of the batch.
        is_mask: As of `Stored`.
    """
    manifests = [dataset.manifest for dataset in datasets]
    fields = [dataset.require_field(name) for dataset in datasets]
    is_image = name == manifests[0].image.name
    raw = [is_raw(field) for field in fields]
    source = GRAY if is_mask else Pixels.of_field(fields[0])
    return Stored(
        max(manifest.width for manifest in manifests) if is_image else 0,
        max(manifest.height for manifest in manifests) if is_image else 0,
        plain=all(manifest.upright for manifest in manifests),
        raw=all(raw),
        mixes_raw=any(raw) and not all(raw),
        pixels=pixels,
        source=RGB if pixels == RGB else source,  # gray decodes to RGB as well
        is_mask=is_mask,
    )


def open_decoder(
    name: Backend,
    device_id: int | None,
    pictures: Sequence[PictureForm],
    resources: Resources,
    functions: Functions | None = None,
    on_corrupt: OnCorrupt = "raise",
) -> FaultHandler:
    """Opens the decoder, with its faults handled.

    Args:
        name: Of the decoder of the image; other pictures are decoded on the CPU.
        device_id: Number of the GPU; None for the CPU.
        pictures: What is decoded; nothing, if no pixels are requested.
        resources: Of the decoder.
        functions: User functions, or None.
        on_corrupt: What becomes of samples that do not decode.

    Raises:
        ArgumentError: both encoded and raw images for DALI.
    """
    if not pictures:
        return FaultHandler(Runner([SplitParts(lambda job: ())], resources.prefetch))
    opening = _Opening(device_id, open_device(device_id), resources)
    with paused_collector():
        stages, screen = (
            opening.around(functions, name, pictures)
            if functions
            else opening.stages(name, pictures)
        )
    image = pictures[0]
    patch = image.forms[0].patch if image.is_image else 0
    if patch:
        from gpuload.decode.patches import MakePatches

        memory = opening.buffers(image.dtype(image.forms[0]))
        stages.append(MakePatches(image.name, patch, resources.num_threads, memory))
    runner = Runner(stages, resources.prefetch, opening.device)
    pixels = {picture.name: picture.stored.source for picture in pictures}
    return FaultHandler(runner, on_corrupt, screen, pixels)


# The stages of a decoder, and what its `FaultHandler` calls first; None if the decoder takes anything.
Stages = tuple[list[Stage], Screening | None]


class _Opening(NamedTuple):
    """Makes the stages of a decoder.

    Attributes:
        device: Where torch computes; None for the CPU, or if torch cannot use the GPU.
    """

    device_id: int | None
    device: "Device | None"
    resources: Resources

    def stages(self, name: Backend, pictures: Sequence[PictureForm]) -> Stages:
        """The stages for batches of these pictures.

        Raises:
            ArgumentError: the decoder does not take such images or forms.
        """
        by_dali = list(filter(is_for_dali, pictures)) if name != "native" else []
        # Two decoders share the samples of a batch, of which a list has another number of pictures.
        if name == "both":
            by_dali = [image for image in by_dali if not image.is_list]
        others = [picture for picture in pictures if picture not in by_dali]
        for picture in others:
            if picture.is_image:
                is_gray = picture.stored.source == GRAY
                check_mixed(picture, "decoder='native'", is_gray, "gray images")
        if not by_dali:
            return self.native(pictures), None
        check_for_dali(name, by_dali[0])
        if name == "dali":
            stages, screens = self.dali(by_dali)
            screen: Screening = partial(_screen_all, screens)
        else:
            stages, screen = self.shared(by_dali)
        return [*stages, *self.beside(others)], screen

    def shared(self, pictures: Sequence[PictureForm]) -> tuple[list[Stage], Screening]:
        """The stages of DALI and of the native decoder, which share the samples of each batch."""
        from gpuload.decode.in_torch import DALI, NATIVE, Join, divide, is_for_cpu

        cpu_share = self.resources.cpu_share
        dali_stages, (screen,) = self.dali(pictures)
        feed, *dali = [OnPart(DALI, stage) for stage in dali_stages]
        begin, *native = [OnPart(NATIVE, stage) for stage in self.native(pictures)]
        split = SplitParts(partial(divide, cpu_share))

        def screen_share(batch: Batch) -> tuple[Batch, dict[int, Fault]]:
            samples = np.flatnonzero(~is_for_cpu(batch, cpu_share))
            return screen.screened(batch, samples)

        return [split, feed, begin, *dali, *native, Join()], screen_share

    def around(
        self, functions: Functions, name: Backend, pictures: Sequence[PictureForm]
    ) -> Stages:
        """The stages with user functions, which run on the CPU; their results are copied to the GPU."""
        image = pictures[0]
        if any(form.function == "before_crop" for form in image.forms):
            is_gray = image.stored.source == GRAY
            check_mixed(image, "Function(before_crop=True)", is_gray, "gray images")
        inner = [self._inner(picture, image.forms) for picture in pictures]
        decoding: list[Stage] = []
        screen = None
        if inner[0].forms:
            on_cpu = self._replace(device_id=None, device=None)
            decoding, screen = on_cpu.stages(name, inner)
        caller: Caller
        if functions.processes:
            from gpuload.functions.processes import InProcesses

            caller = InProcesses(functions.all, functions.entries, functions.processes)
        else:
            caller = InThreads(
                functions.all, functions.entries, self.resources.num_threads
            )
        call = CallFunctions(
            pictures, functions, caller, self.buffers, finishes=self.device is None
        )
        stages = [
            SplitParts(call.inner),
            *(OnPart(0, stage) for stage in decoding),
            call,
        ]
        if self.device is not None:
            stages.append(self.finish(pictures))
        return stages, screen

    def _inner(self, picture: PictureForm, image_forms: Sequence[Form]) -> PictureForm:
        """The decoder's output, for views whose function does not get whole images: levels if a function follows, and
        always levels for a GPU."""
        pairs = zip(picture.forms, image_forms, strict=True)
        forms = [
            self._inner_form(picture, form, has_function=bool(of_image.function))
            for form, of_image in pairs
            if of_image.function != "before_crop"
        ]
        return picture._replace(forms=tuple(forms))

    def _inner_form(
        self, picture: PictureForm, form: Form, *, has_function: bool
    ) -> Form:
        if not picture.is_image:
            return form._replace(flips_vertically=False) if has_function else form
        if has_function:
            return form.levels(picture.stored.pixels)._replace(
                layout="channels_last", flips_vertically=False
            )
        return form if self.device is None else form.levels(picture.stored.pixels)

    def native(self, pictures: Sequence[PictureForm]) -> list[Stage]:
        """The stages of the native decoder."""
        from gpuload.decode.native.decoder import NativeDecoder

        decoded = pictures
        if self.device is not None:
            decoded = [_as_levels(picture) for picture in pictures]
        threads = self.resources.num_threads
        decoder = NativeDecoder(decoded, threads, self.buffers)
        return [decoder] if self.device is None else [decoder, self.finish(pictures)]

    def beside(self, pictures: Sequence[PictureForm]) -> list[Stage]:
        """The stages for pictures besides an image that another decoder makes."""
        return self.native(pictures) if pictures else []

    def dali(
        self, pictures: Sequence[PictureForm]
    ) -> "tuple[list[Stage], list[Screen]]":
        """The stages of DALI, and what a batch must pass first: a pipeline for the pictures that each sample has one
        of, and one for each list, since the rows of a batch of DALI's are as many in all of its inputs."""
        is_plain = all(form.is_plain for picture in pictures for form in picture.forms)
        if not is_plain:
            require(
                "decoder='dali': transforms, normalize='image' and erasing need torch",
                "torch",
            )
        from gpuload.decode.dali.decoder import DaliDecoder

        single = [picture for picture in pictures if not picture.is_list]
        lists = [[picture] for picture in pictures if picture.is_list]
        decoders = [
            DaliDecoder(group, self.resources, self.device_id, self.device)
            for group in [single, *lists]
            if group
        ]
        stages: list[Stage] = [decoder.feed for decoder in decoders]
        stages += decoders
        if not is_plain:
            stages.append(self.finish(pictures, levels=False))
        return stages, [decoder.screen for decoder in decoders]

    def finish(self, pictures: Sequence[PictureForm], *, levels: bool = True) -> Stage:
        """The last stage, in torch."""
        from gpuload.decode.in_torch import Finish

        return Finish(pictures, self.device, levels=levels)

    def buffers(self, dtype: str) -> Buffers:
        """Memory for batches of a dtype, those ahead and three more, from which copies to a GPU are asynchronous."""
        allocate = np.empty if self.device is None else self.device.allocate
        return Buffers(
            self.resources.batch_size, dtype, self.resources.prefetch + 3, allocate
        )


def _screen_all(
    screens: "Sequence[Screen]", batch: Batch
) -> tuple[Batch, dict[int, Fault]]:
    """As `Screen.screened`, for DALI as the only decoder of its pictures."""
    faults: dict[int, Fault] = {}
    for screen in screens:
        batch, of_pictures = screen.screened(batch, np.arange(len(batch)))
        faults = {**of_pictures, **faults}
    return batch, faults


def is_for_dali(picture: PictureForm) -> bool:
    """Whether DALI decodes a picture, if it decodes any. What it does not take of the image is an error."""
    if not (picture.is_image and picture.is_further):
        return picture.is_image
    is_known = picture.most > 0
    return is_known and all(
        form.interpolation != "nearest"
        and form.padding_mode == "constant"
        and not form.patch
        for form in picture.forms
    )


def _as_levels(picture: PictureForm) -> PictureForm:
    """What the CPU makes of a picture that torch finishes on a GPU: of images their levels."""
    if not picture.is_image:
        return picture
    forms = tuple(form.levels(picture.stored.pixels) for form in picture.forms)
    return picture._replace(forms=forms)


def check_for_dali(name: Backend, image: PictureForm) -> None:
    """Raises ArgumentError for images or forms that DALI does not take."""
    if name == "both" and any(form.places for form in image.forms):
        raise ArgumentError(
            "decoder='both': does not scale and pad, as one of the crops here does. Use decoder='native' or 'dali'"
        )
    if any(form.patch for form in image.forms):
        raise ArgumentError(
            f"decoder={name!r}: does not make patches. Use decoder='native', which a GPU gets pixels from, too"
        )
    if any(form.padding_mode != "constant" for form in image.forms):
        raise ArgumentError(
            f"decoder={name!r}: does not pad with pixels of the image, as a padding_mode here says. Use "
            "decoder='native'"
        )
    check_mixed(image, f"decoder={name!r}", True, "images", ", or use decoder='native'")


def check_mixed(
    picture: PictureForm, subject: str, refuses: bool, what: str, remedy: str = ""
) -> None:
    """Raises ArgumentError if some images are raw and others encoded, where that `refuses`.

    Args:
        picture: What is decoded.
        subject: What refuses it, for the message.
        refuses: Whether it does.
        what: What the data sets hold, for the message.
        remedy: What else the user may do, for the message.
    """
    if refuses and picture.stored.mixes_raw:
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
