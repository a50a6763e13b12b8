"""`python -m gpuload doctor`: as people and machines read it."""

import json
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from gpuload import cli
from gpuload.doctor import checks, environment


@pytest.fixture(autouse=True)
def one_decoder(quick_python: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried in a process of its own; and of the machine only its memory is checked."""
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    monkeypatch.setattr(environment, "CHECKS", {"memory": environment.CHECKS["memory"]})


def test_with_a_set(packed: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary file can be written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(forkserver, "ensure_running", tempfile.mkdtemp)  # which comes first where none runs yet
    code, said, _ = command("doctor", packed.parent, "--seconds", "0.1")
    assert code == cli.DONE, said
    assert "97 samples in 10 shards" in said and " images/s (" in said
    assert "device='auto' decodes by native on cpu: " in said and said.endswith("\nNothing needs attention.\n")


def test_a_loader_is_constructed_also_without_a_set(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, _ = command("doctor")
    assert code == cli.DONE and "native on cpu" in said and "loads images; the first batch came after" in said
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # the packages are there, and nothing can be loaded
    found = command("doctor")
    assert found.code == cli.FAULTY and "broken native on cpu" in found.words
    assert "No decoder works here, so nothing can be loaded." in found.out


def test_what_is_told(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a check: its grade, name and finding, and below these what to do; or as JSON. The exit code is the worst."""
    bad = ("broken", "is ill", "Do this", {"version": "2.13.0"})
    monkeypatch.setattr(environment, "CHECKS", {"system": lambda _: ("ok", "x" * 200, "", {}), "torch": lambda _: bad})
    monkeypatch.setattr(checks, "decoders", lambda driver: [])
    code, said, _ = command("doctor")
    assert code == cli.FAULTY
    rows = [line.split(maxsplit=2) for line in said.splitlines()]
    assert rows[:3] == [["system", "x" * 200], ["broken", "torch", "is ill"], ["→", "Do", "this"]]
    places = [line.index(text) for line, text in zip(said.splitlines(), ("xx", "is ill", "→"), strict=False)]
    assert len(set(places)) == 1
    told = json.loads(command("doctor", "--json").out)
    assert told["well"] is False and told["verdict"][-1].startswith("2 things broken")
    wanted = dict(zip(("name", "grade", "said", "remedy", "data"), ("torch", *bad), strict=True))
    assert [one["name"] for one in told["findings"]] == ["system", "torch", "decoders"]
    assert told["findings"][1] == wanted
