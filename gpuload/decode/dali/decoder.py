"""DALI as a decoder: runs the graph of `gpuload.decode.dali.graph`, and finds the images that do not decode.

`find_faults` is to be asked before a batch is given to `decode`: see `gpuload.decode.dali.screen`."""

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuload.augment import Form
from gpuload.decode.dali.faults import find_device_fault
from gpuload.decode.dali.feed import Feed
from gpuload.decode.dali.forked import survive_fork
from gpuload.decode.dali.graph import Operators, backend, build_graph, input_names, pipeline_def, tensors
from gpuload.decode.dali.screen import Screen
from gpuload.decode.dali.transcode import Transcoder
from gpuload.decode.dali.windows import covering
from gpuload.decode.interface import BatchDecodeError, Decoded, Fault, Stored
from gpuload.draws import EACH_GRAPH_VIEW, GRAPH_DRAWS
from gpuload.errors import ArgumentError, DeviceError
from gpuload.read.batch import Batch
from gpuload.types import Array


def count_gpus() -> int:
    """GPUs that DALI can use here; 0 without a driver."""
    try:
        return int(backend.GetCUDADeviceCount())
    except RuntimeError:
        return 0


class DaliDecoder:
    """Decodes batches in order, up to `prefetch` of them ahead of the one asked for.

    device_id: number of a GPU, or None for the CPU.
    num_threads: CPU threads that decode (CPU), or that parse and Huffman-decode (GPU).
    hw_decoder_load: share of the images for the GPU's JPEG engines, the rest is for its CUDA cores; None: DALI decides.
    graph: the user's operators, see `Operators`.

    Raises:
        ArgumentError: more views than `graph` has random numbers for.
        DeviceError: there is no such GPU.
    """

    def __init__(
        self,
        forms: Sequence[Form],
        stored: Stored,
        *,
        batch_size: int,
        device_id: int | None,
        num_threads: int,
        prefetch: int,
        hw_decoder_load: float | None = None,
        graph: Operators | None = None,
    ) -> None:
        if device_id is not None and device_id >= count_gpus():
            raise DeviceError(
                f"device 'cuda:{device_id}' was asked for, but DALI finds {count_gpus()} GPUs here. "
                "Check `nvidia-smi`, or use device='cpu'"
            )
        most = GRAPH_DRAWS.count // EACH_GRAPH_VIEW
        if graph is not None and len(forms) > most:
            raise ArgumentError(f"graph: augment makes {len(forms)} views, expected at most {most}. Use fewer views")
        self._forms, self._stored, self._graph = tuple(forms), stored, graph
        self._decoder = {} if hw_decoder_load is None else {"hw_decoder_load": hw_decoder_load}
        self._settings = {
            "batch_size": batch_size,
            "device_id": device_id,
            "num_threads": num_threads,
            "prefetch_queue_depth": prefetch,
            # Its outputs are safe to keep, and DLPack hands them over without a copy.
            "exec_dynamic": True,
        }
        self._transcoder = Transcoder(stored, num_threads) if stored.others and not stored.raw else None
        self._screen = Screen(stored, self._transcoder)
        self._feed = Feed(self._inputs)
        self._in_flight: deque[tuple[Batch, float]] = deque()  # and when its decoding started
        self._fed_s = 0.0  # waited so far in `_take`, which DALI calls in the thread that asks for a batch
        self._pipeline: Any = None
        # Gives the number of the CUDA stream that a batch is taken on. Then no thread waits for a batch, only that
        # stream does. None: the thread waits. tools/probe_streams.py compares the two.
        self.stream: Callable[[], int] | None = None

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """As `gpuload.decode.interface.Decoder`: DALI's dense tensors, on the device."""
        self._rewind()
        if self._pipeline is None:
            built = pipeline_def(build_graph)(
                self._forms, self._stored, self._take, self._graph, self._decoder, **self._settings
            )
            # The user's operators need not use their random numbers. Not within `catch_warnings`, which in a thread
            # changes, and sets back, the filters of all others.
            warnings.filterwarnings("ignore", "The external source node", Warning)
            built.build()
            survive_fork(built)
            self._pipeline = built
        self._feed.restart(batches)
        pipeline = self._pipeline  # `close` may be called by another thread
        while True:
            fed_s = self._fed_s
            try:
                outputs = [output.as_tensor() for output in self._run(pipeline)]
            except StopIteration:
                pipeline.reset()
                return
            except RuntimeError as error:
                # The pipeline cannot be used again ("Current pipeline object is no longer valid").
                in_flight = [batch for batch, _ in self._in_flight]
                self._discard()
                if (fault := find_device_fault(error, self._settings["device_id"])) is not None:
                    raise fault from error
                if (found := self._screen.find_after_failure(in_flight)) is None:
                    raise
                raise BatchDecodeError(*found) from error
            except BaseException:  # raised by `batches` itself: those in flight are lost with the pipeline
                self._discard()
                raise
            views, masks = len(self._forms), len(self._stored.mask_fills)
            batch, started = self._in_flight.popleft()
            yield (
                batch,
                Decoded(
                    tuple(outputs[:views]),
                    tuple(tuple(outputs[views + view * masks :][:masks]) for view in range(views)),
                    time.perf_counter() - started,
                    work_s=math.nan,
                    read_wait_s=self._fed_s - fed_s,
                    queue_depth=math.nan,
                ),
            )

    def find_faults(self, batch: Batch) -> dict[int, Fault]:
        """The samples of a batch that must not be given to `decode`, by their rows."""
        return self._screen.find_faults(batch)

    def close(self) -> None:
        """Stops the threads and frees the memory; batches handed out stay valid."""
        self._discard()
        self._feed.close()
        if self._transcoder is not None:
            self._transcoder.close()

    def _run(self, pipeline: Any) -> Any:
        return pipeline.run() if self.stream is None else pipeline.run(self.stream())

    def _take(self) -> tuple[Any, ...]:
        begun = time.perf_counter()
        batch, inputs = self._feed.take()
        now = time.perf_counter()
        self._fed_s += now - begun
        self._in_flight.append((batch, now))
        return inputs

    def _inputs(self, batch: Batch) -> tuple[Any, ...]:
        """DALI's own kinds of lists, which it takes as they are; arrays would cost it some µs for each image."""
        images: Iterable[Array] = batch.encoded.images
        if self._stored.raw:
            sizes = zip(batch.encoded.heights.tolist(), batch.encoded.widths.tolist(), strict=True)
            dtype, channels = np.dtype(self._stored.source.stored), self._stored.source.channels
            pairs = zip(images, sizes, strict=True)
            images = (data.view(dtype).reshape(*size, channels) for data, size in pairs)
        elif self._transcoder is not None:
            images = self._transcoder.take(batch)
        encoded = [_as_list(images, "HWC" if self._stored.raw else None), *map(_as_list, batch.masks)]
        fed = []
        for number, (form, view) in enumerate(zip(self._forms, batch.views, strict=True)):
            crops, size = (view.crops, view.size) if form.padding_mode == "constant" else covering(view, form, batch)
            inputs = crops._asdict()
            inputs["size"] = np.full((len(batch), 2), size, np.float32)
            if self._graph is not None:
                own = GRAPH_DRAWS.part(f"graph, view {number}", EACH_GRAPH_VIEW * number, EACH_GRAPH_VIEW).of(
                    batch.draws
                )
                drawn = np.stack([own(draw) for draw in range(EACH_GRAPH_VIEW)], axis=1)
                inputs["draws"] = drawn.astype(np.float32)
            fed += [tensors.TensorListCPU(inputs[name]) for name in input_names(form, self._graph)]
        return (*encoded, *fed)

    def _rewind(self) -> None:
        """Ends a call that was not iterated to its end, so that the pipeline can be used again."""
        self._feed.restart(iter(()))
        pipeline = self._pipeline
        if self._in_flight and pipeline is not None:
            try:
                while True:
                    pipeline.run()
            except StopIteration:
                pipeline.reset()
            except RuntimeError:  # an image of a batch that nobody waits for any more
                self._discard()
            except BaseException:  # Ctrl-C
                self._discard()
                raise
        elif pipeline is not None:
            pipeline.reset()  # every batch was taken, but the caller counted them and did not ask for one more
        self._in_flight.clear()

    def _discard(self) -> None:
        self._pipeline = None
        self._in_flight.clear()


def _as_list(arrays: Iterable[Array], layout: str | None = None) -> Any:
    """DALI's list of these arrays, not copied. An operator that is given a layout would wrap each of them again."""
    return tensors.TensorListCPU([tensors.TensorCPU(data) for data in arrays], layout=layout, contiguous=False)
