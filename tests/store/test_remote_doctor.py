"""What the doctor says about sets at URLs."""

from pathlib import Path
from typing import Any

import pytest

from gpuload import cli
from gpuload.doctor import checks, environment


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the checks of a set, of which a trial is one."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "CHECKS", {})
    monkeypatch.setattr(checks, "decoders", lambda driver: [("cpu", "native")])


def test_a_set_at_a_url(proxy: Any, quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The decoder is tried in a process of its own, out of the cache."""
    code = cli.main(["doctor", f"{proxy.url}/train", "--seconds", "0.1"])
    said = " ".join(capsys.readouterr().out.split())
    assert code == cli.DONE, said
    assert f"set {proxy.url}/train: 97 samples in 10 shards" in said
    assert "native on cpu" in said and "disk" not in said.partition("native on cpu")[0]
    assert {count for path, count in proxy.asked.items() if path.endswith(".tar")} == {1}


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
