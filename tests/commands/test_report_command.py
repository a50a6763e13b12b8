"""`gpuload report` and `gpuload show`: what they write, print and refuse."""

import json
import sys
from pathlib import Path

import pytest
from painted import pack_painted
from PIL import Image

from gpuload import Dataset, cli


def test_a_report(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(packed), "-o", "out.html", "--images", "40"]) == cli.DONE
    assert "looked at 40 images; the facts are in out.json" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["splits"][0]["samples"] == 97 and facts["looked_at"] == {"images": 40, "of": 97}
    page = (tmp_path / "out.html").read_text()
    assert f"<h1>{packed}</h1>" in page
    assert cli.main(["report", str(packed), "--title", "<b>", "--json", "f.json"]) == cli.DONE
    assert "<h1>&lt;b&gt;</h1>" in (tmp_path / "report.html").read_text()


def test_no_other_path_than_what_was_given(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed.parent)
    assert cli.main(["report", "train", "-o", str(tmp_path / "r.html")]) == cli.DONE
    for name in ("r.html", "r.json"):
        text = (tmp_path / name).read_text()
        assert str(packed.parent) not in text and str(tmp_path) not in text and str(Path.home()) + "/" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "0"], "--images 0: expected a whole number of at least 1"),
        (["--size", "0"], "--size 0: expected a whole number in 1..4096"),
        (["--batch-size", "0"], "--batch-size 0: expected"),
        (["--window", "0"], "--window 0: expected a whole number of at least 1"),
        (["-o", "nowhere/x.html"], "nowhere/x.html: its folder does not exist. Make it, or give another -o"),
        (["-o", "."], ".: is a folder. Give the name of a file, such as figures"),
        (["-o", "x.json"], "x.json: is named for the page and for the facts. Give two names"),
    ],
)
def test_options_that_cannot_be(
    packed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(packed), *options]) == cli.WRONG
    said = capsys.readouterr()
    assert said.err.startswith(f"gpuload: {message}") and said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_jinja2(packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["report", str(packed)]) == cli.WRONG
    assert "report: jinja2 is not installed. " in (said := capsys.readouterr().err) and "[report]" in said


def test_interrupted_leaves_nothing(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuload.report.build.find_findings", interrupt)
    assert cli.main(["report", str(packed)]) == cli.STOPPED
    assert list(tmp_path.iterdir()) == []


def test_samples_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pack_painted(tmp_path / "painted", 6)
    first, second = Dataset(folder)[0], Dataset(folder)[1]
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", str(folder), first["key"], "1", "--epochs", "3", "--size", "32"]) == cli.DONE
    said = capsys.readouterr().out
    for line in (
        f"{first['key']}:\n  index: 0\n  source: {first['source']}\n  image: {first['image'].width} × {first['image'].height} pixels",
        "  label: class1 (1)",
        "  boxes_class: class2, class3",
        f"{second['key']}:",
        "  caption: picture 1",
    ):
        assert line in said
    for sample in (first, second):
        with Image.open(tmp_path / f"{sample['key']}.png") as picture:
            assert picture.size == sample["image"].size
        with Image.open(tmp_path / f"{sample['key']}-epochs.png") as picture:
            assert picture.width > 2 * 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "has no sample of this key or source"),
        (["97"], r"has samples 0 to 96"),
        (["0", "-o", "nowhere"], "nowhere: no such folder. Make it, or give another -o"),
        (["0", "--epochs", "-1"], "--epochs -1: expected"),
        (["0", "--size", "0"], "--size 0: expected"),
    ],
)
def test_what_cannot_be_shown(
    packed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", str(packed), *arguments]) == cli.WRONG
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and list(tmp_path.iterdir()) == []
