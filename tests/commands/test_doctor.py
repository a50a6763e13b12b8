"""`python -m gpuload doctor`: as people and machines read it."""

import json
import sys
from pathlib import Path

import prepared
import pytest

from gpuload import cli
from gpuload.doctor import checks
from gpuload.doctor.findings import Finding


@pytest.fixture
def quick_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", prepared.executable(tmp_path))


@pytest.mark.usefixtures("quick_python")
def test_with_a_set(packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One decoder is tried in a process of its own."""
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    monkeypatch.setattr(checks, "ENVIRONMENT", {name: checks.ENVIRONMENT[name] for name in ("system", "memory")})
    code = cli.main(["doctor", str(packed.parent), "--seconds", "0.1"])
    said = capsys.readouterr().out
    assert code == cli.DONE, said
    assert "97 samples in 10 shards" in said and " images/s (" in said
    assert "device='auto' decodes by native on cpu: " in said and said.endswith("\nNothing needs attention.\n")


@pytest.mark.usefixtures("quick_python")
def test_json_and_exit_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Finding("torch", "broken", "is ill", "Do this", {"version": "2.13.0"})
    monkeypatch.setitem(checks.ENVIRONMENT, "torch", lambda driver: bad)
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    assert cli.main(["doctor", "--json"]) == cli.FAULTY
    told = json.loads(capsys.readouterr().out)
    assert told["well"] is False and told["verdict"][-1].startswith("1 thing broken")
    names = [one["name"] for one in told["findings"]]
    assert {"system", "driver", "torch", "cores", "memory", "file handles", "CPU decoder"} <= set(names)
    assert told["findings"][names.index("torch")] == {
        "name": "torch",
        "grade": "broken",
        "said": "is ill",
        "remedy": "Do this",
        "data": {"version": "2.13.0"},
    }


@pytest.mark.usefixtures("quick_python")
def test_a_loader_is_constructed_also_without_a_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ENVIRONMENT", {})
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    assert cli.main(["doctor"]) == cli.DONE
    said = capsys.readouterr().out
    assert "native on cpu" in said and "loads images; the first batch came after" in said
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # the packages are there, and nothing can be loaded
    assert cli.main(["doctor"]) == cli.FAULTY
    said = capsys.readouterr().out
    assert "broken     native on cpu" in said and "No decoder works here, so nothing can be loaded." in said


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", str(tmp_path)]) == cli.WRONG
    assert "no manifest.json" in capsys.readouterr().err
    assert cli.main(["doctor", "--seconds", "0"]) == cli.WRONG
    assert "gpuload: --seconds 0.0: expected seconds, above 0" in capsys.readouterr().err


def test_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = Finding("cores", "attention", "word " * 20, "do this and that " * 6)
    monkeypatch.setattr(
        checks, "ENVIRONMENT", {"cores": lambda driver: [Finding("cores", "ok", "2 can be used"), long]}
    )
    monkeypatch.setattr(checks, "decoders", lambda driver: [])
    assert cli.main(["doctor"]) == cli.FAULTY
    short, *found = capsys.readouterr().out.splitlines()
    assert short == "           cores          2 can be used"
    assert found[0].startswith("attention  cores          word word") and all(len(line) <= 80 for line in found[:5])
    (first, *_) = [line for line in found if "→" in line]
    assert first == found[2] and first.startswith(" " * 26 + "→ do this")
