"""A DALI pipeline written by hand, with DALI's own reader of WebDataset shards.

After DALI's ResNet-50 example for PyTorch (docs/examples/use_cases/pytorch/resnet50): cropped decode on the CPU; on the
GPU whole decode, then a crop, since cropped decode crashes there in nvImageCodec 0.9 (NVIDIA/nvImageCodec#55); index
files beside the shards; the reader's own shuffle. On the GPU the decoder has the settings that gpuload gives it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmark.work import MEAN, STD, Batches, Work

_AREA, _RATIO = [0.08, 1.0], [3 / 4, 4 / 3]


@contextmanager
def open_pipeline(work: Work, device: str = "cpu", state: Any = None, checkpoints: bool = False) -> Iterator[Batches]:
    """state: a checkpoint to build the pipeline from. checkpoints: whether the pipeline can give one."""
    import torch
    from nvidia.dali import pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline = pipeline_def(graph)(
        work,
        device,
        batch_size=work.batch_size,
        num_threads=work.threads,
        device_id=None if device == "cpu" else torch.cuda.current_device(),
        prefetch_queue_depth=2,
        enable_checkpointing=checkpoints or state is not None,
        checkpoint=state,
    )
    batches = DALIGenericIterator(
        pipeline, ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    yield _Checkpointed(batches, device) if checkpoints else _Pairs(batches, device)


def graph(work: Work, device: str) -> tuple[Any, Any]:
    """Normalised images and labels, for the pipeline that is being defined."""
    from nvidia.dali import fn, types

    encoded, labels = fn.readers.webdataset(
        paths=[str(path) for path in work.shards],
        index_paths=[str(path.with_suffix(".idx")) for path in work.shards],
        ext=["jpg", "cls"],
        random_shuffle=True,
        name="reader",
    )
    resize = {"size": [work.size, work.size], "interp_type": types.INTERP_TRIANGULAR}
    if device == "cpu":
        cropped = fn.decoders.image_random_crop(encoded, random_area=_AREA, random_aspect_ratio=_RATIO)
        images = fn.resize(cropped, **resize)
    else:
        from gpuload.decode.dali.memory import preallocation
        from gpuload.decode.interface import Stored

        whole = fn.decoders.image(
            encoded,
            device="mixed",
            jpeg_fancy_upsampling=True,  # as on the CPU; without it decoding takes less work, and coloured edges differ
            **preallocation(Stored(*work.largest), work.batch_size, None),
        )
        images = fn.random_resized_crop(whole, random_area=_AREA, random_aspect_ratio=_RATIO, **resize)
    normalised = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if work.dtype == "float16" else types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=fn.random.coin_flip(),
    )
    # The reader gives a label as ASCII digits, one byte each; padding makes a batch of them one tensor.
    return normalised, fn.pad(labels, fill_value=ord(" "))


class _Pairs:
    def __init__(self, batches, device: str) -> None:
        self._batches, self._device = batches, device

    def __iter__(self):
        import torch

        for (batch,) in self._batches:
            numbers = [int(bytes(digits)) for digits in batch["labels"].numpy()]
            yield batch["images"], torch.tensor(numbers, device=self._device)


class _Checkpointed(_Pairs):
    def state_dict(self) -> Any:
        return self._batches.checkpoints()[0]
