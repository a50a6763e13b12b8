"""A DALI pipeline written by hand, for comparison, on the same packed images, with DALI's own reader and shuffle.

After DALI's ResNet-50 example for PyTorch: on a CPU the crop alone is decoded; on a GPU the whole image, then cropped.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pillow_loader import MEAN, STD

import gpuload

HW_DECODER_LOAD = 0.65  # of DALI's example; it is DALI's default, too
_AREA = [0.08, 1.0]
_RATIO = [3 / 4, 4 / 3]


def train_loader(
    folder: str | Path,
    batch_size: int,
    size: int = 224,
    threads: int = 4,
    device: str = "cpu",
    hw_decoder_load: float = HW_DECODER_LOAD,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of images (N, 3, size, size) in channels_last, and labels (N,), on the device.

    The images are normalised, float16 on a GPU and float32 on a CPU.

    Args:
        folder: a packed split of JPEGs with labels.
        batch_size: samples in each batch; the last batch of a pass is filled with samples of the next one.
        size: side of the crops in pixels.
        threads: CPU threads of DALI.
        device: "cpu", "cuda" or "cuda:1".
        hw_decoder_load: share of the images for the JPEG engines of a GPU, 0 to 1.
    """
    from nvidia.dali import pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    place = torch.device(device)
    on_gpu = place.type == "cuda"
    number = (
        (torch.cuda.current_device() if place.index is None else place.index)
        if on_gpu
        else None
    )
    pipeline = pipeline_def(_graph)(
        gpuload.Dataset(folder),
        size,
        on_gpu,
        hw_decoder_load,
        batch_size=batch_size,
        num_threads=threads,
        device_id=number,
        prefetch_queue_depth=2,
    )
    batches = DALIGenericIterator(
        pipeline,
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.FILL,
        auto_reset=True,
    )
    while True:
        for (batch,) in batches:
            labels = torch.tensor(
                [int(bytes(digits)) for digits in batch["labels"].numpy()]
            )
            if on_gpu:  # pinned, so that nothing waits for the copy
                labels = labels.pin_memory().to(place, non_blocking=True)
            yield batch["images"].permute(0, 3, 1, 2), labels


def _graph(
    packed: gpuload.Dataset, size: int, on_gpu: bool, hw_decoder_load: float
) -> tuple[Any, Any]:
    """Images (size, size, 3), and labels as ASCII digits, for the pipeline that is being defined."""
    from nvidia.dali import fn, types

    paths = [Path(path) for path in packed.shard_paths]
    encoded, labels = fn.readers.webdataset(
        paths=[str(path) for path in paths],
        index_paths=[str(path.with_suffix(".idx")) for path in paths],
        ext=["jpg", "cls"],
        random_shuffle=True,
        name="reader",
    )
    resize: dict[str, Any] = {
        "size": [size, size],
        "interp_type": types.INTERP_TRIANGULAR,
    }
    if on_gpu:
        decoded = fn.decoders.image(
            encoded,
            device="mixed",
            hw_decoder_load=hw_decoder_load,
            preallocate_width_hint=packed.manifest.width,
            preallocate_height_hint=packed.manifest.height,
        )
        images = fn.random_resized_crop(
            decoded, random_area=_AREA, random_aspect_ratio=_RATIO, **resize
        )
    else:
        cropped = fn.decoders.image_random_crop(
            encoded, random_area=_AREA, random_aspect_ratio=_RATIO
        )
        images = fn.resize(cropped, **resize)
    normalised = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if on_gpu else types.FLOAT,
        output_layout="HWC",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=fn.random.coin_flip(),
    )
    # Padded to one length, so that they make one tensor.
    return normalised, fn.pad(labels, fill_value=ord(" "))
