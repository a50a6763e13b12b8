"""A packed folder and what a loader is asked to read of it: manifest, index, shards and states."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

import gpuload
from fuzzing.mutate import VALUES, mutate_bytes, mutate_json
from fuzzing.pictures import encoded
from fuzzing.target import Target, scratch_folder
from gpuload.disk.index import index_digests
from gpuload.order.epoch import EpochOrder
from gpuload.read.reader import Reader

_SAMPLES = 5


def sample(number: int) -> dict[str, Any]:
    """One with every kind of field that a dict can have."""
    pixels = np.random.default_rng(number).integers(0, 256, (8, 9 + number, 3), np.uint8)
    return {
        "image": encoded(Image.fromarray(pixels), "JPEG"),
        "label": ("ant", "bee")[number % 2],
        "labels": ["ant", "bee"][: number % 3],
        "angle": number / 8 - 0.5,
        "drive": [number / 4, -1.5],
        "caption": f"photo {number}",
        "about": {"number": number},
        "tokens": np.arange(3, dtype=np.uint16) + number,
        "features": (np.arange(6).reshape(2, 3) + number).astype(">f4"),
        "boxes": [[0, 0, 5, 6], [1, 2, 3, 4]][: number % 3],
        "boxes_class": ["ant", "bee"][: number % 3],
        "keypoints": [[1, 2, 2, 3, 4, 1]] * (number % 2),
        "mask": np.full((8, 9 + number), number, np.uint8),
    }


class FolderTarget(Target):
    """A packed folder, of which one file is another; opened and read, but not decoded."""

    file = ""
    packing: Mapping[str, Any] = MappingProxyType({})
    sample = staticmethod(sample)

    def __init__(self) -> None:
        folder = scratch_folder()
        samples = map(self.sample, range(_SAMPLES))
        gpuload.pack(
            samples,
            folder / "set",
            workers=1,
            maxcount=3,
            shuffle=False,
            **self.packing,
        )
        self.folder = folder / "set" / "train"

    def seeds(self) -> list[bytes]:
        return [(self.folder / self.file).read_bytes()]

    def run(self, data: bytes) -> None:
        path = self.folder / self.file
        path.unlink()  # what is still mapped stays as it is
        path.write_bytes(data)
        self.adapt()
        self.read()

    def adapt(self) -> None:
        """Makes what tells of the file agree with it, as someone does who means it: checksums protect from accidents
        alone."""

    def read(self) -> None:
        dataset = gpuload.Dataset(self.folder)
        order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=8, shuffle=False)
        members = [name for name in dataset.fields if name == "tokens"]
        masks = [name for name in dataset.fields if name == "mask"]
        reader = Reader(dataset, dataset.schema.names, members, pictures=masks)
        batch = reader.read(order, 0, len(order))
        assert len(batch) == len(order)
        for pictures in batch.pictures.values():
            sum(int(file.sum()) for file in pictures.contents)  # each byte is read
        for views in batch.members.values():
            sum(int(view.sum()) for view in views)
        reader.close()


class ManifestTarget(FolderTarget):
    """`manifest.json`"""

    name = "manifest"
    _opened = 0
    file = "manifest.json"

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        if rng.random() < 0.1:
            return mutate_bytes(rng, data, seeds)
        changed = mutate_json(rng, data)
        return with_fingerprint(changed) if rng.random() < 0.8 else changed

    def read(self) -> None:
        super().read()
        self._opened += 1
        if self._opened % 8:  # takes ten times as long as the rest
            return
        fields = [name for name in gpuload.Dataset(self.folder).fields if name not in ("image", "mask")]
        augment = gpuload.Augment(8)
        with gpuload.DaliIterator(
            self.folder,
            2,
            augment=augment,
            fields=fields,
            device="cpu",
            drop_last=False,
            output="numpy",
        ) as loader:
            for _ in loader:
                pass


def with_fingerprint(data: bytes) -> bytes:
    """As someone writes it who means it: the fingerprint protects from accidents alone."""
    try:
        manifest = json.loads(data)
        shards = tuple(gpuload.disk.ShardInfo(**shard) for shard in manifest["shards"])
        manifest["fingerprint"] = gpuload.disk.Manifest(shards, ()).fingerprint
        return json.dumps(manifest).encode("ascii")
    except Exception:
        return data


def tell_index(folder: Path) -> None:
    """Puts the SHA-256s of the index that lies in a folder into its manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | index_digests(folder / "index.arrow")), encoding="utf-8")


class IndexTarget(FolderTarget):
    """`index.arrow`: its bytes, and values of any kind in any column, which may have another type."""

    name = "index"
    file = "index.arrow"

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_bytes(rng, data, seeds) if rng.random() < 0.6 else _other_value(rng, data)

    def adapt(self) -> None:
        tell_index(self.folder)


_TYPES = (
    pa.int8(),
    pa.uint64(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.list_(pa.int64()),
    pa.null(),
    pa.bool_(),
)


def _other_value(rng: Random, data: bytes) -> bytes:
    reader = pa.ipc.open_file(data)
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    number = rng.randrange(len(batches))
    name = rng.choice(reader.schema.names)
    place = reader.schema.get_field_index(name)
    column = batches[number].column(place)
    values: list[Any] = column.to_pylist()
    schema = reader.schema
    kind = column.type
    if rng.random() < 0.2:
        kind = rng.choice(_TYPES)
        schema = schema.set(place, pa.field(name, kind))
        values = [rng.choice(VALUES) for _ in values]
    row = rng.randrange(len(values))
    while True:
        values[row] = random_value(rng, kind) if rng.random() < 0.8 else rng.choice(VALUES)
        try:
            changed = pa.array(values, kind)
            break
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            values = [random_value(rng, kind) for _ in values]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for index, batch in enumerate(batches):
            arrays = list(batch.columns)
            if index == number:
                arrays[place] = changed
            elif kind != column.type:
                arrays[place] = pa.nulls(batch.num_rows, kind)
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return bytes(sink.getvalue())


def random_value(rng: Random, kind: pa.DataType) -> Any:
    """Any value of an Arrow type, and null."""
    if rng.random() < 0.1 or pa.types.is_null(kind):
        return None
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        bits = kind.bit_width - pa.types.is_signed_integer(kind)
        low = -(1 << bits) if pa.types.is_signed_integer(kind) else 0
        number = rng.choice(
            (
                0,
                1,
                -1,
                512,
                2**15,
                2**31 - 1,
                2**62,
                2**63 - 1,
                -(2**63),
                rng.randrange(70_000),
            )
        )
        return min(max(number, low), (1 << bits) - 1)
    if pa.types.is_floating(kind):
        return rng.choice((float("nan"), float("inf"), -3e38, 0.0, rng.random()))
    if pa.types.is_fixed_size_list(kind):
        return [random_value(rng, kind.value_type) for _ in range(kind.list_size)]
    if pa.types.is_list(kind):
        return [random_value(rng, kind.value_type) for _ in range(rng.randrange(4))]
    text = "".join(rng.choice("a/.\0\nü") for _ in range(rng.randrange(20)))
    return text.encode() if pa.types.is_binary(kind) else text


class StateTarget(FolderTarget):
    """A `state_dict`, as a checkpoint may hold it."""

    name = "state"

    def __init__(self) -> None:
        super().__init__()
        self._loader = gpuload.DaliIterator(
            self.folder,
            2,
            augment=gpuload.Augment(8),
            fields=("index",),
            device="cpu",
            output="numpy",
        )

    def seeds(self) -> list[bytes]:
        state = self._loader.state_dict()
        return [json.dumps({**state, "epoch": epoch, "samples": 2}).encode() for epoch in (0, 3)]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_json(rng, data)

    def run(self, data: bytes) -> None:
        self._loader.load_state_dict(json.loads(data))
        for _ in self._loader:
            break
        self._loader.state_dict()
