"""What all kernels make of the same input, as digests: equal for every library and every processor.

python tests/kernels/fingerprint.py          # by the library that GPULOAD_KERNELS names, or the best one
"""

import hashlib
import io
from collections.abc import Iterator

import numpy as np
from fuzzing.pngs import KINDS, Recipe, stored_values, write_png
from PIL import Image

from gpuload.decode.native.cuts import crop_or_pad, resample
from gpuload.decode.native.images import bands_of
from gpuload.decode.native.steps import DecodeStep, ThreadMemory
from gpuload.decode.native.transforms import run
from gpuload.decode.native.values import PixelTarget
from gpuload.fields.images import Pixels
from gpuload.kernels.images import EncodedImages, new_scratch
from gpuload.kernels.jpeg import check_jpegs, exif_orientation, find_points
from gpuload.kernels.structs import PICTURE
from gpuload.transforms.ops import ARGS, Op
from gpuload.transforms.steps import Steps

WIDTH, HEIGHT = 203, 154


def photo() -> Image.Image:
    """The same on every machine: whole numbers alone."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    noise = (x * 7919 + y * 104729) % 61
    planes = [(x * 5 + noise) % 256, (y * 3 + x + noise) % 256, (x * y // 50 + noise) % 256]
    return Image.fromarray(np.stack(planes, 2).astype(np.uint8))


def jpegs() -> Iterator[bytes]:
    for options in (
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"restart_marker_rows": 1},
        {"quality": 30},
    ):
        file = io.BytesIO()
        photo().save(file, "JPEG", **{"quality": 90, **options})
        yield file.getvalue()
    file = io.BytesIO()
    photo().convert("L").save(file, "JPEG", quality=90)
    yield file.getvalue()


def decoded(data: bytes, window: tuple[int, int, int, int], factor: int, points: bytes) -> bytes:
    """The pixels of a part of an image."""
    file = np.frombuffer(data, np.uint8)
    seek = np.frombuffer(points or b"\0", np.uint8)
    windows = np.array([window], np.int64)
    factors = np.array([factor], np.int64)
    pictures = np.array([(0, HEIGHT, WIDTH, 3 * WIDTH, 0, 0, 1)], PICTURE)
    spans = np.array([[file.ctypes.data, len(file)]], np.int64)
    of_points = np.array([[seek.ctypes.data, len(points)]], np.int64)
    images = EncodedImages(spans, of_points, windows, factors, pictures, upright=True)
    memory = np.zeros(int(images.room.sum()) + images.spare_bytes, np.uint8)
    DecodeStep(images)(0, 1, ThreadMemory(memory, new_scratch()))
    assert pictures["pixels"][0] == memory.ctypes.data
    used = int(pictures["height"][0] * pictures["stride"][0])
    place = [int(pictures[name][0]) for name in ("height", "width", "top", "left")]
    return memory[:used].tobytes() + repr(place).encode()


def jpeg_results() -> Iterator[bytes]:
    for data in jpegs():
        points = find_points(data, HEIGHT, WIDTH, 100)
        assert points is not None
        yield points
        for window in ((0, 0, HEIGHT, WIDTH), (31, 57, 90, 140)):
            for factor in (1, 2, 4, 8):
                yield decoded(data, window, factor, b"")
                yield decoded(data, window, factor, points)
        file = np.frombuffer(data, np.uint8)
        sides = (np.array([HEIGHT], np.int32), np.array([WIDTH], np.int32))
        yield check_jpegs(np.array([[file.ctypes.data, len(file)]]), *sides).tobytes()
    exif = Image.Exif()
    exif[0x0112] = 6
    yield bytes([exif_orientation(exif.tobytes())])


def png_results() -> Iterator[bytes]:
    """Of every kind, with all filters."""
    rng = np.random.default_rng(1)
    for number, (color, depth) in enumerate(KINDS):
        values = stored_values(rng, WIDTH, HEIGHT, color, depth)
        recipe = Recipe(color, depth, number % 2 == 1, (4, 4, 4, 4, 3, 1, 2, 0), 1000)
        recipe.palette = bytes(n % 251 for n in range(3 << depth)) if color == 3 else b""
        data = write_png(values, recipe)
        for window in ((0, 0, HEIGHT, WIDTH), (31, 57, 90, 140)):
            yield decoded(data, window, 1, b"")


def targets(channels: int, pixels: Pixels | None) -> Iterator[PixelTarget]:
    bands = None if pixels is None else bands_of(pixels)
    mean = np.linspace(90, 130, channels, dtype=np.float32)
    factor = np.linspace(0.01, 0.02, channels, dtype=np.float32)
    for size in ((96, 96), (37, 9)):
        yield PixelTarget(np.zeros((1, channels, *size), np.float32), mean, factor, bands)
        yield PixelTarget(np.zeros((1, *size, channels), np.float32).transpose(0, 3, 1, 2), mean, factor, bands)


def resize_results() -> Iterator[bytes]:
    rgb = np.asarray(photo())
    deep = np.concatenate([rgb, rgb[:, ::-1, :2]], 2)
    kinds = {
        None: rgb,
        Pixels(5, "uint8"): deep,
        Pixels(5, "uint16"): deep.astype(np.uint16) * 257,
        Pixels(5, "float32"): deep.astype(np.float32) / 255,
    }
    for pixels, image in kinds.items():
        image = np.ascontiguousarray(image)
        picture = np.array([(image.ctypes.data, HEIGHT, WIDTH, image.strides[0], 0, 0, 1)], PICTURE)
        for target in targets(image.shape[2], pixels):
            for window in ((0, 0, HEIGHT, WIDTH), (20, 31, 60, 77)):
                windows = np.array([window], np.int64)
                flips = np.array([[True, False]])
                for cubic in (False, True):
                    resample(picture, windows, windows.astype(np.float64) + 0.25, flips, cubic, target)(0, 1)
                    yield target.out.tobytes()
                fills = np.array([1, 2, 3], np.uint8) if pixels is None else np.array([0.5])
                for mode in range(4):
                    outside = windows - 40
                    crop_or_pad(picture, outside, flips, np.array([[HEIGHT, WIDTH]]), fills, mode, target)(0, 1)
                    yield target.out.tobytes()


NUMBERS = {
    Op.BRIGHTNESS: [1.3],
    Op.CONTRAST: [0.6],
    Op.SATURATION: [1.7],
    Op.HUE: [0.21],
    Op.GAUSSIAN_BLUR: [1.4, 9, 7],
    Op.SOLARIZE: [100],
    Op.POSTERIZE: [3],
    Op.SHARPNESS: [1.9],
    Op.AFFINE: [0.93, 0.21, 3.5, -0.17, 1.1, -2.25, 9, 8, 7],
    Op.WARP_NEAREST: [0.93, 0.21, 3.5, -0.17, 1.1, -2.25, 0.0004, 0.0003, 1, 9, 8, 7],
    Op.WARP_BILINEAR: [0.93, 0.21, 3.5, -0.17, 1.1, -2.25, 0.0004, 0.0003, 1, 9, 8, 7],
    Op.AFFINE_BILINEAR: [0.93, 0.21, 3.5, -0.17, 1.1, -2.25, 9, 8, 7],
    Op.SOLARIZE_ADD: [40],
    Op.KEEP: [0.4],
    Op.MIX: [0.35],
    Op.MIXED: [0.25],
}


def transform_results() -> Iterator[bytes]:
    images = np.ascontiguousarray(np.asarray(photo()).transpose(2, 0, 1)[None])
    mean = np.array([100, 110, 120], np.float32)
    factor = np.array([0.02, 0.021, 0.022], np.float32)
    chains = [[op] for op in Op if op < Op.KEEP]
    chains += [[Op.BRIGHTNESS, Op.SOLARIZE, Op.INVERT], [Op.KEEP, Op.INVERT, Op.MIX, Op.POSTERIZE, Op.MIXED]]
    shear = [1, 0.3, 2, 0, 1, 5, 1, 2, 3]
    for chain in chains:
        args = np.zeros((1, len(chain), ARGS), np.float32)
        for place, op in enumerate(chain):
            numbers = NUMBERS.get(op, [])
            args[0, place, : len(numbers)] = numbers
        for _ in range(2 if chain == [Op.AFFINE] else 1):
            out = np.zeros(images.shape, np.float32)
            run(images, Steps(np.array([chain], np.int8), args), out, mean, factor)
            yield out.tobytes()
            args[0, 0, : len(shear)] = shear


def fingerprint() -> dict[str, str]:
    """A digest of the results of each family of kernels."""
    digests = {}
    for family in (jpeg_results, png_results, resize_results, transform_results):
        digest = hashlib.sha256()
        for result in family():
            digest.update(result)
        digests[family.__name__] = digest.hexdigest()[:16]
    return digests


if __name__ == "__main__":
    print(fingerprint())
