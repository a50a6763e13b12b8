"""`gpuload report` and `gpuload show`: what they write, print and refuse."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from painted import pack_painted
from PIL import Image

from gpuload import Dataset, cli


def test_a_report(packed: Path, tmp_path: Path, command: Any) -> None:
    found = command("report", packed, "-o", "out.html", "--images", "40")
    assert found.code == cli.DONE and "looked at 40 images; the facts are in out.json" in found.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]
    facts = json.loads(Path("out.json").read_text())
    assert facts["splits"][0]["samples"] == 97 and facts["looked_at"] == {"images": 40, "of": 97}
    assert f"<h1>{packed}</h1>" in Path("out.html").read_text()
    assert command("report", packed, "--title", "<b>", "--json", "f.json").code == cli.DONE
    assert "<h1>&lt;b&gt;</h1>" in Path("report.html").read_text()


def test_no_other_path_than_what_was_given(
    packed: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(packed.parent)
    assert command("report", "train", "-o", tmp_path / "r.html").code == cli.DONE
    for name in ("r.html", "r.json"):
        text = (tmp_path / name).read_text()
        assert str(packed.parent) not in text and str(tmp_path) not in text and str(Path.home()) + "/" not in text


def test_without_jinja2(packed: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, _, said = command("report", packed)
    assert code == cli.WRONG and "report: jinja2 is not installed. " in said and "[report]" in said


def test_interrupted_leaves_nothing(
    packed: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuload.report.build.find_findings", interrupt)
    assert command("report", packed).code == cli.STOPPED
    assert list(tmp_path.iterdir()) == []


def test_samples_are_shown(tmp_path: Path, command: Any) -> None:
    folder = pack_painted(tmp_path / "painted", 6)
    first, second = Dataset(folder)[0], Dataset(folder)[1]
    code, said, _ = command("show", folder, first["key"], "1", "--epochs", "3", "--size", "32")
    assert code == cli.DONE
    for line in (
        f"{first['key']}:\n  index: 0\n  source: {first['source']}\n  image: {first['image'].width} × {first['image'].height} pixels",
        "  label: class1 (1)",
        "  boxes_class: class2 (0), class3 (1)",
        f"{second['key']}:",
        "  caption: picture 1",
    ):
        assert line in said
    for sample in (first, second):
        with Image.open(tmp_path / f"{sample['key']}.png") as picture:
            assert picture.size == sample["image"].size
        with Image.open(tmp_path / f"{sample['key']}-epochs.png") as picture:
            assert picture.width > 2 * 32
