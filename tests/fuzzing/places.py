"""Stores and exports of other tools, of which one file is changed: those that the tests hold."""

import base64
import gzip
import json
import shutil
import struct
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from PIL import Image

from fuzzing.mutate import mutate_bytes, mutate_json
from fuzzing.pictures import encoded
from fuzzing.sources import NESTED, SourceTarget
from gpuload.sources import Source, open_source

_TESTS = Path(__file__).resolve().parents[1] / "sources"
_GOLDEN = _TESTS / "stores" / "golden"
_MOST_PLACES = 255


class Place(NamedTuple):
    """A folder of files, one of which is changed.

    form: of the source that reads it. files: by their names. part: the name of the file that is changed.
    """

    form: str
    files: Mapping[str, bytes]
    part: str


class PlacesTarget(SourceTarget):
    """Files of several places: the first byte of an input is the number of the place, the rest is the changed file."""

    memory = 1 << 30
    tokens = NESTED

    def __init__(self) -> None:
        super().__init__()
        self._places = self.places()
        assert len(self._places) <= _MOST_PLACES

    @abstractmethod
    def places(self) -> list[Place]: ...

    def seeds(self) -> list[bytes]:
        return [bytes([number]) + place.files[place.part] for number, place in enumerate(self._places)]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        number, content = data[:1], data[1:]
        if content.lstrip()[:1] in (b"{", b"[") and rng.random() < 0.7:
            return number + _mutated_document(rng, content)
        others = [seed[1:] for seed in seeds if seed[:1] == number]
        return number + mutate_bytes(rng, content, others, self.tokens)

    def run(self, data: bytes) -> None:
        place = self._places[data[0] % len(self._places)]
        root = self.folder / "place"
        shutil.rmtree(root, ignore_errors=True)
        for name, content in {**place.files, place.part: data[1:]}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # left by a process that died
        scratch.mkdir()
        path = root / place.part if len(place.files) == 1 else root
        try:
            self.use(self.open_place(path, place.form), scratch)
        finally:
            shutil.rmtree(scratch)
            assert self._outside() == self.before, "it wrote outside of its folder"

    def open_place(self, path: Path, form: str) -> Source:
        return open_source(path, form=form)


def _folder(name: str) -> dict[str, bytes]:
    root = _GOLDEN / name
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _mutated_document(rng: Random, content: bytes) -> bytes:
    """JSON with another value; of lines of JSON, one with another value."""
    with suppress(ValueError):
        return mutate_json(rng, content)
    lines = content.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    with suppress(ValueError):
        lines[line] = mutate_json(rng, lines[line]) + b"\n"
    return b"".join(lines)


class LanceTarget(PlacesTarget):
    """A data set of Lance: its manifest, its transaction and its data."""

    name = "lance"
    processes = True

    def places(self) -> list[Place]:
        import lance
        import pyarrow as pa

        jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
        root = self.folder / "seed.lance"
        lance.write_dataset(pa.table({"image": [jpg] * 3, "label": [0, 1, 0]}), str(root))
        files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        return [Place("lance", files, name) for name in sorted(files)]


class GoldenStoresTarget(PlacesTarget):
    """MDS, LitData, TFRecord, beton, RecordIO, and SquashFS: the index and the data of each."""

    name = "golden-stores"

    def places(self) -> list[Place]:
        names = {
            "mds": ("mds/none", "mds/zstd", "mds/br", "mds/kinds", "mds/pil"),
            "litdata": (
                "litdata/jpeg",
                "litdata/kinds",
                "litdata/zstd-chunk",
                "litdata/zstd-sample",
            ),
            "tfrecord": ("tfds", "slim", "detection"),
        }
        places = list[Place]()
        for form, folders in names.items():
            for folder in folders:
                files = _folder(folder)
                places += [Place(form, files, part) for part in files]
        beton = gzip.decompress((_GOLDEN / "set.beton.gz").read_bytes())
        places.append(Place("beton", {"set.beton": beton}, "set.beton"))
        places.append(_recordio())
        for path in sorted(_GOLDEN.glob("*.squashfs")):
            files = {path.name: path.read_bytes()}
            places.append(Place("folder", files, path.name))
        return places


def _recordio() -> Place:
    """A `.rec` of two images, with the labels of one and of several numbers."""
    jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
    records = b""
    for flag, label in ((0, 3.0), (2, 0.0)):
        head = flag.to_bytes(4, "little") + _float(label) + bytes(16)
        content = head + b"".join(map(_float, (1.0, 2.0)[:flag])) + jpg
        size = len(content).to_bytes(4, "little")
        records += (0xCED7230A).to_bytes(4, "little") + size + content
        records += bytes(-len(content) % 4)
    return Place("recordio", {"set.rec": records}, "set.rec")


def _float(value: float) -> bytes:
    return struct.pack("<f", value)


# Of exports in tests/sources/exports: the tool, the export, and the form of the source.
_JSON = (
    ("globox", "labelme", "labelme"),
    ("label_studio", "JSON boxes", "label-studio"),
    ("label_studio", "JSON classes", "label-studio"),
    ("label_studio", "JSON_MIN polygons", "label-studio"),
    ("label_studio", "JSON masks", "label-studio"),
    ("supervision", "createml", "createml"),
    ("fiftyone", "BDDDataset polygons", "bdd"),
    ("fiftyone", "FiftyOneDataset masks", "fiftyone"),
    ("globox", "via", "via"),
    ("datumaro", "datumaro", "datumaro"),
    ("datumaro", "datumaro masks", "datumaro"),
    ("datumaro", "coco_panoptic masks", "coco"),
    ("datumaro", "coco_labels classes", "coco"),
    ("fiftyone", "FiftyOneDataset polygons", "fiftyone"),
    ("fiftyone", "FiftyOneImageDetectionDataset boxes", "fiftyone"),
    ("fiftyone", "FiftyOneImageClassificationDataset classes", "fiftyone"),
    ("ultralytics", "ndjson", "ndjson"),
)
_TEXTS = (
    ("label_studio", "CSV boxes", "label-studio"),
    ("datumaro", "cvat polygons", "cvat"),
    ("datumaro", "label_me polygons", "labelme-xml"),
    ("labelformat", "kitti", "kitti"),
    ("datumaro", "dota turned", "dota"),
    ("datumaro", "wider_face", "wider"),
    ("datumaro", "mot_seq_gt", "mot"),
    ("datumaro", "yolo splits", "yolo"),
    ("labelformat", "yolo 8 masks", "yolo"),
    ("datumaro", "yolo_ultralytics splits", "yolo"),
    ("datumaro", "voc_detection splits", "voc"),
    ("globox", "open images", "boxes"),
)


class _ExportsTarget(PlacesTarget):
    """exports: rows as above."""

    exports: Sequence[tuple[str, str, str]] = ()

    def places(self) -> list[Place]:
        places = list[Place]()
        for tool, title, form in self.exports:
            document = json.loads((_TESTS / "exports" / f"{tool}.json").read_text())
            export = document["exports"][title]
            jpg = encoded(Image.new("RGB", (100, 50)), "JPEG")
            files = dict.fromkeys(export["images"], jpg)
            own = {name: text.encode() for name, text in export["texts"].items()}
            pngs = export["others"]
            own |= {name: base64.b64decode(text) for name, text in pngs.items()}
            # Of files that are alike the first one is changed.
            parts = {(name.rpartition("/")[0], name[-4:]): name for name in sorted(own)}
            places += [Place(form, files | own, part) for part in parts.values()]
        return places

    def open_place(self, path: Path, form: str) -> Source:
        takes_negatives = form not in ("coco", "yolo")
        return open_source(path, form=form, negatives=takes_negatives)


class JsonExportsTarget(_ExportsTarget):
    """JSON of annotation tools, and PNGs of panoptic segments."""

    name = "json-exports"
    exports = _JSON


class TextExportsTarget(_ExportsTarget):
    """Texts, XML and tables of annotation tools."""

    name = "text-exports"
    exports = _TEXTS
    tokens = (
        *NESTED,
        b"nan",
        b"1e999",
        b"-1",
        b"\0",
        b"\xff",
        b"../x",
        b"<!DOCTYPE a [<!ENTITY b 'cc'>]>",
        b"99999999999999999999",
        b"\t",
        b'"',
    )
