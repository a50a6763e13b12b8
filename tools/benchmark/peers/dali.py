"""A DALI pipeline as one writes it by hand, with DALI's own reader of WebDataset shards.

As DALI's ResNet-50 example for PyTorch has it (docs/examples/use_cases/pytorch/resnet50): cropped decode on the CPU,
whole decode and then a crop on the GPU (cropped GPU decode crashes in nvImageCodec 0.9, NVIDIA/nvImageCodec#55), index
files beside the shards, the reader's own shuffle.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmark.work import MEAN, STD, Batches, Work


@contextmanager
def open_pipeline(work: Work, device: str = "cpu", state: Any = None, checkpoints: bool = False) -> Iterator[Batches]:
    """state: a checkpoint, with which the pipeline is built anew. checkpoints: that it can give one."""
    import torch
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    shards = work.shards

    @pipeline_def(
        batch_size=work.batch_size,
        num_threads=work.threads,
        device_id=None if device == "cpu" else torch.cuda.current_device(),
        prefetch_queue_depth=2,
        enable_checkpointing=checkpoints or state is not None,
        checkpoint=state,
    )
    def graph():
        encoded, labels = fn.readers.webdataset(
            paths=[str(path) for path in shards],
            index_paths=[str(path.with_suffix(".idx")) for path in shards],
            ext=["jpg", "cls"],
            random_shuffle=True,
            name="reader",
        )
        area, ratio, side = [0.08, 1.0], [3 / 4, 4 / 3], [work.size, work.size]
        if device == "cpu":
            cropped = fn.decoders.image_random_crop(encoded, random_area=area, random_aspect_ratio=ratio)
            images = fn.resize(cropped, size=side, interp_type=types.INTERP_TRIANGULAR)
        else:
            whole = fn.decoders.image(encoded, device="mixed")
            images = fn.random_resized_crop(
                whole, size=side, random_area=area, random_aspect_ratio=ratio, interp_type=types.INTERP_TRIANGULAR
            )
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

    batches = DALIGenericIterator(
        graph(), ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    yield _Checkpointed(batches, device) if checkpoints else _Pairs(batches, device)


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
