"""Tars of others: what their members are taken for, and what is refused by name."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from images import encode, photo
from tars import write_tar

import gpuload
from gpuload import cli

PHOTO = encode(photo())
BOXES = b"0 0.5 0.5 0.2 0.4\n"


def tar_of(path: Path, members: Iterable[tuple[str, bytes]]) -> str:
    return str(write_tar(path, members))


def refused(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(arguments) == cli.WRONG
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    return said


def commands(tmp_path: Path, tar: str) -> list[list[str]]:
    """Those that read a tar of somebody else."""
    return [["pack", tar, str(tmp_path / "out")], ["index", tar, "--out", str(tmp_path / "out")]]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("texts", [[BOXES] * 3, [b"", BOXES, b"\n"]])
def test_boxes_are_no_captions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, texts: list[bytes]
) -> None:
    members = [(f"{n}.{end}", data) for n, text in enumerate(texts) for end, data in (("jpg", PHOTO), ("txt", text))]
    command = commands(tmp_path, tar_of(tmp_path / "x.tar", members))[number]
    said = refused(tmp_path, command, capsys)
    assert "x.tar: its .txt hold YOLO's boxes, such as '0 0.5 0.5 0.2 0.4', and no captions. Unpack the tars" in said
    assert "--from yolo" in said


@pytest.mark.parametrize("number", [0, 1])
def test_captions_beside_boxes_stay_captions(tmp_path: Path, number: int) -> None:
    members = [
        (f"{n}.{end}", data)
        for n, text in enumerate([BOXES, b"a cat"])
        for end, data in (("jpg", PHOTO), ("txt", text))
    ]
    assert cli.main(commands(tmp_path, tar_of(tmp_path / "x.tar", members))[number]) == cli.DONE


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("end", ["cls", "jpg", "xyz"])
def test_two_members_of_one_extension_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, end: str
) -> None:
    """Which of them is meant nobody knows."""
    members = [("1.jpg", PHOTO), ("1.cls", b"1"), ("2.jpg", PHOTO), ("2.cls", b"1"), ("2.xyz", b""), (f"2.{end}", b"2")]
    command = commands(tmp_path, tar_of(tmp_path / "x.tar", members))[number]
    assert f"x.tar: sample '2' has two members of one extension ('2.jpg', '2.cls', '2.xyz', '2.{end}')" in (
        refused(tmp_path, command, capsys)
    )


@pytest.mark.parametrize("sample", [{"label": "x" * 4097}, {"labels": ["x" * 4097]}])
def test_names_of_classes_are_as_long_as_a_manifest_may_have_them(tmp_path: Path, sample: dict[str, object]) -> None:
    with pytest.raises(gpuload.SourceError, match=r"field 'labels?': the class 'x+'… has a name of 4,097 characters"):
        gpuload.pack([{"image": PHOTO, **sample}], tmp_path / "out", workers=1)
    kept = {name: "x" * 4096 if isinstance(value, str) else ["x" * 4096] for name, value in sample.items()}
    gpuload.pack([{"image": PHOTO, **kept}], tmp_path / "out", workers=1)
    assert gpuload.Dataset(tmp_path / "out" / "train")
