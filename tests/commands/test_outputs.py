"""Commands replace files that they wrote before, and keep all others."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuload import Dataset, cli

REPORT = ["report", "SET", "--images", "4", "--size", "16"]
TUNE = ["tune", "SET", "--device", "cpu", "--seconds", "0.5", "--size", "16", "--batch-size", "4"]
# Command, and the files that it writes.
COMMANDS = {
    "report": ([*REPORT, "-o", "page"], ["page", "page.json"]),
    "report --json": ([*REPORT, "-o", "page", "--json", "facts"], ["page", "facts"]),
    "tune": ([*TUNE, "--json", "figures"], ["figures"]),
    "verify": (["verify", "SET", "--workers", "1", "--quarantine", "bad"], ["bad"]),
    "show": (["show", "SET", "0"], ["KEY.png"]),
}


def link(path: Path) -> None:
    path.with_name("thesis").write_text("mine")
    path.symlink_to("thesis")


KEPT: dict[str, Callable[[Path], object]] = {
    "a text": lambda path: path.write_text("mine"),
    "another's JSON": lambda path: path.write_text('{"settings": [], "gpuload": "1.0"}\n'),
    "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n and more"),
    "a link": link,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


def prepare(packed: Path, folder: Path, name: str) -> tuple[list[str], list[Path]]:
    """The command, and the files that it is to write in this folder."""
    key = Dataset(packed)[0]["key"]
    arguments, files = COMMANDS[name]
    command = [str(packed) if word == "SET" else word for word in arguments]
    return command, [folder / file.replace("KEY", key) for file in files]


def listed(folder: Path) -> dict[str, tuple[int, ...]]:
    found = {path.name: path.lstat() for path in folder.iterdir()}
    return {name: (one.st_mode, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in found.items()}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("name", COMMANDS)
def test_files_of_others_are_kept(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any, name: str, kept: str
) -> None:
    for number in range(len(COMMANDS[name][1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        words, files = prepare(packed, folder, name)
        KEPT[kept](files[number])
        before = listed(folder)
        code, _, said = command(*words)
        assert code == cli.WRONG
        assert "is there, and was not written by this command" in said or "is a folder" in said
        assert listed(folder) == before


@pytest.mark.parametrize("name", COMMANDS)
def test_own_files_are_replaced(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any, name: str
) -> None:
    monkeypatch.setattr("gpuload.commands.tune.Tune.measure", lambda *_: time.sleep(0.02) or 10.0)  # type: ignore[func-returns-value]
    words, files = prepare(packed, tmp_path, name)
    files[-1].touch()
    assert command(*words).code == cli.DONE
    first = [path.lstat().st_ino for path in files]
    assert command(*words).code == cli.DONE
    assert all(path.lstat().st_ino != before for path, before in zip(files, first, strict=True)) or name == "verify"
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {path.name for path in files}
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_text())
