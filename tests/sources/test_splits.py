"""Splits that a source itself has: recognised, packed with one list of classes, and never guessed in silence."""

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from images import Folder
from pyarrow import parquet
from reading import files_of, rows_of
from sources_read import PHOTOS, listed, packed, reasons_of, splits_of
from tars import tar_bytes, write_tar
from zips import write_zip

import gpuload
from gpuload import ArgumentError, SourceError, cli
from gpuload.sources import open_source

SPLIT_OF = {0: "train", 1: "train", 2: "train", 3: "train", 4: "train", 5: "val", 6: "val", 7: "test"}
NEST = {f"{split}/{'ab'[n % 2]}/{n}.jpg": PHOTOS[n] for n, split in SPLIT_OF.items()}
FLAT = {f"{split}/{n}.jpg": PHOTOS[n] for n, split in SPLIT_OF.items()}
OWN = "note: the splits are the source's own, "


def images_of(out: Path) -> dict[str, set[bytes]]:
    return {folder.name: {row["image"] for row in rows_of(folder)} for folder in sorted(out.iterdir())}


def expected(splits: Mapping[int, str] = SPLIT_OF) -> dict[str, set[bytes]]:
    return {name: {PHOTOS[n] for n in splits if splits[n] == name} for name in sorted(set(splits.values()))}


def refused(source: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: object) -> str:
    assert cli.main(["pack", str(source), str(tmp_path / "refused"), *map(str, options)]) == cli.WRONG
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not (tmp_path / "refused").exists()
    return said


@pytest.mark.parametrize("wrap", ["", "deep/imagenet/"])
@pytest.mark.parametrize("archive", [False, True])
def test_folders_of_splits_in_others(make_folder: Folder, tmp_path: Path, wrap: str, archive: bool) -> None:
    files = {f"{wrap}{name}": data for name, data in NEST.items()}
    listing = listed(write_zip(tmp_path / "a.zip", files) if archive else make_folder(files))
    assert sorted(splits_of(listing) or ()) == sorted(SPLIT_OF.values())
    assert listing.classes == ("a", "b")


def test_folders_of_splits(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = packed(make_folder(NEST), tmp_path / "out")
    assert f"{OWN}by its folders 'test', 'train', 'val'; --no-splits packs it as one set" in capsys.readouterr().out
    assert images_of(tmp_path / "out") == expected()
    assert {manifest.classes for manifest in manifests.values()} == {("a", "b")}
    assert {manifest.packing["splits"] for manifest in manifests.values()} == {"the source's own"}
    for split, numbers in (("train", [0, 1, 2, 3, 4]), ("val", [5, 6]), ("test", [7])):
        rows = rows_of(tmp_path / "out" / split)
        assert {row["source"]: row["label"] for row in rows} == {
            f"{split}/{'ab'[n % 2]}/{n}.jpg": n % 2 for n in numbers
        }


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "dev", "VAL"])
def test_names_of_splits(make_folder: Folder, name: str) -> None:
    files = {"Training/a/0.jpg": PHOTOS[0], f"{name}/a/1.jpg": PHOTOS[1], "testing/b/2.jpg": PHOTOS[2]}
    assert sorted(splits_of(listed(make_folder(files))) or ()) == ["test", "train", "val"]


def test_no_splits_packs_as_before(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = packed(make_folder(NEST), tmp_path / "out", "--no-splits")
    assert OWN not in capsys.readouterr().out
    assert list(manifests) == ["train"]
    assert manifests["train"].classes == ("test", "train", "val")


def test_train_alone_may_be_divided(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a set like any other: the same bytes as from the folder itself, but for the names of the files."""
    train = {name: data for name, data in NEST.items() if name.startswith("train/")}
    folder = make_folder(train)
    packed(folder, tmp_path / "1", "--val", "20%")
    assert "note: 'train' is taken as a split and not as a class; --no-splits takes it as a class" in (
        capsys.readouterr().out
    )
    packed(folder / "train", tmp_path / "2", "--val", "0.2")
    shards = [{name: data for name, data in files_of(out).items() if name.endswith(".tar")} for out in
              (tmp_path / "1", tmp_path / "2")]  # fmt: skip
    assert shards[0] == shards[1]


def test_appending_to_each_split(make_folder: Folder, tmp_path: Path) -> None:
    """A split alone keeps its name, so that adding it to a set does not put test images into train."""
    parts = [{name: data for name, data in NEST.items() if name.startswith(split)} for split in ("t", "val")]
    assert splits_of(listed(make_folder(parts[1]))) == ["val", "val"]
    more = {"train/c/8.jpg": PHOTOS[8], "val/a/9.jpg": PHOTOS[9], **parts[1]}
    packed(make_folder(parts[0]), tmp_path / "out")
    manifests = packed(make_folder(more), tmp_path / "out", "--append")
    assert images_of(tmp_path / "out") == expected({**SPLIT_OF, 8: "train", 9: "val"})
    assert manifests["train"].classes == ("a", "b", "c")


def test_resume_keeps_the_splits(tmp_path: Path) -> None:
    folder = write_zip(tmp_path / "a.zip", {f"top/{name}": data for name, data in NEST.items()})
    packed(folder, tmp_path / "whole", "--maxcount", "1")

    def stop(progress: Any) -> None:
        if progress.images >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpuload.pack(open_source(folder), tmp_path / "out", maxcount=1, workers=1, watch=stop)
    with pytest.raises(ArgumentError, match="had options None, this run has {'no_splits': True}"):
        gpuload.pack(open_source(folder, no_splits=True), tmp_path / "out", maxcount=1, resume=True)
    packed(folder, tmp_path / "out", "--maxcount", "1", "--resume")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_copies_stay_in_their_splits_unless_dropped(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder({**NEST, "val/b/0.jpg": PHOTOS[0]})
    packed(folder, tmp_path / "1", "--dedup", "report")
    assert images_of(tmp_path / "1")["val"] == {PHOTOS[0], PHOTOS[5], PHOTOS[6]}
    assert json.loads((tmp_path / "1" / "val" / "duplicates.jsonl").read_text())["same_as"] == "train/a/0.jpg"
    packed(folder, tmp_path / "2", "--dedup", "drop")
    assert images_of(tmp_path / "2") == expected()
    folder = make_folder({"train/a/0.jpg": PHOTOS[0], "val/a/0.jpg": PHOTOS[0]})
    assert "--dedup drop: no image of 2 is left for 'val'" in (refused(folder, tmp_path, capsys, "--dedup", "drop"))


@pytest.mark.parametrize("option", [("--val", "0.1"), ("--splits", "train=0.5,val=0.5")])
def test_splits_are_not_drawn_from_such_a_source(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    said = refused(make_folder(NEST), tmp_path, capsys, *option)
    assert f"{option[0]} draws splits, but the source has its own (train, val, test, by its folders" in said
    assert f"Leave out {option[0]} to keep these, or give --no-splits" in said


A = {"a/0.jpg": PHOTOS[0], "b/1.jpg": PHOTOS[1]}


def in_folders(*folders: str) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for folder in folders for name, data in A.items()}


@pytest.mark.parametrize(
    ("more", "notes", "rejected"),
    [
        ({"meta/x.txt": b"", "val/x.txt": b""}, ["passed over, by extension: 2 × .txt"], []),
        ({"val/c/1.jpg": b""}, ["classes without an image in 'train': 'c'"], []),
        ({"val/A/1.jpg": b""}, ["classes without an image in 'train': 'A'", "classes that differ only in case are different classes: 'A', 'a'"], []),
        ({"1.jpg": b"", "test/2.jpg": b""}, [], ["1.jpg", "test/2.jpg"]),
    ],
)  # fmt: skip
def test_what_is_told_of_folders_of_splits(
    make_folder: Folder, more: dict[str, bytes], notes: list[str], rejected: list[str]
) -> None:
    listing = listed(make_folder({**in_folders("train", "test"), **more}))
    assert (list(listing.notes), listing.splits is not None) == (notes, True)
    assert reasons_of(listing) == [(name, "lies in no class folder") for name in rejected]


def sidecars(tmp_path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    return {**FLAT, **{name.replace("jpg", "txt"): b"a\r\nb\rc" for name in FLAT}}, {"form": "sidecar"}


def xml(tmp_path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    files = {f"Data/DET/{name}": data for name, data in FLAT.items()}
    return {**files, **{f"Annotations/DET/{name[:-3]}xml": b"<annotation/>" for name in FLAT}}, {}


def table_of_paths(tmp_path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    (tmp_path / "t.csv").write_text("id,label\n" + "".join(f"{name[:-4]},0\n" for name in FLAT))
    return FLAT, {"labels": tmp_path / "t.csv"}


def images_alone(tmp_path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    return FLAT, {"no_labels": True}


@pytest.mark.parametrize("kind", [sidecars, xml, table_of_paths, images_alone])
def test_other_sources_of_files(make_folder: Folder, tmp_path: Path, kind: Any) -> None:
    files, options = kind(tmp_path)
    listing, archive = (listed(root, **options) for root in (make_folder(files), write_zip(tmp_path / "a.zip", files)))
    for found in (listing, archive):
        assert sorted(splits_of(found) or ()) == sorted(SPLIT_OF.values())
        assert found.splits is not None and found.splits.origin == "by its folders 'test', 'train', 'val'"
    assert (archive.fields, archive.classes) == (listing.fields, listing.classes)
    assert archive.samples.select(listing.samples.column_names) == listing.samples
    if kind is sidecars:
        assert set(listing.samples.column("caption").to_pylist()) == {"a\nb\nc"}  # as text files are read


def table(folder: Path, values: list[str], name: str = "split", *, suffix: str = "csv") -> Path:
    path = folder / f"t.{suffix}"
    rows = [{"path": f"{n}.jpg", "label": n % 2, name: value} for n, value in enumerate(values)]
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("name", ["split", "Subset", "partition", "fold", "set"])
def test_a_column_of_splits(make_folder: Folder, tmp_path: Path, name: str, suffix: str) -> None:
    root = make_folder({f"{n}.jpg": PHOTOS[n] for n in range(5)})
    values = ["train", "Train", "train ", "test", "valid"]
    listing = listed(root, table(tmp_path, values, name, suffix=suffix))
    assert splits_of(listing) == ["train", "train", "train", "test", "val"]
    assert listing.splits is not None and listing.splits.origin == f"by its column {name!r}"
    assert listed(root, tmp_path / f"t.{suffix}", no_splits=True).splits is None


def test_a_column_of_folds_is_told(make_folder: Folder, tmp_path: Path) -> None:
    root = make_folder({f"{n}.jpg": b"" for n in range(3)})
    listing = open_source(root, table(tmp_path, ["0", "1", "2"], "fold")).list_samples()
    assert listing.splits is None
    (note,) = listing.notes
    assert "t.csv that are not packed: 'fold'" in note
    listing = open_source(root, tmp_path / "t.csv", {"target": ("fold",)}).list_samples()
    assert (listing.notes, [field.name for field in listing.fields]) == ((), ["label", "target"])


def parquet_bytes(rows: list[int], **more: Any) -> bytes:
    images = [{"bytes": PHOTOS[n], "path": f"{n}.jpg"} for n in rows]
    file = io.BytesIO()
    parquet.write_table(pa.table({"image": images, "label": [n % 2 for n in rows], **more}), file)
    return file.getvalue()


HUGGING_FACE = {
    "train-00000-of-00002.parquet": parquet_bytes([0, 1, 2]),
    "train-00001-of-00002.parquet": parquet_bytes([3, 4]),
    "validation-00000-of-00001.parquet": parquet_bytes([5, 6]),
    "test-00000-of-00001.parquet": parquet_bytes([7]),
}
BY_FOLDERS = {f"{split}/0000.parquet": parquet_bytes([n for n in SPLIT_OF if SPLIT_OF[n] == split]) for split in ("train", "val", "test")}  # fmt: skip


@pytest.mark.parametrize("place", ["", "data/", "default/"])
@pytest.mark.parametrize("files", [HUGGING_FACE, BY_FOLDERS])
def test_parquet_as_hugging_face_names_it(make_folder: Folder, files: dict[str, bytes], place: str) -> None:
    folder = make_folder({**{f"{place}{name}": data for name, data in files.items()}, "README.md": b""})
    listing = listed(folder)
    assert sorted(splits_of(listing) or ()) == sorted(SPLIT_OF.values())
    assert listing.splits is not None and listing.splits.origin == "by the names of its files or their folders"
    assert [field.name for field in listing.fields] == ["label"]
    assert (listed(folder, no_splits=True).splits, len(listing)) == (None, 8)


def test_parquet_of_one_split_is_a_set_like_any_other(make_folder: Folder) -> None:
    folder = make_folder(HUGGING_FACE)
    assert listed(folder / "test-00000-of-00001.parquet").splits is None
    (folder / "extra-00000-of-00001.parquet").write_bytes(parquet_bytes([8]))
    with pytest.raises(SourceError, match=r"others after none or two \('extra"):
        listed(folder)
    for path in folder.glob("*.parquet"):
        if not path.name.startswith("train"):
            path.unlink()
    assert listed(folder).splits is None


def test_a_column_of_splits_in_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(parquet_bytes(list(SPLIT_OF), part=list(SPLIT_OF.values())))
    packed(tmp_path / "x.parquet", tmp_path / "1", "--column", "split=part")
    assert images_of(tmp_path / "1") == expected()
    assert [field.name for field in listed(tmp_path / "x.parquet").fields] == ["label", "part"]


def tar_of(rows: list[int]) -> bytes:
    return tar_bytes(
        (name, data) for n in rows for name, data in ((f"{n}.jpg", PHOTOS[n]), (f"{n}.cls", b"%d" % (n % 2)))
    )


@pytest.mark.parametrize("names", ["set-{}-000.tar", "{}/000.tar", "{}ing-1.tar"])
def test_tars_of_several_splits(make_folder: Folder, names: str) -> None:
    rows = {split: [n for n in SPLIT_OF if SPLIT_OF[n] == split] for split in ("train", "val", "test")}
    files = {names.format(split).replace("valing", "dev"): tar_of(found) for split, found in rows.items()}
    assert sorted(splits_of(listed(make_folder(files))) or ()) == sorted(SPLIT_OF.values())
    assert listed(make_folder(files), no_splits=True).splits is None


def test_splits_begin_in_the_first_folder_that_images_do_not_share(make_folder: Folder) -> None:
    for top, names in (("train", None), ("test", ("train", "test"))):
        files = {f"x/y/{top}/1.jpg": b"", "x/y/train/val/2.jpg": b""}
        splits = open_source(make_folder(files), no_labels=True).list_samples().splits
        assert (splits and splits.names) == names


def test_names_of_tars_that_are_no_splits(make_folder: Folder, tmp_path: Path) -> None:
    for names in (["a.tar", "latest.tar"], ["trainval.tar", "latest.tar"], ["train-0.tar", "train-1.tar"]):
        source = open_source(make_folder({name: tar_of([n]) for n, name in enumerate(names)}))
        assert source.list_samples().splits is None


@pytest.mark.parametrize(
    ("members", "notes"),
    [
        (["1.jpg", "2.jpg"], ["no sample has more than its image, so that the set has no labels"]),
        (["1.jpg", "1.txt", "1.xyz", "2.jpg", "2.txt", "2.json"],
         ["members that are not packed: 1 × .json, 1 × .xyz; fields are what most samples have"]),
    ],
)  # fmt: skip
def test_what_is_told_of_tars(tmp_path: Path, members: list[str], notes: list[str]) -> None:
    write_tar(tmp_path / "x.tar", dict.fromkeys(members, b"1"))
    assert list(open_source(tmp_path / "x.tar").list_samples().notes) == notes


def test_a_packed_set_is_packed_again_with_its_splits(make_folder: Folder, tmp_path: Path) -> None:
    packed(make_folder(NEST), tmp_path / "1")
    manifests = packed(tmp_path / "1", tmp_path / "2")
    assert images_of(tmp_path / "2") == expected()
    assert manifests["val"].classes == ("a", "b")
    shutil.rmtree(tmp_path / "1" / "val")
    packed(make_folder({"c/1.jpg": PHOTOS[8]}), tmp_path / "other")
    shutil.move(tmp_path / "other" / "train", tmp_path / "1" / "val")
    with pytest.raises(SourceError, match="its folders .* differ in fields or classes"):
        open_source(tmp_path / "1").list_samples()


def test_dicts_with_a_split(tmp_path: Path) -> None:
    def samples() -> list[dict[str, Any]]:
        return [{"image": PHOTOS[n], "label": n % 2, "split": split} for n, split in SPLIT_OF.items()]

    report = gpuload.pack(samples(), tmp_path / "out", workers=1)
    assert list(report.manifests) == ["train", "val", "test"]
    assert images_of(tmp_path / "out") == expected()
    with pytest.raises(ArgumentError, match=r"--val draws splits, but the source has its own .*by its column 'split'"):
        gpuload.pack(samples(), tmp_path / "2", workers=1, val=0.1)
    report = gpuload.pack(samples(), tmp_path / "3", workers=1, own_splits=False)
    assert [field.name for field in report.manifests["train"].fields] == ["image", "label", "split"]


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_arrays_with_a_split(tmp_path: Path, dtype: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 16, 3), np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, part=np.array(list(SPLIT_OF.values()), dtype))
    assert splits_of(listed(tmp_path / "x.npz", columns={"split": ("part",)})) == list(SPLIT_OF.values())


BOXES = b"0 0.5 0.5 0.2 0.4\n"


def commands(path: Path, members: Any) -> list[list[str]]:
    """Those that read a tar of somebody else."""
    tar, out = str(write_tar(path / "x.tar", members)), str(path / "out")
    return [["pack", tar, out], ["index", tar, "--out", out]]


def with_texts(*texts: bytes) -> list[tuple[str, bytes]]:
    return [(f"{n}.{end}", data) for n, text in enumerate(texts) for end, data in (("jpg", PHOTOS[0]), ("txt", text))]


@pytest.mark.parametrize("texts", [[BOXES] * 3, [b"", BOXES, b"\n"]])
def test_boxes_are_no_captions(tmp_path: Path, texts: list[bytes]) -> None:
    write_tar(tmp_path / "x.tar", with_texts(*texts))
    word = r"x.tar: its .txt hold YOLO's boxes, such as '0 0.5 0.5 0.2 0.4', and no captions. Unpack .*--from yolo"
    with pytest.raises(SourceError, match=word):
        listed(tmp_path / "x.tar")


@pytest.mark.parametrize("number", [0, 1])
def test_captions_beside_boxes_stay_captions(tmp_path: Path, number: int) -> None:
    assert cli.main(commands(tmp_path, with_texts(BOXES, b"a cat"))[number]) == cli.DONE


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("end", ["txt", "jpg", "xyz"])
def test_two_members_of_one_extension_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, end: str
) -> None:
    """Which of them is meant nobody knows."""
    members = [("1.jpg", PHOTOS[0]), ("1.txt", b"1"), ("2.jpg", PHOTOS[0]), ("2.txt", b"1"), ("2.xyz", b"")]
    assert cli.main(commands(tmp_path, [*members, (f"2.{end}", b"2")])[number]) == cli.WRONG
    said = capsys.readouterr().err
    assert f"sample '2' has two members of one extension ('2.jpg', '2.txt', '2.xyz', '2.{end}')" in said
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("sample", [{"label": "x" * 4097}, {"labels": ["x" * 4097]}])
def test_names_of_classes_are_as_long_as_a_manifest_may_have_them(tmp_path: Path, sample: dict[str, object]) -> None:
    with pytest.raises(gpuload.SourceError, match=r"field 'labels?': the class 'x+'… has a name of 4,097 characters"):
        gpuload.pack([{"image": PHOTOS[0], **sample}], tmp_path / "out", workers=1)
    kept = {name: "x" * 4096 if isinstance(value, str) else ["x" * 4096] for name, value in sample.items()}
    gpuload.pack([{"image": PHOTOS[0], **kept}], tmp_path / "out", workers=1)
    assert gpuload.Dataset(tmp_path / "out" / "train")
