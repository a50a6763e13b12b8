"""`DaliIterator`: the loader that a training loop iterates over."""

import os
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gpuload.augment.schedule import Augments, ByEpoch, ByPicture, Schedule
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
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, CallError, GpuloadError, StateError
from gpuload.fields.kind import FieldSpec
from gpuload.loader.arguments import ADVICE, ARGUMENTS, STATE
from gpuload.loader.build import build, build_order, build_preview
from gpuload.loader.config import LoaderConfig
from gpuload.loader.pipeline import Report, check_current, followed
from gpuload.loader.progress import Loop, LoopProgress
from gpuload.loader.samplers import Sampler, make_sampler
from gpuload.machine.apart import Flag, uninterrupted
from gpuload.machine.ranks import Ranks, compare_ranks, compare_with_counterparts
from gpuload.monitor import MOST_STEPS, Metrics
from gpuload.order.arguments import Balance, Mixture, Repeated, Shuffle, Weights
from gpuload.order.budget import Budget
from gpuload.order.sorted_shards import is_sorted_by_class
from gpuload.order.stream import Position, source_seed
from gpuload.output.arrays import Output
from gpuload.output.collate import Collate
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures import Cell, draw_sheet

if TYPE_CHECKING:
    from PIL import Image


class DaliIterator:
    """Batches of decoded, cropped images on the device; each `for` loop is one epoch.

        loader = gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224))
        for images, labels in loader:
            ...

    Args:
        data: A packed folder or its URL (s3://bucket/set/train, also gs, az, https, hf), a `Dataset` or a subset of
            one, which has options for caching, verification and excluded samples, or a mixture made by `mix`.
        batch_size: Samples per batch of this process; the global batch has batch_size * world_size. `Budget(tokens)`:
            with a crop of `Patches`, as many samples of nearly equal size as have so many patches.
        augment: The size, crop, normalisation and dtype of the images. Each of several makes a view of every sample; a
            dict gives the first epoch in which each is used: {0: Augment(128), 6: Augment(160)}. With a size of
            `Buckets([(1024, 1024), (832, 1216), …])` or `Buckets(area=…)`, each sample is in the bucket nearest to its
            own shape, and each batch is of one bucket, the same on all ranks. With drop_last=True (or steps_per_epoch),
            an epoch is then len(data) // (batch_size * world_size) batches, and samples left in the buckets come first
            in the next epoch; with drop_last=False they come as smaller batches at the end, one per bucket. A run
            resumes with other ranks if batch_size * world_size stays the same. See docs/buckets.md.
        fields: The fields of a batch, in this order: "image", "label" and other packed fields, by name or as a spec
            such as `Boxes("boxes", format="xywh")` (see `gpuload.fields`). Every sample also has "key" (list of str),
            "index" (int64, its index in stored order) and "dataset" (int64, its data set's number in a mixture). A dict
            renames the fields, and batches are then dicts: {"pixel_values": "image", "labels": "label"}.
        batch_transforms: Functions of a whole batch on the device, such as `MixUp()` (see `gpuload.batchwise`), applied
            in this order; 32 at most. Fields that they add come after `fields`, by name, unless named there.
        shuffle: False gives stored order in every epoch. `Shuffle(window=…, lanes=…)` sets how shards are mixed.
        seed: Together with the epoch, determines order, crops and flips; nothing else does.
        drop_last: Drops an incomplete last batch; by default the value of `shuffle`: training drops it, evaluation does
            not. If True, a different remainder is skipped in each epoch. If False, each sample comes once across all
            ranks. A rank's last batches may then have fewer samples, but never none: if fewer samples than ranks
            remain, some come from the previous batch; if that is impossible (batch_size=1, or a set smaller than the
            number of ranks), a rank repeats one sample of another rank, and `padding` is 1. "even": like False, but all
            ranks get equally many samples: the first samples of the next epoch fill the last batch, as with a
            DistributedSampler, and `padding` counts them. "exact": like False, but a rank without a remaining sample
            gets an empty batch, and no sample comes twice.
        steps_per_epoch: Batches in an epoch, any number. The next epoch continues where this one stops, and passes over
            the data follow one another without a gap, so no sample is skipped. By default an epoch is one pass.
        sampling: `Balance("label")` draws each class equally often, `Weights("weight")` draws samples in proportion to
            numbers, `Repeated(3)` repeats each three times in a row. By default each sample comes once in a pass.
        on_corrupt: The handling of samples whose image or mask does not decode. "raise": DecodeError ends the run.
            "skip": the next sample of the batch that decodes takes its place, with its own label, key and other fields,
            and so comes twice; if no sample of the batch decodes, the first one after the batch in the order. With
            decoder="both", its own number determines its decoder. "mark": the sample stays, with a zero image and the
            fill value in its masks, and batches end with a field "corrupt", bool (N,), which is True there, to mask its
            loss. Batch sizes, steps, states and all other samples are the same in all three. `OnCorrupt("skip",
            most=…)` sets how many are allowed, 1 % by default.
        decoder: "dali" (nvJPEG on a GPU, otherwise DALI's CPU operators), "native" (a compiled decoder and resize in
            CPU threads; a GPU gets the pixels, and normalises and transforms them), "both" (each decodes a share of
            every batch) or "auto". On a CPU, "auto" is "native", which is faster. On a GPU it is "native" if this rank
            has at least six cores and num_threads, or if DALI's whole images and what is made of them would take half
            of the GPU's memory, and otherwise "dali". If packages are missing, the other decoder is used, with a log
            message. `Dali(…)` and `Both(…)` choose the decoding units. Decoders differ by rounding, and along an
            image's edges, where DALI filters differently (docs/lab/decode.md has figures).
        num_threads: CPU threads that decode; by default this rank's share of the cores.
        prefetch: Batches decoded ahead of the current one; 2 by default. `python -m gpuload tune` measures which values
            of these three are fastest.
        device: The device of the batches: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1". "cuda" is the GPU
            that `torch.cuda.set_device` chose, or under torchrun the rank's own. Order and crops are the same on all
            devices.
        output: "torch", "numpy" or "cupy".
        rank: Number of this process; by default from `torch.distributed`, otherwise from torchrun's environment.
        world_size: Number of processes, by default from the same.

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

    # Not by the module's `sys`, which may have gone then; threads have ended before.
    _has_interpreter_ended = staticmethod(sys.is_finalizing)

    @checked("DaliIterator", ADVICE, **ARGUMENTS)
    def __init__(
        self,
        data: str | Path | Dataset | Mixture,
        batch_size: int | Budget,
        *,
        augment: Augments | ByEpoch | ByPicture,
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
        self._progress = LoopProgress()
        self._over = Flag()  # set where another loop, or `close`, ends the current one
        self.config = LoaderConfig.of_arguments(
            data,
            augment,
            fields,
            shuffle,
            drop_last,
            on_corrupt,
            batch_transforms,
            rank,
            world_size,
            batch_size=batch_size,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
            sampling=sampling,
            decoder=decoder,
            num_threads=num_threads,
            prefetch=prefetch,
            device=device,
            output=output,
        )
        self._given_augment = augment
        schedule = Schedule(self.config.augment)
        self._order = build_order(self.config, schedule)
        self._epochs = self._order.epochs
        compare_with_counterparts(self.config.ranks, self._settings())
        self._built = build(self.config, schedule, self._order)
        self._pipeline = self._built.pipeline
        mixing = self.config.shuffle
        if mixing is not None and self.config.ranks.rank == 0:
            self._warn_of_sorted_shards(mixing)
        self._closed = False

    def _warn_of_sorted_shards(self, shuffle: Shuffle) -> None:
        """Warns where batches would hold few classes. The warning names the line that constructs the loader."""
        datasets = self.config.datasets
        window = shuffle.window * shuffle.lanes
        for source, dataset in enumerate(datasets):
            seed = source_seed(self.config.seed, source, len(datasets))
            look = partial(is_sorted_by_class, dataset, shuffle, seed)
            if uninterrupted(look):  # it compares rows in threads
                warnings.warn(
                    f"{dataset.folder}: its shards are sorted by class, so that {window} of them, which are mixed at a "
                    "time, hold only some of the classes, and a model learns less. Pack the set again without "
                    "--no-shuffle, or raise window; `python -m gpuload info` shows how well a window mixes",
                    stacklevel=4,
                )

    @property
    def dataset(self) -> Dataset | Mixture:
        """The data: a data set, or a mixture of several."""
        return self.config.data

    @property
    def fields(self) -> tuple[str | FieldSpec, ...]:
        """The requested fields, in the order of a batch."""
        return self.config.fields

    @property
    def augment(self) -> Augments | ByEpoch | ByPicture:
        """As it was given."""
        return self._given_augment

    @property
    def batch_size(self) -> int:
        """Samples in a batch of this process; with a budget of tokens, in the largest one."""
        return self._order.batch_size

    @property
    def seed(self) -> int:
        """Of order, crops and all else that is random."""
        return self.config.seed

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in an epoch, as given."""
        return self.config.steps_per_epoch

    @property
    def shuffle(self) -> bool:
        """Whether samples come in a random order."""
        return self.config.shuffle is not None

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self.config.drop_last is True

    @property
    def ranks(self) -> Ranks:
        """This process among those that train together."""
        return self.config.ranks

    @property
    def decoder(self) -> Backend:
        """The decoder of the images: "native", "dali" or "both"."""
        return self._built.decoding.backend

    @property
    def num_threads(self) -> int:
        """CPU threads that decode."""
        return self._built.decoding.resources.num_threads

    @property
    def cpu_share(self) -> float | None:
        """The share of samples that the CPU decodes; None unless two decoders share them."""
        return self._built.decoding.cpu_share

    @property
    def device(self) -> str:
        """Of the batches: "cpu", or such as "cuda:0"."""
        return self._built.decoding.arrays.device

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

        Args:
            epoch: Its number, from 0.
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
        return self._order.state_dict(self._progress.handed_out)

    @checked("DaliIterator.load_state_dict", state=STATE)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next loop resume after the last batch that was returned before the call of `state_dict`.

        Batch size, world size and device may change: order and crops do not depend on them. With buckets, batch_size *
        world_size must be the same.

        Args:
            state: Of `state_dict`.

        Raises:
            StateError: the state belongs to another data set, or to a loader with another seed, shuffle, window or
                lanes; or its position is beyond the end of this loader's epochs.
        """
        position = self._order.load(state)
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

        Args:
            timeout_s: Seconds to wait for the other ranks.

        Raises:
            ArgumentError: on every rank, if their data sets, settings or positions differ.
            GpuloadError: a rank did not call this in time.
        """
        compare_ranks(self.ranks, self._settings(), timeout_s)

    @checked("DaliIterator.metrics", window=optional(whole(1, MOST_STEPS)))
    def metrics(self, window: int | None = None) -> Metrics:
        """The time of each stage, images/s, the share of time that training waited, and the limiting stage.

        Args:
            window: The number of latest batches to cover, up to 1000; None covers all since construction.

        The call takes microseconds and is safe from any thread, even during iteration.
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

        Args:
            n: The number of samples after the last batch returned; fewer at the end of an epoch.
            epoch: Shows the first samples of this epoch instead.
            batch: Shows the first n samples of this batch of the loader, on any device.

        The loader's position, state, random numbers and metrics do not change, even in the middle of a loop. The images
        are decoded separately on the CPU, in whole batches; those that do not decode are black and marked.

        Raises:
            ArgumentError: the loader has no images, or patches of them; or `batch` did not come from it.
            GpuloadError: after `close`, or in a process that inherited the loader over fork.
        """
        self._check_usable()
        collate = self._built.collate
        if not collate.shown:
            raise ArgumentError(
                f"DaliIterator.preview: fields={self.fields!r} has no {collate.image!r}. Add it to show images"
            )
        if self._built.schedule.grid is not None:
            raise ArgumentError(
                "DaliIterator.preview: shows images, and Patches makes none. Use Resize(...) to look "
                "at these"
            )
        drawing = BatchDrawing(
            self._built.decoding.pictures[0].forms,  # of the image
            self.fields,
            self.config.datasets[0].fields,
            self.classes,
            collate.image,
        )
        if batch is not None:
            return draw_sheet(drawing.cells(_named_fields(batch, collate), n))
        cells: list[Cell] = []
        start = (
            self._progress.handed_out if epoch is None else self._epochs.start(epoch)
        )
        with closing(build_preview(self.config, self._built)) as pipeline:
            # After a finished epoch, the next one is shown.
            for position in (
                start,
                self._epochs.following(start),
            ):
                missing = n
                augments = self._built.schedule.at(position.epoch)
                for fields, _ in pipeline.epoch(
                    position, self._epochs, augments, lambda: True
                ):
                    cells += drawing.cells(fields, missing)
                    missing = n - len(cells) // drawing.cells_of_sample
                    if missing <= 0:
                        break
                if cells:
                    break
        return draw_sheet(cells)

    def close(self) -> None:
        """Stops the threads and frees the memory. Batches already returned stay valid.

        If Ctrl-C ends this call, the threads end all the same, and a further call waits for that. In the loader's own
        function, it does not wait.
        """
        # Never constructed, or at the end of the interpreter, if a subclass has a __del__.
        if "_pipeline" not in self.__dict__ or self._has_interpreter_ended():
            return
        self._closed = True
        self._over.is_set = True
        # A forked child would wait for threads that it does not have.
        if os.getpid() == self._process:
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
            if name in ARGUMENTS:
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
            else self._epochs.padding(
                *(position.begin + position.samples for position in last)
            )
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
        """Whether MixUp, CutMix and RandomMixer among batch_transforms mix samples.

        Setting it to False disables them from the next batch on; labels stay soft, as one-hot rows. timm's
        `--mixup-off-epoch` sets it. It is not part of `state_dict`.
        """
        return self._built.collate.mixes and self._built.collate.has_mixers

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        self._built.collate.mixes = check("DaliIterator", "mixup_enabled", value, FLAG)

    def __repr__(self) -> str:
        unused = self._epochs.samples - self._epochs.handed_out
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
            augments = self._built.schedule.at(position.epoch)
            with followed(self):
                for batch in self._pipeline.epoch(
                    position, self._epochs, augments, lambda: not over.is_set
                ):
                    handover = [batch]
                    del batch
                    yield handover.pop()  # not from a variable: a suspended generator would keep the batch alive
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
        shuffle = self.config.shuffle
        return {
            **self.state_dict(),
            "batch_size": self.batch_size,
            "drop_last": self.config.drop_last,
            "batches": len(self),
            "lanes": 1 if shuffle is None else shuffle.lanes,
            # Decoded copies have the fingerprint of their set, whatever the size of their images.
            "resized": [
                "" if dataset.copied is None else dataset.copied.resized
                for dataset in self.config.datasets
            ],
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
    names = collate.names.all
    fields = collate.names.fields_of(batch)
    images = fields.get(collate.shown)
    first = images[0] if isinstance(images, tuple) and images else images
    has_images = isinstance(first, list) or hasattr(first, "shape")
    if set(fields) != set(names) or not has_images:
        raise ArgumentError(
            f"DaliIterator.preview(batch={type(batch).__name__}): expected a batch of this loader, with the fields "
            f"{', '.join(map(repr, names))}. Give one as it comes from a loop, or leave it out"
        )
    return fields
