"""benchmarks/instructions.py: what valgrind counts for an image."""

from pathlib import Path

import instructions
import pytest


def test_the_counts_of_an_image_are_those_beside_an_empty_run() -> None:
    empty = {"Ir": 1000, "D1mr": 10, "D1mw": 5}
    full = {"Ir": 5000, "D1mr": 30, "D1mw": 25}
    assert instructions.per_image(full, empty, 4) == {
        "instructions": 1000,
        "first_level_misses": 10,
    }


def test_what_is_counted_crops_the_images_of_a_set(packed: Path) -> None:
    assert instructions.main([str(packed / "train"), "--child", "--images", "2"]) == 0


def test_without_valgrind(packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert instructions.main([str(packed / "train")]) == 2
    assert "valgrind is not installed" in capsys.readouterr().err
