"""Stores of other loaders, as their own tools wrote them: packed with labels and fields, JPEGs byte for byte."""

import gzip
import io
import itertools
import json
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image
from sources.stores.true_samples import CLASSES, GOLDEN, true_samples
from tars import tar_bytes

import gpuload
from gpuload import Dataset, ShardError, SourceError, cli

SAMPLES = true_samples()
NUMBER_OF = {sample.jpeg: number for number, sample in enumerate(SAMPLES)}


class PackedStore:
    """A packed store. numbers: of the true samples whose JPEGs are in it byte for byte, in stored order."""

    def __init__(self, folder: Path, report: Any) -> None:
        self.folder = folder
        self.report = report
        self.splits = {name: Dataset(folder / name) for name in report.manifests}
        self.rows = [dataset[row] for dataset in self.splits.values() for row in range(len(dataset))]
        self.members = dict[str, bytes]()
        for path in sorted(folder.glob("*/*.tar")):
            with tarfile.open(path) as tar:
                self.members |= {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        self.numbers = sorted(NUMBER_OF[data] for data in self.members.values() if data in NUMBER_OF)

    def by_number(self) -> dict[int, dict[str, Any]]:
        """Each sample by the number of the true one whose JPEG it has."""
        keys = {name.rpartition(".")[0]: NUMBER_OF[data] for name, data in self.members.items() if data in NUMBER_OF}
        return {keys[row["key"]]: row for row in self.rows}


Pack = Callable[..., PackedStore]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Packs a place."""

    def run(place: Path | str, **settings: Any) -> PackedStore:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        return PackedStore(out, gpuload.pack(place, out, workers=1, progress=False, **settings))

    return run


WHOLE = {  # with all six samples and their labels, each JPEG as it was
    **{f"mds/{name}": GOLDEN / "mds" / name for name in ("none", "br", "bz2", "gz", "snappy", "zstd", "splits")},
    **{
        f"litdata/{name}": GOLDEN / "litdata" / name
        for name in ("jpeg", "zstd-chunk", "zstd-sample", "arrow", "arrow-zstd")
    },
    "tfds": GOLDEN / "tfds",
    "slim": GOLDEN / "slim",
}


@pytest.mark.parametrize("name", WHOLE)
def test_stores_of_encoded_images(pack: Pack, name: str) -> None:
    store = pack(WHOLE[name])
    assert store.numbers == [0, 1, 2, 3, 4, 5]
    for number, row in store.by_number().items():
        assert row["label"] == SAMPLES[number].label
        if "caption" in row:
            assert row["caption"] == SAMPLES[number].caption
    assert store.report.rejected == ()


def test_splits_are_those_of_the_store(pack: Pack) -> None:
    for place, second in (("mds/splits", "val"), ("slim", "val"), ("tfds", "test")):
        assert {name: len(part) for name, part in pack(GOLDEN / place).splits.items()} == {"train": 4, second: 2}


def test_names_of_classes_are_those_of_tensorflow(pack: Pack) -> None:
    assert Dataset(pack(GOLDEN / "tfds").folder / "train").classes == CLASSES
    assert Dataset(pack(GOLDEN / "slim").folder / "train").classes == CLASSES  # numbered from 1 in the file
    boxes = pack(GOLDEN / "detection")
    assert boxes.splits["train"].fields["boxes"].classes == CLASSES
    for number, row in boxes.by_number().items():
        width, height = SAMPLES[number].size
        box = [width / 4, 0, width * 3 / 4, height / 2]
        assert row["boxes"].tolist() == [pytest.approx(box)] * (1 + number % 2)
        assert row["boxes_class"].tolist() == [SAMPLES[number].label] * (1 + number % 2)
    objects = pack(GOLDEN / "tfds").by_number()
    assert [len(objects[number]["boxes"]) for number in range(6)] == [0, 1, 2, 0, 1, 2]
    width, height = SAMPLES[1].size
    assert objects[1]["boxes"][0].tolist() == pytest.approx([width / 4, 0, width * 3 / 4, height / 2])


def test_values_of_mds(pack: Pack) -> None:
    store = pack(GOLDEN / "mds" / "kinds")
    assert store.numbers == [0, 1, 2]
    for number, row in store.by_number().items():
        assert row["label"] == SAMPLES[number].label
        assert row["array"].tolist() == list(range(number + 2))
        assert row["fixed"].tolist() == [[number] * (number + 1)] * 2
        assert row["shaped"].tolist() == [[number] * 3] * 2
        assert (row["doc"], row["small"], row["large"]) == ({"n": number}, -number, 2**40 + number)
        assert (row["half"], row["text_float"], row["text_decimal"]) == (number / 4, number / 8, number / 2)
        assert row["text_int"] == 10**15 + number


def test_values_of_litdata(pack: Pack) -> None:
    store = pack(GOLDEN / "litdata" / "kinds")
    assert store.numbers == [0, 1, 2]
    for number, row in store.by_number().items():
        assert (row["label"], row["share"], row["even"]) == (SAMPLES[number].label, number / 2, number % 2 == 0)
        assert row["flat"].tolist() == list(range(number + 1))
        assert row["square"].tolist() == [[number] * (number + 1)] * 2
        assert (row["nested.a"], row["nested.b"]) == (number, [number, number + 1])
        assert row["found"] == [{"x": 0.5, "name": "a", "n": number}]


@pytest.mark.parametrize("name", ["mds/pil", "litdata/pil"])
def test_decoded_images_are_packed_as_their_pixels(pack: Pack, name: str) -> None:
    store = pack(GOLDEN / name, lossless=True)
    pixels = [np.asarray(Image.open(sample.file)).tolist() for sample in SAMPLES]
    found = [np.asarray(row["image"]).tolist() for row in store.rows]
    assert all(image in pixels for image in found)
    assert [row["label"] for row in store.rows] == [SAMPLES[pixels.index(image)].label for image in found]


def test_beton(pack: Pack, tmp_path: Path) -> None:
    content = gzip.decompress((GOLDEN / "set.beton.gz").read_bytes())
    (tmp_path / "set.beton").write_bytes(content)
    store = pack(tmp_path / "set.beton", lossless=True)
    assert len(store.rows) == 6
    images = {name: data for name, data in store.members.items() if ".original." not in name}
    jpegs = [data for data in images.values() if data.startswith(b"\xff\xd8")]
    assert 0 < len(jpegs) < 6  # the others are pixels
    assert all(data in content for data in jpegs)
    for row in store.rows:
        number = int(row["weight"] * 4)
        assert row["label"] == SAMPLES[number].label
        assert row["doc"] == {"caption": SAMPLES[number].caption}
        assert row["vector"].tolist() == [[number] * 3] * 2
        expected = np.asarray(Image.open(SAMPLES[number].file)).astype(int)
        assert np.abs(np.asarray(row["image"]).astype(int) - expected).mean() < 6  # FFCV encodes again


def recordio(path: Path, rows: Sequence[tuple[Any, int, bytes]]) -> None:
    """As `mx.recordio` writes: label or labels, number and image of each record."""
    mark = struct.pack("<I", 0xCED7230A)
    with path.open("wb") as file:
        for label, number, image in rows:
            if isinstance(label, list):
                head = struct.pack(f"<IfQQ{len(label)}f", len(label), 0, number, 0, *label)
            else:
                head = struct.pack("<IfQQ", 0, label, number, 0)
            parts = cut(head + image, mark)
            for place, part in enumerate(parts):
                flag = 0 if len(parts) == 1 else 1 if place == 0 else 3 if place == len(parts) - 1 else 2
                file.write(mark + struct.pack("<I", flag << 29 | len(part)) + part + bytes(-len(part) % 4))


def cut(data: bytes, mark: bytes) -> list[bytes]:
    """The parts of a record: cut where the mark stands at a multiple of four bytes."""
    parts = []
    start = 0
    for place in range(0, len(data) - 3, 4):
        if data[place : place + 4] == mark:
            parts.append(data[start:place])
            start = place + 4
    return [*parts, data[start:]]


def test_recordio(pack: Pack, tmp_path: Path) -> None:
    path = tmp_path / "set.rec"
    recordio(path, [(sample.label, number, sample.jpeg) for number, sample in enumerate(SAMPLES)])
    lines = [f"{number}\t{sample.label}.000000\tphotos/{number}.jpg\n" for number, sample in enumerate(SAMPLES)]
    path.with_suffix(".lst").write_text("".join(lines))
    store = pack(path)
    assert store.numbers == [0, 1, 2, 3, 4, 5]
    for number, row in store.by_number().items():
        assert (row["label"], row["source"]) == (SAMPLES[number].label, f"photos/{number}.jpg")


def test_recordio_of_faces_and_of_boxes(pack: Pack, tmp_path: Path) -> None:
    images = [([float(s.label), 0.0] if n % 2 else s.label, n + 1, s.jpeg) for n, s in enumerate(SAMPLES)]
    recordio(tmp_path / "faces.rec", [([7.0, 9.0], 0, b""), *images, ([1.0, 3.0], 7, b""), ([3.0, 7.0], 8, b"")])
    faces = pack(tmp_path / "faces.rec")
    assert {n: row["label"] for n, row in faces.by_number().items()} == {n: s.label for n, s in enumerate(SAMPLES)}
    assert any("passed over 3 records without an image" in note for note in faces.report.notes)

    labels = [[2.0, 5.0] + [s.label, 0.25, 0.0, 0.75, 0.5] * (n % 3) for n, s in enumerate(SAMPLES)]
    recordio(tmp_path / "boxes.rec", [(label, n, SAMPLES[n].jpeg) for n, label in enumerate(labels)])
    for number, row in pack(tmp_path / "boxes.rec").by_number().items():
        width, height = SAMPLES[number].size
        assert row["boxes"].tolist() == [[width / 4, 0, width * 3 / 4, height / 2]] * (number % 3)


def test_a_record_that_holds_the_mark(tmp_path: Path, pack: Pack) -> None:
    mark = struct.pack("<I", 0xCED7230A)
    image = SAMPLES[0].jpeg + bytes(-len(SAMPLES[0].jpeg) % 4) + mark + b"abcd" + mark
    recordio(tmp_path / "set.rec", [(1, 0, image), (2, 1, SAMPLES[1].jpeg)])
    assert {image, SAMPLES[1].jpeg} <= set(pack(tmp_path / "set.rec").members.values())


def datum(content: bytes, label: int, shape: tuple[int, int, int] = (3, 1, 1)) -> bytes:
    """Caffe's Datum: channels, height, width, data, label."""
    fields = [b"\x08" + varint(shape[0]), b"\x10" + varint(shape[1]), b"\x18" + varint(shape[2])]
    return b"".join([*fields, b"\x22" + varint(len(content)) + content, b"\x28" + varint(label)])


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


class Thing:
    """What a pickle must not make unless it is trusted."""

    def __init__(self, image: bytes, label: int) -> None:
        self.image, self.label = image, label


def number_key(number: int) -> bytes:
    return b"%08d" % number


LMDB: dict[str, Callable[[int, Any], Any]] = {
    "images": lambda n, s: s.jpeg,
    "datum": lambda n, s: datum(s.jpeg, s.label),
    **{
        f"pickle {protocol}": lambda n, s, protocol=protocol: pickle.dumps((s.jpeg, s.label), protocol)
        for protocol in (2, 3, 4, 5)
    },
    "dicts": lambda n, s: pickle.dumps(
        {
            "image": s.jpeg,
            "label": np.int64(s.label),
            "vector": np.full((2, 2), n, np.float32),
            "about": {"n": [n, None]},
        }
    ),
}


def lmdb_of(path: Path, items: Sequence[tuple[bytes, bytes]]) -> Path:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for key, value in items:
            transaction.put(key, value)
    return path


@pytest.mark.parametrize("name", LMDB)
def test_lmdb(pack: Pack, tmp_path: Path, name: str) -> None:
    items = [(number_key(n), LMDB[name](n, s)) for n, s in enumerate(SAMPLES)]
    items += [(b"__len__", pickle.dumps(6)), (b"__keys__", pickle.dumps([b"0"]))]
    store = pack(lmdb_of(tmp_path / "set", items))
    assert store.numbers == [0, 1, 2, 3, 4, 5]
    for number, row in store.by_number().items():
        assert row["source"] == f"{number:08d}."
        if name != "images":
            assert row["label"] == SAMPLES[number].label
        if name == "dicts":
            assert row["vector"].tolist() == [[number] * 2] * 2
            assert row["about"] == {"n": [number, None]}


def test_lmdb_of_splits_of_texts_and_of_pixels(pack: Pack, tmp_path: Path) -> None:
    for split, part in (("train_lmdb", range(4)), ("val_lmdb", range(4, 6))):
        (tmp_path / "sets").mkdir(exist_ok=True)
        lmdb_of(tmp_path / "sets" / split, [(number_key(n), datum(SAMPLES[n].jpeg, SAMPLES[n].label)) for n in part])
    assert {name: len(part) for name, part in pack(tmp_path / "sets").splits.items()} == {"train": 4, "val": 2}

    images = [(b"image-%09d" % (n + 1), s.jpeg) for n, s in enumerate(SAMPLES)]
    labels = [(b"label-%09d" % (n + 1), s.caption.encode()) for n, s in enumerate(SAMPLES)]
    words = pack(lmdb_of(tmp_path / "words", [*images, *labels, (b"num-samples", b"6")]))
    assert {n: row["caption"] for n, row in words.by_number().items()} == {n: s.caption for n, s in enumerate(SAMPLES)}

    pixels = np.arange(16 * 20 * 3, dtype=np.uint8).reshape(16, 20, 3)
    raw = datum(pixels[:, :, ::-1].transpose(2, 0, 1).tobytes(), 1, (3, 16, 20))
    caffe = pack(lmdb_of(tmp_path / "caffe", [(b"0", raw)]), lossless=True)
    assert np.array_equal(np.asarray(caffe.rows[0]["image"]), pixels)
    assert any("are taken as blue, green, red" in note for note in caffe.report.notes)


def test_pickles_are_run_only_where_they_are_trusted(pack: Pack, tmp_path: Path) -> None:
    items = [(number_key(n), pickle.dumps(Thing(s.jpeg, s.label))) for n, s in enumerate(SAMPLES)]
    place = lmdb_of(tmp_path / "set", items)
    with pytest.raises(SourceError, match=r"a pickle with an object of .*Thing, and it could run anything"):
        pack(place)
    mark = tmp_path / "was-run"
    run = b"cbuiltins\nopen\n(V" + str(mark).encode() + b"\nVw\ntR."
    with pytest.raises(SourceError, match=r"a pickle with an object of builtins\.open"):
        pack(lmdb_of(tmp_path / "evil", [(b"0", b"\x80\x02" + run)]))
    assert not mark.exists()
    store = pack(place, source_options={"trust_pickles": True})
    assert store.numbers == [0, 1, 2, 3, 4, 5]


NESTED = pickle.dumps([[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]])
BAD_PICKLES = {
    "cut": (pickle.dumps((b"x" * 100, 1))[:-20], "a pickle|expected"),
    "no end": (b"\x80\x02K\x01", "a pickle that|pickle"),
    "no mark": (b"\x80\x02t.", "a pickle that is damaged"),
    "nested": (NESTED, "nested too deeply"),
    "itself": (b"\x80\x02]q\x00h\x00a.", "nested too deeply"),
    "far memory": (b"\x80\x02K\x01r\xff\xff\xff\x7f.", "a int, and no image"),
    "wide": (
        b"\x80\x02" + b"]q\x00" + b"".join(b"](" + b"h%c" % n * 30 + b"eq%c" % (n + 1) for n in range(8)) + b".",
        "nested",
    ),
    "array": (pickle.dumps((np.zeros(3, object), 1)), "an array of dtype|a pickle"),
}


@pytest.mark.parametrize("name", BAD_PICKLES)
def test_pickles_that_are_no_plain_data(pack: Pack, tmp_path: Path, name: str) -> None:
    data, message = BAD_PICKLES[name]
    with pytest.raises(SourceError, match=message):
        pack(lmdb_of(tmp_path / "set", [(b"0", data)]))


def labelled_table() -> pa.Table:
    columns = {
        "image": [sample.jpeg for sample in SAMPLES],
        "label": [sample.label for sample in SAMPLES],
        "caption": [sample.caption for sample in SAMPLES],
    }
    return pa.table(columns)


def check_labelled(store: PackedStore) -> None:
    assert store.numbers == [0, 1, 2, 3, 4, 5]
    for number, row in store.by_number().items():
        assert (row["label"], row["caption"]) == (SAMPLES[number].label, SAMPLES[number].caption)


@pytest.mark.parametrize("name", ["set.arrow", "stream.arrow", "set.feather", "set.parquet"])
def test_files_of_arrow(pack: Pack, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = labelled_table()
    if name == "set.parquet":
        pa.parquet.write_table(rows, path)
    else:
        make = pa.ipc.new_stream if name == "stream.arrow" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as file, make(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
    check_labelled(pack(path))


def test_data_sets_of_hugging_face_on_disk(pack: Pack, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "label": datasets.ClassLabel(names=list(CLASSES)),
            "caption": datasets.Value("string"),
        }
    )
    rows = labelled_table().to_pydict()
    rows["picture"] = [{"bytes": jpeg, "path": f"{n}.jpg"} for n, jpeg in enumerate(rows.pop("image"))]
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(str(tmp_path / "one"), num_shards=2)
    store = pack(tmp_path / "one")
    check_labelled(store)
    assert store.splits["train"].classes == CLASSES
    splits = datasets.DatasetDict({"train": whole.select(range(4)), "test": whole.select(range(4, 6))})
    splits.save_to_disk(str(tmp_path / "both"))
    assert {name: len(part) for name, part in pack(tmp_path / "both").splits.items()} == {"train": 4, "test": 2}


def test_lists_of_pictures_become_a_field(pack: Pack, tmp_path: Path) -> None:
    views = [[{"bytes": sample.jpeg, "path": None}] * 2 for sample in SAMPLES]
    rows = pa.table({"images": views, "label": [sample.label for sample in SAMPLES]})
    pa.parquet.write_table(rows, tmp_path / "views.parquet")
    store = pack(tmp_path / "views.parquet")
    assert set(store.numbers) == {0, 1, 2, 3, 4, 5}
    assert store.splits["train"].fields["images"].counts == (2, 2)


def test_lance(pack: Pack, tmp_path: Path) -> None:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance.write_dataset(labelled_table(), str(tmp_path / "set.lance"), max_rows_per_file=4)
    check_labelled(pack(tmp_path / "set.lance"))
    field = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([field, pa.field("label", pa.int64()), pa.field("caption", pa.string())])
    lance.write_dataset(labelled_table().cast(schema), str(tmp_path / "blobs.lance"))
    check_labelled(pack(tmp_path / "blobs.lance"))


def test_duckdb(pack: Pack, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect(str(tmp_path / "set.duckdb")) as connection:
        connection.execute("CREATE TABLE others (a INT)")
        connection.register("given", labelled_table())
        connection.execute("CREATE TABLE photos AS SELECT * FROM given")
        connection.execute("CREATE VIEW seen AS SELECT * FROM photos")
    check_labelled(pack(tmp_path / "set.duckdb"))
    with duckdb.connect(str(tmp_path / "set.duckdb")) as connection:
        connection.execute("CREATE TABLE copies AS SELECT * FROM photos")
    with pytest.raises(SourceError, match="which table holds the images"):
        pack(tmp_path / "set.duckdb")
    check_labelled(pack(tmp_path / "set.duckdb", source_options={"table": "photos"}))


def test_array_record(pack: Pack, tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module", reason="array_record is not installed")
    from gpuload.sources.stores.pieces import opened
    from gpuload.sources.stores.tfrecord import records_of

    writer = module.ArrayRecordWriter(str(tmp_path / "set.array_record"), "group_size:1")
    for path in sorted((GOLDEN / "slim").iterdir()):
        with opened(path) as file:
            for message in records_of(file):
                writer.write(message)
    writer.close()
    store = pack(tmp_path / "set.array_record")
    assert store.numbers == [0, 1, 2, 3, 4, 5]
    assert store.splits["train"].classes == CLASSES


@pytest.mark.parametrize("version", [2, 3])
def test_zarr(pack: Pack, tmp_path: Path, version: int) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    images = np.arange(6 * 8 * 10 * 3, dtype=np.uint8).reshape(6, 8, 10, 3)
    group = zarr.open_group(str(tmp_path / "set.zarr"), mode="w", zarr_format=version)
    group.create_array("images", data=images, chunks=(4, 8, 10, 3))
    group.create_array("labels", data=np.arange(6))
    store = pack(tmp_path / "set.zarr", lossless=True)
    assert [np.array_equal(np.asarray(row["image"]), images[row["label"]]) for row in store.rows] == [True] * 6


def test_images_of_ome_zarr(pack: Pack, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    pixels = {}
    for number in range(3):
        name = f"well-{number}"
        pixels[name] = np.arange(2 * 3 * 8 * 10, dtype=np.uint16).reshape(2, 3, 8, 10) * (number + 1)  # z c y x
        group = zarr.open_group(str(tmp_path / "plate" / f"{name}.ome.zarr"), mode="w", zarr_format=3)
        group.create_array("0", data=pixels[name])
        axes = [{"name": axis} for axis in "zcyx"]
        group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}]}
    store = pack(tmp_path / "plate", mode="uint16x3", encode="raw")
    assert len(store.rows) == 6
    for row in store.rows:
        name, _, depth = row["source"].removesuffix(".").rpartition("-z")
        stored = np.load(io.BytesIO(store.members[f"{row['key']}.npy"]))
        assert np.array_equal(stored, np.moveaxis(pixels[name][int(depth)], 0, -1))


def class_folders(folder: Path) -> Path:
    for number, sample in enumerate(SAMPLES):
        path = folder / "photos" / CLASSES[sample.label] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sample.file, path)
    return folder / "photos"


def check_folder(store: PackedStore) -> None:
    assert store.numbers == [0, 1, 2, 3, 4, 5]
    names = store.splits["train"].classes
    assert names == tuple(sorted(CLASSES))
    for number, row in store.by_number().items():
        assert names[row["label"]] == CLASSES[SAMPLES[number].label]


@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "tar.bz2", "tar.xz", "tar.zst"])
def test_compressed_tars(pack: Pack, tmp_path: Path, ending: str) -> None:
    photos = class_folders(tmp_path)
    mode = {"bz2": "w:bz2", "xz": "w:xz"}.get(ending.rpartition(".")[2], "w:gz")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w" if ending == "tar.zst" else mode) as tar:  # type: ignore[call-overload]
        tar.add(photos, "photos")
    data = plain.getvalue()
    if ending == "tar.zst":
        data = pa.Codec("zstd").compress(data, asbytes=True)
    (tmp_path / f"set.{ending}").write_bytes(data)
    check_folder(pack(tmp_path / f"set.{ending}"))


def shard_of(numbers: Sequence[int]) -> bytes:
    """A tar of these samples."""
    members = {f"{number}.jpg": SAMPLES[number].jpeg for number in numbers}
    labels = {f"{number}.cls": str(SAMPLES[number].label).encode() for number in numbers}
    return tar_bytes(dict(sorted({**members, **labels}.items())))


def test_compressed_shards(pack: Pack, tmp_path: Path) -> None:
    """One, and several of one name in folders of splits."""
    labels = {number: sample.label for number, sample in enumerate(SAMPLES)}
    (tmp_path / "shard-000000.tar.gz").write_bytes(gzip.compress(shard_of(range(6))))
    store = pack(tmp_path / "shard-000000.tar.gz")
    assert {n: row["label"] for n, row in store.by_number().items()} == labels
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        folder = tmp_path / "shards" / split
        folder.mkdir(parents=True)
        (folder / "shard-000000.tar.gz").write_bytes(gzip.compress(shard_of(numbers)))
    store = pack(tmp_path / "shards")
    assert {n: row["label"] for n, row in store.by_number().items()} == labels
    assert {name: len(part) for name, part in store.splits.items()} == {"train": 4, "val": 2}
    assert pack(tmp_path / "shards" / "*" / "*.tar.gz").numbers == [0, 1, 2, 3, 4, 5]


def test_messages_name_what_is_damaged_and_not_its_copy(pack: Pack, tmp_path: Path) -> None:
    """Which is unpacked into a folder that is gone when a user reads the message."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(class_folders(tmp_path), "photos")
    for name, data, member in (
        ("photos.tar.gz", plain.getvalue(), b"photos/dog/"),
        ("s.tar.gz", shard_of(range(6)), b"3.jpg"),
    ):
        header = data.index(member)
        damaged = data[: header + 148] + b"12345678" + data[header + 156 :]  # the checksum of a header
        (tmp_path / name).write_bytes(gzip.compress(damaged))
        with pytest.raises(ShardError, match=f"^{tmp_path / name}: not a complete, .*a damaged header at byte"):
            pack(tmp_path / name)
    chunks = Path(shutil.copytree(GOLDEN / "litdata" / "zstd-chunk", tmp_path / "set"))
    changed_index(lambda index: index["chunks"][0].update(chunk_size=9))(chunks)
    with pytest.raises(SourceError, match=r"\(chunk-0-0\.zstd\.bin holds . samples, and the index says 9\)"):
        pack(chunks)


@pytest.mark.parametrize("compressor", ["gzip", "xz", "zstd"])
def test_squashfs(pack: Pack, compressor: str) -> None:
    check_folder(pack(GOLDEN / f"{compressor}.squashfs"))


def test_seven_zip(pack: Pack, tmp_path: Path) -> None:
    py7zr = pytest.importorskip("py7zr", reason="py7zr is not installed")
    photos = class_folders(tmp_path)
    with py7zr.SevenZipFile(tmp_path / "set.7z", "w") as archive:
        archive.writeall(photos, "photos")
    check_folder(pack(tmp_path / "set.7z"))


def framed(records: Sequence[bytes]) -> bytes:
    """LitData's chunk of frames, by its documentation: two samples in each."""
    offsets = np.cumsum([0, *map(len, records)]).astype("<u4")
    frames = [b"".join(records[first : first + 2]) for first in range(0, len(records), 2)]
    packed = [pa.Codec("zstd").compress(frame, asbytes=True) for frame in frames]
    place = 24 + offsets.nbytes + 24 * len(frames)
    table = b""
    for number, (frame, data) in enumerate(zip(frames, packed, strict=True)):
        count = min(2, len(records) - 2 * number)
        table += struct.pack("<IIQII", 2 * number, count, place, len(data), len(frame))
        place += len(data)
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(records), 2, len(frames))
    return head + offsets.tobytes() + table + b"".join(packed)


def test_frames_of_litdata(pack: Pack, tmp_path: Path) -> None:
    place = Path(shutil.copytree(GOLDEN / "litdata" / "jpeg", tmp_path / "set"))
    for path in place.glob("*.bin"):
        data = path.read_bytes()
        (count,) = struct.unpack_from("<I", data)
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        path.write_bytes(framed([data[a:b] for a, b in itertools.pairwise(offsets)]))
    assert pack(place).numbers == [0, 1, 2, 3, 4, 5]


def changed_index(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        index = json.loads((place / "index.json").read_text())
        change(index)
        (place / "index.json").write_text(json.dumps(index))

    return apply


def changed_file(pattern: str, offset: int, data: bytes) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        path = min(place.glob(pattern))
        content = bytearray(path.read_bytes())
        content[offset : offset + len(data)] = data
        path.write_bytes(content)

    return apply


def cut_file(pattern: str) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        path = min(place.glob(pattern))
        path.write_bytes(path.read_bytes()[:-40])

    return apply


def set_shard(key: str, value: Any) -> Callable[[Path], None]:
    return changed_index(lambda index: index["shards"][0].update({key: value}))


HUGE = b"\xff\xff\xff\x7f"
DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "mds count": ("mds/none", changed_file("*.mds", 0, HUGE), "holds 2,147,483,647 samples, and the index says"),
    "mds offset": ("mds/none", changed_file("*.mds", 8, HUGE), "offsets of its . records do not rise"),
    "mds value": ("mds/none", changed_file("*.mds", 0xE6, HUGE), "should go on for|should take"),
    "mds cut": ("mds/none", cut_file("*.mds"), "do not rise within"),
    "mds elsewhere": ("mds/none", set_shard("raw_data", {"basename": "../x", "bytes": 1}), "names a file '../x'"),
    "mds encoding": ("mds/none", set_shard("column_encodings", ["str", "jpg", "int"]), "unknown encoding 'jpg'"),
    "mds size": ("mds/zstd", set_shard("raw_data", {"basename": "s.mds", "bytes": 9}), "is not the 9 bytes"),
    "mds snappy": ("mds/snappy", set_shard("raw_data", {"basename": "s.mds", "bytes": 2**31}), "is not the 2,147,483,648 bytes"),
    "litdata count": ("litdata/jpeg", changed_file("*.bin", 0, HUGE), "holds 2,147,483,647 samples"),
    "litdata offset": ("litdata/jpeg", changed_file("*.bin", 8, HUGE), "offsets of its . records do not rise"),
    "litdata encrypted": ("litdata/jpeg", changed_index(lambda index: index["config"].update(encryption="x")), "is encrypted"),
    "litdata leaves": ("litdata/jpeg", changed_index(lambda index: index["config"]["data_format"].pop()), "have 2 values, and the tree"),
    "tfrecord length": ("slim", changed_file("train*", 0, HUGE), "no record begins at byte 0"),
    "tfrecord cut": ("slim", cut_file("train*"), "a record should take"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_stores_are_refused_by_name(pack: Pack, tmp_path: Path, name: str) -> None:
    place, damage, message = DAMAGED[name]
    copy = Path(shutil.copytree(GOLDEN / place, tmp_path / "set"))
    damage(copy)
    form = "mds" if "mds" in name else "litdata" if "litdata" in name else "tfrecord"
    with pytest.raises(SourceError, match=message) as refused:
        pack(copy, from_=form)
    assert str(copy) in str(refused.value)
    assert "Correct it, copy it again, or leave it out" in str(refused.value)


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"\x07", "its version is 7"),
        (2, b"\xff\xff", "it has 65,535 fields"),
        (8, HUGE * 2, "it is too short for"),
        (16, HUGE, "its table should take|does not have the image"),
        (24, b"\x63", "a field of the unknown type 99"),
    ],
)
def test_a_damaged_beton(pack: Pack, tmp_path: Path, offset: int, data: bytes, message: str) -> None:
    content = bytearray(gzip.decompress((GOLDEN / "set.beton.gz").read_bytes()))
    content[offset : offset + len(data)] = data
    (tmp_path / "set.beton").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        pack(tmp_path / "set.beton")


def test_a_damaged_image_of_squashfs(tmp_path: Path) -> None:
    data = (GOLDEN / "gzip.squashfs").read_bytes()
    (tmp_path / "set.squashfs").write_bytes(data[:-60])
    ran = subprocess.run(
        [sys.executable, "-m", "gpuload", "pack", str(tmp_path / "set.squashfs"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == cli.WRONG
    assert "set.squashfs: cannot be read as SquashFS" in ran.stderr


def arrow_without_rows(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, labelled_table().schema):
        pass


def cut_arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, labelled_table().schema) as writer:
        writer.write_table(labelled_table())
    path.write_bytes(path.read_bytes()[:-400])


def lance_of_zeros(path: Path) -> None:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance.write_dataset(labelled_table(), str(path))
    for manifest in (path / "_versions").glob("*.manifest"):
        manifest.write_bytes(bytes(len(manifest.read_bytes())))


def duckdb_of_texts(path: Path) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    path.write_bytes(b"no database" * 1000)


# What once ended in an exception of the package that reads it; fuzzing found each.
FOREIGN: dict[str, tuple[Callable[[Path], None], str]] = {
    "set.arrow": (arrow_without_rows, "holds no sample"),
    "cut.arrow": (cut_arrow, "cannot be read as"),
    "set.lmdb": (lambda path: lmdb_of(path, [(b"0", b"\x82\xa5image\xc4\xff")]) and None, "sample '0'|'0'"),
    "empty.lmdb": (lambda path: lmdb_of(path, []) and None, "holds no sample"),
    "set.lance": (lance_of_zeros, "cannot be read as|holds no sample"),
    "set.duckdb": (duckdb_of_texts, "cannot be read as"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_errors_of_the_packages_that_read_stores_are_refusals(pack: Pack, tmp_path: Path, name: str) -> None:
    write, message = FOREIGN[name]
    write(tmp_path / name)
    with pytest.raises(SourceError, match=message) as refused:
        pack(tmp_path / name)
    assert name in str(refused.value)


def test_the_command_names_the_sources_and_refuses_what_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "set.beton").write_bytes(b"")
    assert cli.main(["pack", str(tmp_path / "set.beton"), str(tmp_path / "out")]) == cli.WRONG
    assert "set.beton: cannot be read as FFCV's .beton of version 2 (its header should take" in capsys.readouterr().err
    assert (
        cli.main(["pack", str(GOLDEN / "mds" / "none"), str(tmp_path / "out"), "--from", "mds", "--workers", "1"]) == 0
    )
