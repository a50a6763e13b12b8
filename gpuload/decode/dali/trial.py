"""One image decoded by DALI alone: what becomes of it, without harm to the pipeline that trains.

DALI 2.4 ends the process (SIGSEGV) where an image of a batch does not decode, in 18 to 24 of 24 runs. In a batch of its
own such an image only raises: in 24 of 24 runs (`tools/dali_crash.py`), and for each of 11,066 broken files that were
tried one after the other in one process (2026-11).
"""

from typing import Any

from gpuload.decode.dali.forked import survive_fork
from gpuload.decode.dali.graph import fn, pipeline_def
from gpuload.types import U8, HeightWidth


class Trial:
    """Decodes one image at a time on the CPU; holds a pipeline, which is made anew after a failure."""

    def __init__(self) -> None:
        self._data: list[U8] = []
        self._pipeline: Any = None

    def decoded_size(self, data: U8) -> HeightWidth | None:
        """Size of this image as DALI's CPU decoder decodes it; None where it does not."""
        if not len(data):
            return None
        self._data[:] = [data]
        if self._pipeline is None:
            self._pipeline = pipeline_def(_decode_one)(
                lambda: list(self._data), batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
            )
            self._pipeline.build()
            survive_fork(self._pipeline)
        try:
            (images,) = self._pipeline.run()
        except RuntimeError:
            self._pipeline = None
            return None
        finally:
            self._data.clear()
        height, width, _ = images.at(0).shape
        return height, width


def _decode_one(source: Any) -> Any:
    return fn.decoders.image(fn.external_source(source=source, batch=True), device="cpu")
