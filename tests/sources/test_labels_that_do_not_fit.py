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
    ("labels", "word"),
    [
        ([0, None, 1], "numbers or names; found 'None'"),
        (["a", "b", ""], "numbers or names; found ''"),
        ([0, float("nan")], "numbers to be predicted are a target .*; found 'nan'"),
        ([np.float32(2)], "numbers to be predicted are a target .*; found '2.0'"),
        ([[0], [1]], r"numbers or names; found '\[0\]', '\[1\]'"),
        ([np.array([0, 1])], r"numbers or names; found '\[0, 1\]'"),
        ([Tensor([1])], r"numbers or names; found '\[1\]'"),
        ([b"cat"], "sample 0 has a value that cannot be stored .it holds a bytes"),
    ],
)
def test_samples_with_a_label_that_is_none(tmp_path: Path, labels: list[Any], word: str) -> None:
    with pytest.raises(SourceError, match=f"^samples: .*{word}") as caught:
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
    ("sample", "word"),
    [
        ((PHOTO, 3), r"is a tuple. Give a dict such as \{\"image\": image, \"label\": label\}"),
        ("photos", "is a str"),
        ({"image": PHOTO, "labels": "cat"}, "has the labels 'cat'. Give a list, or one 'label'"),
        ({"image": PHOTO, "labels": 3}, "has the labels '3'"),
        ({"image": PHOTO, "more": {1, 2}}, "a value that cannot be stored .it holds a set.. Give numbers, texts"),
        ({"image": PHOTO, "caption": b"text"}, "a value that cannot be stored .it holds a bytes."),
    ],
)
def test_samples_of_another_form(tmp_path: Path, sample: Any, word: str) -> None:
    with pytest.raises(SourceError, match=f"samples: sample 0 .*{word}"):
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
    assert "--column label=bred: expected one of ['image', 'x', 'y', 'breed']" in (
        refused(tmp_path, [str(path), "--column", "label=bred"], capsys)
    )
    pack(tmp_path, [str(path), "--column", "target=x,y", "--column", "label=breed"])
    found = sorted(rows_of(tmp_path / "out" / "train"), key=lambda row: row["key"])
    assert [(row["target"], row["label"]) for row in found] == [([n / 2, n / 4], n % 2) for n in range(4)]
