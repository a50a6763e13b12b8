"""Paths and URLs: what is refused, wherever a path is taken, and what messages show of a URL."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loaders import load

import gpuload
from gpuload import ArgumentError, SourceError
from gpuload.cli import main
from gpuload.packing.index import index_shards
from gpuload.packing.verify import verify
from gpuload.sources import open_source
from gpuload.store.url import scheme_of


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("s3://bucket/set", "s3"),
        ("S3://bucket/set", "s3"),
        (Path("s3://bucket/set"), "s3"),  # from which pathlib removes a slash
        ("ftp://host/set", "ftp"),
        ("file:///set", "file"),
        ("shards/train", None),
        ("/shards:/train", None),
        ("data:/train", None),
        ("C:/train", None),
        (3, None),
        (b"s3://bucket", None),
    ],
)
def test_scheme(path: Any, scheme: str | None) -> None:
    assert scheme_of(path) == scheme


LOCATIONS: dict[str, Callable[[str], object]] = {
    "Dataset": gpuload.Dataset,
    "DaliIterator": lambda url: load(url),  # type: ignore[arg-type]
    "mix": lambda url: gpuload.mix([(url, 1.0)]),
    "verify": verify,
}


@pytest.mark.parametrize("call", LOCATIONS.values(), ids=LOCATIONS)
def test_a_scheme_that_is_not_known_is_refused(call: Callable[[str], object]) -> None:
    with pytest.raises(
        ArgumentError, match="^gopher://…@host/set: cannot be read from here, expected a local folder"
    ) as e:
        call("gopher://me:secret@host/set")
    assert "secret" not in str(e.value)
    with pytest.raises(ArgumentError, match="^file:///set: give the path without file://$"):
        call("file:///set")


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
