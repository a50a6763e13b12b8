"""Runs commands of `gpuload` in an empty folder."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuload import cli


class Ran(NamedTuple):
    """words: of standard output, with one space between them."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        return " ".join(self.out.split())


Command = Callable[..., Ran]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command, given by its words, in the test's own folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: object) -> Ran:
        capsys.readouterr()
        try:
            code = cli.main(list(map(str, words)))
        except SystemExit as left:  # of argparse
            code = int(left.code or 0)
        return Ran(code, *capsys.readouterr())

    return run
