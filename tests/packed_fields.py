"""A packed set with every kind of field, and its rows as they come in a batch."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from images import encode, photo

import gpuload
from gpuload.fields.kind import FieldSpec
from gpuload.fields.registry import bind_field
from gpuload.fields.rows import PixelField, Rows

COUNT = 11
WORDS = ("ant", "background", "bee", "cat")  # sorted, as the packer numbers them


def sample(number: int) -> dict[str, Any]:
    width, height = 24 + number, 20 + number % 3
    boxes = [[0, 0, width / 2, height], [2, 3, 5 + number, 9]][: number % 3]
    return {
        "image": encode(photo(number, width, height)),
        "name": f"{number:02d}",
        "label": WORDS[number % 4],
        "labels": [WORDS[bit] for bit in range(4) if number >> bit & 1],
        "angle": number / 8 - 0.5,
        "drive": [number / 4, -1.5, 2.0],
        "caption": f"photo {number}, größer",
        "about": {"number": number, "list": [None, {"a": 1.5}]},
        "tokens": np.arange(number, dtype=np.uint16) + 60_000,
        "text": np.arange(number % 2, 5, dtype=np.int32),
        "features": (np.arange(6).reshape(2, 3) + number).astype(">f4"),
        "flag": np.array([number % 2 == 0, True]),
        "wave": np.array([1j * number], np.complex128),
        "letters": np.array(["a", "bc"]),
        "boxes": boxes,
        "boxes_class": ["cat", "ant"][: len(boxes)],
        "mask": np.full((height, width), number, np.uint8),
    }


def pack(folder: Path, samples: Any) -> gpuload.Dataset:
    gpuload.pack(samples, folder, workers=1, maxcount=4, shuffle=False)
    return gpuload.Dataset(folder / "train")


class Flips(NamedTuple):
    """A `View` of uncropped images of 20x20 pixels, some of them flipped."""

    mirror: Any
    start: Any
    roi_start: Any
    roi_end: Any
    mirror_y: Any
    sizes: Any = None


def flips(mirror: list[int]) -> Flips:
    zeros = np.zeros((len(mirror), 2), np.int32)
    ends = np.full((len(mirror), 2), 20, np.float32)
    return Flips(np.array(mirror, np.int32), zeros, zeros.astype(np.float32), ends, zeros[:, 0])


def rows_of(field: Any, datasets: Any, numbers: Any, sources: Any = 0, views: Any = None) -> Rows:
    """What a reader returns for samples by number, each looked up separately, with only what the bound field needs."""
    numbers = np.array(numbers, np.int64)
    sources = np.broadcast_to(np.asarray(sources, np.int64), len(numbers))
    schema = datasets[0].schema
    cells: dict[str, list[Any]] = {name: [] for name in field.columns if name in schema.names}
    members: dict[str, list[Any]] = {name: [] for name in field.members}
    for number, source in zip(numbers.tolist(), sources.tolist(), strict=True):
        dataset = datasets[source]
        shard = int(dataset.shards_of(number))
        row = dataset.rows(shard).slice(number - int(dataset.first_samples[shard]), 1)
        for name, values in cells.items():
            values.append(row.column(name)[0].as_py())
        for name, elements in members.items():
            start, size = (row.column(f"{name}_{what}")[0].as_py() for what in ("offset", "bytes"))
            data = np.frombuffer(dataset.shard_paths[shard].read_bytes(), np.uint8)
            elements.append(data[start : start + size])
    columns: dict[str, Any] = {name: pa.array(values, schema.field(name).type) for name, values in cells.items()}
    columns = {name: a.to_numpy() if pa.types.is_primitive(a.type) else a for name, a in columns.items()}
    views = views or [flips([0] * len(numbers))]
    return Rows(
        {**columns, "index": numbers, "dataset": sources}, members, views, [(20, 20)] * len(views), [None] * len(views)
    )


def values_of(spec: str | FieldSpec, datasets: Any, numbers: Any, **options: Any) -> Any:
    datasets = datasets if isinstance(datasets, list) else [datasets]
    field = bind_field(spec, datasets)
    assert not isinstance(field, PixelField)
    return field.values(rows_of(field, datasets, numbers, **options))


def unnamed(folder: Path) -> gpuload.Dataset:
    """Two samples whose classes have no names: label 0 with labels [1], and label 2 with labels [0, 2]."""
    image = encode(photo())
    return pack(folder, [{"image": image, "label": 0, "labels": [1]}, {"image": image, "label": 2, "labels": [0, 2]}])
