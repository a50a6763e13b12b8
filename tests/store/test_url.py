"""URLs that are refused where something is packed or indexed."""

import os
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload import ArgumentError, SourceError
from gpuload.cli import main
from gpuload.packing.index import index_shards
from gpuload.sources import open_source


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        ("s3:/bucket/set", "pathlib has removed a slash of the URL"),
        ("gopher://host/set", "cannot be read from here"),
        ("https://host/set", "https:// can only be read. Pack to a URL of s3://"),
    ],
)
def test_not_every_url_is_packed_to(
    out: str, fault: str, make_folder: Any, photo_files: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
    folder = make_folder({name: photo_files[name] for name in ("ant/00.jpg", "bee/30.jpg")})
    monkeypatch.chdir(tmp_path)
    before = os.listdir()
    assert main(["pack", str(folder), out]) == 2
    assert capsys.readouterr().err.startswith(f"gpuload: {out}: {fault}")
    with pytest.raises(ArgumentError, match=f"^{out}: {fault}"):
        gpuload.pack([{"image": photo_files["ant/00.jpg"]}], out)
    assert os.listdir() == before


def test_not_every_source_is_at_a_url(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
    with pytest.raises(ArgumentError, match="^gopher://bucket/x: cannot be read from here"):
        open_source("gopher://bucket/x")
    with pytest.raises(SourceError, match="^--labels s3://bucket/x.json: is a URL, expected a path. Download what is"):
        open_source(tmp_path, "s3://bucket/x.json")
    with pytest.raises(SourceError, match="^ftp://bucket/x.tar: no such file"):
        index_shards(["ftp://bucket/x.tar"])
    with pytest.raises(ArgumentError, match="^--out s3://bucket/x: is a URL, expected a path. Give a local folder$"):
        index_shards(["x.tar"], "s3://bucket/x")
