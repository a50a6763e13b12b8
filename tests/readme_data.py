"""The folders and files that the commands and programs of docs/ name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from images import encode, photo, write_files
from PIL import Image
from pyarrow import parquet

import gpuload
from gpuload import cli

PHOTOS = [encode(photo(number, 40 + number, 30)) for number in range(8)]


def make_sources(tmp_path: Path) -> None:
    """Everything that is packed in docs/packing.md."""
    for name in ("photos", "more"):
        images = {f"{'abc'[n % 3]}{name[:1]}/{n}.jpg": encode(photo(n + 100 * len(name))) for n in range(30)}
        write_files(tmp_path / name, images)
    write_files(tmp_path / "imagenet", {f"{('train', 'val')[n % 2]}/class{n % 3}/{n}.jpg": PHOTOS[n] for n in range(8)})
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path, "photos")
    for n, data in enumerate(PHOTOS):
        mask = encode(Image.new("L", (40 + n, 30), n), "PNG")
        write_files(tmp_path / "flat", {f"{n}.jpg": data, f"{n}.txt": f"text {n}".encode(), f"{n}.png": mask})
        write_files(tmp_path / "yolo", {f"images/{n}.jpg": data, f"labels/{n}.txt": b"0 0.5 0.5 0.2 0.4"})
        voc = {f"Data/{n}.JPEG": data, f"Annotations/{n}.xml": b"<annotation></annotation>"}
        write_files(tmp_path / "ILSVRC", voc)
    for place in ("dataset", "wds"):
        (tmp_path / place).mkdir()
    (tmp_path / "table.csv").write_text("path,label\n" + "".join(f"{n}.jpg,{n % 2}\n" for n in range(8)))
    (tmp_path / "drive.csv").write_text("path,angle,speed\n" + "".join(f"{n}.jpg,{n / 9},{n}\n" for n in range(8)))
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(8)]
    boxes = [{"id": 1, "image_id": 3, "bbox": [1, 2, 3, 4], "category_id": 5}]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 5, "name": "x"}]}
    for name in ("instances.json", "coco/annotations/instances_train2017.json"):
        write_files(tmp_path, {name: json.dumps(coco).encode()})
    write_files(tmp_path / "coco" / "images", {f"{n}.jpg": data for n, data in enumerate(PHOTOS)})
    pixels = np.random.default_rng(0).integers(0, 256, (8, 20, 24, 3), np.uint8)
    np.savez(tmp_path / "arrays.npz", images=pixels, labels=np.arange(8))
    np.save(tmp_path / "images.npy", pixels)
    np.save(tmp_path / "labels.npy", np.arange(8))
    h5py, lmdb, msgpack = (pytest.importorskip(name) for name in ("h5py", "lmdb", "msgpack"))
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["images"], file["label"] = pixels, np.arange(8)
    with lmdb.open(str(tmp_path / "store.lmdb"), map_size=1 << 22) as store, store.begin(write=True) as transaction:
        for n, data in enumerate(PHOTOS):
            transaction.put(b"%04d" % n, msgpack.packb({"image": data, "label": n}))
    table = pa.table({"image": [{"bytes": data, "path": None} for data in PHOTOS], "label": list(range(8))})
    parquet.write_table(table, tmp_path / "dataset" / "train-00000.parquet")
    for part in range(2):
        assert cli.main(["pack", "flat", "made", "--labels", "table.csv", "--seed", str(part), "--workers", "1"]) == 0
        shutil.move("made/train/shard-000000.tar", f"wds/train-00{part}.tar")
        shutil.rmtree("made")


def make_fields(tmp_path: Path) -> None:
    """everything/train, with a field of each kind."""
    rng = np.random.default_rng(0)
    samples = [
        {
            "image": encode(photo(n, 64, 48)),
            "label": ("cat", "dog")[n % 2],
            "labels": [("outdoor", "night", "snow")[n % 3]],
            "caption": f"photo number {n}",
            "angle": n / 10,
            "tokens": np.arange(3 + n % 4),
            "boxes": [[4, 6, 40, 40], [10, 10, 60, 44]],
            "boxes_class": ["cat", "ball"],
            "keypoints": [[[10, 12, 2], [30, 12, 2], [20, 30, 1]]],
            "mask": np.full((48, 64), n % 3, np.uint8),
            "meta": {"camera": n % 2},
            "embedding": rng.normal(size=8).astype(np.float32),
        }
        for n in range(48)
    ]
    gpuload.pack(samples, tmp_path / "everything", workers=1, progress=False)
