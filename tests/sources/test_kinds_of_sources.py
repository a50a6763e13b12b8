"""Every kind of source through the command line: what comes out of the shards is what went in."""

import importlib
import io
import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sources_read
from images import Folder, encode, photo
from PIL import Image
from pyarrow import parquet
from reading import rejected_of, rows_of
from sources_read import PHOTOS as ALL
from sources_read import listed, reasons_of, splits_of
from tars import members

import gpuload
from gpuload import SourceError, cli
from gpuload.disk import Manifest
from gpuload.packing.verify import verify

PHOTOS = ALL[:6]
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 12, 16, 3), np.uint8)


def packed(tmp_path: Path, *arguments: Any, code: int = cli.DONE) -> tuple[Manifest, list[dict[str, Any]]]:
    """Manifest and rows in the order of the source."""
    out = tmp_path / "out"
    manifest = sources_read.packed(arguments[0], out, *arguments[1:], code=code)["train"]
    return manifest, sorted(rows_of(out / "train"), key=lambda row: row["key"])


def pixels_of(row: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(row["image"])).convert("RGB")).astype(int)


def gray(number: int) -> bytes:
    return encode(Image.new("L", (40 + number, 30), number), "PNG")


def test_sidecars(make_folder: Folder, tmp_path: Path) -> None:
    files = {f"d/{n}.jpg": data for n, data in enumerate(PHOTOS)}
    files |= {f"d/{n}.txt": f"text\r{n}\r\n".encode() for n in range(5)} | {f"d/{n}.png": gray(n) for n in range(6)}
    files |= {f"d/{n}.json": b'{"a": 1}' for n in range(6)} | {"d/5.JPEG": b"twice", "d/notes.md": b""}
    manifest, rows = packed(tmp_path, make_folder(files), "--from", "sidecar", code=cli.REJECTED)
    assert [field.name for field in manifest.fields] == ["image", "caption", "json", "mask"]
    assert [(row["caption"], row["json"]) for row in rows] == [(f"text\n{n}", '{"a": 1}') for n in range(5)]
    assert members(tmp_path / "out" / "train")[f"{rows[4]['key']}.mask.png"] == gray(4)
    assert rejected_of(tmp_path / "out" / "train") == {
        "d/5.JPEG": "has no .txt beside it, though most images do", "d/5.jpg": "shares its stem with 'd/5.JPEG'",
    }  # fmt: skip


COCO = {
    "images": [{"id": n + 10, "file_name": f"{n}.jpg"} for n in range(3)],
    "annotations": [
        {"id": 2, "image_id": 10, "bbox": [1, 2, 10, 4], "category_id": 7, "keypoints": [4, 2, 2, 8, 6, 1, 0, 0, 0]},
        {"id": 1, "image_id": 10, "bbox": [0, 0, 5.5, 5], "category_id": 90, "keypoints": [2, 2, 2, 4, 4, 2, 6, 6, 2]},
        {"id": 3, "image_id": 11, "bbox": [0, 0, 5, 5], "category_id": 90, "iscrowd": 1},
    ],
    "categories": [{"id": 90, "name": "z", "keypoints": ["nose", "left_eye", "right_eye"]}, {"id": 7, "name": "a"}],
}


def test_coco(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({f"{n}.jpg": data for n, data in enumerate(PHOTOS)} | {"c.json": json.dumps(COCO).encode()})
    manifest, rows = packed(tmp_path, root, "--labels", root / "c.json", "--encode", "jpeg", "--size", "15")
    boxes, labels, points, ids = manifest.fields[1:]
    assert (ids.name, ids.kind) == ("image_id", "json") and [row["image_id"] for row in rows] == ["10", "11", "12"]
    assert (boxes.classes, labels.classes) == (("a", "z"), ("a", "z"))
    assert [row["boxes"] for row in rows] == [[[0, 0, 2.75, 2.5], [0.5, 1, 5.5, 3]], [], []]  # halved, like the image
    assert [row["boxes_class"] for row in rows] == [[1, 0], [], []]
    assert [row["labels"] for row in rows] == [[0, 1], [], []]
    assert (points.kind, points.size, points.classes) == ("keypoints", 3, ("nose", "left_eye", "right_eye"))
    assert [row["keypoints"] for row in rows] == [[[1, 1, 2, 2, 2, 2, 3, 3, 2], [2, 1, 2, 4, 3, 1, 0, 0, 0]], [], []]
    texts = [{"id": n, "image_id": 10 + n // 2, "caption": f"text {n}"} for n in range(4)]
    (root / "t.json").write_text(json.dumps({"images": COCO["images"], "annotations": texts}))
    listing = listed(root, root / "t.json")
    assert listing.samples.column("caption").to_pylist() == ["text 0", "text 2"]
    assert listing.samples.column("captions").to_pylist() == ['["text 0", "text 1"]', '["text 2", "text 3"]']
    assert reasons_of(listing) == [("2.jpg", "has no caption")]


def xml(*objects: tuple[str, int, int, int, int]) -> bytes:
    parts = [
        f"<object><name>{name}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, a, b, c, d in objects
    ]
    return f"<annotation><!-- by hand -->{''.join(parts)}</annotation>".encode()


def test_ilsvrc(make_folder: Folder) -> None:
    found = [xml(("n2", 0, 0, 9, 9), ("n1", 0, 0, 20, 20)), xml(), xml(("n2", 1, 1, 3, 3))]
    files = {f"Annotations/DET/train/d/{n}.xml": text for n, text in enumerate(found)}
    listing = listed(make_folder(files | {f"Data/DET/train/d/{n}.JPEG": PHOTOS[n] for n in range(3)}))
    assert (listing.classes, listing.fields[1].classes) == (("background", "n1", "n2"), ("n1", "n2"))
    samples = listing.samples.to_pydict()
    assert samples["label"] == [1, 0, 2]
    assert samples["boxes"] == [[[0, 0, 9, 9], [0, 0, 20, 20]], [], [[1, 1, 3, 3]]]
    assert samples["boxes_class"] == [[1, 0], [], [1]]


def near(rows: list[dict[str, Any]], images: np.ndarray) -> bool:
    assert len(rows) == len(images)
    return all(np.array_equal(pixels_of(row), image) for row, image in zip(rows, images, strict=True))


@pytest.mark.parametrize("layout", ["chunked", "contiguous", "float, channels first", "encoded"])
def test_hdf5(tmp_path: Path, layout: str) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if layout == "encoded":  # files as they are, each a row of its own length: PyTables' VLArray
            images = file.create_dataset("images", (20,), h5py.vlen_dtype(np.uint8))
            for n, pixels in enumerate(PIXELS):
                images[n] = np.frombuffer(encode(Image.fromarray(pixels), "PNG"), np.uint8)
        elif layout == "chunked":
            file.create_dataset("deep/images", data=PIXELS, chunks=(3, 12, 16, 3), compression="gzip")
        elif layout == "contiguous":
            file["images"] = PIXELS
        else:
            file["images"] = (PIXELS.transpose(0, 3, 1, 2) / 255).astype(np.float32)
        file["targets"] = np.arange(40, dtype=np.float64).reshape(20, 2)
        file["labels"] = np.arange(20) % 3
        file["unrelated"] = np.arange(3)
    _, rows = packed(tmp_path, tmp_path / "a.h5", "--lossless")
    assert near(rows, PIXELS)
    assert [row["label"] for row in rows] == [n % 3 for n in range(20)]
    assert [row["targets"] for row in rows] == [[2 * n, 2 * n + 1] for n in range(20)]
    alone = listed(tmp_path / "a.h5", no_labels=True)
    assert (alone.fields, alone.classes, len(alone)) == ((), None, 20)


def test_hdf5_with_a_filter_that_is_missing(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("images", data=PIXELS, chunks=(5, *PIXELS.shape[1:]), compression="gzip")
    data = (tmp_path / "f.h5").read_bytes()
    place = data.index(b"deflate") - 8  # its number, the length of its name, flags, how many values
    assert data[place : place + 4] == b"\x01\x00\x08\x00"
    (tmp_path / "f.h5").write_bytes(data[:place] + b"\x01\x7d" + data[place + 2 :])  # 32001: Blosc
    with pytest.raises(SourceError, match=r"f.h5: cannot be read as HDF5.* PyTables' Blosc, install hdf5plugin"):
        listed(tmp_path / "f.h5")


def test_one_split_of_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_train=PIXELS[:5], y_train=np.arange(5) % 2, x_test=PIXELS[5:], y_test=np.arange(15))
    columns = ["--column", "image=x_train", "--column", "label=y_train"]
    manifest, rows = packed(tmp_path, tmp_path / "x.npz", *columns, "--encode", "raw")
    assert [row["image"] for row in rows] == [image.tobytes() for image in PIXELS[:5]]
    assert [row["label"] for row in rows] == [0, 1, 0, 1, 0] and len(manifest.fields) == 2


COURSE = {
    "train_set_x": PIXELS[:5], "train_set_y": np.arange(5) % 2, "test_set_x": PIXELS[5:7], "test_set_y": np.arange(2),
    "list_classes": np.array([b"other", b"cat"]),
}  # fmt: skip
SPLIT_ARRAYS = {
    "Keras": {"x_train": PIXELS[:5], "y_train": np.arange(5) % 2, "x_test": PIXELS[5:7], "y_test": np.arange(2)},
    "a course": COURSE,
    "groups": {
        "train/images": PIXELS[:5], "train/labels": np.arange(5) % 2, "test/images": PIXELS[5:7], "test/labels": np.arange(2),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["npz", "h5"])
@pytest.mark.parametrize("name", SPLIT_ARRAYS)
def test_arrays_of_several_splits(tmp_path: Path, name: str, kind: str) -> None:
    arrays = SPLIT_ARRAYS[name]
    if kind == "npz":
        np.savez(tmp_path / "x.npz", **arrays)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            for array, values in arrays.items():
                file[array] = values
    listing = listed(tmp_path / f"x.{kind}")
    pairs = zip(splits_of(listing), listing.samples.column("label").to_pylist(), strict=True)
    assert sorted(pairs) == [("test", 0), ("test", 1), *[("train", 0)] * 3, *[("train", 1)] * 2]
    assert listing.classes == (("other", "cat") if name == "a course" else None)
    assert listing.notes == ()
    assert splits_of(listed(tmp_path / f"x.{kind}", no_splits=True)) is None
    assert len(listed(tmp_path / f"x.{kind}", no_splits=True)) == 7


def test_npy_and_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", PIXELS)
    np.save(tmp_path / "y.npy", np.arange(20) % 2)
    manifest, rows = packed(tmp_path, tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--encode", "raw")
    assert manifest.fields[0].kind == "raw"
    for row, image in zip(rows, PIXELS, strict=True):
        assert row["image"] == image.tobytes()  # offset and bytes are those of the pixels
        assert row["image_bytes"] == row["width"] * row["height"] * 3
    assert [row["label"] for row in rows] == [n % 2 for n in range(20)]
    np.save(tmp_path / "narrow.npy", PIXELS[:4, :, :3, 0])
    assert len(listed(tmp_path / "narrow.npy", no_labels=True)) == 4
    for save, name in ((np.savez, "plain"), (np.savez_compressed, "small")):
        save(tmp_path / f"{name}.npz", images=PIXELS, angle=np.arange(20) / 8, tokens=np.arange(60).reshape(20, 3))
        folder = tmp_path / name
        folder.mkdir()
        assert listed(tmp_path / f"{name}.npz", no_labels=True).fields == ()
        manifest, rows = packed(folder, tmp_path / f"{name}.npz", "--lossless")
        assert near(rows, PIXELS)
        assert [row["angle"] for row in rows] == [n / 8 for n in range(20)]
        tokens = manifest.fields[2]
        assert (tokens.kind, tokens.dtype, rows[4]["tokens_shape"]) == ("array", "<i8", [3])
        member = members(folder / "out" / "train")[f"{rows[4]['key']}.tokens.npy"]
        assert np.load(io.BytesIO(member)).tolist() == [12, 13, 14]


@pytest.mark.parametrize("kind", ["maps", "images", "pickles", "parquet"])
def test_files_of_samples(tmp_path: Path, kind: str) -> None:
    lmdb, msgpack = pytest.importorskip("lmdb"), pytest.importorskip("msgpack")
    make = {"maps": msgpack.packb, "images": lambda sample: sample["image"], "pickles": pickle.dumps}
    samples = [{"image": PHOTOS[n], "x": n / 2, "y": n / 4, "breed": n % 2} for n in range(6)]
    path = tmp_path / ("x.parquet" if kind == "parquet" else "x.lmdb")
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(samples), path)
    else:
        with lmdb.open(str(path), map_size=1 << 24) as store, store.begin(write=True) as transaction:
            for n, sample in enumerate(samples):
                transaction.put(b"%010d" % n, make[kind](sample))
    columns = () if kind == "images" else ("--column", "target=x,y", "--column", "label=breed")
    _, rows = packed(tmp_path, path, "--lossless", *columns)
    assert [row["image"] for row in rows] == PHOTOS
    assert listed(path, no_labels=True).fields == ()
    if columns:
        assert [(row["target"], row["label"]) for row in rows] == [([n / 2, n / 4], n % 2) for n in range(6)]
        with pytest.raises(SourceError, match="--column label=bred: expected one of"):
            listed(path, columns={"label": ("bred",)})
        one = listed(path, columns={"target": ("x",), "label": ("breed",)})
        assert one.samples.column("target").to_pylist() == [n / 2 for n in range(6)]
    if kind == "maps":  # of images alone, fields may differ
        with lmdb.open(str(path)) as store, store.begin(write=True) as transaction:
            transaction.put(b"other", msgpack.packb({"image": PHOTOS[0], "x": "one"}))
        assert len(listed(path / "data.mdb", form="lmdb", no_labels=True)) == 7


def test_tars_packed_by_others(make_folder: Folder, tmp_path: Path) -> None:
    tokens = io.BytesIO()
    np.save(tokens, np.arange(4))
    root = make_folder(
        {f"{n:02d}{end}": data for n in range(6) for end, data in
         ((".jpg", PHOTOS[n]), (".cls", b"%d" % (n % 2)), (".txt", b"text"), (".npy", tokens.getvalue()), (".seg.png", gray(n)))}
    )  # fmt: skip
    (root / "05.cls").unlink()
    for part in ("0[0-2]*", "0[3-5]*"):
        subprocess.run(f"tar --sort=name -cf s{part[2]}.tar {part}", shell=True, cwd=root, check=True)
    manifest, rows = packed(tmp_path, root / "s*.tar", "--from", "tar", "--maxcount", "9", code=cli.REJECTED)
    assert [f.kind for f in manifest.fields] == ["image", "class", "array", "mask", "caption"]
    assert [row["image"] for row in rows] == PHOTOS[:5]
    assert [row["label"] for row in rows] == [0, 1, 0, 1, 0]
    assert members(tmp_path / "out" / "train")[f"{rows[3]['key']}.seg.png"] == gray(3)
    assert rejected_of(tmp_path / "out" / "train") == {"s3.tar/05.jpg": "has no .cls, which most samples have"}
    alone = listed(root / "s*.tar", form="tar", no_labels=True)
    assert (alone.fields, len(alone)) == ((), 6)
    # And what we packed ourselves, once more: nothing changes but the names.
    again = tmp_path / "again"
    again.mkdir()
    repacked, others = packed(again, tmp_path / "out" / "train")
    assert repacked.fields == manifest.fields
    assert sorted((row["image"], row["label"]) for row in others) == sorted(
        (row["image"], row["label"]) for row in rows
    )


def test_dicts(tmp_path: Path) -> None:
    (tmp_path / "p.jpg").write_bytes(PHOTOS[3])
    images = [PHOTOS[0], PIXELS[1], PIXELS[2].transpose(2, 0, 1), tmp_path / "p.jpg", photo(4), PIXELS[5] / 255]
    samples = ({"image": image, "name": f"n{n}.x", "label": "ab"[n % 2]} for n, image in enumerate(images))
    report = gpuload.pack(samples, tmp_path / "out", workers=1, lossless=True)
    assert (report.images, report.rejected) == (6, ())
    assert verify(tmp_path / "out", 1) == []
    rows = sorted(rows_of(tmp_path / "out" / "train"), key=lambda row: row["key"])
    assert (rows[0]["image"], rows[3]["image"]) == (PHOTOS[0], PHOTOS[3])
    assert near([rows[1], rows[2], rows[5]], PIXELS[[1, 2, 5]])
    assert np.array_equal(pixels_of(rows[4]), np.asarray(photo(4)))
    assert [row["label"] for row in rows] == [0, 1] * 3
    assert [row["source"] for row in rows] == [f"n{n}.x" for n in range(6)]


def test_data_sets_of_torchvision(make_folder: Folder, tmp_path: Path) -> None:
    """In one line; files of an ImageFolder stay as they are."""
    datasets = importlib.import_module("torchvision_anywhere") and importlib.import_module("torchvision.datasets")
    files = {"ant/1.jpg": encode(photo(1, 40, 30)), "bee/2.jpg": encode(photo(2, 40, 30))}
    folder = datasets.ImageFolder(make_folder(files))
    report = gpuload.pack({"train": folder, "val": datasets.FakeData(3, (3, 20, 20), 2)}, tmp_path / "out", workers=1)
    assert {name: split.samples for name, split in report.manifests.items()} == {"train": 2, "val": 3}
    train = report.manifests["train"]
    assert train.classes == ("ant", "bee")
    assert train.packing["kept"] == 2
    targets = type(
        "Targets",
        (),
        {"transforms": None, "__len__": lambda _: 1, "__getitem__": lambda _, n: (photo(), {"boxes": []})},
    )
    with pytest.raises(gpuload.SourceError, match="the targets of Targets are no classes but dict. Give dicts"):
        gpuload.pack(targets(), tmp_path / "no", workers=1)
