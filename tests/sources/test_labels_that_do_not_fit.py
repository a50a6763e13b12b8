"""Labels that do not fit their images: arrays of other lengths and shapes, samples without a label."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from images import encode, photo
from pyarrow import parquet
from reading import rows_of

import gpuload
from gpuload import SourceError, cli
from gpuload.disk import Manifest
from gpuload.sources import open_source

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 12, 16, 3), np.uint8)
NUMBERS = np.arange(20) % 3
PHOTO = encode(photo())

Save = Callable[..., list[str]]


def save_npy(folder: Path, **arrays: Any) -> list[str]:
    """Images in an `.npy`, labels in another; the arguments of `pack`."""
    images, labels = arrays.values()
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", labels)
    return [str(folder / "x.npy"), "--labels", str(folder / "y.npy")]


def save_npz(folder: Path, **arrays: Any) -> list[str]:
    np.savez(folder / "x.npz", **arrays)
    return [str(folder / "x.npz")]


def save_hdf5(folder: Path, **arrays: Any) -> list[str]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return [str(folder / "x.h5")]


ALL = pytest.mark.parametrize("save", [save_npy, save_npz, save_hdf5])
NAMED = pytest.mark.parametrize("save", [save_npz, save_hdf5])


def pack(tmp_path: Path, arguments: list[str], code: int = cli.DONE) -> None:
    assert cli.main(["pack", *arguments, str(tmp_path / "out"), "--workers", "1", "--lossless"]) == code


def refused(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    pack(tmp_path, arguments, cli.WRONG)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    return said


@ALL
@pytest.mark.parametrize("count", [5, 25])
def test_another_number_of_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Save, count: int) -> None:
    said = refused(tmp_path, save(tmp_path, images=PIXELS, labels=np.arange(count)), capsys)
    if save is save_npy:
        assert f"y.npy: holds {count} labels, but " in said
        assert "x.npy holds 20 images. Give each image one" in said
    else:
        assert f"'labels' has {count} rows, 'images' 20. They must agree: give each image one" in said


@ALL
def test_labels_in_a_column_of_one(tmp_path: Path, save: Save) -> None:
    pack(tmp_path, save(tmp_path, images=PIXELS, labels=NUMBERS[:, None]))
    rows = sorted(rows_of(tmp_path / "out" / "train"), key=lambda row: row["key"])
    assert [row["label"] for row in rows] == NUMBERS.tolist()
    assert Manifest.read(tmp_path / "out" / "train").classes is None


@ALL
def test_labels_as_text(tmp_path: Path, save: Save) -> None:
    pack(tmp_path, save(tmp_path, images=PIXELS, labels=np.array([b"cat", b"dog"] * 10)))
    assert Manifest.read(tmp_path / "out" / "train").classes == ("cat", "dog")


@ALL
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(20, dtype=int), "is (20, 20), but a label is one number for each image. If these are one-hot, save labels.argmax(1)"),
        (np.arange(20) / 1.0, "holds floats, but classes are whole numbers. Save labels.astype(int), or give --column target="),
        (NUMBERS - 1, "classes of 'label' must be numbered from 0; found '-1'"),
    ],
)  # fmt: skip
def test_labels_that_are_no_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Save, labels: np.ndarray, message: str
) -> None:
    assert message in refused(tmp_path, save(tmp_path, images=PIXELS, labels=labels), capsys)


@ALL
def test_floats_as_a_target(tmp_path: Path, save: Save) -> None:
    arguments = save(tmp_path, images=PIXELS, labels=np.arange(20) / 2)
    name = "label" if save is save_npy else "labels"
    pack(tmp_path, [*arguments, "--column", f"target={name}"])
    rows = sorted(rows_of(tmp_path / "out" / "train"), key=lambda row: row["key"])
    assert [row["target"] for row in rows] == [n / 2 for n in range(20)]


@NAMED
def test_arrays_that_are_not_packed_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Save) -> None:
    pack(tmp_path, save(tmp_path, images=PIXELS, labels=NUMBERS, other=np.zeros((3, 2))))
    assert "note: arrays that are not packed: other (3, 2)" in capsys.readouterr().out


@NAMED
@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"images": PIXELS, "label": NUMBERS, "y": NUMBERS}, [], "'label' and 'y' would both be the field 'label'. Give --column label=NAME"),
        ({"images": PIXELS, "a": NUMBERS, "b": NUMBERS}, ["--column", "label=a,b"], "--column label=a,b names 2 arrays, but takes one. Several are for target="),
        ({"x_train": PIXELS, "y_train": NUMBERS, "x_test": PIXELS}, [], "which array holds the images? It has x_t"),
        ({"images": PIXELS[0]}, [], "'images' is (12, 16, 3), a single image and not many. Give an array of (N, height, width, 3)"),
        ({"images": PIXELS.reshape(20, -1)}, [], "images are (N, height, width) or (N, height, width, 3). Give --column image=NAME"),
    ],
)  # fmt: skip
def test_arrays_of_unclear_meaning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Save, arrays: dict[str, Any], options: list[str], message: str
) -> None:  # fmt: skip
    assert message in refused(tmp_path, [*save(tmp_path, **arrays), *options], capsys)


def test_labels_that_are_no_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = save_npy(tmp_path, images=PIXELS, labels=np.array(3))
    assert "y.npy: holds a single number. Give an array with a class number for each" in (
        refused(tmp_path, arguments, capsys)
    )
    assert "y.csv: labels for an .npy of images are an .npy, too" in (
        refused(tmp_path, [*arguments[:2], str(tmp_path / "y.csv")], capsys)
    )
    (tmp_path / "y.npy").write_bytes(b"no array")
    assert "y.npy: 'label' cannot be mapped" in refused(tmp_path, arguments, capsys)
    np.savez(tmp_path / "y.npz", a=NUMBERS)
    (tmp_path / "y.npz").rename(tmp_path / "y.npy")
    assert "an archive of arrays by another name" in refused(tmp_path, arguments, capsys)
    assert "none.npy: no such file" in refused(tmp_path, [str(tmp_path / "none.npy")], capsys)


def test_the_identity_is_what_was_given(tmp_path: Path) -> None:
    """The same before and after the arrays are opened, so that a run is resumed with the same object."""
    source = open_source(save_npz(tmp_path, images=PIXELS, labels=NUMBERS)[0])
    before = source.identity
    source.prepare(tmp_path)
    assert source.identity == before


class Tensor:
    """As torch's: a number that is no Python number."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("labels", "number", "message"),
    [
        ([0, None, 1], 1, "has no label, but None. Give it one or leave it out; for a set without labels leave 'label' out of every"),
        (["a", "b", ""], 2, "has no label, but ''"),
        ([0, float("nan")], 1, "has the label nan, a float. Give whole numbers or names for classes; for a number to be predicted"),
        ([np.float32(2)], 0, "has the label 2.0, a float"),
        ([[0], [1]], 0, "has the label .0., a list. Give the number of its class, or its name; several of them are 'labels'"),
        ([np.array([0, 1])], 0, "has the label .0, 1., a ndarray"),
        ([Tensor([1])], 0, "has the label .1., a Tensor"),
        ([b"cat"], 0, "has the label b'cat', a bytes"),
        (["a", 3], 1, "has the label 3, those before are names. Give numbers or names for all"),
        ([3, 4, "a"], 2, "has the label 'a', those before are numbers"),
    ],
)  # fmt: skip
def test_samples_with_a_label_that_is_none(tmp_path: Path, labels: list[Any], number: int, message: str) -> None:
    with pytest.raises(SourceError, match=f"^samples: sample {number} {message}") as caught:
        gpuload.pack(({"image": PHOTO, "label": label} for label in labels), tmp_path / "out", workers=1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("labels", [[0, 2, 1], [np.int64(0), np.array(2), 1], [Tensor(0), 2, 1]])
def test_labels_that_are_numbers_of_any_type(tmp_path: Path, labels: list[Any]) -> None:
    samples = [{"image": PHOTO, "label": label} for label in labels]
    report = gpuload.pack(samples, tmp_path / "out", workers=1, shuffle=False)
    assert [row["label"] for row in rows_of(tmp_path / "out" / "train")] == [0, 2, 1]
    assert report.manifests["train"].classes is None


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((PHOTO, 3), r"is a tuple, not a dict. Give such as \{\"image\": image, \"label\": label\}"),
        ("photos", "is a str, not a dict"),
        ({"image": PHOTO, "labels": "cat"}, "has the labels 'cat'; they must be a list. Give a list, or one 'label'"),
        ({"image": PHOTO, "labels": 3}, "has the labels '3'; they must be a list"),
        ({"image": PHOTO, "more": {1, 2}}, "'more' cannot be stored .it holds a set.. Give numbers, texts"),
        ({"image": PHOTO, "caption": b"text"}, "'caption' cannot be stored .it holds a bytes."),
    ],
)
def test_samples_of_another_form(tmp_path: Path, sample: Any, message: str) -> None:
    with pytest.raises(SourceError, match=f"samples: sample 0:? {message}"):
        gpuload.pack([sample], tmp_path / "out", workers=1)


def test_a_path_is_no_samples(tmp_path: Path) -> None:
    with pytest.raises(
        gpuload.ArgumentError, match=r"pack\(samples='photos'\): expected dicts.*-m gpuload pack photos"
    ):
        gpuload.pack("photos", tmp_path / "out")  # type: ignore[arg-type]


def test_a_name_may_be_missing(tmp_path: Path) -> None:
    gpuload.pack([{"image": PHOTO, "name": None}], tmp_path / "out", workers=1)
    assert rows_of(tmp_path / "out" / "train")[0]["source"] == "00000000."


@pytest.mark.parametrize("kind", ["parquet", "lmdb"])
def test_columns_of_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    rows = [{"image": PHOTO, "x": n / 2, "y": n / 4, "breed": n % 2} for n in range(4)]
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        lmdb, msgpack = pytest.importorskip("lmdb"), pytest.importorskip("msgpack")
        with lmdb.open(str(path), map_size=1 << 22) as store, store.begin(write=True) as transaction:
            for n, row in enumerate(rows):
                transaction.put(b"%d" % n, msgpack.packb(row))
    assert "has no column 'bred'; its columns are ['image', 'x', 'y', 'breed']. Give --column label= one of them" in (
        refused(tmp_path, [str(path), "--column", "label=bred"], capsys)
    )
    pack(tmp_path, [str(path), "--column", "target=x,y", "--column", "label=breed"])
    found = sorted(rows_of(tmp_path / "out" / "train"), key=lambda row: row["key"])
    assert [(row["target"], row["label"]) for row in found] == [([n / 2, n / 4], n % 2) for n in range(4)]
