"""What is secret in a URL is never printed: by any command, any door of the package, or any message of a library."""

import ast
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload import GpuloadError
from gpuload.cli import main

URLS = [
    "s3://AKIAEXAMPLE:TOP/SECRET@bucket/set",  # half of AWS's keys have a slash
    "s3://AKIAEXAMPLE:TOP/SEC/RET@bucket",
    "gs://user:TOP/SECRET@bucket/set",
    "az://user:TOP@SECRET@container/set",
    "https://user:TOP@SECRET@127.0.0.1:1/set",
    "https://TOPSECRET@127.0.0.1:1/set",
    "https://user:1/TOPSECRET@127.0.0.1:1/set",  # which looks like a port
    "https://user:TOP?SECRET@127.0.0.1:1/set",
    "https://user:TOP#SECRET@127.0.0.1:1/set",
    "https://127.0.0.1:1/set?X-Amz-Signature=TOPSECRET",
    "https://127.0.0.1:1/set/manifest.json?sig=TOP&se=SECRET",
    "http://user:TOP SECRET@127.0.0.1:1/set",
    "http://user:TOP'SEC\"RET@127.0.0.1:1/set",
    "hf://user:TOPSECRET@datasets/owner/name",
    "ftp://user:TOP/SECRET@host/set",
    "abfss://user:TOPSECRET@account.example/set",
    "file://user:TOPSECRET@host/set",
    "S3://AKIAEXAMPLE:TOP/SECRET@bucket/set",
    "s3:/AKIAEXAMPLE:TOP/SECRET@bucket/set",  # what pathlib makes of it
]

COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "info": lambda url, _: ["info", url],
    "pack": lambda url, out: ["pack", url, out],
    "pack tar": lambda url, out: ["pack", f"{url}/x.tar", out],
    "pack parquet": lambda url, out: ["pack", f"{url}/x.parquet", out],
    "pack from": lambda url, out: ["pack", url, out, "--from", "tar"],
    "pack out": lambda url, _: ["pack", str(Path(__file__).parent), url],
    "pack labels": lambda url, out: ["pack", str(Path(__file__).parent), out, "--labels", f"{url}.csv"],
    "pack labels json": lambda url, out: ["pack", str(Path(__file__).parent), out, "--labels", f"{url}.json"],
    "pack labels of no kind": lambda url, out: ["pack", str(Path(__file__).parent), out, "--labels", url],
    "index": lambda url, _: ["index", url],
    "index many": lambda url, _: ["index", f"{url}/x-{{0..2}}.tar"],
    "index out": lambda url, _: ["index", "x.tar", "--out", url],
    "index classes": lambda url, _: ["index", "x.tar", "--classes", url],
    "verify": lambda url, _: ["verify", url],
    "verify quarantine": lambda url, _: ["verify", str(Path(__file__).parent), "--quarantine", url],
    "report": lambda url, _: ["report", url],
    "report out": lambda url, _: ["report", str(Path(__file__).parent), "-o", url],
    "doctor": lambda url, _: ["doctor", url],
    "tune": lambda url, _: ["tune", url],
    "fetch": lambda url, out: ["fetch", url, out],
    "fetch to": lambda url, _: ["fetch", "http://127.0.0.1:1/set", url],
    "show": lambda url, _: ["show", url, "1"],
    "show out": lambda url, _: ["show", str(Path(__file__).parent), "1", "-o", url],
    "an argument too many": lambda url, _: ["info", "x", url],
    "not a number": lambda url, _: ["info", "x", "--window", url],
    "no command": lambda url, _: [url],
}


def assert_nothing_told(text: str) -> None:
    for part in ("TOP", "SECRET", "SEC", "RET", "AKIAEXAMPLE"):
        assert part not in text, text


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands(
    command: Callable[[str, str], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    impatient: None,
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
    monkeypatch.chdir(tmp_path)
    for url in URLS:
        with caplog.at_level(logging.DEBUG):
            try:
                code = main(command(url, str(tmp_path / "out")))
            except SystemExit as end:  # argparse's
                code = end.code if isinstance(end.code, int) else 1
        said = capfd.readouterr()
        assert_nothing_told(said.out + said.err + caplog.text)
        assert code == 2 and said.err, (url, said)
    assert list(tmp_path.iterdir()) == []


DOORS: dict[str, Callable[[Any], object]] = {
    "Dataset": gpuload.Dataset,
    "Dataset(cache)": lambda url: gpuload.Dataset("http://127.0.0.1:1/x", cache=url),
    "Dataset of a list": lambda url: gpuload.Dataset(["a place of many letters" * 2, url]),  # type: ignore[arg-type]
    "DaliIterator": lambda url: gpuload.DaliIterator(url, 4),
    "DaliIterator(exclude)": lambda url: gpuload.DaliIterator(gpuload.Dataset(Path(__file__).parent, exclude=url), 4),
    "mix": lambda url: gpuload.mix([(url, 1.0)]),
    "pack": lambda url: gpuload.pack([], url),
    "pack from": lambda url: gpuload.pack(url, "out"),
    "an argument that is unknown": lambda url: gpuload.Dataset(where=url),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_doors(door: Callable[[Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed (extra remote)")
    monkeypatch.chdir(tmp_path)
    for url in URLS:
        for given in (url, Path(url)):
            with pytest.raises(GpuloadError) as raised:
                door(given)
            assert_nothing_told(str(raised.value))
            assert raised.value.__cause__ is None or "SECRET" not in str(raised.value.__cause__)


def test_a_user_with_spaces_of_what_is_known_to_be_one_url() -> None:
    with pytest.raises(GpuloadError) as raised:
        gpuload.Dataset("https://TOP SECRET@127.0.0.1:1/set")
    assert_nothing_told(str(raised.value))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/set", "s3://bucket/set"),
        ("https://host:8080/set", "https://host:8080/set"),
        ("https://host/set@2", "https://host/set@2"),
        ("https:/me:secret@host/set#secret", "https:/…@host/set?…"),
        ("s3://bucket/data@v2/train", "s3://bucket/data@v2/train"),
        ("hf://datasets/owner/name@main/train", "hf://datasets/owner/name@main/train"),
        ("a@b.example wrote https://host/x: is it there?", "a@b.example wrote https://host/x: is it there?"),
        ("https://host/set?sig=x.y: cannot be read. Why?", "https://host/set?…: cannot be read. Why?"),
        ("'s3://a:b/c@bucket/x' and s3://d:e@f/y", "'s3://…@bucket/x' and s3://…@f/y"),
        ("shards/a:b@c", "shards/a:b@c"),
        ("abfss:/me:x/y@host/set: no such folder", "abfss:/…@host/set: no such folder"),
        ("http://me:x y@host/set and more", "http://…@host/set and more"),
        ("https://host:80/x: asked by a@b", "https://host:80/x: asked by a@b"),
        ("https://host: asked by a@b", "https://host: asked by a@b"),
        (r"C:/me:x@y", r"C:/me:x@y"),
    ],
)
def test_every_message_is_one_without_secrets(text: str, shown: str) -> None:
    assert str(GpuloadError(text)) == shown


ROOT = Path(__file__).parents[2]


def test_each_sentence_has_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    section = text.partition("### Sets, servers and caches\n")[2].partition("\n## ")[0]
    promises = re.split(r"\n- ", section)[1:]
    assert len(promises) >= 10
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", promise)
        assert named, promise
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text())
            there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert not test or test in there, (file, test)
