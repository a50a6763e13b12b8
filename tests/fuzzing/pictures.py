"""Small images, each of another kind."""

import io
from typing import Any

import numpy as np
from PIL import Image

SIDE = 24
JPEG_TOKENS = (
    *(bytes([0xFF, marker]) for marker in (*range(0xC0, 0xE3), 0xEE, 0xFE, 0, 0xFF)),
    b"Exif\0\0",
    b"JFIF\0",
    b"Adobe\0",
    b"MM\0*",
    b"II*\0",
    b"\xff\xff\xff\xff",
    bytes(16),
)


def small_jpegs() -> list[bytes]:
    """Of each kind that encoders make: sampling, quality, restart markers, gray, progressive, with Exif data."""
    rng = np.random.default_rng(0)
    files = []
    exif = Image.Exif()
    exif[0x0112] = 6
    options: list[dict[str, object]] = [
        {},
        {"optimize": True},
        {"restart_marker_blocks": 2},
        {"restart_marker_rows": 1},
    ]
    options += [
        {"restart_marker_rows": 1},
        {"progressive": True},
        {"exif": exif},
        {"comment": b"a comment"},
    ]
    for number, (width, height) in enumerate([(1, 1), (9, 17), (40, 30), (70, 65), (16, 200)]):
        rough = rng.integers(0, 256, (3 + height // 9, 3 + width // 9, 3), np.uint8)
        image = Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)
        for subsampling in (0, 1, 2):
            for more in options[number % 2 :: 2]:
                file = io.BytesIO()
                image.save(
                    file,
                    "JPEG",
                    quality=30 + 30 * subsampling,
                    subsampling=subsampling,
                    **more,
                )
                files.append(file.getvalue())
        file = io.BytesIO()
        image.convert("L").save(file, "JPEG")
        files.append(file.getvalue())
    return files


PNG_TOKENS = (*b"IHDR PLTE IDAT IEND tRNS eXIf acTL fcTL tEXt zTXt iTXt iCCP gAMA XML:com.adobe.xmp".split(),)


def picture() -> Image.Image:
    rough = np.random.default_rng(1).integers(0, 256, (5, 5, 3), np.uint8)
    return Image.fromarray(rough).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def small_pngs() -> list[bytes]:
    image = picture()
    with_exif = Image.Exif()
    with_exif[0x0112] = 3
    files = [encoded(image.convert(mode), "PNG") for mode in ("RGB", "L", "P", "RGBA", "LA", "1", "I;16")]
    files.append(encoded(image, "PNG", exif=with_exif))
    return [
        *files,
        encoded(image, "PNG", save_all=True, append_images=[image.rotate(90)]),
    ]
