"""Values in `index.arrow` and all that follows from them, up to the decoded batches of every field."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

import gpuload
from fuzzing.folders import FolderTarget, random_value, sample, tell_index
from fuzzing.mutate import mutate_json
from gpuload import Augment, Boxes, MultiHot, Target, Tokens

_FIELDS = (
    "index",
    "image",
    "mask",
    "label",
    MultiHot("labels"),
    Target("angle", negate_on_flip=True),
    "drive",
    "caption",
    "about",
    Tokens("tokens"),
    "features",
    "keypoints",
    "key",
)
# One view whose crops may hide a wrong size, two that share the decoded image, and one that is padded.
_VIEWS = [Augment(12, dtype="uint8", crop=crop, vertical_flip=0.5) for crop in ("random", "none")]
_AUGMENTS: dict[str, Any] = {
    "one": _VIEWS[0],
    "two": _VIEWS,
    "padded": Augment(30, crop="pad_or_crop", flip=0.5),
}


class LoaderTarget(FolderTarget):
    """Any value in any column of `index.arrow`: an error, or batches in which all other samples are as before."""

    name = "loader"
    decoder = "native"
    boxes = Boxes()
    columns = ""  # whose names begin so

    def __init__(self) -> None:
        super().__init__()
        self._index = (self.folder / "index.arrow").read_bytes()
        table = pa.ipc.open_file(self._index).read_all()
        self._schema = table.schema
        self._told = table.to_pydict()
        self._options = [(augment, masks) for augment in _AUGMENTS for masks in (True, False)]
        self._expected = [self._read(*options) for options in self._options]

    def seeds(self) -> list[bytes]:
        return [json.dumps(["width", 1, self._told["width"][1], 0]).encode()]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        name = rng.choice([name for name in self._schema.names if name.startswith(self.columns)])
        row = rng.randrange(len(self._told[name]))
        value = self._told[name][row]
        kind = self._schema.field(name).type
        if pa.types.is_integer(kind) and rng.random() < 0.5:
            value += rng.randrange(-9, 10)  # what is nearly right gets furthest
        elif str(value)[:1] in "[{" and type(value) is str and rng.random() < 0.9:
            value = mutate_json(rng, value.encode()).decode()
        else:
            value = random_value(rng, kind)
        return json.dumps([name, row, value, rng.randrange(len(self._options))]).encode()

    def run(self, data: bytes) -> None:
        name, row, value, options = json.loads(data)
        write_value(self.folder, self._index, name, row, value)
        outcome = self._read(*self._options[options])
        expected = self._expected[options]
        assert len(outcome) == len(expected)
        assert all(a == b for n, (a, b) in enumerate(zip(outcome, expected, strict=True)) if n != row)

    def _read(self, augment: str, with_masks: bool) -> list[list[Any]]:
        """For each sample in stored order, its fields."""
        packed = gpuload.Dataset(self.folder).fields
        names = {field: field if isinstance(field, str) else field.name for field in (*_FIELDS, self.boxes)}
        fields = [field for field, name in names.items() if name in packed or name in ("index", "key")]
        loader = gpuload.DaliIterator(
            self.folder,
            4,
            augment=_AUGMENTS[augment],
            fields=[field for field in fields if with_masks or field != "mask"],
            decoder=self.decoder,  # type: ignore[arg-type]
            device="cpu",
            num_threads=2,
            shuffle=False,
            drop_last=False,
            output="numpy",
        )
        with loader:
            return [list(sample) for batch in loader for sample in zip(*map(_rows_of, batch), strict=True)]


class DaliLoaderTarget(LoaderTarget):
    """The same with DALI's decoder."""

    name = "loader-dali"
    decoder = "dali"
    memory = 64 << 30  # of address space: DALI reserves much


class RawLoaderTarget(LoaderTarget):
    """The same with images that are stored as pixels."""

    name = "loader-raw"
    packing = {"encode": "raw"}  # noqa: RUF012


class InstancesTarget(LoaderTarget):
    """Boxes with areas, crowds and outlines, of which masks are drawn: polygons and runs that are changed as JSON."""

    name = "instances"
    boxes = Boxes(as_targets=True, masks=True, crowds=True)
    columns = "boxes"

    @staticmethod
    def sample(number: int) -> dict[str, Any]:
        runs = {"size": [8, 9 + number], "counts": [9, 9, 54 + 8 * number]}
        return {
            **sample(number),
            "boxes_masks": [[[0, 0, 5, 0, 5, 6]], runs][: number % 3],
        }


def write_value(folder: Path, pristine: bytes, name: str, row: int, value: Any) -> None:
    """An index with one value in place of another, of which the manifest tells; `row` counts over all shards."""
    reader = pa.ipc.open_file(pristine)
    (folder / "index.arrow").unlink()
    with pa.ipc.new_file(str(folder / "index.arrow"), reader.schema) as writer:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            if 0 <= row < batch.num_rows:
                column = batch.column(name).to_pylist()
                column[row] = value
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(
                    place,
                    batch.schema.field(place),
                    pa.array(column, batch.schema.field(name).type),
                )
            row -= batch.num_rows
            writer.write_batch(batch)
    tell_index(folder)


def _rows_of(field: Any) -> list[Any]:
    """A field of a batch, sample by sample, as it compares."""
    if isinstance(field, list):
        return [_plain(value) for value in field]
    if isinstance(field, np.ndarray):
        return [(row.shape, row.tobytes()) for row in field]
    # padded, to the longest of the batch, in which the changed sample may be.
    if hasattr(field, "_fields"):
        *padded, lengths = field
        return [[array[row, :length].tolist() for array in padded] for row, length in enumerate(lengths)]
    return list(zip(*map(_rows_of, field), strict=True))  # of several views


def _plain(value: Any) -> Any:
    if isinstance(value, dict):  # a target, or JSON
        return {name: _plain(leaf) for name, leaf in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
