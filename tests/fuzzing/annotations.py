"""Tables and annotations beside images: CSV, JSON lines, COCO, Pascal VOC, sidecar files."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fuzzing.mutate import VALUES, mutate_bytes, mutate_json
from fuzzing.sources import NAMES, NESTED, SourceTarget
from gpuload.sources import Source, open_source


class TableTarget(SourceTarget):
    """CSV and JSON lines, and the values in them."""

    name = "table"
    file = "labels.csv"
    beside = True
    tokens = (
        *(str(value).encode("utf-8", "surrogatepass") for value in VALUES),
        *NESTED,
        b",",
        b";",
        b'"',
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"nan",
        b"1e999",
        b"[[0,0,1]]",
        b"../a.jpg",
        b"boxes",
        b"labels",
    )

    def seeds(self) -> list[bytes]:
        boxes = '"[[0, 0, 5, 6, 1]]"'
        rows = [f"{name},{n},{n / 2},a b,{boxes}" for n, name in enumerate(NAMES)]
        table = "\n".join(["path,label,target,caption,boxes", *rows]) + "\n"
        lines = "".join(json.dumps({"path": name, "label": n, "labels": [n, 1]}) + "\n" for n, name in enumerate(NAMES))
        return [
            table.encode(),
            table.replace(",boxes", "").replace(f",{boxes}", "").replace(",", "\t").encode(),
            lines.encode(),
        ]

    def run(self, data: bytes) -> None:
        self.file = "labels.jsonl" if data[:1] in (b"{", b"[") else "labels.csv"
        super().run(data)


class CocoTarget(SourceTarget):
    """COCO's JSON: boxes, classes, keypoints, captions, segmentations."""

    name = "coco"
    file = "instances.json"
    beside = True
    tokens = NESTED

    def seeds(self) -> list[bytes]:
        images = [{"id": n, "file_name": name, "width": 9, "height": 8} for n, name in enumerate(NAMES)]
        boxes = [
            {
                "id": n,
                "image_id": n % 3,
                "category_id": 7 * (1 + n % 2),
                "bbox": [1, 2, 3.5, 4],
                "segmentation": {"counts": [9, 9], "size": [8, 9]} if n else [[0, 0, 5, 5, 9, 0]],
                "keypoints": [1, 2, 2, 3, 4, 0],
            }
            for n in range(4)
        ]
        categories = [{"id": 7 * n, "name": f"c{n}", "keypoints": ["left", "right"]} for n in (1, 2)]
        captions = [{"id": n, "image_id": n, "caption": f"photo {n}"} for n in range(3)]
        files = [
            {"images": images, "annotations": boxes, "categories": categories},
            {"images": images, "annotations": captions},
        ]
        return [json.dumps(document).encode() for document in files]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_bytes(rng, data, seeds, self.tokens) if rng.random() < 0.2 else mutate_json(rng, data)


class VocTarget(SourceTarget):
    """Pascal VOC's XML."""

    name = "voc"
    file = "Annotations/a.xml"
    tokens = (
        b"<!DOCTYPE a [<!ENTITY b 'cc'>]>",
        b"&b;",
        b"&#0;",
        b"<!--",
        b"<object>" * 2000,
        b"<![CDATA[",
        b"nan",
        b"1e999",
        b"<?xml version='1.0' encoding='utf-16'?>",
        b"<?xml version='1.0' encoding='x'?>",
        b"\xff",
    )

    def __init__(self) -> None:
        super().__init__()
        (self.folder / "JPEGImages").mkdir()
        (self.folder / "JPEGImages" / "a.jpg").write_bytes(b"an image")

    def open(self, path: Path) -> Source:
        return open_source(self.folder, form="voc")

    def seeds(self) -> list[bytes]:
        box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
        entries = "".join(f"<object><name>{name}</name>{box}</object>" for name in ("dog", "cat"))
        return [f"<annotation><filename>a.jpg</filename>{entries}</annotation>".encode()]


class SidecarTarget(SourceTarget):
    """JSON, texts and masks beside images."""

    name = "sidecar"
    file = "beside/a.json"
    tokens = (*NESTED, b"\xff", b"\0")

    def __init__(self) -> None:
        super().__init__()
        folder = self.folder / "beside"
        folder.mkdir()
        (folder / "a.jpg").write_bytes(b"an image")

    def open(self, path: Path) -> Source:
        return open_source(path.parent, form="sidecar")

    def seeds(self) -> list[bytes]:
        return [
            b'{"keypoints": [[[1, 2, 2], [3, 4, 1]]], "a": {"b": [1, null]}}',
            b'{"a": 1}',
        ]

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_bytes(rng, data, seeds, self.tokens) if rng.random() < 0.4 else mutate_json(rng, data)
