"""`gpuload index --join`: columns of a table are added to a packed set by key, and read as any field."""

import json
import shutil
import tarfile
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet
import pytest
from commands.conftest import Command, command  # noqa: F401 -- the fixture
from images import encode, photo
from store.servers import file_server, running
from tars import write_tar

import gpuload
from gpuload import Augment, DaliIterator, Dataset, FormatError, SourceError
from gpuload.disk import Manifest
from gpuload.disk.fetch import fetch
from gpuload.packing.add_points import add_points
from gpuload.packing.index import index_shards
from gpuload.packing.join import join
from gpuload.packing.run import PackReport
from gpuload.packing.verify import verify

COUNT = 20


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 20 samples in 4 shards, whose sources are 0.jpg to 19.jpg."""
    folder = tmp_path_factory.mktemp("packed")
    samples = ({"image": encode(photo(n)), "label": n % 3, "name": f"{n}.jpg"} for n in range(COUNT))
    gpuload.pack(samples, folder / "set", maxcount=5, workers=1, progress=False)
    return folder / "set" / "train"


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "set" / "train"))


def columns(numbers: list[int]) -> dict[str, Any]:
    """Rows of a table for the samples of these numbers, which they tell of."""
    embeddings = [[n / 2, -n, 0.25] for n in numbers]
    return {
        "path": [f"{n}.jpg" for n in numbers],
        "embedding": pa.array(embeddings, pa.list_(pa.float32())),
        "score": [n / 4 for n in numbers],
        "image_id": [2**40 + n for n in numbers],
        "text": [f"picture {n}" for n in numbers],
        "split": ["val" if n % 4 == 0 else "train" for n in numbers],
        "tags": [["red", "blue"][: n % 3] for n in numbers],
        "found": [[[0.0, 0.0, 1.0, n + 1.0]] * (n % 2) for n in numbers],
        "found_class": [[n % 5] * (n % 2) for n in numbers],
        "about": [{"n": n} for n in numbers],
    }


def table(path: Path, numbers: list[int], names: list[str] | None = None) -> Path:
    """A table of these columns, of several row groups."""
    rows = pa.table(columns(numbers))
    pa.parquet.write_table(rows.select(["path", *names]) if names else rows, path, row_group_size=7)
    return path


def shuffled(count: int = COUNT) -> list[int]:
    return np.random.default_rng(0).permutation(count).tolist()


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["source"].removesuffix(".jpg"))


def test_columns_become_fields_of_data_sets_and_loaders(folder: Path, tmp_path: Path) -> None:
    report = join(folder, table(tmp_path / "t.parquet", shuffled()))
    kinds = {field.name: field.kind for field in report.fields}
    assert kinds == {
        "embedding": "target",
        "score": "target",
        "image_id": "integers",
        "text": "caption",
        "split": "caption",
        "tags": "labels",
        "found": "boxes",
        "about": "json",
    }
    dataset = Dataset(folder)
    for row in range(COUNT):
        sample = dataset[row]
        n = number_of(sample)
        assert sample["label"] == n % 3
        assert sample["embedding"].tolist() == [n / 2, -n, 0.25]
        assert (sample["score"], sample["image_id"]) == (n / 4, 2**40 + n)
        assert sample["text"] == f"picture {n}"
        assert sample["tags"] == [1, 0][: n % 3]  # "red", "blue": numbered in sorted order
        assert sample["found"].tolist() == [[0, 0, 1, n + 1]] * (n % 2)
        assert sample["found_class"].tolist() == [n % 5] * (n % 2)
        assert sample["about"] == {"n": n}
    assert dataset.fields["tags"].classes == ("blue", "red")
    assert len(dataset.filter(pc.field("split") == "val")) == COUNT // 4

    seen = set()
    fields = ["image", "label", "embedding", "image_id", "found"]
    for batch in DaliIterator(folder, batch_size=5, augment=Augment(32, crop="letterbox"), device="cpu", fields=fields):
        numbers = [int(value) - 2**40 for value in batch.image_id]
        assert batch.embedding[:, 1].tolist() == [-n for n in numbers]
        assert batch.label.tolist() == [n % 3 for n in numbers]
        seen |= set(numbers)
    assert len(seen) == COUNT
    assert verify(folder) == []


@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".csv", ".jsonl"])
def test_tables_of_each_format(folder: Path, tmp_path: Path, suffix: str) -> None:
    rows = pa.table({"key": Dataset(folder).column("key"), "rank": pa.array(range(COUNT))})
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text(_csv(rows))
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    elif suffix == ".feather":
        pa.feather.write_feather(rows, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
    join(folder, path)
    assert Dataset(folder).column("rank").to_pylist() == list(range(COUNT))


def _csv(rows: pa.Table) -> str:
    lines = [",".join(map(str, row.values())) for row in rows.to_pylist()]
    return "\n".join([",".join(rows.column_names), *lines]) + "\n"


def test_joins_add_up_and_a_field_is_replaced_on_request(folder: Path, tmp_path: Path) -> None:
    before = Dataset(folder)
    join(folder, table(tmp_path / "a.parquet", shuffled(), ["score"]))
    join(folder, table(tmp_path / "b.parquet", shuffled(), ["text"]))
    added = Dataset(folder)
    assert {"score", "text"} <= set(added.fields)
    assert added.fingerprint == before.fingerprint  # samples and their order are the same

    names = pa.table(
        {"path": [f"{n}.jpg" for n in range(COUNT)], "label": [("owl", "ant")[n % 2] for n in range(COUNT)]}
    )
    pa.parquet.write_table(names, tmp_path / "labels.parquet")
    with pytest.raises(SourceError, match=r"the set has the fields 'label'\. Give --replace"):
        join(folder, tmp_path / "labels.parquet")
    join(folder, tmp_path / "labels.parquet", replace_fields=True)
    relabelled = Dataset(folder)
    assert relabelled.classes == ("ant", "owl")
    sources = relabelled.column("source").to_pylist()
    assert relabelled.labels.tolist() == [1 - int(name.removesuffix(".jpg")) % 2 for name in sources]
    assert relabelled.fingerprint != before.fingerprint  # balancing and the like depend on labels
    assert verify(folder) == []
    assert len(list(folder.glob("joined-*"))) == 3

    join(folder, table(tmp_path / "a.parquet", shuffled(), ["score"]), replace_fields=True)
    join(folder, tmp_path / "labels.parquet", replace_fields=True)
    assert {path.name for path in folder.glob("joined-*")} == {file.name for file in Manifest.read(folder).joined}


def test_missing_and_repeated_keys_are_errors_or_counted(
    folder: Path,
    tmp_path: Path,
    command: Command,  # noqa: F811
) -> None:
    path = table(tmp_path / "t.parquet", [*range(1, COUNT), 7, 99], ["embedding", "text", "tags"])
    with pytest.raises(SourceError, match=r"has no row for 1 of 20 samples, such as '0+\d*-0'"):
        join(folder, path, duplicates="first")
    with pytest.raises(SourceError, match=r"1 rows repeat a key, such as '7\.jpg'\. Correct it, or give --duplicates"):
        join(folder, path, missing="skip")
    assert not list(folder.glob("joined-*"))
    ran = command("index", "--join", path, folder, "--missing", "skip", "--duplicates", "first")
    assert ran.code == 0
    assert "joined: embedding (target), text (caption), tags (labels)" in ran.words
    assert "note: 1 samples without a row, which got empty values" in ran.words
    assert "note: 1 rows that no sample has" in ran.words
    assert "note: 1 rows whose key another one before had" in ran.words
    empty = Dataset(folder)["0.jpg"]
    assert np.isnan(empty["embedding"]).all()
    assert (empty["text"], empty["tags"]) == ("", [])
    assert Dataset(folder)["7.jpg"]["text"] == "picture 7"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"score": [1.0]}, r"which one holds the keys\? Give --column key=NAME"),
    "no column": ({"key": ["x"]}, "has no column but its key"),
    "null": ({"key": ["x", "y"], "score": [1.0, None]}, "column 'score' lacks 1 value\\."),
    "not finite": ({"key": ["x"], "score": [float("inf")]}, "column 'score' has numbers that are not finite"),
    "ragged": (
        {"key": ["x", "y"], "vector": pa.array([[1.0], [1.0, 2.0]], pa.list_(pa.float32()))},
        "column 'vector' has 1 numbers in its first row, and not in all",
    ),
    "boxes alone": ({"key": ["x"], "found": [[[0.0, 0.0, 1.0, 1.0]]]}, "there is no column 'found_class'"),
    "image": ({"key": ["x"], "image": [1.0]}, "images are not joined. Leave the column out"),
    "other keys": (
        {"key": ["x"], "score": [1.0]},
        r"has no row for 20 of 20 samples, .*; its keys are such as 'x'. Add them, .* with --column key=NAME",
    ),
    "floats as classes": ({"key": ["x"], "label": [1.0]}, "column 'label' holds floats, and a class is a whole number"),
    "boxes of three": (
        {"key": ["x"], "found": [[[0.0, 0.0, 1.0]]], "found_class": [[0]]},
        "column 'found' has lists of boxes, and some are not four numbers",
    ),
    "classes of boxes": (
        {"key": ["x"], "found": [[[0.0, 0.0, 1.0, 1.0]]], "found_class": [[0.5]]},
        "column 'found_class' is list.*, and the classes of boxes are lists of whole numbers or names",
    ),
    "a size of images": (
        {"key": ["x"], "width": [24]},
        "field 'width' needs a column 'width', a name that gpuload reserves for every set",
    ),
    "sources": ({"key": ["x"], "source": ["0.jpg"]}, "needs a column 'source', a name that gpuload reserves"),
    "places in shards": (
        {"key": ["x"], "image_offset": [0]},
        "needs a column 'image_offset', a name that field 'image' uses already",
    ),
    "negative class": ({"path": [f"{n}.jpg" for n in range(COUNT)], "label": [-1] * COUNT}, "its .label. as -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_do_not_fit_change_nothing(folder: Path, tmp_path: Path, name: str) -> None:
    rows, message = REFUSED[name]
    pa.parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SourceError, match=message):
        join(folder, tmp_path / "t.parquet", replace_fields="label" in rows)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_boxes_may_have_classes_by_name(folder: Path, tmp_path: Path) -> None:
    rows = {
        "path": [f"{n}.jpg" for n in range(COUNT)],
        "found": [[[0, 0, 1, n + 1]] * (n % 3) for n in range(COUNT)],
        "found_class": [["dog", "cat"][: n % 3] for n in range(COUNT)],
    }
    pa.parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    join(folder, tmp_path / "t.parquet")
    data = Dataset(folder)
    assert data.fields["found"].classes == ("cat", "dog")
    for number in range(COUNT):
        sample = data[number]
        n = number_of(sample)
        assert sample["found"].tolist() == rows["found"][n]
        assert [("cat", "dog")[k] for k in sample["found_class"]] == rows["found_class"][n]
    assert verify(folder) == []


def test_the_folder_above_stands_for_its_only_split(folder: Path, tmp_path: Path) -> None:
    """The set above is not changed: its manifest would hide that of the split."""
    before = sorted(folder.parent.iterdir())
    join(folder.parent, table(tmp_path / "t.parquet", shuffled(), ["score"]))
    assert len(list(folder.glob("joined-*.arrow"))) == 1
    add_points(folder.parent)
    assert sorted(folder.parent.iterdir()) == before
    sample = Dataset(folder.parent)[0]
    assert sample["score"] == number_of(sample) / 4
    assert verify(folder) == []


def test_a_set_that_is_overwritten_leaves_no_joined_file(folder: Path, tmp_path: Path) -> None:
    """Not those either that another join had replaced."""
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["score"]))
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["score"]), replace_fields=True)
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["score", "text"]), replace_fields=True)
    report = gpuload.pack(
        [{"image": encode(photo(1)), "label": 0}], folder.parent, overwrite=True, workers=1, progress=False
    )
    assert not report.notes and not list(folder.glob("joined-*"))


def test_tables_of_other_formats_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK\3\4 and so on")
    with pytest.raises(SourceError, match=r"t.xlsx: is no table. Give one called .parquet, .arrow, .feather, .csv"):
        join(folder, tmp_path / "t.xlsx")


def rows_of(**columns: Any) -> pa.Table:
    return pa.table({"path": [f"{n}.jpg" for n in range(COUNT)], **columns})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": pa.array([2**63 + n for n in range(COUNT)], pa.uint64())}, "column 'id' has a number that int64 does"),
        (
            {"ids": pa.array([[2**64 - 1]] * COUNT, pa.list_(pa.uint64()))},
            "column 'ids' has a number that int64 does not",
        ),
        ({"seen": [{"at": datetime(2026, 1, 2)}] * COUNT}, "column 'seen' has struct.*, which JSON does not hold"),
        ({"raw": [b"1"] * COUNT}, "column 'raw' has binary, which JSON does not hold"),
    ],
)
def test_values_that_no_field_holds_are_refused_by_name(
    folder: Path, tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    pa.parquet.write_table(rows_of(**columns), tmp_path / "table.parquet")
    with pytest.raises(SourceError, match=message):
        join(folder, tmp_path / "table.parquet")
    assert list(Dataset(folder).fields) == ["image", "label"]


def test_dates_are_texts_and_whole_corners_are_boxes(folder: Path, tmp_path: Path) -> None:
    boxes = {"found": [[[0, 0, 1, n + 1]] for n in range(COUNT)], "found_class": [[n % 5] for n in range(COUNT)]}
    days = [datetime(2026, 1, 1 + n) for n in range(COUNT)]
    pa.parquet.write_table(rows_of(day=days, **boxes), tmp_path / "table.parquet")
    join(folder, tmp_path / "table.parquet")
    dataset = Dataset(folder)
    assert {name: dataset.fields[name].kind for name in ("day", "found")} == {"day": "caption", "found": "boxes"}
    assert dataset["7.jpg"]["day"].startswith("2026-01-08")
    assert dataset["7.jpg"]["found"].tolist() == [[0, 0, 1, 8]]


def test_keys_of_a_csv_are_texts(tmp_path: Path) -> None:
    samples = [{"image": encode(photo(n)), "name": f"{n:03}"} for n in range(3)]
    gpuload.pack(samples, tmp_path / "set", workers=1, progress=False, shuffle=False)
    (tmp_path / "table.csv").write_text("id,name,score\n5,002,0.25\n6,001,0.5\n7,000,0.75\n")
    join(tmp_path / "set/train", tmp_path / "table.csv", columns={"key": ["name"]})
    dataset = Dataset(tmp_path / "set/train")
    assert [(dataset[n]["id"], dataset[n]["score"]) for n in range(3)] == [(7, 0.75), (6, 0.5), (5, 0.25)]


def test_a_joined_file_that_was_changed_is_noticed(folder: Path, tmp_path: Path) -> None:
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["text"]))
    (file,) = folder.glob("joined-*")
    content = bytearray(file.read_bytes())
    content[content.index(b"picture 3")] = ord("P")
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"joined-.*\.arrow: is damaged: the SHA-256"):
        Dataset(folder).column("text")
    assert any("its SHA-256 is not that in manifest.json" in line for line in verify(folder))
    file.unlink()
    with pytest.raises(FormatError, match=r"joined-.*\.arrow: cannot be read"):
        Dataset(folder)


HOSTILE: dict[str, tuple[str, Any, str]] = {
    "another folder": ("name", "../joined-0123456789abcdef.arrow", "has another name"),
    "a shard's name": ("name", "shard-000000.tar", "has another name"),
    "parts": ("parts", ["0" * 64], "are not those of a file for 4 shards"),
    "a field in shards": (
        "fields",
        [{"name": "m", "kind": "mask", "member": "mask.png"}],
        "the joined field 'm' of kind 'mask' would lie in shards",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_names_other_files_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    key, value, message = HOSTILE[name]
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["text"]))
    text = json.loads((folder / "manifest.json").read_text())
    text["joined"][0][key] = value
    (folder / "manifest.json").write_text(json.dumps(text))
    with pytest.raises(FormatError, match=message):
        Dataset(folder)


def test_a_set_with_joined_columns_at_a_url(folder: Path, tmp_path: Path) -> None:
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["text"]))
    with running(file_server(folder.parent)) as server:
        url = f"{server.url}/train"
        remote = Dataset(url, cache=tmp_path / "cache")
        assert remote.column("text").equals(Dataset(folder).column("text"))
        fetch(url, tmp_path / "copy")
        assert verify(url) == []
    assert Dataset(tmp_path / "copy").column("text").equals(remote.column("text"))


def test_seek_points_keep_joined_columns(folder: Path, tmp_path: Path, command: Command) -> None:  # noqa: F811
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["text"]))
    assert command("index", "--points", folder).code == 0
    assert Dataset(folder)["3.jpg"]["text"] == "picture 3"


def appended(folder: Path, numbers: list[int], **fields: Any) -> PackReport:
    samples = [{"image": encode(photo(50 + n)), "label": 1, "name": f"{n}.jpg", **fields} for n in numbers]
    return gpuload.pack(samples, folder.parent, append=True, workers=1, progress=False)


def test_samples_that_share_a_source_are_joined_by_key_alone(folder: Path, tmp_path: Path) -> None:
    """An appended sample with the name of another one is not given its values."""
    path = table(tmp_path / "t.parquet", shuffled(), ["score"])
    appended(folder, [3, 5])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for missing in ("fail", "skip"):
        with pytest.raises(SourceError, match=r"4 of 22 samples share a source with another one, such as '\d\.jpg'"):
            join(folder, path, missing=missing)  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    data = Dataset(folder)
    numbers = range(len(data))
    rows = pa.table({"key": data.column("key"), "score": [n / 2 for n in numbers]})
    pa.parquet.write_table(rows, tmp_path / "keys.parquet")
    join(folder, tmp_path / "keys.parquet")
    assert [Dataset(folder)[n]["score"] for n in numbers] == [n / 2 for n in numbers]

    others = table(tmp_path / "u.parquet", [n for n in range(COUNT) if n not in (3, 5)], ["text"])
    assert join(folder, others, missing="skip").missing == 4


def test_appended_samples_have_empty_values_until_they_are_joined(folder: Path, tmp_path: Path) -> None:
    """As those without a row; a further join gives them values, and the files of former joins go."""
    names = ["embedding", "score", "text", "tags", "found", "found_class", "about"]
    join(folder, table(tmp_path / "t.parquet", shuffled(), names))
    assert appended(folder, [20, 21]).notes == (
        "2 new samples of 'train' got empty values of the joined 'embedding', 'score', 'text' and 3 more. Join them "
        "with `python -m gpuload index --join TABLE --replace`",
    )
    data = Dataset(folder)
    assert (len(data), verify(folder)) == (22, [])
    rows = {row["source"]: row for row in (data[number] for number in range(22))}
    assert (rows["3.jpg"]["text"], rows["3.jpg"]["score"]) == ("picture 3", 0.75)
    new = rows["21.jpg"]
    assert np.isnan(new["score"]) and np.isnan(new["embedding"]).tolist() == [True] * 3
    assert (new["text"], len(new["tags"]), len(new["found"]), new["about"]) == ("", 0, 0, None)
    assert len(list(folder.glob("joined-*.arrow"))) == 1
    join(folder, table(tmp_path / "more.parquet", shuffled(22), names), replace_fields=True)
    assert Dataset(folder)["21.jpg"]["text"] == "picture 21"
    appended(folder, [22])
    assert Dataset(folder)["21.jpg"]["text"] == "picture 21"
    assert verify(folder) == []


def test_appended_samples_keep_what_they_have_of_a_replaced_field(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "train"
    samples = [{"image": encode(photo(n)), "caption": f"old {n}", "name": f"{n}.jpg"} for n in range(4)]
    gpuload.pack(samples, folder.parent, workers=1, progress=False)
    rows = pa.table({"path": [f"{n}.jpg" for n in range(4)], "caption": [f"new {n}" for n in range(4)]})
    pa.parquet.write_table(rows, tmp_path / "t.parquet")
    join(folder, tmp_path / "t.parquet", replace_fields=True)
    more = [{"image": encode(photo(9)), "caption": "own", "name": "9.jpg"}]
    report = gpuload.pack(more, folder.parent, append=True, workers=1, progress=False)
    assert not report.notes
    data = Dataset(folder)
    captions = {row["source"]: row["caption"] for row in (data[number] for number in range(5))}
    assert captions == {**{f"{n}.jpg": f"new {n}" for n in range(4)}, "9.jpg": "own"}


def test_append_is_refused_where_no_value_means_none(folder: Path, tmp_path: Path) -> None:
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["image_id"]))
    with pytest.raises(
        SourceError, match=r"has the joined field 'image_id' \(integers\), which has no value that means none"
    ):
        appended(folder, [20])
    assert verify(folder) == []


def given(numbers: list[int]) -> list[dict[str, Any]]:
    """Samples that have all joined fields."""
    values = columns(numbers)
    names = [name for name in values if name not in ("path", "split", "embedding")]
    fields = [{name: values[name][place] for name in names} for place in range(len(numbers))]
    return [
        {
            "image": encode(photo(50 + n)), "label": 1, "name": f"{n}.jpg", **of_sample,
            "embedding": np.array([n / 2, -n, 0.25], np.float32), "numbers": [n, n + 1],
        }
        for n, of_sample in zip(numbers, fields, strict=True)
    ]  # fmt: skip


def with_joined_columns(folder: Path, tmp_path: Path) -> None:
    numbers = shuffled()
    rows = {**columns(numbers), "numbers": [[n, n + 1] for n in numbers]}
    del rows["split"]
    pa.parquet.write_table(pa.table(rows), tmp_path / "all.parquet")
    join(folder, tmp_path / "all.parquet")


def test_appended_samples_keep_what_they_have_of_joined_fields(folder: Path, tmp_path: Path) -> None:
    """Of every kind, also lists of whole numbers, which no value says to be such; their shards do not hold them."""
    with_joined_columns(folder, tmp_path)
    before = Dataset(folder).manifest
    report = gpuload.pack(given([20, 21]), folder.parent, append=True, workers=1, progress=False)
    assert not report.notes
    data = Dataset(folder)
    assert verify(folder) == []
    assert data.manifest.fields == before.fields
    assert [file.fields for file in data.manifest.joined] == [file.fields for file in before.joined]
    for number in range(len(data)):
        sample = data[number]
        n = number_of(sample)
        row = columns([n])
        assert sample["embedding"].tolist() == [n / 2, -n, 0.25]
        assert (sample["score"], sample["image_id"], sample["text"]) == (n / 4, 2**40 + n, f"picture {n}")
        classes = data.fields["tags"].classes
        assert [classes[tag] for tag in sample["tags"]] == row["tags"][0]
        assert np.asarray(sample["found"]).tolist() == row["found"][0]
        assert (list(sample["found_class"]), sample["about"]) == (row["found_class"][0], {"n": n})
        assert list(sample["numbers"]) == [n, n + 1]
    with tarfile.open(sorted(folder.glob("*.tar"))[-1]) as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} == {"jpg", "cls"}


def test_an_interrupted_append_goes_on_with_joined_fields(folder: Path, tmp_path: Path) -> None:
    with_joined_columns(folder, tmp_path)
    alone = Path(shutil.copytree(folder.parent, tmp_path / "alone"))
    settings: dict[str, Any] = {"append": True, "workers": 1, "progress": False, "maxcount": 2}

    def interrupt(progress: Any) -> None:
        if progress.images:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpuload.pack(given([20, 21, 22, 23]), folder.parent, watch=interrupt, **settings)
    assert len(Dataset(folder)) == COUNT
    gpuload.pack(given([20, 21, 22, 23]), folder.parent, resume=True, **settings)
    gpuload.pack(given([20, 21, 22, 23]), alone, **settings)
    assert (folder / "manifest.json").read_bytes() == (alone / "train" / "manifest.json").read_bytes()


def test_appended_classes_are_those_of_the_joined_field(tmp_path: Path) -> None:
    """Which took the place of a packed one with other classes."""
    folder = tmp_path / "set" / "train"
    samples = [{"image": encode(photo(n)), "labels": ["ant", "bee"][: n % 3], "name": f"{n}.jpg"} for n in range(4)]
    gpuload.pack(samples, folder.parent, workers=1, progress=False)
    labels = [["bee"], ["cat", "dog"], [], ["dog"]]
    pa.parquet.write_table(pa.table({"path": [f"{n}.jpg" for n in range(4)], "labels": labels}), tmp_path / "t.parquet")
    join(folder, tmp_path / "t.parquet", replace_fields=True)
    more = [{"image": encode(photo(9)), "labels": ["ant", "dog"], "name": "4.jpg"}]
    gpuload.pack(more, folder.parent, append=True, workers=1, progress=False)
    data = Dataset(folder)
    names = data.fields["labels"].classes
    assert names == ("bee", "cat", "dog", "ant")
    found = {number_of(row): [names[n] for n in row["labels"]] for row in (data[n] for n in range(5))}
    assert found == {**dict(enumerate(labels)), 4: ["ant", "dog"]}
    assert verify(folder) == []


def test_splits_that_number_their_classes_differently_are_appended_to_alone(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    samples = [
        {"image": encode(photo(n)), "label": "ab"[n % 2], "name": f"{n}.jpg", "split": ["train", "val"][n // 4]}
        for n in range(8)
    ]
    gpuload.pack(samples, folder, workers=1, progress=False)
    rows = pa.table({"path": [f"{n}.jpg" for n in range(4)], "label": ["b", "c", "b", "c"]})
    pa.parquet.write_table(rows, tmp_path / "t.parquet")
    join(folder / "train", tmp_path / "t.parquet", replace_fields=True)
    more = [{**sample, "name": f"{8 + n}.jpg"} for n, sample in enumerate(samples)]
    with pytest.raises(SourceError, match=r"'train', 'val' number their classes differently.* OUT/train"):
        gpuload.pack(more, folder, append=True, workers=1, progress=False)
    alone = [{"image": encode(photo(9)), "label": "c", "name": "8.jpg"}]
    gpuload.pack(alone, folder / "train", append=True, workers=1, progress=False)
    data = Dataset(folder / "train")
    assert data.classes == ("b", "c")
    found = {number_of(row): data.classes[row["label"]] for row in (data[n] for n in range(5))}
    assert found == {0: "b", 1: "c", 2: "b", 3: "c", 8: "c"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"score": "high"}, r"'score' of sample 0 \('20.jpg'\) must be a finite number"),
        (
            {"score": [0.5, 1.0]},
            r"the joined field 'score' of train is target, and that of the new samples target of 2",
        ),
        ({"other": 0.5}, r"train has the fields .*, the new samples have .* other \(target"),
    ],
)
def test_appended_fields_of_another_form_are_refused(
    folder: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    join(folder, table(tmp_path / "t.parquet", shuffled(), ["score"]))
    with pytest.raises(SourceError, match=message):
        appended(folder, [20], **fields)
    assert verify(folder) == []


def test_samples_of_indexed_tars_that_share_a_key_are_joined_by_source(tmp_path: Path) -> None:
    tars = tmp_path / "tars"
    for name in ("a.tar", "b.tar"):
        write_tar(tars / name, [(f"{n}.jpg", encode(photo(n))) for n in range(2)])
    index_shards([tars / "a.tar", tars / "b.tar"])
    pa.parquet.write_table(pa.table({"key": ["0", "1"], "score": [0.0, 1.0]}), tmp_path / "keys.parquet")
    with pytest.raises(SourceError, match=r"4 of 4 samples share a key with another one, such as '0', '1'"):
        join(tars, tmp_path / "keys.parquet")
    rows = pa.table({"source": ["b.tar/1.jpg", "a.tar/0.jpg", "a.tar/1.jpg", "b.tar/0.jpg"], "score": [3.0, 0, 1, 2]})
    pa.parquet.write_table(rows, tmp_path / "sources.parquet")
    join(tars, tmp_path / "sources.parquet")
    assert [Dataset(tars)[n]["score"] for n in range(4)] == [0, 1, 2, 3]
