"""Samples of several files each, found by patterns, with their labels in a table, as the Human Protein Atlas has them."""

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload
from gpuload import ArgumentError, SourceError
from gpuload.cli import main
from gpuload.packing.packer import PackReport

ROOT = Path(__file__).parents[2]
CHANNELS = ("red", "green", "blue", "yellow")
TARGETS = {"a-0": "16 0", "a-1": "1", "b/c-2": "25 3 0", "b/d.3": "7"}
PATTERNS = {name: f"**/*_{name}.png" for name in CHANNELS}
SETTINGS: dict[str, Any] = {"workers": 1, "progress": False}


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    """The folder train, with train.csv beside it; image `a-9` is in no row."""
    random = np.random.default_rng(0)
    for name in (*TARGETS, "a-9"):
        for channel in CHANNELS:
            path = tmp_path / "train" / f"{name}_{channel}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (9, 8), np.uint8)).save(path)
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("Id", "Target"), *TARGETS.items()])
    return tmp_path / "train"


def pack(atlas: Path, **options: Any) -> PackReport:
    arguments = {"pictures": PATTERNS, "labels": atlas.with_suffix(".csv"), "columns": {"labels": "Target"}}
    return gpuload.pack(atlas, atlas.parent / "out", **{**arguments, **SETTINGS, **options})


def test_each_sample_has_its_files_and_its_labels(atlas: Path) -> None:
    pack(atlas)
    data = gpuload.Dataset(atlas.parent / "out" / "train")
    found = {}
    for number in range(len(data)):
        sample = data[number]
        name = sample["source"].removesuffix(".png")
        found[name] = sample["labels"]
        for channel in CHANNELS:
            values = np.asarray(Image.open(atlas / f"{name}_{channel}.png"))
            np.testing.assert_array_equal(np.asarray(sample[channel].convert("L")), values)
    assert found == {name: [int(target) for target in text.split()] for name, text in TARGETS.items()}


def test_the_command_of_the_page(atlas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "pictures.md").read_text()
    (command,) = re.findall(r"python -m gpuload (pack train shards(?:.*\\\n)+.*)", page)
    for name in ("b/c-2", "b/d.3"):  # which lie in a folder
        for channel in CHANNELS:
            (atlas / f"{name}_{channel}.png").rename(atlas / f"{name[2:]}_{channel}.png")
    table = atlas.with_suffix(".csv")
    table.write_text(table.read_text().replace("b/", ""))
    monkeypatch.chdir(atlas.parent)
    assert main([*shlex.split(command.replace("\\\n", " ")), "--workers", "1"]) == 0
    assert len(gpuload.Dataset("shards/train")) == len(TARGETS)


def test_a_sample_without_one_of_its_files_is_rejected(atlas: Path) -> None:
    (atlas / "a-1_blue.png").unlink()
    report = pack(atlas)
    assert [(rejection.source, rejection.reason) for rejection in report.rejected] == [
        ("a-1.png", "lacks its picture blue")
    ]
    assert report.images == len(TARGETS) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": None}, "--column names those of a table. Give it with --labels, or leave --column out"),
        ({"labels": "train.json"}, r"--labels train.json: with patterns of pictures it is a table"),
        (
            {"pictures": {name: f"{{label}}/*_{name}.png" for name in CHANNELS}},
            "'{label}/\\*_red.png' has the label, and so has the table",
        ),
        (
            {"columns": {"path": "Target", "label": "Id"}},
            "names 4 of 4 files that are not in .* by '\\*\\*/\\*_red.png'",
        ),
        ({"from_": "folder"}, r"pack\(from_=…\): patterns of pictures say which files are packed. Leave it out"),
    ],
)
def test_what_contradicts_patterns_is_named(atlas: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, SourceError), match=message):
        pack(atlas, **options)
