"""A custom CUDA kernel on each batch on the GPU: `cupy.RawKernel` as a batch transform.

    python examples/raw_kernel.py shards/train --picture faded.png

The kernel darkens each image towards its corners, by a strength drawn per sample. A batch transform is any function
that modifies a `FieldBatch`. On a GPU the batch's arrays are CuPy arrays, views of the memory of the tensors that the
loop gets, and kernels run on torch's current stream, so that nothing has to wait. Without a GPU the arrays are NumPy
arrays, and this example does the same with NumPy.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import gpuload
from gpuload.batchwise import FieldBatch

# One thread per pixel of a plane (height, width); there are N * 3 planes. Images: contiguous (N, 3, height, width).
SOURCE = r"""
extern "C" __global__
void fade(float* images, const float* strength, int planes, int height, int width)
{
    long long place = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    long long pixels = (long long)height * width;
    if (place >= planes * pixels) return;
    int plane = place / pixels, y = place % pixels / width, x = place % width;
    float down = (y + 0.5f) / height - 0.5f, across = (x + 0.5f) / width - 0.5f;
    images[place] *= 1.0f - strength[plane / 3] * 2.0f * (down * down + across * across);
}
"""
THREADS = 256  # per block
CAPTION_PX = 24


class Fade:
    """Multiplies float32 images by 1 in the center, down to 1 - strength in the corners; strength is in [0, most).

    The units are those of the batch: normalised images fade to the mean.
    """

    def __init__(self, most: float = 1.0) -> None:
        self.most = most
        self._kernel: Any = None

    def __call__(self, batch: FieldBatch) -> None:
        images = batch.fields["image"]
        if images.dtype != np.float32 or not images.flags.c_contiguous:
            raise gpuload.ArgumentError(
                "Fade: images must be contiguous float32; use Augment(dtype='float32', layout='NCHW')"
            )
        # A pure function of (seed, epoch, sample), whatever the device and the batch.
        strength = (self.most * batch.draws(0)).astype(np.float32)
        if isinstance(images, np.ndarray):
            fade_on_cpu(images, strength)
        elif len(images):
            self._fade_on_gpu(images, strength)

    def _fade_on_gpu(self, images: Any, strength: np.ndarray) -> None:
        import cupy

        if self._kernel is None:
            # Compiled on the first call, then taken from CuPy's cache.
            self._kernel = cupy.RawKernel(SOURCE, "fade")
        count, channels, height, width = images.shape
        blocks = (images.size + THREADS - 1) // THREADS
        sizes = (np.int32(count * channels), np.int32(height), np.int32(width))
        self._kernel((blocks,), (THREADS,), (images, cupy.asarray(strength), *sizes))


def fade_on_cpu(images: np.ndarray, strength: np.ndarray) -> None:
    """The same in NumPy."""
    down, across = (
        ((np.arange(side) + 0.5) / side - 0.5) ** 2 for side in images.shape[-2:]
    )
    distance = (2 * (down[:, None] + across)).astype(np.float32)
    # One at a time, so that they stay in the CPU's caches.
    for image, most in zip(images, strength, strict=True):
        image *= 1 - most * distance


def draw(batches: list[torch.Tensor], captions: list[str]) -> Image.Image:
    """The first images of each batch, one batch per row, below its caption."""
    constants = gpuload.Normalize()
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (constants.mean, constants.std)
    )
    rows = [torch.cat(list(batch[:8].cpu() * std + mean), dim=2) for batch in batches]
    height, width = rows[0].shape[1:]
    sheet = Image.new("RGB", (width, len(rows) * (height + CAPTION_PX)), "white")
    for number, (row, caption) in enumerate(zip(rows, captions, strict=True)):
        top = number * (height + CAPTION_PX)
        pixels = (
            (row.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        )
        sheet.paste(
            Image.fromarray(np.ascontiguousarray(pixels)), (0, top + CAPTION_PX)
        )
        font = ImageFont.load_default(CAPTION_PX - 8)
        ImageDraw.Draw(sheet).text(
            (4, top + CAPTION_PX // 2), caption, "black", font, anchor="lm"
        )
    return sheet


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="a packed split, such as shards/train"
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu or cuda (%(default)s)"
    )
    parser.add_argument(
        "--size", type=int, default=128, help="side of the crops in pixels"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--picture", type=Path, default=Path("faded.png"), help="PNG to write"
    )
    args = parser.parse_args(argv)
    augment = gpuload.Augment(args.size)
    shown = []
    try:
        for transforms in ([], [Fade()]):
            with gpuload.DaliIterator(
                args.folder,
                args.batch_size,
                augment=augment,
                device=args.device,
                batch_transforms=transforms,
            ) as loader:
                shown.append(next(iter(loader))[0])
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    device = shown[0].device
    description = (
        "faded by a CUDA kernel"
        if device.type == "cuda"
        else "faded by NumPy, since there is no GPU"
    )
    corners, middle = (
        (shown[1] / shown[0])[..., place, place].nanmedian().item()
        for place in (0, args.size // 2)
    )
    print(f"{len(shown[0])} images on {device}: {description}")
    print(f"centers multiplied by {middle:.3f}, corners by {corners:.3f} (medians)")
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(shown, ["as they are loaded", f"the same, {description}"]).save(args.picture)
    print(f"{args.picture}: before and after")
    return 0


if __name__ == "__main__":
    sys.exit(main())
