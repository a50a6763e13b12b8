"""What would be packed, `--dry-run`, and numbers of classes that the user gives, `--classes`."""

from pathlib import Path

import numpy as np
import pytest
import tool_files as tools
from images import Folder
from PIL import Image
from reading import rows_of
from sources_read import listed, packed
from tool_files import IMAGES, at, of_each

import gpuload
from gpuload import SourceError, cli

CLASSES = {"cat/a.jpg": IMAGES["a.jpg"], "dog/b.jpg": IMAGES["b.jpg"], "dog/c.jpg": IMAGES["c.jpg"], "x/notes.doc": b""}


def test_a_dry_run_tells_what_would_be_packed(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    root = make_folder({**at("images"), **of_each("labels/{}.txt", tools.kitti)})
    assert cli.main(["pack", str(make_folder(CLASSES)), str(out), "--val", "0.34", "--dry-run"]) == cli.DONE
    said = capsys.readouterr().out
    for line in (
        "splits: train 2 images, val 1 image",
        "fields: image, label (class)",
        "1      dog        2",
        "2      x          0",
    ):
        assert line in said
    assert "passed over, by extension: 1 × .doc" in said
    assert cli.main(["pack", str(root), str(out), "--dry-run"]) == cli.DONE
    assert "source: kitti: holds 'labels/a.txt'" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out-preview.png"]
    with Image.open(tmp_path / "out-preview.png") as sheet:
        drawn = np.asarray(sheet).reshape(-1, 3)
    assert len(np.unique(drawn, axis=0)) > 100  # three photos


def test_a_file_that_is_no_preview_is_kept(make_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "out-preview.png").write_bytes(IMAGES["a.jpg"])
    assert cli.main(["pack", str(make_folder(CLASSES)), str(tmp_path / "out"), "--dry-run"]) == cli.WRONG
    assert (tmp_path / "out-preview.png").read_bytes() == IMAGES["a.jpg"]


def test_numbers_of_classes_by_a_file(make_folder: Folder, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("dog\nbird\ncat\nx\n")
    manifest = packed(make_folder(CLASSES), tmp_path / "label", "--classes", names)["train"]
    assert manifest.classes == ("dog", "bird", "cat", "x")
    assert manifest.fields[1].category_ids == (1, -1, 0, 2)
    assert {row["source"]: row["label"] for row in rows_of(tmp_path / "label" / "train")} == {
        "cat/a.jpg": 2,
        "dog/b.jpg": 0,
        "dog/c.jpg": 0,
    }
    root = make_folder({**at("images"), "coco.json": tools.nearly_coco("objects365")})
    packed(root, tmp_path / "boxes", "--classes", names)
    data = gpuload.Dataset(tmp_path / "boxes" / "train")
    assert (data.fields["boxes"].classes, data.fields["boxes"].category_ids) == (
        ("dog", "bird", "cat", "x"),
        (8, -1, 7, -1),
    )
    rows = {row["source"]: row for row in rows_of(tmp_path / "boxes" / "train")}
    assert rows["images/a.jpg"]["boxes_class"] == [2, 0] and rows["images/c.jpg"]["boxes_class"] == []
    boxes = gpuload.Boxes(as_targets=True, numbers="coco")
    loader = gpuload.DaliIterator(
        data, 3, fields={"boxes": boxes}, decoder="native", augment=gpuload.Augment(32), device="cpu"
    )
    with loader:
        (batch,) = loader
    assert {number for target in batch["boxes"] for number in target["labels"].tolist()} == {7, 8}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("dog\n", "has the classes 'cat', which --classes does not name. Add them"),
        ("dog\n\ncat\n", "cannot be read as names of classes, one a line .a line is empty"),
        ("dog\ncat\ndog\n", "'dog' comes twice"),
    ],
)
def test_files_of_classes_that_are_wrong(make_folder: Folder, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(SourceError, match=word):
        listed(make_folder(CLASSES), classes=tmp_path / "names.txt")


def test_numbers_without_names_cannot_be_renumbered(make_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("image,label\ncat/a.jpg,3\n")
    (tmp_path / "names.txt").write_text("dog\n")
    with pytest.raises(SourceError, match="the classes of 'label' are numbers without names"):
        listed(make_folder(CLASSES), tmp_path / "t.csv", classes=tmp_path / "names.txt")
