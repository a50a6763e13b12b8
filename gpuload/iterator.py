"""`DaliIterator`: the loader, as a training loop uses it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gpuload.augment.schedule import Augments, Schedule
from gpuload.batchwise import BatchTransform
from gpuload.checks import ANYTHING, POSITIVE, checked, number, optional, whole
from gpuload.corrupt import CorruptSamples, Report
from gpuload.counted import counted
from gpuload.decode.function.open import find_functions
from gpuload.decode.guard import OnCorrupt
from gpuload.decode.open import DecoderName, choose_backend, native_fault, open_decoder
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, GpuloadError, StateError
from gpuload.fields import FieldSpec
from gpuload.hand_over import HandOver, Timing, check_current
from gpuload.headers.limits import MAX_PIXELS
from gpuload.iterator_checks import ADVICE, ARGUMENTS, STATE, NotSupported, check_process, check_shares
from gpuload.limits import count_cores
from gpuload.monitor.binding import Setup
from gpuload.monitor.metrics import Meter, Metrics
from gpuload.order.buckets import Buckets
from gpuload.order.mixedness import warn_of_sorted_shards
from gpuload.order.mixture import Mixture, open_data
from gpuload.order.plan import plan_order
from gpuload.order.position import Position
from gpuload.order.sampling import Weights
from gpuload.output.arrays import Output, make_arrays
from gpuload.output.collate import Collate
from gpuload.output.drawing import BatchDrawing
from gpuload.pictures.sheet import draw_sheet
from gpuload.preview import MOST_SHOWN, named_fields, preview_cells
from gpuload.ranks import compare_ranks, find_ranks
from gpuload.read.batches import check_space, open_reader
from gpuload.read.bucketed import open_bucketed
from gpuload.tuning import tuned

if TYPE_CHECKING:
    from PIL import Image


class DaliIterator(NotSupported):
    """Batches of decoded, cropped images on the device; each `for` loop is one epoch.

        loader = gpuload.DaliIterator("shards/train", batch_size=256, augment=gpuload.Augment(224))
        for images, labels in loader:
            ...

    data: a packed folder, the URL of one (s3://bucket/set/train, also gs, az, https, hf), a `Dataset` (or a subset of
        one), or a mixture made by `mix`.
    batch_size: samples in a batch of this process; all ranks together take batch_size * world_size.
    augment: the size, crop, normalisation and dtype of the images. Several make as many views of each sample; a dict
        gives the first epoch in which each is used: {0: Augment(128), 6: Augment(160)}.
    device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:1". Without a number it is the GPU that
        `torch.cuda.set_device` chose, under torchrun the rank's own. Batches are there; order and crops are the same
        everywhere.
    decoder: "dali" (nvJPEG on a GPU, else its CPU operators), "native" (a decoder and a resize, compiled, in threads on
        the CPU; for a GPU the pixels are copied there, and normalised and transformed there), "both" (a share of each
        batch by each) or "auto": "dali" on a GPU, on a CPU "native", which is faster, unless its packages cannot be
        used, which is logged. Their pixels differ by rounding, and along an image's edges, where DALI filters
        differently (gpuload/DESIGN.md has figures).
    fields: the fields of a batch, in this order: "image", "label" and other packed fields, by name or as a spec such as
        `Boxes("boxes", format="xywh")` (see `gpuload.fields`); and for every sample "key" (list of str), "index"
        (int64, its index in stored order) and "dataset" (int64, its data set's number in a mixture).
    batch_transforms: functions of a whole batch on the device, such as `MixUp()` (see `gpuload.batchwise`), applied in
        this order; 32 at most. Fields that they add come after `fields`, by name, unless named there.
    output_dict: a batch is a dict from names to values, not a tuple.
    shuffle: False gives stored order, in every epoch.
    seed: with the epoch, it decides order, crops and flips; nothing else does.
    drop_last: omit a last, smaller batch; by default as `shuffle`: training drops it, evaluation does not. If True, the
        samples that would be in it, other ones in each epoch, are left out of that epoch. If False, each sample comes
        once over all ranks, and a rank's last batch may have fewer samples, or none.
    balance: the name of a field of classes, such as "label": each class is drawn equally often. A pass then has as many
        samples of each, or one more.
    weights: how often samples are drawn, in proportion: the name of a field of numbers, or an array (len(data),), for a
        mixture of all its samples, one data set after another. A sample of which 2.3 are expected in a pass comes 2 or
        3 times. A sample that comes again in a pass has other crops. For both, order and counts do not depend on ranks
        and batch size, and mid-epoch resume is exact; a pass costs O(samples) once, and they take 4 bytes (`balance`)
        or 16 (`weights`) of memory for each sample.
    replacement: for `balance` and `weights`, whether a sample may come several times in a pass, as in torch's
        `WeightedRandomSampler`. False needs num_samples.
    num_samples: for `balance` and `weights`, samples in a pass over all ranks; by default as many as the data has.
    rank, world_size: this process's share; by default from `torch.distributed`, else from torchrun's environment.
    num_threads: CPU threads that decode; by default this rank's share of the cores.
    prefetch: batches decoded ahead of the one handed out.
    hw_decoder_load: on a GPU, share of the images that its JPEG engines decode; its CUDA cores decode the rest. None:
        DALI decides. For this, cpu_share and the two above, the default is what `python -m gpuload tune` found on this
        device, if it ran.
    cpu_share: with decoder="both", share of the images that the CPU decodes, 0.25 where nothing was measured. Which
        images depends on (seed, epoch, sample) alone.
    deterministic: on a GPU, one unit decodes all images that DALI decodes: CUDA's cores, or with hw_decoder_load=1 the
        JPEG engines. Otherwise which unit decodes an image may depend on its batch, and its pixels by rounding. Tuned
        shares are not used. On a CPU pixels never depend on the batch.
    graph: a function of DALI operators inside its graph, (images, draws) to images: uint8 (height, width, 3), cropped
        and resized, before flips and normalisation, and 16 random numbers in [0, 1) for each sample. It must keep the
        size; masks and boxes do not follow what it moves.
    output: "torch", "numpy" or "cupy".
    steps_per_epoch: batches in an epoch, any number; the next epoch continues where it stopped, and passes over the
        data follow one another without a gap, so that no sample is left out. By default an epoch is one pass.
    window: shards whose samples are mixed with one another at a time. More of them mix better and take more memory.
    lanes: for several nodes that read a set at a URL: the shards are divided among so many lanes, each mixed in windows
        of its own, and each batch of all ranks takes equally many samples of every lane. Where the number of ranks
        divides `lanes`, which divides the samples of a step over all ranks, each rank reads its own lanes alone; a
        rank's samples of a short last batch may then be up to lanes / world_size more than another's. The order does
        not depend on the ranks. Not for mixtures, `balance`, `weights` or shuffle=False.
    cache: for a set at a URL, the folder into which shards are downloaded before they are needed, each once for all
        processes on this machine; by default $GPULOAD_CACHE, else gpuload in the user's cache folder.
    cache_size: bytes that the cache may take, a number or such as "200GB"; what is needed last is deleted first. By
        default nine tenths of what is free on its disk. 0: shards are downloaded into memory, by each process for
        itself; those of two windows are there at a time.
    function_processes: processes in which functions of `Augment(function=…)` are called, each for one sample at a time,
        for those that hold Python's lock. 0: in threads of this process, as many as num_threads. A function that goes
        to processes must be one of a module, or such an object, as for `pickle`.
    verify: "sha256": no sample is handed out before the checksum of its shard was compared with the manifest's, once
        for each shard. That is done while reading ahead; the first batch waits for a window of shards.
    max_pixels: of an image by the index; a larger one is an error before there is memory for it. The packer's option
        `--max-pixels` has the same default, Pillow's.
    on_corrupt: what becomes of a sample whose image or mask does not decode. "raise": DecodeError ends the run. "skip":
        the next sample of its batch that decodes takes its place, with its own label, key and all other fields, and so
        comes twice; of a batch without such a sample, the first one after the batch in the order. With decoder="both"
        it is decoded by the decoder that its own number sends it to. "mark": it stays,
        with zeros for its image and the fill of its masks, and batches end with a field "corrupt", bool (N,), True
        there: to weigh its loss with 0. Batch sizes, steps, states and all other samples are the same in all three.
    max_corrupt: with "skip" and "mark", how many of them may come in an epoch on this rank, as a whole number or as a
        share, in 0..1, of the samples that this rank gets in an epoch; more raise DecodeError.
    corrupt_log: a file to which each of them is appended, as a line of JSON, whenever it comes.
    buckets: output sizes, (height, width) in pixels, such as [(1024, 1024), (832, 1216)], or `Buckets(area=…)`. Each
        sample is in the bucket nearest to its own shape, each batch is of one bucket, and the augment has no size:
        `Augment(crop="cover")`. All ranks have the same bucket in the same step. With drop_last=True (or
        steps_per_epoch), an epoch is len(data) // (batch_size * world_size) batches, and what is left in the buckets
        comes first in the next epoch; with drop_last=False it comes as smaller batches at the end, one a bucket. A run
        resumes with other ranks if batch_size * world_size stays the same. See docs/buckets.md.
    exclude: samples to leave out, as `Dataset.subset` would: the file that `python -m gpuload verify --quarantine FILE`
        wrote, or a list of keys. All ranks must leave out the same.

    Yields:
        images: (N, 3, height, width), of the augment's dtype, on the device; (pixel / 255 - mean) / std. Where the set
            has images of another mode, (N, C, height, width), and pixel / 65535, or floats as they are. With several
            views, a tuple of them; so are masks, boxes and targets that depend on the flip.
        labels: int64 (N,), on the device. Batches are yours to keep: later ones do not overwrite them.

    Raises:
        ArgumentError, FormatError, ShardError, DeviceError, MissingPackageError: at construction.
        ShardError: while iterating, where a shard and its index do not match, an image has more than `max_pixels`, or a
            shard was truncated or changed, or cannot be read any more. As after any error in a loop, `state_dict` is
            then that of the last batch handed out; the next loop opens the shard again.
        FunctionError: while iterating, where a function of an `Augment` raises (its exception is the cause) or returns
            what cannot be used; names shard and sample.
        DecodeError: while iterating, where a stored image does not decode (names shard, sample, byte and reason), or
            more than max_corrupt do not.
        GpuloadError: while iterating, after `close`, or in a process that inherited the loader over fork.

    7 samples, batch_size 2:  drop_last=True -> sizes 2 2 2;  drop_last=False -> 2 2 2 1.
    """

    # What timm's and Lightning's training loops look for on a DataLoader, besides `dataset`, `sampler` and `len`.
    batch_sampler = None
    mixup_enabled = False

    @checked("DaliIterator", ADVICE, **ARGUMENTS)
    def __init__(
        self,
        data: str | Path | Dataset | Mixture,
        batch_size: int,
        *,
        augment: Augments | Mapping[int, Augments],
        device: str = "auto",
        decoder: DecoderName = "auto",
        fields: Sequence[str | FieldSpec] = ("image", "label"),
        batch_transforms: Sequence[BatchTransform] = (),
        output_dict: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool | None = None,
        steps_per_epoch: int | None = None,
        balance: str | None = None,
        weights: Weights | None = None,
        replacement: bool = True,
        num_samples: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int | None = None,
        prefetch: int | None = None,
        hw_decoder_load: float | None = None,
        cpu_share: float | None = None,
        deterministic: bool = False,
        graph: Callable[[Any, Any], Any] | None = None,
        output: Output = "torch",
        window: int = 8,
        function_processes: int = 0,
        lanes: int = 1,
        cache: str | Path | None = None,
        cache_size: int | str | None = None,
        verify: Literal["sha256"] | None = None,
        max_pixels: int = MAX_PIXELS,
        on_corrupt: OnCorrupt = "raise",
        max_corrupt: float = 0.01,
        corrupt_log: str | Path | None = None,
        exclude: str | Path | Sequence[str] | None = None,
        buckets: Buckets | Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}  # for `preview`
        self._process = os.getpid()
        self.dataset, mixture = open_data(data, exclude, cache, cache_size)
        self._datasets = mixture.datasets
        self.batch_size, self.augment, self.fields = batch_size, augment, tuple(fields)
        assert buckets is None or isinstance(buckets, Buckets)  # the rule gives them
        self.buckets = buckets
        self._schedule = Schedule(augment, buckets.all_sizes if buckets else ())
        self.shuffle, self.seed, self.window, self.lanes = shuffle, seed, window, lanes
        self.steps_per_epoch = steps_per_epoch
        self.drop_last = shuffle if drop_last is None else drop_last
        self.ranks = find_ranks(rank, world_size)
        plan = plan_order(
            self.dataset,
            mixture,
            self.ranks,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            window=window,
            lanes=lanes,
            drop_last=self.drop_last,
            steps_per_epoch=steps_per_epoch,
            balance=balance,
            weights=weights,
            replacement=replacement,
            num_samples=num_samples,
            buckets=buckets,
        )
        self._epochs, self._identity = plan.epochs, plan.identity
        marks = on_corrupt == "mark"
        collate = Collate(
            fields, self._datasets, self._schedule, batch_transforms, output_dict=output_dict, marks=marks
        )
        functions = find_functions(self._schedule, collate.masks, collate.moving, self._datasets, function_processes)
        moves = functions is not None and bool(collate.moving)
        self._collate, decodes = collate, collate.has_images or bool(collate.masks) or moves
        if decodes:
            manifest = self._datasets[0].manifest
            self._schedule.fit(manifest.pixels, manifest.is_raw, manifest.mean, manifest.std)

        check_shares(decoder, cpu_share, deterministic, hw_decoder_load)
        wanted = "dali" if graph is not None and decoder == "auto" else decoder
        if functions is not None and decoder == "auto" and native_fault() is None:
            wanted = "native"  # on a GPU, too: functions are called on the CPU
        self.decoder, device_id = choose_backend(wanted, device, self.ranks, decodes)
        self.num_threads, prefetch, hw_decoder_load, share = tuned(
            self._datasets[0].folder,
            device_id,
            self.ranks,
            self.decoder,
            num_threads,
            prefetch,
            hw_decoder_load,
            cpu_share,
            deterministic,
        )
        self.cpu_share = share if self.decoder == "both" else None
        self._arrays = make_arrays(output, device_id, self._schedule.first.form)
        self.device = self._arrays.device
        check_space(self._datasets, window, batch_size, plan.node_lanes)
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
            verify=verify is not None,
            max_pixels=max_pixels if decodes else None,
            prepare=collate.prepare,
        )
        self._reader = open_stream()
        self._decoder = open_decoder(
            self.decoder,
            device_id,
            self._datasets,
            self._schedule,
            collate.mask_fills if decodes else None,
            graph,
            hw_decoder_load,
            on_corrupt,
            share,
            functions,
            batch_size=min(batch_size, self._epochs.samples),
            num_threads=self.num_threads,
            prefetch=prefetch,
        )
        self._corrupt = corrupt = CorruptSamples(
            self._datasets,
            collate.masks,
            on_corrupt,
            max_corrupt,
            corrupt_log,
            epoch_samples=self._epochs.samples / self.ranks.world_size,
            rank=self.ranks.rank,
        )
        if shuffle:
            warn_of_sorted_shards(self._datasets, window * lanes)
        self._next = self._handed_out = Position(0, 0, 0)  # where the next `for` loop starts; how far this one is
        self._loops = 0
        self._closed = False
        self.timing: Timing | None = None  # of the batch handed out last
        folder = self._datasets[0].folder
        setup = Setup(folder, self.decoder, self.device, self.num_threads, count_cores(), batch_size)
        self._meter = Meter(self._reader.disk_s, setup)
        self._hand_over = HandOver(
            open_stream, self._reader, self._decoder, collate, self._arrays, self._schedule.forms, corrupt, self._meter
        )

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
        """Compares data and settings of all ranks. Optional; to be called on all of them, once, before training.

        Ranks that differ would see wrong samples, or wait for one another forever at the end of an epoch. No other
        method waits for other ranks.

        timeout_s: seconds to wait for the other ranks.

        Raises:
            ArgumentError: on every rank: their data sets, settings or positions differ.
            GpuloadError: a rank did not call this within the time.
        """
        settings = {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "batches": len(self),
            "lanes": self.lanes,
        }
        compare_ranks(self.ranks, {**self.state_dict(), **settings}, timeout_s)

    def metrics(self, window: int | None = None) -> Metrics:
        """What each stage took, images/s, the share of its time that training waited, and the stage that limits.

        window: of the last so many batches, up to 1000; None: of all since the loader was constructed. It takes
            microseconds, and may be called from any thread, while iterating or not.
        """
        return self._meter.metrics(window)

    def report(self) -> Report:
        """The samples that were replaced or marked on this rank since the loader was constructed: how many, and which
        with key, shard, reason and epoch, the first 1,000 different ones. Empty with on_corrupt="raise"."""
        return self._corrupt.report()

    @checked("DaliIterator.preview", n=whole(1, MOST_SHOWN), epoch=optional(whole(0, 10**9)), batch=ANYTHING)
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
            return draw_sheet(drawing.cells(named_fields(batch, self._collate.handed_out), n))
        state = self.state_dict()

        def start(beside: DaliIterator) -> None:
            if epoch is None:
                beside.load_state_dict(state)
            else:
                beside.set_epoch(epoch)

        return draw_sheet(preview_cells(DaliIterator, self, self._arguments, drawing, n, start))

    def close(self) -> None:
        """Stops the threads and frees the memory. Batches handed out stay valid."""
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
        """Name of each class by its number; None where the packer was not told."""
        return self.dataset.classes

    @property
    def sampler(self) -> "DaliIterator":
        """The object whose `set_epoch` timm and Lightning call."""
        return self

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
        for handed in self._hand_over.epoch(position, parts, empty, augments, lambda: loop == self._loops):
            self._handed_out, self.timing = handed.position, handed.timing
            yield handed.fields
            check_process(self._process)
            check_current(loop == self._loops)
        self._handed_out = self._epochs.following(position)

    def _check_usable(self) -> None:
        check_process(self._process)
        if self._closed:
            raise GpuloadError("this DaliIterator is closed; construct a new one")
