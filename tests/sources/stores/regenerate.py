"""Writes the golden stores by the tools whose formats they have, each in an environment of its own.

    python tests/sources/stores/regenerate.py truth                    # the six JPEGs; Pillow
    python-with-streaming tests/sources/stores/regenerate.py mds       # mosaicml-streaming 0.13.0
    python-with-litdata tests/sources/stores/regenerate.py litdata     # litdata 0.2.76
    python-with-tensorflow tests/sources/stores/regenerate.py tfrecord # tensorflow-cpu 2.21.0, tensorflow-datasets 4.9.10
    python-with-ffcv tests/sources/stores/regenerate.py beton          # ffcv 1.0.2
    python tests/sources/stores/regenerate.py squashfs                 # mksquashfs 4.5.1 of squashfs-tools

Change them only for a newer version of a tool whose stores differ, beside those of the old one.
"""

import gzip
import io
import shutil
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from true_samples import CLASSES, GOLDEN, true_samples


def truth() -> None:
    folder = GOLDEN / "truth"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(6):
        rows, columns = np.mgrid[: 16 + number % 3, : 20 + number % 5]
        channels = [rows * 12, columns * 10, (rows + columns + 30 * number) % 256]
        pixels = np.stack(channels, -1).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=60)


def mds() -> None:
    from streaming import MDSWriter

    columns = {"image": "jpeg", "label": "int", "caption": "str"}
    for compression in ("none", "br", "bz2", "gz", "snappy", "zstd:7"):
        out = emptied("mds", compression.partition(":")[0])
        chosen = None if compression == "none" else compression
        with MDSWriter(out=str(out), columns=columns, compression=chosen, size_limit=2500) as writer:
            for sample in true_samples():
                row = {"image": Image.open(sample.file), "label": sample.label, "caption": sample.caption}
                writer.write(row)
    for split, part in (("train", slice(0, 4)), ("val", slice(4, 6))):
        out = emptied("mds", "splits", split)
        with MDSWriter(out=str(out), columns={"jpg": "jpeg", "cls": "uint16"}) as writer:
            for sample in true_samples()[part]:
                writer.write({"jpg": Image.open(sample.file), "cls": np.uint16(sample.label)})
    kinds = {
        "image": "bytes",
        "label": "int",
        "array": "ndarray",
        "fixed": "ndarray:float32",
        "shaped": "ndarray:uint16:2,3",
        "doc": "json",
        "small": "int8",
        "large": "uint64",
        "half": "float16",
        "text_int": "str_int",
        "text_float": "str_float",
        "text_decimal": "str_decimal",
    }
    with MDSWriter(out=str(emptied("mds", "kinds")), columns=kinds) as writer:
        for number, sample in enumerate(true_samples()[:3]):
            row = {
                "image": sample.jpeg,
                "label": sample.label,
                "array": np.arange(number + 2, dtype=np.int16),
                "fixed": np.full((2, number + 1), number, np.float32),
                "shaped": np.full((2, 3), number, np.uint16),
                "doc": {"n": number},
                "small": -number,
                "large": 2**40 + number,
                "half": np.float16(number / 4),
                "text_int": 10**15 + number,
                "text_float": number / 8,
                "text_decimal": Decimal(number) / 2,
            }
            writer.write(row)
    pixels = {"image": "pil", "label": "int"}
    with MDSWriter(out=str(emptied("mds", "pil")), columns=pixels) as writer:
        for sample in true_samples()[:3]:
            writer.write({"image": Image.open(sample.file).convert("RGB"), "label": sample.label})


def plain_values(number: int) -> dict[str, Any]:
    sample = true_samples()[number]
    return {"image": sample.jpeg, "label": sample.label, "caption": sample.caption}


def encoded_jpegs(number: int) -> Any:
    sample = true_samples()[number]
    return {"image": Image.open(sample.file), "label": sample.label, "caption": sample.caption}


def padded_bytes(number: int) -> Any:
    sample = true_samples()[number]
    return {"image": sample.jpeg, "label": sample.label, "pad": "x" * 3000}


def decoded_pixels(number: int) -> Any:
    sample = true_samples()[number]
    return Image.open(sample.file).convert("RGB"), sample.label


def values_of_kinds(number: int) -> Any:
    sample = true_samples()[number]
    return {
        "image": sample.jpeg,
        "cls": sample.label,
        "share": number / 2,
        "even": number % 2 == 0,
        "flat": np.arange(number + 1, dtype=np.int32),
        "square": np.full((2, number + 1), number, np.float16),
        "nested": {"a": number, "b": [number, number + 1]},
        "found": [{"x": 0.5, "name": "a", "n": number}],
    }


def litdata() -> None:
    from litdata import optimize

    def write(name: str, make: Any, count: int = 6, **options: Any) -> None:
        inputs = list(range(count))
        optimize(make, inputs=inputs, output_dir=str(emptied("litdata", name)), num_workers=1, **options)

    write("jpeg", encoded_jpegs, chunk_size=4)
    write("pil", decoded_pixels, 2, chunk_bytes="1MB")
    write("kinds", values_of_kinds, 3, chunk_bytes="1MB")
    write("arrow", plain_values, chunk_size=4)
    write("arrow-zstd", plain_values, chunk_size=4, compression="zstd")
    for level in ("chunk", "sample"):
        write(f"zstd-{level}", padded_bytes, chunk_size=4, compression="zstd", compression_level=level)


def tfrecord() -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def feature(*values: Any) -> Any:
        first = values[0] if values else 0.0
        if isinstance(first, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(first, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    def example(values: dict[str, Any]) -> bytes:
        return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()

    for split, part in (("train", slice(0, 4)), ("validation", slice(4, 6))):
        folder = GOLDEN / "slim"
        folder.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(folder / f"{split}-00000-of-00001")) as writer:
            for sample in true_samples()[part]:
                values = {
                    "image/encoded": feature(sample.jpeg),
                    "image/format": feature(b"JPEG"),
                    "image/height": feature(sample.size[1]),
                    "image/width": feature(sample.size[0]),
                    "image/filename": feature(sample.file.name.encode()),
                    "image/class/label": feature(sample.label + 1),
                    "image/class/text": feature(CLASSES[sample.label].encode()),
                }
                writer.write(example(values))
    path = emptied("detection") / "boxes.tfrecord"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for number, sample in enumerate(true_samples()):
            count = 1 + number % 2
            values = {
                "image/encoded": feature(sample.jpeg),
                "image/object/bbox/xmin": feature(*[0.25] * count),
                "image/object/bbox/xmax": feature(*[0.75] * count),
                "image/object/bbox/ymin": feature(*[0.0] * count),
                "image/object/bbox/ymax": feature(*[0.5] * count),
                "image/object/class/text": feature(*[CLASSES[sample.label].encode()] * count),
                "image/object/class/label": feature(*[sample.label + 1] * count),
            }
            writer.write(example(values))
    labels = tfds.features.ClassLabel(names=list(CLASSES))
    objects = {"bbox": tfds.features.BBoxFeature(), "label": labels}
    features = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "label": labels,
        "caption": tfds.features.Text(),
        "objects": tfds.features.Sequence(objects),
    }

    class Truth(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples(0, 4), "test": self._generate_examples(4, 6)}

        def _generate_examples(self, first: int, stop: int) -> Any:
            for number, sample in list(enumerate(true_samples()))[first:stop]:
                box = {"bbox": tfds.features.BBox(0.0, 0.25, 0.5, 0.75), "label": sample.label}
                row = {"image": io.BytesIO(sample.jpeg), "label": sample.label, "caption": sample.caption}
                yield number, {**row, "objects": [box] * (number % 3)}

    with tempfile.TemporaryDirectory() as scratch:
        Truth(data_dir=scratch, file_format="tfrecord").download_and_prepare()
        shutil.copytree(Path(scratch, "truth", "1.0.0"), emptied("tfds"), dirs_exist_ok=True)


def beton() -> None:
    from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {
        "image": RGBImageField("proportion", jpeg_quality=80, compress_probability=0.5),
        "label": IntField(),
        "weight": FloatField(),
        "original": BytesField(),
        "doc": JSONField(),
        "vector": NDArrayField(np.dtype("int16"), (2, 3)),
    }

    class Samples:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Any:
            sample = true_samples()[number]
            pixels = np.asarray(Image.open(sample.file).convert("RGB"))
            original = np.frombuffer(sample.jpeg, np.uint8)
            vector = np.full((2, 3), number, np.int16)
            return pixels, sample.label, number / 4, original, {"caption": sample.caption}, vector

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "set.beton")
        writer = DatasetWriter(str(path), fields, page_size=1 << 21, num_workers=1)
        writer.from_indexed_dataset(Samples())
        # Most of its four megabytes are zeros.
        (GOLDEN / "set.beton.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


def squashfs() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for number, sample in enumerate(true_samples()):
            folder = Path(scratch, "photos", CLASSES[sample.label])
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(sample.file, folder / f"{number}.jpg")
        for compressor in ("gzip", "xz", "zstd"):
            image = GOLDEN / f"{compressor}.squashfs"
            image.unlink(missing_ok=True)
            options = ["-comp", compressor, "-all-root", "-mkfs-time", "0", "-all-time", "0", "-quiet", "-nopad"]
            subprocess.run(["mksquashfs", f"{scratch}/photos", image, *options], check=True)


def emptied(*names: str) -> Path:
    folder = GOLDEN.joinpath(*names)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    globals()[sys.argv[1]]()
