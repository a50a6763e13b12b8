"""Builds what a loader runs, from its config: the order, the fields, the decoder, the reader and their pipeline.

Each step is a function of the config and of earlier steps, so that a preview can build the last ones again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpuload.augment.schedule import Schedule
from gpuload.decode.arguments import Backend, Both, Dali, DecoderName, OnCorrupt
from gpuload.decode.dali.memory import OutputImages, check_whole_images
from gpuload.decode.functions import Functions, find_functions
from gpuload.decode.interface import PictureForm, Resources, no_pixels
from gpuload.decode.open import (
    choose_decoder,
    is_for_dali,
    open_decoder,
    plan_resources,
)
from gpuload.loader.config import LoaderConfig
from gpuload.loader.pipeline import CorruptSamples, Pipeline
from gpuload.order.budget import Budget
from gpuload.order.plan import (
    OrderArguments,
    OrderPlan,
    plan_order,
    plan_order_by_tokens,
)
from gpuload.output.arrays import Arrays, make_arrays
from gpuload.output.collate import Collate
from gpuload.read.batches import BatchReader, BucketedReader, WantedFields, check_space


class Decoding(NamedTuple):
    """What is decoded, by what, and where to.

    Attributes:
        pictures: What is made of each picture; none if no pixels are requested.
        functions: The user's, of single samples; None without any.
        backend: The decoder of images.
        device_id: Number of the GPU for the batches; None for the CPU.
        resources: Of the decoder.
        arrays: Makes the user's arrays.
    """

    pictures: tuple[PictureForm, ...]
    functions: Functions | None
    backend: Backend
    device_id: int | None
    resources: Resources
    arrays: Arrays

    @property
    def cpu_share(self) -> float | None:
        """The share of samples that the CPU decodes, where two decoders share them."""
        return self.resources.cpu_share if self.backend == "both" else None


class Built(NamedTuple):
    """All parts of a loader. Its threads hold none of the loader itself, which they would keep alive.

    Attributes:
        schedule: The views of each epoch.
        order: The order of the samples.
        collate: Makes the fields of a batch.
        decoding: What is decoded, and by what.
        open_reader: Opens a reader of the order.
        pipeline: Of the batches of the training loop.
    """

    schedule: Schedule
    order: OrderPlan
    collate: Collate
    decoding: Decoding
    open_reader: Callable[[], BatchReader]
    pipeline: Pipeline


def build_order(config: LoaderConfig, schedule: Schedule) -> OrderPlan:
    """The order of the samples and the ends of epochs.

    Raises:
        ArgumentError: arguments contradict each other, or do not fit the data.
    """
    wanted = OrderArguments(
        config.data,
        config.ranks,
        config.shuffle,
        config.seed,
        config.drop_last,
        config.steps_per_epoch,
        config.sampling,
    )
    if isinstance(config.batch_size, Budget):
        return plan_order_by_tokens(wanted, config.batch_size, schedule.grid)
    return plan_order(wanted, config.batch_size, schedule.buckets)


def build_fields(config: LoaderConfig, schedule: Schedule, *, marks: bool) -> Collate:
    """Builds what makes the requested fields of each batch.

    Args:
        config: Arguments of the loader.
        schedule: The views of a sample over the epochs, fitted to the data.
        marks: Whether batches tell which samples do not decode.

    Raises:
        ArgumentError: a field was not packed, or does not fit the others.
    """
    return Collate(
        config.fields,
        config.datasets,
        schedule,
        config.batch_transforms,
        config.keys,
        marks=marks,
        alone=config.alone,
    )


def build_functions(
    config: LoaderConfig, schedule: Schedule, collate: Collate
) -> Functions | None:
    """The user's functions of single samples; None without any.

    Raises:
        ArgumentError: a function cannot have the fields of these samples.
    """
    masks = collate.masks
    names = [picture.name for picture in collate.pictures]
    further = [name for name in names if name not in masks]
    return find_functions(schedule, masks, collate.moving, config.datasets, further)


def build_pictures(
    config: LoaderConfig,
    schedule: Schedule,
    collate: Collate,
    functions: Functions | None,
) -> tuple[PictureForm, ...]:
    """What is made of each picture; none if nothing is decoded.

    Args:
        config: Of the loader.
        schedule: Its views.
        collate: As `build_fields` gives it.
        functions: As `build_functions` gives it.

    Raises:
        ArgumentError: an `Augment` does not fit the pixels.
    """
    moves = functions is not None and bool(collate.moving)
    if not (collate.has_images or collate.pictures or moves):
        return ()
    manifest = config.datasets[0].manifest
    measured = manifest.mean, manifest.std
    fitted = schedule.fitted(manifest.pixels, manifest.is_raw, measured)
    needs_image = collate.has_images or functions is not None
    return collate.picture_forms(fitted, needs_image)


def build_decoding(
    config: LoaderConfig,
    schedule: Schedule,
    order: OrderPlan,
    collate: Collate,
) -> Decoding:
    """The decoder and its device.

    Args:
        config: Of the loader.
        schedule: Its views.
        order: As `build_order` gives it.
        collate: As `build_fields` gives it.

    Raises:
        ArgumentError: an `Augment` does not fit the pixels. DeviceError, MissingPackageError: as `choose_decoder`.
    """
    functions = build_functions(config, schedule, collate)
    pictures = build_pictures(config, schedule, collate, functions)
    decoder = config.decoder
    if decoder == "auto" and _needs_native(schedule, functions):
        decoder = "native"
    resources = plan_resources(
        decoder,
        config.ranks,
        min(order.large_batch, order.epochs.samples),
        config.num_threads,
        config.prefetch,
    )
    first_form = schedule.first.form
    outputs = _whole_images(decoder, pictures, schedule, collate)
    backend, device_id = choose_decoder(
        decoder,
        config.device,
        config.ranks,
        config.datasets,
        resources,
        bool(pictures),
        outputs,
    )
    dali_decodes = bool(pictures) and functions is None and backend != "native"
    if dali_decodes and device_id is not None:
        check_whole_images(
            config.datasets,
            order.batch_size,
            resources.prefetch,
            device_id,
            share=1 - resources.cpu_share if backend == "both" else 1.0,
            outputs=outputs,
        )
    # Last: a GPU that is too small is reported before a torch that cannot use it.
    arrays = make_arrays(config.output, device_id, first_form)
    return Decoding(pictures, functions, backend, device_id, resources, arrays)


def _whole_images(
    decoder: DecoderName | Dali | Both,
    pictures: Sequence[PictureForm],
    schedule: Schedule,
    collate: Collate,
) -> list[OutputImages]:
    """What DALI makes of whole pictures, if it decodes: beside another decoder, of no lists."""
    is_shared = decoder == "both" or isinstance(decoder, Both)
    return [
        OutputImages(
            collate.largest_sizes(picture.name, schedule),
            picture.stored.pixels.channels,
            picture.forms[0].dtype,
            picture.name,
            picture.most,
        )
        for picture in pictures
        if is_for_dali(picture) and not (is_shared and picture.is_list)
    ]


def _needs_native(schedule: Schedule, functions: Functions | None) -> bool:
    """Whether the CPU decodes even for a GPU: functions run there, and DALI was not measured at scaling and padding."""
    return functions is not None or any(
        form.places or form.padding_mode != "constant" for form in schedule.forms
    )


def build_reader(
    config: LoaderConfig, order: OrderPlan, collate: Collate, decoding: Decoding
) -> Callable[[], BatchReader]:
    """Opens readers of the order.

    Args:
        config: Of the loader.
        order: As `build_order` gives it.
        collate: As `build_fields` gives it.
        decoding: As `build_decoding` gives it.

    Raises:
        ArgumentError: the cache of a remote set is too small for the shards in use at a time.
    """
    check_space(config.datasets, order.window, order.batch_size, order.node_lanes)
    reader: Callable[..., BatchReader] = BatchReader
    if order.buckets is not None:
        reader = partial(BucketedReader, order.buckets, order.epochs)
    columns = collate.columns
    if decoding.functions is not None:
        columns = tuple(dict.fromkeys((*columns, "key")))
    decodes = bool(decoding.pictures)
    wanted = WantedFields(columns, collate.members, collate.pictures, decodes)
    make_stream = order.make_stream
    return partial(reader, config.datasets, make_stream, wanted, collate.add_fields)


def build_pipeline(
    config: LoaderConfig,
    order: OrderPlan,
    collate: Collate,
    decoding: Decoding,
    open_reader: Callable[[], BatchReader],
    on_corrupt: OnCorrupt | None,
) -> Pipeline:
    """Connects the reader, the decoder and the fields; starts their threads.

    Args:
        config: Of the loader.
        order: As `build_order` gives it.
        collate: As `build_fields` gives it.
        decoding: As `build_decoding` gives it.
        open_reader: As `build_reader` gives it.
        on_corrupt: Of the pipeline, which for a preview is another than the config's.
    """
    decoder = open_decoder(
        decoding.backend,
        decoding.device_id,
        decoding.pictures,
        decoding.resources,
        decoding.functions,
        "raise" if on_corrupt is None else on_corrupt.action,
    )
    return Pipeline(
        open_reader,
        decoder,
        partial(collate, arrays=decoding.arrays),
        partial(no_pixels, pictures=decoding.pictures),
        CorruptSamples(
            config.datasets, on_corrupt, order.epochs.samples / config.ranks.world_size
        ),
        config.data.folder,
    )


def build(config: LoaderConfig, schedule: Schedule, order: OrderPlan) -> Built:
    """Everything else that a loader needs.

    Raises:
        ArgumentError, DeviceError, MissingPackageError, ShardError: as `DaliIterator`.
    """
    collate = build_fields(config, schedule, marks=config.action == "mark")
    decoding = build_decoding(config, schedule, order, collate)
    open_reader = build_reader(config, order, collate, decoding)
    if config.batch_transforms:
        decoding.arrays.staging()  # reports now, not at the first batch, that CuPy is missing
    pipeline = build_pipeline(
        config, order, collate, decoding, open_reader, config.on_corrupt
    )
    return Built(schedule, order, collate, decoding, open_reader, pipeline)


def build_preview(config: LoaderConfig, built: Built) -> Pipeline:
    """A separate pipeline on the CPU. Its order, crops and transforms are the same, because they are functions of
    (seed, epoch, sample)."""
    skips = config.action == "skip"
    collate = build_fields(replace(config, keys=None), built.schedule, marks=not skips)
    collate.mixes = built.collate.mixes
    threads = min(built.decoding.resources.num_threads, 4)
    samples = min(built.order.large_batch, built.order.epochs.samples)
    resources = Resources(samples, threads, 1)
    pictures = built.decoding.pictures
    backend, _ = choose_decoder(
        "auto", "cpu", config.ranks, config.datasets, resources, bool(pictures)
    )
    output = config.output if config.output == "torch" else "numpy"
    arrays = make_arrays(output, None, built.schedule.first.form)
    decoding = built.decoding._replace(
        backend=backend, device_id=None, resources=resources, arrays=arrays
    )
    on_corrupt = OnCorrupt("skip" if skips else "mark", most=1.0)
    return build_pipeline(
        config, built.order, collate, decoding, built.open_reader, on_corrupt
    )
