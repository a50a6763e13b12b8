"""The command line: exit codes, one line for each mistake, and defaults that live in one place."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from images import Folder, encode, photo

from gpuload import cli
from gpuload.commands import pack as pack_command
from gpuload.disk import Manifest
from gpuload.packing.options import Encoding, PackOptions
from gpuload.sources.registry import format_names

ROOT = Path(__file__).parents[2]


def test_pack(make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_folder(
        {f"a/{n}.jpg": encode(photo(n)) for n in range(9)} | {"b/1.gif": encode(photo(9), "GIF"), "b/x.txt": b""}
    )
    out = tmp_path / "out"
    assert cli.main(["pack", str(root), str(out), "--val", "0.2", "--maxsize", "11kB", "--workers", "2"]) == cli.DONE
    said, complaints = capsys.readouterr()
    assert complaints == ""
    assert "classes: 2" in said
    assert "re-encoded: 1 × gif; 9 kept unchanged" in said
    assert "note: passed over, by extension: 1 × .txt" in said
    assert "10 images in" in said
    assert Manifest.read(out / "train").samples + Manifest.read(out / "val").samples == 10
    assert all(shard.bytes <= 11_000 for shard in Manifest.read(out / "train").shards)


def test_raw_images_are_told_as_resized_only_if_they_are(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder({f"{name}/1.jpg": encode(photo()) for name in "ab"})
    raw = ["pack", str(root), "--encode", "raw", "--workers", "1"]
    assert cli.main([*raw, str(tmp_path / "whole")]) == cli.DONE
    assert "re-encoded: 2 × jpeg; 0 kept unchanged" in capsys.readouterr().out
    assert cli.main([*raw, str(tmp_path / "small"), "--size", "16"]) == cli.DONE
    assert "re-encoded: 2 × resized; 0 kept unchanged" in capsys.readouterr().out


def test_rejected_images_show_in_the_exit_code(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder({"a/1.jpg": encode(photo()), "a/2.jpg": b""})
    assert cli.main(["pack", str(root), str(tmp_path / "out")]) == cli.REJECTED
    said = capsys.readouterr().out
    assert "rejected: 1 × the file is empty" in said
    assert f"named in {tmp_path / 'out' / 'train' / 'rejected.jsonl'}" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "OUT"], "gpuload: nowhere: no such folder. Give a folder of class folders, as in photos/cat/1.jpg\n"),
        (["SOURCE", "OUT", "--maxsize", "big"], "gpuload: --maxsize: expected a positive number of bytes, such as 1GB, or None; got 'big'"),
        (["SOURCE", "OUT", "--val", "2"], "gpuload: --val: expected a share of the images, from 0 to below 1, such as 0.1 or 10%; got '2'"),
        (["SOURCE", "OUT", "--label-column", "x"], "gpuload: --path-column, --label-column and --column name columns of a table"),
        (["SOURCE", "OUT", "--no-labels", "--labels", "t.csv"], "gpuload: --no-labels packs images alone, --labels says what belongs to them: give one of them\n"),
        (["SOURCE", "OUT", "--from", "zip"], "gpuload: --from is one of folder, sidecar, unlabeled, voc, coco, yolo, hdf5, lmdb, npy, tar, parquet; got 'zip'\n"),
        (["SOURCE", "OUT", "--from", "tar", "--labels", "t.csv"], "is packed as 'tar', which takes no labels from elsewhere. Leave out --labels, or"),
        (["SOURCE", "SOURCE"], "gpuload: SOURCE and OUT are the same folder, "),
    ],
)  # fmt: skip
def test_mistakes_get_one_line(
    make_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    places = {"SOURCE": str(make_folder({"a/1.jpg": encode(photo())})), "OUT": str(tmp_path / "out")}
    assert cli.main(["pack", *(places.get(argument, argument) for argument in arguments)]) == cli.WRONG
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_defaults_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PackOptions] = []

    def pack(source: object, out: str, options: PackOptions, watch: object) -> None:
        seen.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_command.packer, "pack", pack)
    assert cli.main(["pack", "a", "b"]) == cli.STOPPED
    assert seen == [PackOptions()]
    changed = ["--val", "0.5", "--no-shuffle", "--seed", "3", "--maxcount", "4", "--maxsize", "5", "--workers", "6"]
    cli.main(["pack", "a", "b", *changed, "--time-limit", "7"])
    wanted = PackOptions(val=0.5, shuffle=False, seed=3, maxcount=4, maxsize=5, workers=6, time_limit_s=7)
    assert seen[1] == wanted
    images = ["--encode", "jpeg", "--size", "8x9", "--fit", "pad", "--enlarge", "--quality", "50", "--lossless"]
    images += ["--drop-gray", "--min-size", "7", "--max-pixels", "99", "--resizer", "pillow"]
    others = ["--splits", "a=0.5,b=50%", "--dedup", "drop", "--max-rejected", "1%", "--engine", "ray", "--address", "x"]
    cli.main(["pack", "a", "b", *images, *others, "--resume", "--append"])
    encoding = Encoding("jpeg", (8, 9), "pad", True, 50, True, "full", True, 7, 99, "pillow")
    more = PackOptions(
        splits=(("a", 0.5), ("b", 0.5)), dedup="drop", max_rejected=0.01, engine="ray", address="x", resume=True,
        append=True, encoding=encoding,
    )  # fmt: skip
    assert seen[2] == more
    cli.main(["pack", "a", "b", "--overwrite", "--check", "header"])
    assert seen[3].overwrite and seen[3].encoding.check == "header"
    cli.main(["pack", "a", "b", "--mode", "L", "--keep", "webp,tiff"])
    assert seen[4].encoding == Encoding(mode="L", keep=("webp", "tiff"))
    usual = PackOptions()
    untried = {
        field.name
        for field in fields(PackOptions)
        if all(getattr(tried, field.name) == getattr(usual, field.name) for tried in seen)
    }
    assert untried == {"measure"}  # the one that has no option
    cli.main(["pack", "a", "b", "--points", "no", "--jpeg", "baseline"])
    assert seen[5].encoding == Encoding(points="no", jpeg="baseline")
    tried = {"check", "mode", "keep", "points", "jpeg"}
    assert all(getattr(encoding, field.name) != field.default for field in fields(Encoding) if field.name not in tried)


def test_help_names_every_kind_of_source(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["pack", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"--from KIND format of SOURCE: {', '.join(format_names())}" in said
    assert "--no-labels" in said


@pytest.mark.parametrize("command", [["-m", "gpuload", "pack"], [str(ROOT / "tools" / "pack.py")]])
def test_as_a_program(make_folder: Folder, tmp_path: Path, command: list[str]) -> None:
    root = make_folder({"a/1.jpg": encode(photo())})
    cwd = ROOT if command[0] == "-m" else tmp_path
    run = subprocess.run([sys.executable, *command, root, tmp_path / "out"], cwd=cwd, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert Manifest.read(tmp_path / "out" / "train").samples == 1


def test_workers_load_neither_torch_nor_dali() -> None:
    code = "import sys, gpuload.cli; print([name for name in ('torch', 'nvidia', 'cupy', 'webdataset') if name in sys.modules])"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert found == "[]\n"


@pytest.mark.parametrize("name", ["shard-000001.tar", "manifest.json", "index.arrow"])
@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
def test_what_is_no_file_is_told_in_lines_without_a_traceback(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    shutil.copytree(packed, tmp_path / "set")
    path = tmp_path / "set" / name
    path.unlink()
    {"folder": path.mkdir, "loop": lambda: path.symlink_to(name), "pipe": lambda: os.mkfifo(path)}[kind]()
    for command in (["info"], ["verify", "--workers", "1"], ["show", "15", "-o", str(tmp_path)]):
        code = cli.main([command[0], str(tmp_path / "set"), *command[1:]])
        said = capsys.readouterr()
        assert code in (cli.DONE, cli.FAULTY, cli.WRONG) and "Traceback" not in said.err, said
        assert command[0] != "verify" or (code != cli.DONE and name in said.out + said.err)
