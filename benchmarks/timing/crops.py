"""Random resized crop or resize, flip and normalisation as users of torchvision and of OpenCV write them."""

import math
import random
from typing import Any

import numpy as np

from timing.stored import is_jpeg
from timing.work import MEAN, STD, Work


class TorchvisionCrop:
    """torchvision's RandomResizedCrop, RandomHorizontalFlip, ToDtype and Normalize, by the same calls to Pillow and
    torch: antialiased, and on uint8 as long as possible. Without torchvision, which has no build for every torch.

    Takes a Pillow image or a uint8 tensor (3, height, width); returns (3, size, size) of `work.dtype`.
    """

    def __init__(self, work: Work) -> None:
        import torch

        self._work = work
        self._size = work.size
        self._dtype = getattr(torch, work.dtype)
        self._mean = torch.tensor(MEAN).view(3, 1, 1) * 255
        self._factor = 1 / (torch.tensor(STD).view(3, 1, 1) * 255)

    def __call__(self, image: Any) -> Any:
        import torch
        from torch.nn import functional

        if isinstance(image, torch.Tensor):
            top, left, height, width = shown_window(self._work, *image.shape[1:])
            window = image[:, top : top + height, left : left + width].unsqueeze(0)
            size = (self._size, self._size)
            pixels = functional.interpolate(
                window, size=size, mode="bilinear", antialias=True
            )[0]
        else:
            top, left, height, width = shown_window(
                self._work, image.height, image.width
            )
            box = (left, top, left + width, top + height)
            # 2 is Pillow's BILINEAR.
            image = image.convert("RGB").resize((self._size, self._size), 2, box=box)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if random.random() < 0.5:
            pixels = pixels.flip(2)
        floats = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        return floats.sub_(self._mean).mul_(self._factor).to(self._dtype)


class OpenCVCrop:
    """Makes uint8 (height, width, 3) a tensor (3, size, size) of `work.dtype`.

    Downscales with INTER_AREA, since OpenCV's bilinear filter does not antialias, and upscales with INTER_LINEAR.
    """

    def __init__(self, work: Work) -> None:
        import torch

        self._work = work
        self._size = work.size
        self._dtype = getattr(torch, work.dtype)
        self._mean = torch.tensor(MEAN).view(3, 1, 1) * 255
        self._factor = 1 / (torch.tensor(STD).view(3, 1, 1) * 255)

    def __call__(self, image: np.ndarray) -> Any:
        import cv2
        import torch

        top, left, height, width = shown_window(self._work, *image.shape[:2])
        shrinks = height > self._size and width > self._size
        cropped = cv2.resize(
            image[top : top + height, left : left + width],
            (self._size, self._size),
            interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
        )
        if random.random() < 0.5:
            cropped = cv2.flip(cropped, 1)
        planes = torch.from_numpy(cropped).permute(2, 0, 1)
        floats = planes.to(torch.float32, memory_format=torch.contiguous_format)
        return floats.sub_(self._mean).mul_(self._factor).to(self._dtype)


def decode_rgb(encoded: bytes) -> np.ndarray:
    """uint8 (height, width, 3): JPEGs by simplejpeg, which releases Python's lock, others by OpenCV."""
    import cv2
    import simplejpeg

    if is_jpeg(encoded):
        return simplejpeg.decode_jpeg(encoded)
    pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def shown_window(work: Work, height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of what the work shows of an image."""
    return (0, 0, height, width) if work.whole else random_window(height, width)


def decode_by_imagecodecs(encoded: bytes) -> np.ndarray:
    """uint8 (height, width, 3): JPEGs, PNGs and WebPs of 8-bit colours by imagecodecs, which releases Python's lock."""
    import imagecodecs

    if is_jpeg(encoded):
        return np.asarray(imagecodecs.jpeg8_decode(encoded))
    is_webp = encoded[8:12] == b"WEBP"
    decode = imagecodecs.webp_decode if is_webp else imagecodecs.png_decode
    return np.asarray(decode(encoded))


def random_window(height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) as torchvision's RandomResizedCrop draws it with its default scale and ratio."""
    low = 3 / 4
    high = 4 / 3
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(low), math.log(high)))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w = min(width, round(height * high))
    h = min(height, round(width / low))
    return (height - h) // 2, (width - w) // 2, h, w
