"""Tables as people and competitions write them: ids without an extension, other names of columns, and mistakes."""

from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo
from reading import rows_of
from zips import write_zip

from gpuload import ArgumentError, SourceError, cli
from gpuload.sources import open_source

IMAGES = {f"{n}.jpg": b"%d" % n for n in range(4)}


def listed(root: Path, text: str | bytes, columns: dict[str, tuple[str, ...]] | None = None, name: str = "t.csv") -> Any:  # fmt: skip
    table = root.with_suffix(f".{name}")
    table.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(root, table, columns).list_samples()


def names(listing: Any) -> list[str]:
    return listing.samples.column("name").to_pylist()


@pytest.mark.parametrize(
    "column",
    ["image_path", "img", "id", "Image_ID", "file", "filename", "name", "img_path", "image_name", "img_name", "image"],
)
@pytest.mark.parametrize("archive", [False, True])
def test_ids_without_an_extension(make_folder: Folder, tmp_path: Path, column: str, archive: bool) -> None:
    files = {"x/1.jpg": b"1", "x/2.PNG": b"22", "x/0.3.jpeg": b"333"}
    root = write_zip(tmp_path / "a.zip", files) if archive else make_folder(files)
    listing = listed(root, f"{column},label\nx/2,0\nx/1,1\nx/0.3,1\n")
    assert names(listing) == ["x/2.PNG", "x/1.jpg", "x/0.3.jpeg"]
    assert listing.samples.column("bytes").to_pylist() == [2, 1, 3]
    assert listing.notes == (f"paths in the column {column!r} have no extension; found: 1 × .jpeg, 1 × .jpg, 1 × .png",)


def test_ids_with_files_of_several_extensions(make_folder: Folder) -> None:
    listing = listed(make_folder({"1.jpg": b"", "1.png": b"", "2.webp": b"", "2.png": b""}), "id,label\n1,0\n2,0\n")
    assert names(listing) == ["1.jpg", "2.png"]
    assert listing.notes[1] == (
        "2 of these have files of several extensions, such as '1': taken is .jpg, .jpeg, .png, then the first by name"
    )


def test_masks_without_an_extension(make_folder: Folder) -> None:
    listing = listed(make_folder({"1.jpg": b"", "m/1.png": b""}), "id,mask\n1,m/1\n")
    assert listing.samples.column("mask").to_pylist() == ["m/1.png"]
    assert listing.notes[1] == "paths in the column 'mask' have no extension; found: 1 × .png"


def test_through_the_packer(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder({f"{n}.jpg": encode(photo(n)) for n in range(10)})
    (tmp_path / "train.csv").write_text("id,age,score\n" + "".join(f"{n},{n},{n / 2}\n" for n in range(10)))
    arguments = ["pack", str(root), str(tmp_path / "out"), "--labels", str(tmp_path / "train.csv")]
    assert cli.main(arguments) == cli.WRONG
    assert "or with --column target=score for a number to be predicted" in capsys.readouterr().err
    assert cli.main([*arguments, "--column", "target=score", "--val", "10%"]) == cli.DONE
    assert "note: columns of " in (said := capsys.readouterr().out)
    assert "that are not packed: 'age'; --column ROLE=NAME packs them" in said
    assert [row["target"] for row in rows_of(tmp_path / "out" / "val")] != []
    assert len(rows_of(tmp_path / "out" / "val")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,breed\n1,x\n", r"none of the columns label, .*; its columns are \['id', 'breed'\]. Name one with --label-column, or with --column target=NAME"),
        ("id,label\n1,0.5\n", "found '0.5'. Give another --label-column, or --column target=label"),
        ("id,label\n1,1.0\n2,2\n", "whole numbers or names of classes, found '1.0'"),
        ("id;label\n1;0,5\n2;1,5\n", "column 'label' holds numbers with a decimal comma, such as '0,5'. Write a point"),
        ("id,label,label\n1,0,1\n", "has several columns called 'label'. Rename all but one"),
        ("1.jpg,0\n2.jpg,0\n", "its first line names no columns but a file, '1.jpg'. Put a line with the names of the columns before it, such as path,label"),
        ("1.jpg 0\n2.jpg 0\n", "its first line names no columns but a file, '1.jpg 0'"),
        ("id,label\n7,0\n", r"names 1 of 1 files that are not in .* \(column 'id'\): '7'. Paths are relative to SOURCE; .* or name another column with --path-column"),
        ("id,label\n1,0\n1.jpg,0\n", r"a path in more than one row, 1 time \(rows for '1.jpg'\)"),
        (b"file,kind\n1.jpg,2\n", r"none of the columns label, class, target, y, fine_label; its columns are \['file', 'kind'\]. .*--label-column.*--column target=NAME.*--no-labels"),
        (b"where,label\n1.jpg,2\n", "none of the columns path, .*Name one with --path-column"),
        (b"path,label\n1.jpg,0\nb.jpg,0\nc.jpg,1\nd/e.jpg,1\nf.jpg,1\n", r"names 4 of 5 files that are not in .*'b.jpg', 'c.jpg', 'd/e.jpg' and 1 more.*correct them"),
        (b"path,label\n1.jpg,0\n1.jpg,1\n", r"a path in more than one row, 1 time \(rows for '1.jpg'\). Remove"),
        (b"path,label\n1.jpg,0\n,1\n", r"an empty path, 1 time \('line 3'\)"),
        (b"path,label\n1.jpg,\n", r"1 row has no label \(first in line 2\). Fill or remove"),
        (b"path,label\n1.jpg,0.5\n", r"labels must be whole numbers or names of classes, found '0.5'. Give another --label-column, or --column target=label"),
        (b"path,label\n1.jpg,-1\n", "classes of 'label' must be numbered from 0; found '-1'"),
        (b"path,label\n", "has a header but no rows. Give it a row for each image"),
        (b"path,label\n1.jpg\n", "not a CSV or TSV table .*Save it again"),
        (b"", "not a CSV or TSV table .*Save it again"),
        (b"path,label\n\xff\xff.jpg,1\n", "not a CSV or TSV table in UTF-8"),
        ("id,label\n./1.jpg,0\n1.jpg,0\n", r"a path in more than one row, 1 time \(rows for '1.jpg'\)"),
    ],
)  # fmt: skip
def test_tables_that_are_wrong(make_folder: Folder, text: str | bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        listed(make_folder(IMAGES), text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        (["train/1.jpg", "test/2.jpg"], "1.jpg", "They lie in its folder 'train': give .*/train as SOURCE"),
        (["train/1.jpg", "test/2.jpg"], "2", "They lie in its folder 'test': give .*/test as SOURCE"),
        (["train/1.jpg"], "train\\\\1.jpg", "Write / between folders"),
        (["1.jpg"], "source0/1.jpg", "Give the folder that 'source0' lies in as SOURCE"),
    ],
)
def test_where_missing_files_are(make_folder: Folder, files: list[str], path: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        listed(make_folder(dict.fromkeys(files, b"")), f"path,label\n{path},0\n")


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("t.csv", "id,label\n1,0\n2,\n", "line 3"),
        ("t.jsonl", '{"id": 1, "label": 0}\n{"id": 2, "label": null}\n', "line 2"),
    ],
)
def test_a_missing_label_is_told_by_its_line(make_folder: Folder, name: str, text: str, where: str) -> None:
    with pytest.raises(SourceError, match=f"1 row has no label .first in {where}.. Fill or remove them"):
        listed(make_folder(IMAGES), text, name=name)


def test_images_that_the_table_does_not_name_are_told(make_folder: Folder) -> None:
    root = make_folder({**IMAGES, "x/5.jpg": b"", "m/1.png": b"", "notes.txt": b""})
    assert listed(root, "path,label\n1.jpg,0\n./2.jpg,0\n").notes == (
        f"left out 2 images that {root.with_suffix('.t.csv')} does not name",
    )
    assert listed(root, "path,mask\n1.jpg,m/1.png\n0.jpg,2.jpg\n3.jpg,m/1.png\n").notes == ()


def test_classes_that_differ_in_case_are_told(make_folder: Folder) -> None:
    listing = listed(make_folder({"1.jpg": b"", "2.jpg": b""}), "path,label\n1.jpg,cat\n2.jpg,Cat\n")
    assert listing.notes == ("classes that differ only in case are different classes: 'Cat', 'cat'",)


@pytest.mark.parametrize("text", ["\ufeffpath;label\n1.jpg;1\n", '\ufeff"path"\t"label"\n"1.jpg"\t1\n'])
def test_byte_order_marks_and_other_separators(make_folder: Folder, text: str) -> None:
    assert listed(make_folder({"1.jpg": b""}), text).samples.column("label").to_pylist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label-column", "x", "--column", "label=y"], "--column label=x: 'label' is given twice"),
        (["--column", "x=y"], "--column x=y: write ROLE=NAME, with one of the roles path, image"),
        (["--column", "target=a", "--column", "target=b"], "--column target=b: 'target' is given twice. Write --column target=a,b if"),
        (["--val", "ten"], "--val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got 'ten'"),
        (["--val", "10"], "--val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got '10'"),
    ],
)  # fmt: skip
def test_options_that_are_wrong(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert cli.main(["pack", str(make_folder(IMAGES)), str(tmp_path / "out"), *options]) == cli.WRONG
    assert message in capsys.readouterr().err


def test_roles_that_a_table_has_not(make_folder: Folder) -> None:
    root = make_folder({"1.jpg": b""})
    assert names(listed(root, "photo,path,label\n1.jpg,2.jpg,0\n", {"image": ("photo",)})) == ["1.jpg"]
    with pytest.raises(
        ArgumentError, match="--column json=x: a table holds no such field. Give one of path, split, label"
    ):
        listed(root, "path,label,x\n1.jpg,0,1\n", {"json": ("x",)})
