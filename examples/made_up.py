"""Generates data sets to try the other examples on, in the formats in which people keep theirs.

    python examples/made_up.py captions OUT          # 000001.jpg beside 000001.txt
    python examples/made_up.py lmdb OUT              # LMDB of MessagePack maps
    python examples/made_up.py hdf5 OUT.h5           # images (N, side, side, 3), target and label (N)
    python examples/made_up.py detection OUT         # Data/DET/*.JPEG and Annotations/DET/*.xml, as ILSVRC's
    python examples/made_up.py detection OUT --photos crops --count 4000   # from your own crops/<class>/<image>

Without --photos the pictures are the handwritten digits that come with scikit-learn, on noise; the class is the colour.
The same arguments give the same files.
"""

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpuload import MissingPackageError
from gpuload.machine.installed import require

COLOURS = {
    "red": (230, 50, 40),
    "green": (60, 200, 70),
    "blue": (70, 90, 240),
    "yellow": (230, 210, 50),
}
DIGITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)

GRAY_EVERY = 20  # one in so many pictures with captions is grayscale
EMPTY_EVERY = 10  # one in so many pictures with boxes is empty
_CHUNK = 64  # images per HDF5 chunk
_JPEG_QUALITY = 90


class Picture(NamedTuple):
    """encoded: the JPEG file. box: left, top, right, bottom of the object in pixels, None without one."""

    encoded: bytes
    name: str
    caption: str
    box: tuple[int, int, int, int] | None

    def pixels(self, side: int | None = None) -> npt.NDArray[np.uint8]:
        """uint8 (height, width, 3), resized if `side` differs."""
        image = Image.open(io.BytesIO(self.encoded)).convert("RGB")
        if side is not None and image.size != (side, side):
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        return np.asarray(image)


def pictures(
    photos: Path | None, count: int, side: int, *, some_empty: bool = False
) -> Iterator[Picture]:
    """`count` pictures, of digits or of a folder of class folders; repeated if there are fewer.

    some_empty: of digits, every tenth shows only noise; of photos, those of the last class count as empty.
    """
    if photos is None:
        return _digits(count, side, some_empty)
    files = sorted(
        path for path in photos.glob("*/*") if path.suffix.lower() in (".jpg", ".jpeg")
    )
    if not files:
        raise SystemExit(f"--photos {photos}: holds no <class>/<image>.jpg")
    np.random.default_rng(0).shuffle(files)  # type: ignore[arg-type]
    last = max(path.parent.name for path in files)
    return (_photo(path, number, some_empty and path.parent.name == last)
            for number, path in enumerate(islice(cycle(files), count)))  # fmt: skip


def _photo(path: Path, number: int, empty: bool) -> Picture:
    encoded = path.read_bytes()
    name = path.parent.name
    width, height = Image.open(io.BytesIO(encoded)).size
    inset = np.random.default_rng((1, number)).uniform(0, 0.1, 4) * (
        width,
        height,
        width,
        height,
    )
    box = (int(inset[0]), int(inset[1]), width - int(inset[2]), height - int(inset[3]))
    return Picture(encoded, name, name.replace("-", " "), None if empty else box)


def _digits(count: int, side: int, some_empty: bool) -> Iterator[Picture]:
    from sklearn.datasets import load_digits

    handwritten = load_digits()
    for number in range(count):
        rng = np.random.default_rng((0, number))
        canvas = Image.fromarray(rng.integers(0, 60, (side, side, 3), np.uint8))
        which = int(rng.integers(len(handwritten.target)))
        digit = DIGITS[handwritten.target[which]]
        name = str(rng.choice(list(COLOURS)))
        extent = int(rng.uniform(0.5, 0.8) * side)
        left, top = (
            int(place) for place in rng.integers(0, side - extent, 2, endpoint=True)
        )
        # Values are 0..16.
        shape = Image.fromarray(
            (handwritten.images[which] * (255 / 16)).astype(np.uint8)
        )
        empty = some_empty and number % EMPTY_EVERY == 0
        if not empty:
            mask = shape.resize((extent, extent), Image.Resampling.BICUBIC)
            canvas.paste(
                Image.new("RGB", (extent, extent), COLOURS[name]), (left, top), mask
            )
        box = None if empty else (left, top, left + extent, top + extent)
        yield Picture(_encode(canvas), name, f"a {name} {digit}", box)


def balance(pixels: npt.NDArray[np.uint8]) -> float:
    """How much brighter the right half of an image is than the left, -1..1: a target that a flip negates."""
    half = pixels.shape[1] // 2
    left_mean = pixels[:, :half].mean()
    right_mean = pixels[:, -half:].mean()
    difference = right_mean - left_mean
    return float(difference / max(right_mean + left_mean, 1e-6))


def write_captions(out: Path, found: Iterator[Picture]) -> int:
    """`000001.jpg` beside `000001.txt`; one picture in 20 is grayscale. Returns their number."""
    out.mkdir(parents=True)
    number = 0
    for number, picture in enumerate(found, 1):
        encoded = picture.encoded
        if number % GRAY_EVERY == 0:
            encoded = _encode(Image.open(io.BytesIO(encoded)).convert("L"))
        (out / f"{number:06d}.jpg").write_bytes(encoded)
        (out / f"{number:06d}.txt").write_text(picture.caption)
    return number


def write_lmdb(out: Path, found: Iterator[Picture], map_bytes: int = 1 << 40) -> int:
    """One MessagePack map per key: {"image": JPEG, "label": name}, sorted by class, as is common."""
    import lmdb
    import msgpack

    out.mkdir(parents=True)
    number = 0
    with (
        lmdb.open(str(out), map_size=map_bytes) as store,
        store.begin(write=True) as transaction,
    ):
        for number, picture in enumerate(found, 1):
            key = f"{picture.name}-{number:06d}".encode()
            transaction.put(
                key, msgpack.packb({"image": picture.encoded, "label": picture.name})
            )
    return number


def write_hdf5(out: Path, found: Iterator[Picture], side: int) -> int:
    """Arrays `images`, uint8 (N, side, side, 3) in chunks of 64, `target`, float32 (N): `balance` of each, and `label`,
    int64 (N): classes, numbered in order of appearance."""
    import h5py

    out.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    numbers = dict[str, int]()
    with h5py.File(out, "w") as file:
        images = file.create_dataset(
            "images",
            (0, side, side, 3),
            "u1",
            maxshape=(None, side, side, 3),
            chunks=(_CHUNK, side, side, 3),
        )
        targets, labels = (
            file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(4096,))
            for name, dtype in (("target", "f4"), ("label", "i8"))
        )
        while chunk := list(islice(found, _CHUNK)):
            pixels = np.stack([picture.pixels(side) for picture in chunk])
            classes = [
                numbers.setdefault(picture.name, len(numbers)) for picture in chunk
            ]
            for array, values in (
                (images, pixels),
                (targets, [*map(balance, pixels)]),
                (labels, classes),
            ):
                array.resize(count + len(chunk), axis=0)
                array[count:] = values
            count += len(chunk)
    return count


def write_detection(out: Path, found: Iterator[Picture]) -> int:
    """ILSVRC's folders, with an XML of boxes for each image. Every third image has a second, small box of another
    class."""
    images = out / "Data" / "DET" / "train"
    annotations = out / "Annotations" / "DET" / "train"
    images.mkdir(parents=True)
    annotations.mkdir(parents=True)
    number = 0
    for number, picture in enumerate(found, 1):
        stem = f"ILSVRC2013_train_{number:08d}"
        (images / f"{stem}.JPEG").write_bytes(picture.encoded)
        objects = ""
        if picture.box is not None:
            left, top, right, bottom = picture.box
            objects = _object(picture.name, picture.box)
            if number % 3 == 0:
                objects += _object(
                    "mark",
                    (left, top, (3 * left + right) // 4, (3 * top + bottom) // 4),
                )
        (annotations / f"{stem}.xml").write_text(
            f"<annotation><filename>{stem}</filename>{objects}</annotation>\n"
        )
    return number


def _object(name: str, box: tuple[int, int, int, int]) -> str:
    sides = "".join(
        f"<{side}>{position}</{side}>"
        for side, position in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{escape(name)}</name><bndbox>{sides}</bndbox></object>"


def _encode(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()


# For each format, the function that writes it, and the side of its digits in pixels.
FORMS: dict[str, tuple[Callable[[Path, Iterator[Picture], int], int], int]] = {
    "captions": (lambda out, found, side: write_captions(out, found), 64),
    "lmdb": (lambda out, found, side: write_lmdb(out, found), 64),
    "hdf5": (write_hdf5, 128),
    "detection": (lambda out, found, side: write_detection(out, found), 160),
}

# The packages that a format needs, besides those that any needs.
NEEDS: dict[str, tuple[str, ...]] = {
    "captions": (),
    "lmdb": ("lmdb", "msgpack"),
    "hdf5": ("h5py",),
    "detection": (),
}


def make(
    form: str,
    out: Path,
    count: int = 1200,
    side: int | None = None,
    photos: Path | None = None,
) -> Path:
    """Writes a set in this format, unless it exists, and says so. Returns its path.

    side: of digits, and of the images in an HDF5 file, in pixels; other photos keep their size.
    """
    if not out.exists():
        try:
            require(str(out), *NEEDS[form], *(("sklearn",) if photos is None else ()))
        except MissingPackageError as error:
            raise SystemExit(str(error)) from None
        write, usual = FORMS[form]
        begun = out.with_name(f".{out.name}.made-up")
        _remove(begun)  # left by an interrupted run
        painted = pictures(photos, count, side or usual, some_empty=form == "detection")
        written = write(begun, painted, side or usual)
        begun.rename(out)
        print(
            f"{out}: {written:,} generated samples"
            if photos is None
            else f"{out}: {written:,} samples of {photos}"
        )
    return out


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("form", choices=FORMS)
    parser.add_argument(
        "out", type=Path, help="folder or file to write; must not exist"
    )
    parser.add_argument(
        "--photos",
        type=Path,
        help="folder of class folders with JPEGs (default: digits)",
    )
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument(
        "--side",
        type=int,
        help="side of digits and of images in an HDF5 file, in pixels",
    )
    args: Any = parser.parse_args(argv)
    if args.out.exists():
        parser.error(f"{args.out}: exists already; choose another name, or delete it")
    make(args.form, args.out, args.count, args.side, args.photos)
    return 0


if __name__ == "__main__":
    sys.exit(main())
