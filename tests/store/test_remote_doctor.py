"""What the doctor says about sets at URLs."""

from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload import cli
from gpuload.doctor import checks, environment, sets


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the checks of a set, of which a trial is one."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "CHECKS", {})
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])
    monkeypatch.setattr(sets, "_FAR_S", 250)  # a busy machine is near


def test_a_set_at_a_url(proxy: Any, quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The decoder is tried in a process of its own, out of the cache."""
    code = cli.main(["doctor", f"{proxy.url}/train", "--seconds", "0.1"])
    said = " ".join(capsys.readouterr().out.split())
    assert code == cli.DONE, said
    assert f"set {proxy.url}/train: 97 samples in 10 shards" in said
    assert f"network {proxy.url}/train: a request takes " in said and "are too small to measure how fast" in said
    assert f"cache {tmp_path / 'cache'}: room for " in said and "the first epoch alone downloads anything" in said
    assert "native on cpu" in said and "disk" not in said.partition("native on cpu")[0]
    assert {count for path, count in proxy.asked.items() if path.endswith(".tar")} <= {1, 1 + 6}  # 6 to measure


def test_how_fast_a_range_comes(proxy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path)
    monkeypatch.setattr(sets, "_LEAST_RANGE", 1000)
    monkeypatch.setattr(sets, "_FAR_S", 250)
    grade, said, _, data = sets.CHECKS["network"](dataset)  # type: ignore[misc]
    assert grade == "ok" and "images/s of" in said
    assert data["bytes_per_s"] == pytest.approx(data["bytes"] / data["seconds"])
    proxy.delay_s = 0.05
    monkeypatch.setattr(sets, "_FAR_S", 0.05)
    grade, _, remedy, data = sets.CHECKS["network"](dataset)  # type: ignore[misc]
    assert grade == "attention" and "nearer" in remedy and data["request_s"] > 0.05


@pytest.mark.parametrize(
    ("limit", "grade", "words"),
    [
        ("1GB", "ok", "the first epoch alone"),
        ("0.2MB", "note", "every epoch downloads"),
        ("1kB", "attention", "do not f"),
    ],
)
def test_the_cache(
    proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, grade: str, words: str
) -> None:
    monkeypatch.setattr(sets, "WINDOW", 1)
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path, limit)
    found, said, remedy, _ = sets.CHECKS["cache"](dataset)  # type: ignore[misc]
    assert found == grade and words in said and (remedy == "") == (grade != "attention")


def test_local_sets_have_neither(packed: Path) -> None:
    dataset = gpuload.Dataset(packed)
    assert sets.CHECKS["network"](dataset) is sets.CHECKS["cache"](dataset) is None


def test_what_cannot_be_opened(
    proxy: Any,
    quick: None,
    impatient: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy.fault = lambda path, number: "403"
    (tmp_path / "file").touch()
    for url, cache, said in [
        (
            f"{proxy.url}/train",
            "cache",
            f"{proxy.url}/train/manifest.json: access was denied (403). No credentials are",
        ),
        (f"{proxy.url}/train", "file", f"cache {tmp_path / 'file'}: cannot be written"),
        ("ftp://host/set", "cache", "ftp://host/set: cannot be read from here"),
    ]:
        monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / cache))
        assert cli.main(["doctor", url]) == cli.WRONG
        assert capsys.readouterr().err.startswith(f"gpuload: {said}")
