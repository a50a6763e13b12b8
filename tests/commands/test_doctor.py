"""`python -m gpuload doctor`: as people and machines read it."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuload import cli
from gpuload.doctor import checks, environment


@pytest.mark.usefixtures("quick_python")
def test_with_a_set(packed: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One decoder is tried in a process of its own."""
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    monkeypatch.setattr(environment, "CHECKS", {"memory": environment.CHECKS["memory"]})
    code, said, _ = command("doctor", packed.parent, "--seconds", "0.1")
    assert code == cli.DONE, said
    assert "97 samples in 10 shards" in said and " images/s (" in said
    assert "device='auto' decodes by native on cpu: " in said and said.endswith("\nNothing needs attention.\n")


@pytest.mark.usefixtures("quick_python")
def test_json_and_exit_codes(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = ("broken", "is ill", "Do this", {"version": "2.13.0"})
    monkeypatch.setitem(environment.CHECKS, "torch", lambda driver: bad)
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    code, said, _ = command("doctor", "--json")
    told = json.loads(said)
    assert code == cli.FAULTY and told["well"] is False and told["verdict"][-1].startswith("1 thing broken")
    names = [one["name"] for one in told["findings"]]
    assert {"system", "driver", "torch", "cores", "memory", "file handles", "CPU decoder"} <= set(names)
    wanted = dict(zip(("name", "grade", "said", "remedy", "data"), ("torch", *bad), strict=True))
    assert told["findings"][names.index("torch")] == wanted


@pytest.mark.usefixtures("quick_python")
def test_a_loader_is_constructed_also_without_a_set(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CHECKS", {})
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    code, said, _ = command("doctor")
    assert code == cli.DONE and "native on cpu" in said and "loads images; the first batch came after" in said
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # the packages are there, and nothing can be loaded
    code, said, _ = command("doctor")
    assert (
        code == cli.FAULTY
        and "broken     native on cpu" in said
        and "No decoder works here, so nothing can be loaded." in said
    )


def test_lines(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answers = {
        "system": ("ok", "2 can be used", "", {}),
        "cores": ("attention", "word " * 20, "do this and that " * 6, {}),
    }
    found = {name: lambda driver, answer=answer: answer for name, answer in answers.items()}
    monkeypatch.setattr(environment, "CHECKS", found)
    monkeypatch.setattr(checks, "decoders", lambda driver: [])
    short, *found = command("doctor").out.splitlines()
    assert short == "           system         2 can be used"
    assert found[0].startswith("attention  cores          word word") and all(len(line) <= 80 for line in found[:5])
    (first, *_) = [line for line in found if "→" in line]
    assert first == found[2] and first.startswith(" " * 26 + "→ do this")
