"""FFCV: its own file format with the stored JPEGs unchanged, decoded and cropped in threads by compiled pipelines.

The pipeline is that of FFCV's ImageNet example, with NormalizeImage where a CPU needs it: before the pixels become a
tensor. A custom field stores JPEGs byte for byte; `write_mode="jpg"` would encode them again.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from timing.stored import stored_arrays, stored_samples
from timing.work import MEAN, STD, Batches, Work


def _stored_jpeg_field() -> Any:
    from ffcv.fields import RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from PIL import Image

    class StoredJPEGField(RGBImageField):
        """Stores a JPEG file unchanged."""

        def encode(self, destination: Any, image: bytes, malloc: Any) -> None:
            import io

            destination["mode"] = IMAGE_MODES["jpg"]
            destination["width"], destination["height"] = Image.open(
                io.BytesIO(image)
            ).size
            destination["data_ptr"], storage = malloc(len(image))
            storage[:] = np.frombuffer(image, np.uint8)

        @staticmethod
        def from_binary(_: Any) -> Any:
            return RGBImageField()

    return StoredJPEGField


def prepare(work: Work, folder: Path) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        raise RuntimeError(
            "ffcv 1.0.2's writer hangs with NumPy 2: install it with 'numpy<2' 'numba<0.61'"
        )
    samples = list(
        stored_arrays(work.folder) if work.raw else stored_samples(work.folder)
    )
    field = RGBImageField(write_mode="raw") if work.raw else _stored_jpeg_field()()
    # A page holds whole images; the default is 8 MB.
    largest = max(image.nbytes if work.raw else len(image) for image, _ in samples)
    page = max(8 << 20, 1 << (2 * largest - 1).bit_length())
    writer = DatasetWriter(
        str(folder / "set.beton"),
        {"image": field, "label": IntField()},
        num_workers=work.threads,
        page_size=page,
    )
    writer.from_indexed_dataset(samples)


@contextmanager
def open_loader(work: Work, device: str = "cpu") -> Iterator[Batches]:
    import torch
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        Squeeze,
        ToDevice,
        ToTensor,
        ToTorchImage,
    )

    mean, std = (np.array(values) * 255 for values in (MEAN, STD))
    normalise = NormalizeImage(mean, std, np.dtype(work.dtype).type)
    decoder = _whole_decoder() if work.whole else RandomResizedCropRGBImageDecoder
    images = [decoder((work.size, work.size)), RandomHorizontalFlip()]
    labels = [IntDecoder(), ToTensor(), Squeeze()]
    if device == "cpu":
        images += [normalise, ToTensor(), ToTorchImage()]
    else:
        images += [
            ToTensor(),
            ToDevice(torch.device(device), non_blocking=True),
            ToTorchImage(),
            normalise,
        ]
        labels.append(ToDevice(torch.device(device), non_blocking=True))
    loader = Loader(
        str(work.cache / "ffcv" / "set.beton"),
        batch_size=work.batch_size,
        num_workers=work.threads,
        order=OrderOption.RANDOM,  # with os_cache: as its guide recommends for a set that fits into memory
        os_cache=True,
        drop_last=True,
        pipelines={"image": images, "label": labels},
        custom_fields={} if work.raw else {"image": _stored_jpeg_field()},
    )
    yield _Epochs(loader, work)
    sys.stdout.flush()


def _whole_decoder() -> Any:
    from ffcv.fields.rgb_image import ResizedCropRGBImageDecoder

    class WholeDecoder(ResizedCropRGBImageDecoder):
        """Resizes the whole image, which none of FFCV's own decoders does."""

        def __init__(self, output_size: tuple[int, int]) -> None:
            super().__init__(output_size)
            self.scale = self.ratio = (1.0, 1.0)

        @property
        def get_crop_generator(self) -> Any:
            return _whole_window

    return WholeDecoder


def _whole_window(
    height: int, width: int, scale: Any, ratio: Any
) -> tuple[int, int, int, int]:
    """(top, left, height, width); FFCV compiles it."""
    return 0, 0, height, width


class _Epochs:
    """Its batches, with int16 reinterpreted: on the CPU FFCV returns float16 as int16."""

    def __init__(self, loader: Any, work: Work) -> None:
        self._loader = loader
        self._half = work.dtype == "float16"

    def __iter__(self):
        import torch

        for images, labels in self._loader:
            yield (
                images.view(torch.float16)
                if self._half and images.dtype == torch.int16
                else images,
                labels,
            )
