"""Sets as Hugging Face, and pandas keep them: read with their class names, or a message that helps."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from images import Folder, write_files
from PIL import Image
from pyarrow import parquet
from reading import rows_of
from sources_read import PHOTOS as ALL
from sources_read import listed

import gpuload
from gpuload import SourceError
from gpuload.sources import open_source

PHOTOS = ALL[:6]
NAMES = ["cat", "dog"]
# As datasets writes it into a schema.
FEATURES = {
    "img": {"_type": "Image"},
    "labels": {"names": NAMES, "_type": "ClassLabel"},
    "coarse": {"names": ["x", "y", "z"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["p", "q"], "_type": "ClassLabel"}, "_type": "List"},
}
CLASSES = {"label": None, "coarse": ("x", "y", "z"), "labels": ("p", "q")}  # the label's are those of the set


def class_label(*names: str) -> SimpleNamespace:
    return SimpleNamespace(names=list(names))


class Picture:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


Picture.__name__ = "Image"


class Dataset:
    """As Hugging Face's: features, and images that are decoded unless their column is cast."""

    def __init__(self, rows: range, decode: bool = True) -> None:
        self.features = {
            "img": Picture(decode), "labels": class_label(*NAMES), "coarse": class_label("x", "y", "z"),
            "tags": SimpleNamespace(feature=class_label("p", "q")),
        }  # fmt: skip
        self.rows = rows

    def cast_column(self, name: str, feature: Picture) -> "Dataset":
        assert (name, feature.decode) == ("img", False)
        return Dataset(self.rows, decode=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in table_rows(self.rows):
            if self.features["img"].decode:
                row["img"] = Image.open(io.BytesIO(row["img"]["bytes"]))
            yield row


def table_rows(rows: range, embedded: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "img": {"bytes": PHOTOS[n] if embedded else None, "path": f"{n}.jpg"},
            "labels": n % 2,
            "coarse": n % 3,
            "tags": [0, 1][: n % 3],
        }
        for n in rows
    ]


def hub_table(rows: range, embedded: bool = True) -> pa.Table:
    table = pa.Table.from_pylist(table_rows(rows, embedded))
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def written(path: Path, table: pa.Table) -> Path:
    parquet.write_table(table, path)
    return path


HUB = {
    "data set": lambda folder: Dataset(range(6)),
    "data set by split": lambda folder: {"train": Dataset(range(4)), "test": Dataset(range(4, 6))},
    "parquet": lambda folder: open_source(written(folder / "x.parquet", hub_table(range(6)))),
    "parquet of paths": lambda folder: open_source(written(folder / "x.parquet", hub_table(range(6), False))),
}


@pytest.mark.parametrize("name", HUB)
def test_hugging_face(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {f"{n}.jpg": PHOTOS[n] for n in range(6)})
    report = gpuload.pack(HUB[name](tmp_path), tmp_path / "out", workers=1, shuffle=False)
    assert list(report.manifests) == (["train", "test"] if "split" in name else ["train"])
    rows = []
    for split, manifest in report.manifests.items():
        assert manifest.classes == tuple(NAMES)
        assert {field.name: field.classes for field in manifest.fields[1:]} == CLASSES
        rows += rows_of(tmp_path / "out" / split)
    assert [row["image"] for row in rows] == PHOTOS
    assert [(row["source"], row["label"], row["coarse"], row["labels"]) for row in rows] == [
        (f"{n}.jpg", n % 2, [n % 3], [0, 1][: n % 3]) for n in range(6)
    ]


def test_parquet_of_paths_as_a_table(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({f"{n}.jpg": b"" for n in range(6)})
    table = written(tmp_path / "x.parquet", hub_table(range(6), False))
    listing = listed(root, table, {"path": ("img",)})
    assert (listing.classes, listing.samples.column("label").to_pylist()) == (tuple(NAMES), [0, 1] * 3)


def test_columns_with_the_name_of_a_field_that_another_gives(tmp_path: Path) -> None:
    """Whether the user named the other, or it comes first."""
    row = {"img": PHOTOS[0], "breed": 1, " Caption": "first", "label": 5, "caption": "second"}
    path = written(tmp_path / "x.parquet", pa.Table.from_pylist([row, {**row, "breed": 0}]))
    listing = listed(path, columns={"label": ("breed",)})
    found = [listing.samples.column(name).to_pylist() for name in ("label", "caption")]
    assert found == [[1, 0], ["first", "first"]] and len(listing.fields) == 2
    what = "'caption', 'label'; others were taken for fields of these names"
    assert listing.notes == (f"columns that are not packed: {what}",)


@pytest.mark.parametrize("path", ["0.jpg", "../secret.jpg", "/etc/hostname", "a/../../secret.jpg"])
def test_paths_in_parquet_do_not_lead_out(make_folder: Folder, tmp_path: Path, path: str) -> None:
    root = make_folder({"1.jpg": PHOTOS[0]})
    (tmp_path / "secret.jpg").write_bytes(PHOTOS[1])
    parquet.write_table(pa.Table.from_pylist([{"image": {"bytes": None, "path": path}}]), root / "x.parquet")
    with pytest.raises(
        SourceError, match="^[^:]*: a row holds no image but the path.*give their folder as SOURCE, and --labels"
    ):
        listed(root / "x.parquet")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", ""])
def test_tables_of_paths(make_folder: Folder, tmp_path: Path, library: str) -> None:
    root = make_folder({f"{n}.jpg": PHOTOS[n] for n in range(6)})
    columns = {
        "image_path": [str(root / f"{n}.jpg") for n in range(6)],
        "label": [NAMES[n % 2] for n in range(6)],
        "age": [n / 2 for n in range(6)],
    }
    table: Any = SimpleNamespace(
        columns=list(columns), itertuples=lambda index, name: zip(*columns.values(), strict=True)
    )
    if library:  # else as a table of pandas
        module = pytest.importorskip(library)
        table = getattr(module, "DataFrame", getattr(module, "table", None))(columns)
    report = gpuload.pack(table, tmp_path / "out", workers=1, shuffle=False)
    assert report.manifests["train"].classes == tuple(NAMES)
    rows = rows_of(tmp_path / "out" / "train")
    assert [(row["image"], row["label"], row["age"]) for row in rows] == [(PHOTOS[n], n % 2, n / 2) for n in range(6)]
