"""DALI's GPU memory: for its JPEG decoder at construction, and for whole images and crops while it decodes."""

import math
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

import numpy as np

from gpuload.augment.views import DType
from gpuload.decode.interface import NUMPY_DTYPES, Stored
from gpuload.disk.dataset import Dataset
from gpuload.errors import DeviceError
from gpuload.fields.field import Field
from gpuload.fields.images import Pixels, picture_columns
from gpuload.fields.picture_lists import PicturesKind, list_columns
from gpuload.fields.rows import flat
from gpuload.pictures import MAX_PIXELS
from gpuload.read.shards import checked_rows
from gpuload.types import F64, HeightWidth

# The limit for the decoder's preallocation. With ImageNet's largest sides, 5980 and 6430 pixels, and batches of 256 it
# would be 18 GiB for each loader, because one image is that wide and another that high.
MOST_BYTES = 1 << 30

# DALI's own default since 2.2.
DALIS_LOAD = 0.65

_CHANNELS = 3


def preallocated_bytes(
    width: int, height: int, batch_size: int, hw_decoder_load: float | None
) -> int:
    """Bytes that DALI allocates for its JPEG engines, given the largest width and height in pixels.

    Args:
        width: Of the largest image in pixels.
        height: Of the largest image in pixels.
        batch_size: Samples in a batch.
        hw_decoder_load: As of `Resources`.
    """
    images = max(
        1,
        round(
            (DALIS_LOAD if hw_decoder_load is None else hw_decoder_load) * batch_size
        ),
    )
    return images * width * height * _CHANNELS


def preallocation(
    stored: Stored, batch_size: int, hw_decoder_load: float | None
) -> dict[str, int]:
    """The decoder's arguments that preallocate memory for the largest images.

    Empty if that would exceed MOST_BYTES, so that memory grows with the images met, or if the manifest lists images
    that the loader may refuse.
    """
    if stored.width * stored.height > MAX_PIXELS:
        return {}
    taken = preallocated_bytes(stored.width, stored.height, batch_size, hw_decoder_load)
    if not 0 < taken <= MOST_BYTES:
        return {}
    return {
        "preallocate_width_hint": stored.width,
        "preallocate_height_hint": stored.height,
    }


# The share of a GPU's memory that decoding may take. The rest is for the model and the batches in use.
MOST_SHARE = 0.5

# DALI's default for `resize`: images that one call of a kernel takes, and that share its float32 intermediate.
_MINIBATCH = 32
_FLOAT_BYTES = 4
_COPIES = 2  # of the values of each batch: DALI's, and the one in torch's memory


class OutputImages(NamedTuple):
    """What is made of each decoded picture of a name.

    Attributes:
        sizes: (height, width) of each view in pixels.
        channels: Of each pixel.
        dtype: Of the batch.
        name: Of the picture; "" for the image.
        most: Pictures of a sample, at most.
    """

    sizes: tuple[HeightWidth, ...] = ()
    channels: int = _CHANNELS
    dtype: DType = "float32"
    name: str = ""
    most: int = 1

    @property
    def values_bytes(self) -> int:
        """Bytes of the values of one picture, in all views."""
        pixels = sum(height * width for height, width in self.sizes)
        return pixels * self.channels * np.dtype(NUMPY_DTYPES[self.dtype]).itemsize


IMAGE_ALONE = (OutputImages(),)


def whole_images_bytes(
    datasets: Sequence[Dataset],
    batch_size: int,
    prefetch: int,
    outputs: Sequence[OutputImages] = IMAGE_ALONE,
) -> int:
    """Bytes on a GPU of the batches in flight: DALI decodes whole images before it crops them.

    Counted are the decoded images; for each view a slice, at most as large as its image; the values in DALI's memory
    and in torch's; and the intermediate of each resize.

    The mean size is that of the first and the last shard in the index; with several data sets, the one that takes most
    counts.

    Args:
        datasets: Of which samples are.
        batch_size: Of the samples that DALI decodes.
        prefetch: Batches decoded at the same time.
        outputs: What is made of the image, and of further pictures.

    Raises:
        ShardError: the index of these shards is damaged.
    """
    return max(
        (
            sum(_bytes_of(dataset, batch_size, prefetch, one) for one in outputs)
            for dataset in datasets
        ),
        default=0,
    )


def _bytes_of(
    dataset: Dataset, batch_size: int, prefetch: int, output: OutputImages
) -> int:
    """Bytes of the pictures of one name."""
    field = dataset.require_field(output.name or dataset.manifest.image.name)
    samples, sizes = _some_sizes(dataset, field)
    if not len(sizes):
        return 0
    pictures = batch_size * min(output.most, len(sizes) / samples)
    # Gray is decoded to RGB.
    pixel_bytes = max(_CHANNELS, Pixels.of_field(field).bytes)
    decoded = pixel_bytes * float(sizes.prod(axis=1).mean())
    slices = len(output.sizes) * decoded
    in_flight = (decoded + slices + _COPIES * output.values_bytes) * pictures * prefetch
    longest_side = float(sizes.max(axis=1).mean())
    # Resized along one axis, and not yet along the other.
    columns = sum(max(size) for size in output.sizes) * longest_side
    intermediates = columns * output.channels * _FLOAT_BYTES * min(pictures, _MINIBATCH)
    return round(in_flight + intermediates)


def _some_sizes(dataset: Dataset, field: Field) -> tuple[int, F64]:
    """The number of samples in the first and in the last shard, and float64 (N, 2): width and height of their pictures
    of a name."""
    width, height, _ = picture_columns(field.name)
    if field.kind == PicturesKind.name:
        columns = list_columns(field.name)
        width = columns.widths
        height = columns.heights
    elif field.name == dataset.manifest.image.name:
        width = "width"
        height = "height"
    samples = 0
    sizes = []
    for shard in sorted({0, len(dataset.manifest.shards) - 1}):
        rows = checked_rows(dataset, shard)
        samples += len(rows)
        sizes.append(np.stack([flat(rows[width]), flat(rows[height])], axis=1))
    return samples, np.concatenate(sizes).astype(np.float64)


def gpu_bytes(device_id: int) -> int | None:
    """Total memory of a GPU, from torch or CuPy; None if neither is usable."""
    # AssertionError: a CPU build of torch.
    with suppress(ImportError, AssertionError, RuntimeError, OSError):
        return int(
            import_module("torch").cuda.get_device_properties(device_id).total_memory
        )
    with suppress(ImportError, RuntimeError, OSError):
        return int(
            import_module("cupy").cuda.runtime.getDeviceProperties(device_id)[
                "totalGlobalMem"
            ]
        )
    return None


def fits(
    datasets: Sequence[Dataset],
    batch_size: int,
    prefetch: int,
    device_id: int,
    outputs: Sequence[OutputImages] = IMAGE_ALONE,
) -> bool:
    """Whether decoding takes at most half of the GPU's memory; True if that is unknown.

    Args:
        datasets: Of which samples are.
        batch_size: Samples in a batch.
        prefetch: Batches decoded at the same time.
        device_id: Number of the GPU.
        outputs: What is made of the image, and of further pictures.
    """
    memory = gpu_bytes(device_id)
    return (
        memory is None
        or whole_images_bytes(datasets, batch_size, prefetch, outputs)
        <= MOST_SHARE * memory
    )


def check_whole_images(
    datasets: Sequence[Dataset],
    batch_size: int,
    prefetch: int,
    device_id: int,
    share: float = 1.0,
    outputs: Sequence[OutputImages] = IMAGE_ALONE,
) -> None:
    """Raises DeviceError if decoding takes more than half of the GPU's memory.

    Args:
        datasets: Of which samples are.
        batch_size: Samples in a batch.
        prefetch: Batches decoded at the same time.
        device_id: Number of the GPU.
        share: Of each batch, for DALI.
        outputs: What is made of the image, and of further pictures.
    """
    by_dali = math.ceil(batch_size * share)
    if fits(datasets, by_dali, prefetch, device_id, outputs):
        return
    taken = whole_images_bytes(datasets, by_dali, prefetch, outputs)
    memory = gpu_bytes(device_id) or 0
    name = "dali" if share == 1 else "both"
    raise DeviceError(
        f"decoder={name!r}: whole images of batch_size={batch_size}, with prefetch={prefetch}, and what is made of "
        f"them take {taken / 1e9:,.1f} GB of the GPU's {memory / 1e9:,.1f}, by the sizes in the index; the limit is "
        "half. Use a smaller batch_size or prefetch, decoder='native', which uploads crops alone, or pack smaller "
        "images (--size)"
    )
