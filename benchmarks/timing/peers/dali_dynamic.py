"""DALI's dynamic mode: its operators called batch by batch in a Python loop, after its guide to PyTorch usage."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timing.peers.dali import RANDOM_AREA, RANDOM_RATIO
from timing.peers.dataloader import Moved
from timing.stored import image_ends
from timing.work import MEAN, STD, Batches, Work


@contextmanager
def open_loader(work: Work, device: str = "cpu") -> Iterator[Batches]:
    """Decodes and crops on the CPU; a GPU gets finished batches."""
    yield _Epochs(work) if device == "cpu" else Moved(_Epochs(work), device)


class _Epochs:
    """Each pass is the reader's next epoch."""

    def __init__(self, work: Work) -> None:
        import nvidia.dali.experimental.dynamic as ndd

        ndd.set_num_threads(work.threads)
        endings = [ending.removeprefix(".") for ending in image_ends(work.folder)]
        self._work = work
        self._reader = ndd.readers.Webdataset(
            paths=[str(path) for path in work.shards],
            index_paths=[str(path.with_suffix(".idx")) for path in work.shards],
            ext=[";".join(endings), "cls"],
            random_shuffle=True,
        )

    def __iter__(self) -> Iterator[Any]:
        import nvidia.dali.experimental.dynamic as ndd
        import torch

        for encoded, labels in self._reader.next_epoch(
            batch_size=self._work.batch_size
        ):
            if encoded.batch_size < self._work.batch_size:
                break
            images = self._normalised(self._resized(encoded))
            # A label is its ASCII digits, of which padding makes one tensor for a batch.
            digits = ndd.pad(labels, fill_value=ord(" ")).torch()
            numbers = [int(bytes(row)) for row in digits.numpy()]
            yield images.torch(), torch.tensor(numbers)

    def _resized(self, encoded: Any) -> Any:
        import nvidia.dali.experimental.dynamic as ndd
        from nvidia.dali import types

        if self._work.whole:
            pixels = ndd.decoders.image(encoded, device="cpu")
        else:
            pixels = ndd.decoders.image_random_crop(
                encoded,
                device="cpu",
                random_area=RANDOM_AREA,
                random_aspect_ratio=RANDOM_RATIO,
            )
        return ndd.resize(
            pixels,
            size=[self._work.size, self._work.size],
            interp_type=types.INTERP_TRIANGULAR,
        )

    def _normalised(self, pixels: Any) -> Any:
        import nvidia.dali.experimental.dynamic as ndd
        from nvidia.dali import types

        return ndd.crop_mirror_normalize(
            pixels,
            dtype=types.FLOAT16 if self._work.dtype == "float16" else types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=ndd.random.coin_flip(batch_size=self._work.batch_size),
        )
