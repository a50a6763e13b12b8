"""`DaliIterator`: the loader, as a training loop uses it."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gpuload.augment.schedule import Augments, Schedule
from gpuload.batchwise import BatchTransform
from gpuload.checks import ANYTHING, FLAG, POSITIVE, check, checked, number, optional, whole
from gpuload.counted import counted
from gpuload.decode.arguments import Both, Dali, DecoderName, OnCorrupt
from gpuload.decode.dali.memory import check_whole_images, fits
from gpuload.decode.interface import no_pixels
from gpuload.decode.open import (
    Backend,
    Resources,
    choose_backend,
    find_functions,
    find_stored,
    native_fault,
    open_decoder,
)
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, GpuloadError, StateError
from gpuload.fields.kind import FieldSpec
from gpuload.loader.arguments import ADVICE, ARGUMENTS, STATE, NotSupported, Sampler, check_process
from gpuload.loader.corrupt import CorruptSamples, Report
from gpuload.loader.pipeline import Pipeline, Timing, check_current, followed
from gpuload.loader.tuning import describe_device, prefer_decoder, tuned
from gpuload.machine.agreement import compare_ranks, compare_with_counterparts
from gpuload.machine.limits import count_cores
from gpuload.machine.ranks import find_ranks
from gpuload.monitor.binding import Setup
from gpuload.monitor.metrics import Meter, Metrics
from gpuload.order.arguments import Balance, Repeated, Shuffle, Weights
from gpuload.order.mixedness import warn_of_sorted_shards
from gpuload.order.mixture import Mixture, open_data
from gpuload.order.plan import OrderOptions, plan_order
from gpuload.order.position import Position
from gpuload.output.arrays import Output, make_arrays
from gpuload.output.collate import Collate, make_dict
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures.shown import Cell, draw_sheet
from gpuload.read.batches import check_space, open_reader
from gpuload.read.bucketed import open_bucketed

if TYPE_CHECKING:
    from PIL import Image


class DaliIterator(NotSupported):
    """Batches of decoded, cropped images on the device; each `for` loop is one epoch.

        loader = gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224))
        for images, labels in loader:
            ...

    data: a packed folder, the URL of one (s3://bucket/set/train, also gs, az, https, hf), a `Dataset` (or a subset of
        one), which says where shards are cached, whether they are verified and which samples to leave out, or a mixture
        made by `mix`.
    batch_size: samples in a batch of this process; all ranks together take batch_size * world_size.
    augment: the size, crop, normalisation and dtype of the images. Several make as many views of each sample; a dict
        gives the first epoch in which each is used: {0: Augment(128), 6: Augment(160)}. With a size of
        `Buckets([(1024, 1024), (832, 1216), …])` or `Buckets(area=…)`, each sample is in the bucket nearest to its own
        shape, and each batch is of one bucket, the same on all ranks. With drop_last=True (or steps_per_epoch), an
        epoch is then len(data) // (batch_size * world_size) batches, and what is left in the buckets comes first in the
        next epoch; with drop_last=False it comes as smaller batches at the end, one a bucket. A run resumes with other
        ranks if batch_size * world_size stays the same. See docs/buckets.md.
    fields: the fields of a batch, in this order: "image", "label" and other packed fields, by name or as a spec such as
        `Boxes("boxes", format="xywh")` (see `gpuload.fields`); and for every sample "key" (list of str), "index"
        (int64, its index in stored order) and "dataset" (int64, its data set's number in a mixture). A dict gives them
        other names, and makes batches dicts: {"pixel_values": "image", "labels": "label"}.
    batch_transforms: functions of a whole batch on the device, such as `MixUp()` (see `gpuload.batchwise`), applied in
        this order; 32 at most. Fields that they add come after `fields`, by name, unless named there.
    shuffle: False gives stored order, in every epoch. `Shuffle(window=…, lanes=…)` says how shards are mixed.
    seed: with the epoch, it decides order, crops and flips; nothing else does.
    drop_last: omit a last, smaller batch; by default as `shuffle`: training drops it, evaluation does not. If True, a
        different remainder is skipped in each epoch. If False, each sample comes once over all ranks, and a rank's last
        batches may have fewer samples, but never none: where fewer samples are left than there are ranks, the batch
        before gives some up, or where that is not possible (batch_size=1, or a set smaller than the number of ranks), a
        rank gets one sample of another rank again, and `padding` is then 1. "even": as False, but the parts of all
        ranks are equally long: the first samples of the next epoch fill the last batch up, as a DistributedSampler
        does, and `padding` counts them. "exact": as False, but a rank for which no sample is left gets an
        empty batch, and no sample comes twice.
    steps_per_epoch: batches in an epoch, any number; the next epoch continues where it stopped, and passes over the
        data follow one another without a gap, so that no sample is left out. By default an epoch is one pass.
    sampling: `Balance("label")` draws each class equally often, `Weights("weight")` draws samples in proportion to
        numbers, `Repeated(3)` shows each three times in a row. By default each sample comes once in a pass.
    on_corrupt: what becomes of a sample whose image or mask does not decode. "raise": DecodeError ends the run. "skip":
        the next sample of its batch that decodes takes its place, with its own label, key and all other fields, and so
        comes twice; of a batch without such a sample, the first one after the batch in the order. With decoder="both"
        it is decoded by the decoder that its own number sends it to. "mark": it stays, with zeros for its image and the
        fill of its masks, and batches end with a field "corrupt", bool (N,), True there: to weigh its loss with 0.
        Batch sizes, steps, states and all other samples are the same in all three. `OnCorrupt("skip", most=…, log=…)`
        says how many there may be, 1 % by default, and where they are listed.
    decoder: "dali" (nvJPEG on a GPU, else its CPU operators), "native" (a decoder and a resize, compiled, in threads on
        the CPU; for a GPU the pixels are copied there, and normalised and transformed there), "both" (a share of each
        batch by each) or "auto". On a CPU that is "native", which is faster. On a GPU it is the fastest that
        `python -m gpuload tune` found there; without that "native" where this rank has six cores or more, or where
        the whole images that DALI decodes would take half of the GPU's memory, else "dali". Where packages lack, the
        other one decodes, which is logged. `Dali(…)` and `Both(…)` say which units decode. The pixels of decoders
        differ by rounding, and along an image's edges, where DALI filters differently (docs/lab/decode.md has figures).
    num_threads: CPU threads that decode; by default this rank's share of the cores.
    prefetch: batches decoded ahead of the one handed out. For both, the default is what `python -m gpuload tune` found
        on this device, if it ran.
    device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:1". Without a number it is the GPU that
        `torch.cuda.set_device` chose, under torchrun the rank's own. Batches are there; order and crops are the same
        everywhere.
    output: "torch", "numpy" or "cupy".
    rank, world_size: this process's share; by default from `torch.distributed`, else from torchrun's environment.

    Yields:
        A named tuple of the fields, (image, label) by default; `batch._asdict()` is a dict of them. A dict, where
        `fields` is one.
        images: (N, 3, height, width), of the augment's dtype, on the device; (pixel / 255 - mean) / std. Where the set
            has images of another mode, (N, C, height, width), and pixel / 65535, or floats as they are. With several
            views, a tuple of them; so are masks, boxes and targets that depend on the flip.
        labels: int64 (N,), on the device. Batches are yours to keep: later ones do not overwrite them.

    Raises:
        ArgumentError, FormatError, ShardError, DeviceError, MissingPackageError: at construction.
        ShardError: while iterating, where a shard and its index do not match, an image has more than
            `Dataset.max_pixels`, or a shard was truncated or changed, or can no longer be read. As after any error in a
            loop, `state_dict` is then that of the last batch handed out; the next loop reopens the shard.
        FunctionError: while iterating, where a function of an `Augment` raises (its exception is the cause) or returns
            what cannot be used; names shard and sample.
        DecodeError: while iterating, where a stored image does not decode (names shard, sample, byte and reason), or
            more than `OnCorrupt.most` do not.
        GpuloadError: while iterating, after `close`, or in a process that inherited the loader over fork.

    7 samples, batch_size 2:  drop_last=True -> sizes 2 2 2;  drop_last=False -> 2 2 2 1.
    """

    # What timm's and Lightning's training loops look for on a DataLoader, besides `dataset`, `sampler` and `len`.
    batch_sampler = None

    _closed = True  # until it is constructed

    @checked("DaliIterator", ADVICE, **ARGUMENTS)
    def __init__(
        self,
        data: str | Path | Dataset | Mixture,
        batch_size: int,
        *,
        augment: Augments | Mapping[int, Augments],
        fields: Sequence[str | FieldSpec] | Mapping[str, str | FieldSpec] = ("image", "label"),
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
        self.dataset, mixture = open_data(data)
        self._datasets = mixture.datasets
        keys = tuple(fields) if isinstance(fields, Mapping) else None  # of batches that are dicts
        fields = tuple(fields.values() if isinstance(fields, Mapping) else fields)
        self.batch_size, self.augment, self.fields = batch_size, augment, fields
        self._schedule = Schedule(augment)
        self._mixing = Shuffle() if shuffle is True else shuffle or None  # None: stored order
        self.shuffle, self.seed, self.steps_per_epoch = self._mixing is not None, seed, steps_per_epoch
        self._sampling, self._batch_transforms = sampling, batch_transforms
        self._on_corrupt = on_corrupt if isinstance(on_corrupt, OnCorrupt) else None  # None: raises
        self.drop_last = self.shuffle if drop_last is None else drop_last is True
        self._rest = drop_last if isinstance(drop_last, str) else ""
        self.ranks = find_ranks(rank, world_size)
        options = OrderOptions(
            batch_size,
            self._mixing,
            seed,
            self.drop_last,
            self._rest,
            steps_per_epoch,
            sampling,
            self._schedule.buckets,
        )
        plan = plan_order(self.dataset, mixture, self.ranks, options)
        self._epochs, self._identity = plan.epochs, plan.identity
        self._next = self._handed_out = Position(0, 0, 0)  # where the next `for` loop starts; how far this one is
        compare_with_counterparts(self.ranks, self._settings())
        action = "raise" if self._on_corrupt is None else self._on_corrupt.action
        collate = Collate(fields, self._datasets, self._schedule, batch_transforms, keys, marks=action == "mark")
        functions = find_functions(self._schedule, collate.masks, collate.moving, self._datasets)
        moves = functions is not None and bool(collate.moving)
        self._collate, decodes = collate, collate.has_images or bool(collate.masks) or moves
        if decodes:
            manifest = self._datasets[0].manifest
            self._schedule.fit(manifest.pixels, manifest.is_raw, (manifest.mean, manifest.std))

        units = None if isinstance(decoder, str) else decoder
        wanted = decoder if isinstance(decoder, str) else "dali" if isinstance(decoder, Dali) else "both"
        places = any(form.places for form in self._schedule.forms)
        if (functions is not None or places) and decoder == "auto" and native_fault() is None:
            wanted = "native"  # on a GPU, too: functions are called on the CPU, and DALI does not scale and pad

        def prefer(gpu: int) -> Backend:
            return prefer_decoder(
                self._datasets[0].folder,
                gpu,
                self.ranks,
                lambda ahead, gpu: fits(self._datasets, batch_size, prefetch or ahead, gpu),
            )

        self.decoder, device_id = choose_backend(wanted, device, self.ranks, decodes, prefer)
        place = describe_device(device_id, self.ranks)
        settings = tuned(self._datasets[0].folder, place, self.decoder, self.ranks, units)
        self.num_threads = num_threads or settings.num_threads
        self.cpu_share = settings.cpu if self.decoder == "both" else None
        if decodes and self.decoder != "native" and device_id is not None and functions is None:  # else on the CPU
            by_dali = 1 - (self.cpu_share or 0.0)
            check_whole_images(self._datasets, batch_size, prefetch or settings.prefetch, device_id, by_dali)
        self._output = output
        self._arrays = make_arrays(output, device_id, self._schedule.first.form)
        self.device = self._arrays.device
        check_space(self._datasets, plan.window, batch_size, plan.node_lanes)
        if batch_transforms:
            self._arrays.staging()  # says now, not with the first batch, that CuPy is missing
        # Has no reference to this loader, which its threads would keep alive.
        open_stream = partial(
            open_reader if plan.buckets is None else partial(open_bucketed, plan.buckets, plan.epochs),
            self._datasets,
            plan.make_stream,
            collate.columns if functions is None else tuple(dict.fromkeys((*collate.columns, "key"))),
            collate.members,
            collate.masks,
            decodes=decodes,
            prepare=collate.prepare,
        )
        self._reader = open_stream()
        self._decoder = open_decoder(
            self.decoder,
            device_id,
            self._schedule.forms,
            find_stored(self._datasets, self._schedule.pixels, collate.mask_fills) if decodes else None,
            Resources(
                min(batch_size, self._epochs.samples),
                self.num_threads,
                prefetch or settings.prefetch,
                settings.hardware,
                settings.cpu,
            ),
            functions,
            action,
        )
        self._corrupt = corrupt = CorruptSamples(
            self._datasets,
            collate.masks,
            self._on_corrupt,
            epoch_samples=self._epochs.samples / self.ranks.world_size,
            rank=self.ranks.rank,
        )
        if self._mixing is not None:
            warn_of_sorted_shards(self._datasets, self._mixing.window * self._mixing.lanes)
        self._loops = 0
        self.timing: Timing | None = None  # of the batch handed out last
        self.padding = 0  # samples at the end of that batch that are there only so that this rank keeps step
        # What Accelerate asks: whether that batch is the last of its epoch, and its samples over all ranks, unpadded.
        self.end_of_dataloader, self.remainder = False, -1
        folder = self._datasets[0].folder
        setup = Setup(folder, self.decoder, self.device, self.num_threads, count_cores(), batch_size)
        self._meter = Meter(self._reader.disk_s, setup)
        self._pipeline = Pipeline(
            open_stream,
            self._reader,
            self._decoder,
            partial(collate, arrays=self._arrays),
            partial(no_pixels, forms=self._schedule.forms, masks=len(collate.masks)),
            corrupt,
            self._meter,
        )
        self._closed = False

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        return self._epochs.batches

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """One epoch: the next one, or the rest of one after `load_state_dict`.

        Leaving a loop early ends its epoch; the next loop is the following epoch, as with a DataLoader. A loop starts
        with its first batch: `iter` alone changes nothing, since Lightning calls it several times beforehand.
        """
        self._check_usable()
        return self._epoch()

    @checked("DaliIterator.set_epoch", epoch=whole(0, 10**9))
    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch; in the epoch of a loaded state, it resumes where the state was taken.

        epoch: its number, from 0.
        """
        if epoch != self._next.epoch:
            self._next = self._handed_out = self._epochs.start(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed out: plain numbers, the same on all ranks; under 1 kB."""
        return self._identity.state_dict(self._handed_out)

    @checked("DaliIterator.load_state_dict", state=STATE)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next loop resumes after the last batch that was handed out before `state_dict` was called.

        Batch size, world size and device may have changed since: order and crops do not depend on them. With buckets,
        batch_size * world_size must be the same.

        state: of `state_dict`.

        Raises:
            StateError: the state is of another data set, or of a loader with another seed, shuffle, window or lanes; or
                it is further into its epoch than this loader's epochs are long.
        """
        position = self._identity.load(state)
        if self.steps_per_epoch is None and position.samples > self._epochs.samples:
            raise StateError(
                f"state_dict: is {counted(position.samples, 'sample')} into its epoch, which has "
                f"{self._epochs.samples:,} here. "
                "Was it made with steps_per_epoch? Construct the loader with it, too"
            )
        self._next = self._handed_out = position

    @checked("DaliIterator.check_ranks", timeout_s=number(POSITIVE, 1e6, "seconds, above 0 and up to 1e6"))
    def check_ranks(self, timeout_s: float = 60) -> None:
        """Compares data, settings and positions of all ranks. Optional; to be called on all of them, once, before
        training.

        Ranks that differ would see wrong samples, or wait for one another forever at the end of an epoch. Where
        `torch.distributed` is initialised, the constructor compares data and settings already, without waiting for
        ranks that construct no such loader; this compares where a run is resumed, too, and waits for all ranks.

        timeout_s: seconds to wait for the other ranks.

        Raises:
            ArgumentError: on every rank: their data sets, settings or positions differ.
            GpuloadError: a rank did not call this within the time.
        """
        compare_ranks(self.ranks, self._settings(), timeout_s)

    def metrics(self, window: int | None = None) -> Metrics:
        """What each stage took, images/s, the share of its time that training waited, and the stage that limits.

        window: over this many of the last batches, up to 1000; None: over all since construction. The call takes
            microseconds and is safe from any thread, also while iterating.
        """
        return self._meter.metrics(window)

    def report(self) -> Report:
        """The samples that were replaced or marked on this rank since the loader was constructed: how many, and which
        with key, shard, reason and epoch, the first 1,000 different ones. Empty with on_corrupt="raise"."""
        return self._corrupt.report()

    @checked("DaliIterator.preview", n=whole(1, 1024), epoch=optional(whole(0, 10**9)), batch=ANYTHING)
    def preview(self, n: int = 16, epoch: int | None = None, batch: Any = None) -> "Image.Image":
        """A contact sheet of what training sees, as a Pillow image, which notebooks show.

        Normalisation is undone; boxes, masks and keypoints among `fields` are drawn, and under each image stand its
        classes, captions and targets. Batch transforms and transforms are applied, with the loader's own random
        numbers. Several views of a sample are next to each other.

        n: samples, those that come next after the last batch handed out; fewer at the end of an epoch.
        epoch: shows the first samples of this epoch instead.
        batch: shows the first n samples of this batch of the loader, on whatever device it is.

        Position, state, random numbers and metrics of the loader stay as they are, also in the middle of a loop. The
        images are decoded on the CPU, anew, in whole batches; those that do not decode are black and marked.

        Raises:
            ArgumentError: the loader has no images, or `batch` is none of this loader.
            GpuloadError: after `close`, or in a process that inherited the loader over fork.
        """
        self._check_usable()
        if not self._collate.has_images:
            raise ArgumentError(f"DaliIterator.preview: fields={self.fields!r} has no 'image'. Add it to show images")
        drawing = BatchDrawing(self._schedule.forms, self.fields, self._datasets[0].fields, self.classes)
        if batch is not None:
            return draw_sheet(drawing.cells(_named_fields(batch, self._collate), n))
        cells: list[Cell] = []
        with self._beside() as beside:
            if epoch is None:
                beside.load_state_dict(self.state_dict())
            else:
                beside.set_epoch(epoch)
            beside.mixup_enabled = self.mixup_enabled
            left = n
            for _ in range(2):  # a loop that has handed out all of its epoch shows the next one
                for shown in map(make_dict, beside):
                    cells += drawing.cells(shown, left)
                    left -= len(_first_view(shown["image"]))
                    if left <= 0:
                        return draw_sheet(cells)
                if cells:
                    break
        return draw_sheet(cells)

    def _beside(self) -> "DaliIterator":
        """A loader of its own for a preview, since a second loop would end one that runs: on the CPU, of the same
        order,
        crops and transforms, which are functions of (seed, epoch, sample)."""
        skips = self._on_corrupt is not None and self._on_corrupt.action == "skip"
        with warnings.catch_warnings():  # what this loader has said already
            warnings.simplefilter("ignore", UserWarning)
            return DaliIterator(
                self.dataset,
                self.batch_size,
                augment=self.augment,
                fields=self.fields,
                batch_transforms=self._batch_transforms,
                shuffle=self._mixing or False,
                seed=self.seed,
                drop_last=self._rest or self.drop_last,
                steps_per_epoch=self.steps_per_epoch,
                sampling=self._sampling,
                on_corrupt=OnCorrupt("skip" if skips else "mark", most=1.0),
                num_threads=min(self.num_threads, 4),
                prefetch=1,
                device="cpu",
                output=self._output if self._output == "torch" else "numpy",
                rank=self.ranks.rank,
                world_size=self.ranks.world_size,
            )

    def close(self) -> None:
        """Stops the threads and frees the memory. Batches handed out stay valid."""
        if self._closed:  # or never constructed, where a subclass has a __del__
            return
        self._closed = True
        self._loops += 1
        if os.getpid() == self._process:  # a forked child would wait for threads that it does not have
            self._reader.interrupt()
            self._decoder.close()
            self._reader.close()

    def __enter__(self) -> "DaliIterator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class, by its number; None if the set was packed without names."""
        return self.dataset.classes

    @property
    def num_classes(self) -> int | None:
        """How many classes the data has, with or without names: see `Dataset.num_classes`; of a mixture, the most."""
        return max((count for one in self._datasets if (count := one.num_classes) is not None), default=None)

    @property
    def num_batches(self) -> int:
        """Batches in an epoch, as webdataset's loaders and open_clip call them."""
        return len(self)

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self._epochs.handed_out

    @property
    def sampler(self) -> "Sampler":
        """What training loops ask of a DataLoader's sampler: its `set_epoch`, and its length in samples."""
        return Sampler(self.set_epoch, self._epochs.rank_samples)

    @property
    def mixup_enabled(self) -> bool:
        """Whether MixUp, CutMix and RandomChoice among batch_transforms mix samples.

        Set to False, from the next batch on they mix nothing, while labels stay soft: one-hot rows. timm's
        `--mixup-off-epoch` does that. It is not part of `state_dict`.
        """
        return self._collate.mixes

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        self._collate.mixes = check("DaliIterator", "mixup_enabled", value, FLAG)

    def __repr__(self) -> str:
        unused = self._epochs.samples - len(self) * self.batch_size * self.ranks.world_size
        left_out = f" ({unused:,} left out of each epoch)" if self.drop_last and unused else ""
        return (
            f"DaliIterator({str(self.dataset.folder)!r}: {counted(len(self.dataset), 'sample')}, "
            f"{counted(len(self), 'batch', 'batches')} of {self.batch_size}{left_out}, rank {self.ranks.rank} of "
            f"{self.ranks.world_size}, on {self.device} by {self.decoder} with {counted(self.num_threads, 'thread')})"
        )

    def _epoch(self) -> Iterator[tuple[Any, ...]]:
        self._check_usable()
        self._loops += 1
        loop = self._loops
        position = self._handed_out = self._next
        self._next = self._epochs.following(position)
        augments = self._schedule.at(position.epoch)
        parts, empty = self._epochs.parts(position), self._epochs.empty_parts(position)
        with followed(self):
            for step in self._pipeline.epoch(position, parts, empty, augments, lambda: loop == self._loops):
                start, stop = (position.begin + at.samples for at in (self._handed_out, step.position))
                self.padding, self.remainder = self._epochs.padding(start, stop), stop - start
                self.end_of_dataloader = self._epochs.is_last(step.position)
                self._handed_out, self.timing, fields = step.position, step.timing, [step.fields]
                del step
                yield fields.pop()  # not from a variable: a suspended generator would keep the batch alive
                check_process(self._process)
                check_current(loop == self._loops)
        self._handed_out = self._epochs.following(position)

    def _settings(self) -> dict[str, Any]:
        """What must be the same on all ranks."""
        return {
            **self.state_dict(),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "batches": len(self),
            "lanes": 1 if self._mixing is None else self._mixing.lanes,
        }

    def _check_usable(self) -> None:
        check_process(self._process)
        if self._closed:
            raise GpuloadError("this DaliIterator is closed; construct a new one")


def _named_fields(batch: Any, collate: Collate) -> Mapping[str, Any]:
    """The fields of a batch by their own names.

    Raises:
        ArgumentError: it is no batch of a loader with these fields.
    """
    names, keys = collate.handed_out, collate.keys
    fields = dict(batch) if isinstance(batch, Mapping) else {}
    if isinstance(batch, tuple | list) and len(batch) == len(names):
        fields = dict(zip(names, batch, strict=True))
    elif set(fields) == set(keys):
        fields = {name: fields[key] for name, key in zip(names, keys, strict=True)}
    first = _first_view(fields.get("image"))
    if set(fields) != set(names) or not (isinstance(first, list) or hasattr(first, "shape")):
        raise ArgumentError(
            f"DaliIterator.preview(batch={type(batch).__name__}): expected a batch of this loader, with the fields "
            f"{', '.join(map(repr, names))}. Give one as it comes from a loop, or leave it out"
        )
    return fields


def _first_view(images: Any) -> Any:
    return images[0] if isinstance(images, tuple) and images else images
