"""`DaliIterator`: the loader that a training loop iterates over."""

import os
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gpuload.augment.schedule import Augments, Schedule
from gpuload.batchwise import BatchTransform
from gpuload.checks import (
    ANYTHING,
    FLAG,
    POSITIVE,
    check,
    checked,
    number,
    optional,
    whole,
)
from gpuload.counted import counted
from gpuload.decode.arguments import Backend, Both, Dali, DecoderName, OnCorrupt
from gpuload.decode.dali.memory import Made, check_whole_images
from gpuload.decode.functions import find_functions
from gpuload.decode.interface import Resources, no_pixels
from gpuload.decode.open import (
    choose_decoder,
    find_stored,
    open_decoder,
    plan_resources,
)
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, CallError, GpuloadError, StateError
from gpuload.fields.kind import FieldSpec
from gpuload.loader.arguments import ADVICE, ARGUMENTS, STATE
from gpuload.loader.pipeline import (
    CorruptSamples,
    Pipeline,
    Report,
    check_current,
    followed,
)
from gpuload.loader.progress import Loop, Progress
from gpuload.loader.samplers import Sampler, make_sampler
from gpuload.machine.apart import Flag
from gpuload.machine.ranks import compare_ranks, compare_with_counterparts, find_ranks
from gpuload.monitor import MOST_STEPS, Metrics
from gpuload.order.arguments import Balance, Mixture, Repeated, Shuffle, Weights
from gpuload.order.epoch import is_sorted_by_class
from gpuload.order.plan import plan_order
from gpuload.order.stream import Position
from gpuload.output.arrays import Arrays, Output, make_arrays
from gpuload.output.collate import Collate
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures import Cell, draw_sheet
from gpuload.read.batches import BatchReader, BucketedReader, check_space

if TYPE_CHECKING:
    from PIL import Image


class DaliIterator:
    """Batches of decoded, cropped images on the device; each `for` loop is one epoch.

        loader = gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224))
        for images, labels in loader:
            ...

    data: a packed folder or its URL (s3://bucket/set/train, also gs, az, https, hf), a `Dataset` or a subset of one,
        which has options for caching, verification and excluded samples, or a mixture made by `mix`.
    batch_size: samples per batch of this process; the global batch has batch_size * world_size.
    augment: the size, crop, normalisation and dtype of the images. Each of several makes a view of every sample; a dict
        gives the first epoch in which each is used: {0: Augment(128), 6: Augment(160)}. With a size of `Buckets([(1024,
        1024), (832, 1216), …])` or `Buckets(area=…)`, each sample is in the bucket nearest to its own shape, and each
        batch is of one bucket, the same on all ranks. With drop_last=True (or steps_per_epoch), an epoch is then
        len(data) // (batch_size * world_size) batches, and samples left in the buckets come first in the next epoch;
        with drop_last=False they come as smaller batches at the end, one per bucket. A run resumes with other ranks if
        batch_size * world_size stays the same. See docs/buckets.md.
    fields: the fields of a batch, in this order: "image", "label" and other packed fields, by name or as a spec such as
        `Boxes("boxes", format="xywh")` (see `gpuload.fields`). Every sample also has "key" (list of str), "index"
        (int64, its index in stored order) and "dataset" (int64, its data set's number in a mixture). A dict renames the
        fields, and batches are then dicts: {"pixel_values": "image", "labels": "label"}.
    batch_transforms: functions of a whole batch on the device, such as `MixUp()` (see `gpuload.batchwise`), applied in
        this order; 32 at most. Fields that they add come after `fields`, by name, unless named there.
    shuffle: False gives stored order in every epoch. `Shuffle(window=…, lanes=…)` sets how shards are mixed.
    seed: together with the epoch, determines order, crops and flips; nothing else does.
    drop_last: drops an incomplete last batch; by default the value of `shuffle`: training drops it, evaluation does
        not. If True, a different remainder is skipped in each epoch. If False, each sample comes once across all ranks.
        A rank's last batches may then have fewer samples, but never none: if fewer samples than ranks remain, some come
        from the previous batch; if that is impossible (batch_size=1, or a set smaller than the number of ranks), a rank
        repeats one sample of another rank, and `padding` is 1. "even": like False, but all ranks get equally many
        samples: the first samples of the next epoch fill the last batch, as with a DistributedSampler, and `padding`
        counts them. "exact": like False, but a rank without a remaining sample gets an empty batch, and no sample comes
        twice.
    steps_per_epoch: batches in an epoch, any number. The next epoch continues where this one stops, and passes over the
        data follow one another without a gap, so no sample is skipped. By default an epoch is one pass.
    sampling: `Balance("label")` draws each class equally often, `Weights("weight")` draws samples in proportion to
        numbers, `Repeated(3)` repeats each three times in a row. By default each sample comes once in a pass.
    on_corrupt: the handling of samples whose image or mask does not decode. "raise": DecodeError ends the run. "skip":
        the next sample of the batch that decodes takes its place, with its own label, key and other fields, and so
        comes twice; if no sample of the batch decodes, the first one after the batch in the order. With decoder="both",
        its own number determines its decoder. "mark": the sample stays, with a zero image and the fill value in its
        masks, and batches end with a field "corrupt", bool (N,), which is True there, to mask its loss. Batch sizes,
        steps, states and all other samples are the same in all three. `OnCorrupt("skip", most=…)` sets how many are
        allowed, 1 % by default.
    decoder: "dali" (nvJPEG on a GPU, otherwise DALI's CPU operators), "native" (a compiled decoder and resize in CPU
        threads; a GPU gets the pixels, and normalises and transforms them), "both" (each decodes a share of every
        batch) or "auto". On a CPU, "auto" is "native", which is faster. On a GPU it is "native" if this rank has at
        least six cores and num_threads, or if DALI's whole images and what is made of them would take half of the GPU's
        memory, and otherwise "dali". If packages are missing, the other decoder is used, with a log message. `Dali(…)`
        and `Both(…)` choose the decoding units. Decoders differ by rounding, and along an image's edges, where DALI
        filters differently (docs/lab/decode.md has figures).
    num_threads: CPU threads that decode; by default this rank's share of the cores.
    prefetch: batches decoded ahead of the current one; 2 by default. `python -m gpuload tune` measures which values of
        these three are fastest.
    device: the device of the batches: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1". "cuda" is the GPU that
        `torch.cuda.set_device` chose, or under torchrun the rank's own. Order and crops are the same on all devices.
    output: "torch", "numpy" or "cupy".
    rank, world_size: this process's share; by default from `torch.distributed`, otherwise from torchrun's environment.

    Yields:
        A named tuple of the fields, (image, label) by default; `batch._asdict()` is a dict of them. If `fields` is a
        dict, so is the batch.
        images: (N, 3, height, width), of the augment's dtype, on the device; (pixel / 255 - mean) / std. For a set of
            another mode, (N, C, height, width) with pixel / 65535, or unscaled floats. With several views, a tuple of
            them; so are masks, boxes and targets that depend on the flip.
        labels: int64 (N,), on the device. Batches are yours to keep: the loader never overwrites them.

    Raises:
        ArgumentError, FormatError, ShardError, DeviceError, MissingPackageError: at construction.
        ShardError: while iterating, if a shard and its index do not match, an image has more than `Dataset.max_pixels`,
            or a shard was truncated or changed, or can no longer be read. As after any error in a loop, `state_dict`
            then describes the last batch returned; the next loop reopens the shard.
        FunctionError: while iterating, if a function of an `Augment` raises (its exception is the cause) or returns an
            invalid result; names the shard and sample.
        DecodeError: while iterating, if a stored image does not decode (names the shard, sample, byte and reason), or
            more than `OnCorrupt.most` do not.
        GpuloadError: while iterating, after `close`, or in a process that inherited the loader over fork.

    7 samples, batch_size 2:  drop_last=True -> sizes 2 2 2;  drop_last=False -> 2 2 2 1.
    """

    # DataLoader attributes that timm's and Lightning's training loops use, besides `dataset`, `sampler` and `len`.
    batch_sampler = None
    __contains__ = None  # `in` would decode a whole epoch

    _closed = True  # until it is constructed

    @checked("DaliIterator", ADVICE, **ARGUMENTS)
    def __init__(
        self,
        data: str | Path | Dataset | Mixture,
        batch_size: int,
        *,
        augment: Augments | Mapping[int, Augments],
        fields: Sequence[str | FieldSpec] | Mapping[str, str | FieldSpec] = (
            "image",
            "label",
        ),
        batch_transforms: Sequence[BatchTransform] = (),
        shuffle: bool | Shuffle = True,
        seed: int = 0,
        drop_last: bool | Literal["exact", "even"] | None = None,
        steps_per_epoch: int | None = None,
        sampling: Balance | Weights | Repeated | None = None,
        on_corrupt: Literal["raise", "skip", "mark"] | OnCorrupt = "raise",
        decoder: DecoderName | Dali | Both = "auto",
        num_threads: int | None = None,
        prefetch: int | None = None,
        device: str = "auto",
        output: Output = "torch",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._process = os.getpid()
        self.dataset: Dataset | Mixture = (
            data if isinstance(data, Dataset | Mixture) else Dataset(data)
        )
        self._datasets = (
            self.dataset.datasets
            if isinstance(self.dataset, Mixture)
            else (self.dataset,)
        )
        keys = (
            tuple(fields) if isinstance(fields, Mapping) else None
        )  # of batches that are dicts
        self.fields = tuple(fields.values() if isinstance(fields, Mapping) else fields)
        self.batch_size, self.augment, self.seed, self.steps_per_epoch = (
            batch_size,
            augment,
            seed,
            steps_per_epoch,
        )
        self._mixing = (
            Shuffle() if shuffle is True else shuffle or None
        )  # None: stored order
        self.shuffle = self._mixing is not None
        self._last_batch = (
            self.shuffle if drop_last is None else drop_last
        )  # as given, in full
        self.drop_last = self._last_batch is True
        self.ranks = find_ranks(rank, world_size)
        self._schedule = schedule = Schedule(augment)
        self._plan = plan = plan_order(
            self.dataset,
            self.ranks,
            batch_size,
            self._mixing,
            seed,
            drop_last=self._last_batch,
            steps_per_epoch=steps_per_epoch,
            sampling=sampling,
            buckets=schedule.buckets,
        )
        self._epochs = plan.epochs
        self._progress = Progress()
        compare_with_counterparts(self.ranks, self._settings())
        self._output = output
        self._on_corrupt = (
            on_corrupt if isinstance(on_corrupt, OnCorrupt) else None
        )  # None: raises
        self._make_collate = partial(
            Collate, self.fields, self._datasets, schedule, batch_transforms
        )
        marks = self._on_corrupt is not None and self._on_corrupt.action == "mark"
        self._collate = collate = self._make_collate(keys, marks=marks)
        self._functions = find_functions(
            schedule, collate.masks, collate.moving, self._datasets
        )
        moves = self._functions is not None and bool(collate.moving)
        decodes = collate.has_images or bool(collate.masks) or moves
        if decodes:
            manifest = self._datasets[0].manifest
            schedule.fit(
                manifest.pixels, manifest.is_raw, (manifest.mean, manifest.std)
            )
        self._stored = (
            find_stored(self._datasets, schedule.pixels, collate.mask_fills)
            if decodes
            else None
        )

        odd = any(
            form.places or form.padding_mode != "constant" for form in schedule.forms
        )
        if (self._functions is not None or odd) and decoder == "auto":
            decoder = "native"  # even on a GPU: functions run on the CPU; DALI was not measured at scaling and padding
        resources = plan_resources(
            decoder,
            self.ranks,
            min(batch_size, self._epochs.samples),
            num_threads,
            prefetch,
        )
        made = Made(
            schedule.largest_sizes, schedule.pixels.channels, schedule.first.form.dtype
        )
        chosen = choose_decoder(
            decoder, device, self.ranks, self._datasets, resources, decodes, made
        )
        self.decoder, device_id = chosen
        self.num_threads = resources.num_threads
        self.cpu_share = resources.cpu_share if self.decoder == "both" else None
        if (
            decodes
            and self.decoder != "native"
            and device_id is not None
            and self._functions is None
        ):  # else on the CPU
            by_dali = 1 - (self.cpu_share or 0.0)
            check_whole_images(
                self._datasets, batch_size, resources.prefetch, device_id, by_dali, made
            )
        arrays = make_arrays(output, device_id, schedule.first.form)
        self.device = arrays.device
        check_space(self._datasets, plan.window, batch_size, plan.node_lanes)
        if batch_transforms:
            arrays.staging()  # reports now, not at the first batch, that CuPy is missing
        # Has no reference to this loader, which its threads would keep alive.
        self._open_reader = partial(
            BatchReader
            if plan.buckets is None
            else partial(BucketedReader, plan.buckets, plan.epochs),
            self._datasets,
            plan.make_stream,
            collate.columns
            if self._functions is None
            else tuple(dict.fromkeys((*collate.columns, "key"))),
            collate.members,
            collate.masks,
            decodes=decodes,
            prepare=collate.prepare,
        )
        self._pipeline = self._open(
            chosen, resources, arrays, collate, self._on_corrupt
        )
        if self._mixing is not None:
            self._warn_of_sorted_shards(self._mixing.window * self._mixing.lanes)
        self._over = (
            Flag()
        )  # set where the current loop is ended by another one, or by `close`
        self._closed = False

    def _open(
        self,
        chosen: tuple[Backend, int | None],
        resources: Resources,
        arrays: Arrays,
        collate: Collate,
        on_corrupt: OnCorrupt | None,
    ) -> Pipeline:
        forms, action = (
            self._schedule.forms,
            "raise" if on_corrupt is None else on_corrupt.action,
        )
        epoch_samples = self._epochs.samples / self.ranks.world_size
        return Pipeline(
            self._open_reader,
            open_decoder(
                *chosen, forms, self._stored, resources, self._functions, action
            ),
            partial(collate, arrays=arrays),
            partial(no_pixels, forms=forms, masks=len(collate.masks)),
            CorruptSamples(self._datasets, collate.masks, on_corrupt, epoch_samples),
            self.dataset.folder,
        )

    def _warn_of_sorted_shards(self, window: int) -> None:
        """Warns where batches would hold few classes. The warning names the line that constructs the loader."""
        for dataset in self._datasets:
            if is_sorted_by_class(dataset, window):
                warnings.warn(
                    f"{dataset.folder}: its shards are sorted by class, so that {window} of them, which are mixed at a "
                    "time, hold few classes. Pack them again without --no-shuffle, or raise window; `python -m gpuload "
                    "info` shows how well a window mixes",
                    stacklevel=4,
                )

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        return self._epochs.batches

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """One epoch: the next one, or the rest of one after `load_state_dict`.

        Leaving a loop early ends its epoch; the next loop is the following epoch, as with a DataLoader. After an error
        that the loader raises, the next loop continues behind the last batch returned. A loop starts with its first
        batch: `iter` alone changes nothing, since Lightning calls it several times beforehand.
        """
        self._check_usable()
        return Loop(self._batches(), self._progress)

    @checked("DaliIterator.set_epoch", epoch=whole(0, 10**9))
    def set_epoch(self, epoch: int) -> None:
        """Makes this epoch the next one; if it is the epoch of a loaded state, the loop resumes at the state's
        position.

        `sampler.set_epoch`, which training loops call, only moves forward, and keeps a loaded position.

        epoch: its number, from 0.
        """
        if epoch != self._progress.next.epoch:
            self._progress.start_at(self._epochs.start(epoch), is_loaded=False)

    def _move_on(self, epoch: int) -> None:
        """Makes an epoch the next one as a training loop asks that counts epochs of its own.

        Such a loop may have gone through this loader several times in one of its epochs, as Lightning does with the
        shorter of two. So an earlier epoch is not gone back to, and a loaded position is not left while batches of its
        epoch are to come.
        """
        progress = self._progress
        is_left = not progress.is_loaded or self._epochs.is_last(progress.next)
        if epoch > progress.next.epoch and is_left:
            self.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch returned: plain numbers, the same on all ranks, under 1 kB."""
        return self._plan.state_dict(self._progress.handed_out)

    @checked("DaliIterator.load_state_dict", state=STATE)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next loop resume after the last batch that was returned before the call of `state_dict`.

        Batch size, world size and device may change: order and crops do not depend on them. With buckets, batch_size *
        world_size must be the same.

        state: of `state_dict`.

        Raises:
            StateError: the state belongs to another data set, or to a loader with another seed, shuffle, window or
                lanes; or its position is beyond the end of this loader's epochs.
        """
        position = self._plan.load(state)
        if self.steps_per_epoch is None and position.samples > self._epochs.samples:
            raise StateError(
                f"state_dict: is {counted(position.samples, 'sample')} into its epoch, which has "
                f"{self._epochs.samples:,} here. "
                "Was it made with steps_per_epoch? Construct the loader with it, too"
            )
        self._progress.start_at(position, is_loaded=True)

    @checked(
        "DaliIterator.check_ranks",
        timeout_s=number(POSITIVE, 1e6, "seconds, above 0 and up to 1e6"),
    )
    def check_ranks(self, timeout_s: float = 60) -> None:
        """Compares data, settings and positions of all ranks. Optional: call it once on every rank before training.

        Ranks that differ would see wrong samples, or wait for one another forever at the end of an epoch. If
        `torch.distributed` is initialised, the constructor already compares data and settings, without waiting for
        ranks that construct no such loader. This method also compares the position of a resumed run, and waits for all
        ranks.

        timeout_s: seconds to wait for the other ranks.

        Raises:
            ArgumentError: on every rank, if their data sets, settings or positions differ.
            GpuloadError: a rank did not call this in time.
        """
        compare_ranks(self.ranks, self._settings(), timeout_s)

    @checked("DaliIterator.metrics", window=optional(whole(1, MOST_STEPS)))
    def metrics(self, window: int | None = None) -> Metrics:
        """The time of each stage, images/s, the share of time that training waited, and the limiting stage.

        window: the number of latest batches to cover, up to 1000; None covers all since construction. The call takes
            microseconds and is safe from any thread, even during iteration.
        """
        return self._pipeline.meter.metrics(window)

    def report(self) -> Report:
        """The number of samples replaced or marked on this rank since construction, and the first 1,000 distinct ones
        with key, shard, reason and epoch. Empty with on_corrupt="raise"."""
        return self._pipeline.corrupt.report()

    @checked(
        "DaliIterator.preview",
        n=whole(1, 1024),
        epoch=optional(whole(0, 10**9)),
        batch=ANYTHING,
    )
    def preview(
        self, n: int = 16, epoch: int | None = None, batch: Any = None
    ) -> "Image.Image":
        """A contact sheet of the images that training sees, as a Pillow image, which notebooks display.

        Normalisation is undone. The boxes, masks and keypoints in `fields` are drawn, with classes, captions and
        targets below each image. Transforms and batch transforms are applied with the loader's own random numbers.
        Several views of a sample are next to each other.

        n: the number of samples after the last batch returned; fewer at the end of an epoch.
        epoch: shows the first samples of this epoch instead.
        batch: shows the first n samples of this batch of the loader, on any device.

        The loader's position, state, random numbers and metrics do not change, even in the middle of a loop. The images
        are decoded separately on the CPU, in whole batches; those that do not decode are black and marked.

        Raises:
            ArgumentError: the loader has no images, or `batch` did not come from it.
            GpuloadError: after `close`, or in a process that inherited the loader over fork.
        """
        self._check_usable()
        if not self._collate.has_images:
            raise ArgumentError(
                f"DaliIterator.preview: fields={self.fields!r} has no 'image'. Add it to show images"
            )
        drawing = BatchDrawing(
            self._schedule.forms, self.fields, self._datasets[0].fields, self.classes
        )
        if batch is not None:
            return draw_sheet(drawing.cells(_named_fields(batch, self._collate), n))
        cells: list[Cell] = []
        start = (
            self._progress.handed_out if epoch is None else self._epochs.start(epoch)
        )
        with closing(self._open_preview()) as pipeline:
            for position in (
                start,
                self._epochs.following(start),
            ):  # after a finished epoch, the next one is shown
                left = n
                augments = self._schedule.at(position.epoch)
                for made in pipeline.epoch(
                    position, self._epochs, augments, lambda: True
                ):
                    cells += drawing.cells(made.fields, left)
                    left = n - len(cells) // len(self._schedule.forms)
                    if left <= 0:
                        break
                if cells:
                    break
        return draw_sheet(cells)

    def _open_preview(self) -> Pipeline:
        """A separate pipeline on the CPU. Its order, crops and transforms are the same, because they are functions of
        (seed, epoch, sample)."""
        skips = self._on_corrupt is not None and self._on_corrupt.action == "skip"
        collate = self._make_collate(marks=not skips)
        collate.mixes = self._collate.mixes
        resources = Resources(
            min(self.batch_size, self._epochs.samples), min(self.num_threads, 4), 1
        )
        chosen = choose_decoder(
            "auto",
            "cpu",
            self.ranks,
            self._datasets,
            resources,
            self._stored is not None,
        )
        arrays = make_arrays(
            self._output if self._output == "torch" else "numpy",
            None,
            self._schedule.first.form,
        )
        on_corrupt = OnCorrupt("skip" if skips else "mark", most=1.0)
        return self._open(chosen, resources, arrays, collate, on_corrupt)

    def close(self) -> None:
        """Stops the threads and frees the memory. Batches already returned stay valid.

        If Ctrl-C ends this call, the threads end all the same, and a further call waits for that. In the loader's own
        function, it does not wait.
        """
        if (
            "_over" not in self.__dict__
        ):  # never constructed, if a subclass has a __del__
            return
        self._closed = True
        self._over.is_set = True
        if (
            os.getpid() == self._process
        ):  # a forked child would wait for threads that it does not have
            self._pipeline.close()

    def __enter__(self) -> "DaliIterator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CallError(
            "DaliIterator: cannot be pickled or copied, since it holds threads and the device's memory. Construct one "
            "in each process; state_dict() saves its position, and a gpuload.Dataset can be pickled"
        )

    if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

        def __setattr__(self, name, value):
            if name in ARGUMENTS and name in self.__dict__:
                raise CallError(
                    f"DaliIterator: {name} cannot be changed after construction. Construct a new one"
                )
            object.__setattr__(self, name, value)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class, by its number; None if the set was packed without names."""
        return self.dataset.classes

    @property
    def num_classes(self) -> int | None:
        """Number of classes, with or without names (see `Dataset.num_classes`); of a mixture, the largest."""
        return self.dataset.num_classes

    @property
    def num_batches(self) -> int:
        """Batches in an epoch, by the name that webdataset's loaders and open_clip use."""
        return len(self)

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self._epochs.handed_out

    @property
    def padding(self) -> int:
        """Samples at the end of the last batch that only keep this rank in step (see `drop_last`)."""
        last = self._progress.last
        return (
            0
            if last is None
            else self._epochs.padding(*(at.begin + at.samples for at in last))
        )

    @property
    def remainder(self) -> int:
        """Samples of the last batch on all ranks without padding, for Accelerate; -1 before the first."""
        last = self._progress.last
        return -1 if last is None else last[1].samples - last[0].samples

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch is the last of its epoch, for Accelerate."""
        last = self._progress.last
        return last is not None and self._epochs.is_last(last[1])

    @property
    def sampler(self) -> "Sampler":
        """The part of a DataLoader's sampler that training loops use: `set_epoch`, and its length in samples.

        Its `set_epoch` never goes back to an earlier epoch, and never leaves a position that was loaded.
        """
        share = -(-self.num_samples // self.ranks.world_size)
        return make_sampler(self._move_on, share, self.shuffle)

    @property
    def multiprocessing_context(self) -> NoReturn:
        """Raises CallError: what asks for it, such as Accelerate's `skip_first_batches`, would make a DataLoader of the
        loader's data set."""
        raise CallError(
            "DaliIterator: is no DataLoader, and none can be made of it, as Accelerate's skip_first_batches and "
            "prepare_data_loader try. Iterate over the loader itself; to resume, call "
            "accelerator.register_for_checkpointing(loader), or loader.load_state_dict(state)"
        )

    @property
    def worker_init_fn(self) -> NoReturn:
        """Raises AttributeError, as for any other name, with advice for those who call Ray's `prepare_data_loader`."""
        raise AttributeError(
            "DaliIterator: has no worker_init_fn, since it has no workers. In Ray Train, leave out "
            "prepare_data_loader, or give it add_dist_sampler=False: the loader knows its rank and its device"
        )

    @property
    def mixup_enabled(self) -> bool:
        """Whether MixUp, CutMix and RandomChoice among batch_transforms mix samples.

        Setting it to False disables them from the next batch on; labels stay soft, as one-hot rows. timm's
        `--mixup-off-epoch` sets it. It is not part of `state_dict`.
        """
        return self._collate.mixes and self._collate.has_mixers

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        self._collate.mixes = check("DaliIterator", "mixup_enabled", value, FLAG)

    def __repr__(self) -> str:
        unused = (
            self._epochs.samples - len(self) * self.batch_size * self.ranks.world_size
        )
        left_out = (
            f" ({unused:,} left out of each epoch)" if self.drop_last and unused else ""
        )
        return (
            f"DaliIterator({str(self.dataset.folder)!r}: {counted(len(self.dataset), 'sample')}, "
            f"{counted(len(self), 'batch', 'batches')} of {self.batch_size}{left_out}, rank {self.ranks.rank} of "
            f"{self.ranks.world_size}, on {self.device} by {self.decoder} with {counted(self.num_threads, 'thread')})"
        )

    def _batches(self) -> Generator[tuple[Any, Position], None, None]:
        """The batches of a loop, each with the position after it."""
        if self._pipeline.is_at_work_here():
            raise GpuloadError(
                "this loop runs in a function of its own DaliIterator, and would wait for itself. Construct another "
                "loader for it"
            )
        self._over.is_set = True
        over = self._over = Flag()
        self._check_usable()  # afterwards: `close`, called by another thread at any moment, is noticed
        progress = self._progress
        position = progress.handed_out = progress.next
        try:
            progress.next = self._epochs.following(position)
            progress.is_loaded = False
            augments = self._schedule.at(position.epoch)
            with followed(self):
                for made in self._pipeline.epoch(
                    position, self._epochs, augments, lambda: not over.is_set
                ):
                    batch = [(made.fields, made.position)]
                    del made
                    yield batch.pop()  # not from a variable: a suspended generator would keep the batch alive
                    self._check_usable()
                    check_current(not over.is_set)
        except GeneratorExit:  # the loop was left
            raise
        except BaseException:
            if not over.is_set:  # else the position is that of a later loop
                progress.next = progress.handed_out
            raise
        progress.handed_out = self._epochs.following(position)

    def _settings(self) -> dict[str, Any]:
        """Settings that must be the same on all ranks."""
        return {
            **self.state_dict(),
            "batch_size": self.batch_size,
            "drop_last": self._last_batch,
            "batches": len(self),
            "lanes": 1 if self._mixing is None else self._mixing.lanes,
        }

    def _check_usable(self) -> None:
        """Raises GpuloadError in a forked child, and after `close`."""
        if os.getpid() != self._process:
            raise GpuloadError(
                f"this DaliIterator was constructed in process {self._process} and inherited over fork by "
                f"{os.getpid()}, where its threads do not exist. Construct it in the child, or start the child by spawn"
            )
        if self._closed:
            raise GpuloadError("this DaliIterator is closed; construct a new one")


def _named_fields(batch: Any, collate: Collate) -> Mapping[str, Any]:
    """The fields of a batch by their own names.

    Raises:
        ArgumentError: it is not a batch of a loader with these fields.
    """
    names, keys = collate.handed_out, collate.keys
    fields = dict(batch) if isinstance(batch, Mapping) else {}
    if isinstance(batch, tuple | list) and len(batch) == len(names):
        fields = dict(zip(names, batch, strict=True))
    elif set(fields) == set(keys):
        fields = {name: fields[key] for name, key in zip(names, keys, strict=True)}
    images = fields.get("image")
    first = images[0] if isinstance(images, tuple) and images else images
    if set(fields) != set(names) or not (
        isinstance(first, list) or hasattr(first, "shape")
    ):
        raise ArgumentError(
            f"DaliIterator.preview(batch={type(batch).__name__}): expected a batch of this loader, with the fields "
            f"{', '.join(map(repr, names))}. Give one as it comes from a loop, or leave it out"
        )
    return fields
