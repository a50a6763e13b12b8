"""The command line: exit codes, one line for each mistake, and defaults that live in one place."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo
from painted import pack_painted
from PIL import Image

import gpuload
from gpuload import cli
from gpuload.commands import pack as pack_command
from gpuload.disk import Manifest
from gpuload.packing.options import PackOptions

ROOT = Path(__file__).parents[2]


def test_pack(make_folder: Folder, tmp_path: Path, command: Any) -> None:
    kinds = ("bmp", "gif", "ico", "pcx", "ppm", "sgi", "tga", "tiff", "webp")
    odd = {f"b/{kind}.{kind}": encode(photo(9), kind) for kind in kinds} | {"b/x.txt": b"", "b/3.jpg": b""}
    root = make_folder({f"a/{n}.jpg": encode(photo(n)) for n in range(8)} | odd)
    code, said, complaints = command("pack", root, "out", "--val", "0.2", "--maxsize", "11kB", "--workers", "2")
    assert (code, complaints) == (cli.REJECTED, "")
    for text in (
        "classes: 2", "by extension: 1 × .txt", "17 images in",
        f"re-encoded: {', '.join(f'1 × {kind}' for kind in kinds[:8])}, 1 × other; 8 kept unchanged",
        "rejected: 1 × the file is empty", "named in out/train/rejected.jsonl",
    ):  # fmt: skip
        assert text in said
    train, val = (Manifest.read(tmp_path / "out" / split) for split in ("train", "val"))
    assert train.samples + val.samples == 17 and all(shard.bytes <= 11_000 for shard in train.shards)


def test_raw_images_are_told_as_resized_only_if_they_are(make_folder: Folder, command: Any) -> None:
    root = make_folder({f"{name}/1.jpg": encode(photo()) for name in "ab"})
    raw = ["pack", root, "--encode", "raw", "--workers", "1"]
    assert "re-encoded: 2 × jpeg; 0 kept unchanged" in command(*raw, "whole").out
    assert "re-encoded: 2 × resized; 0 kept unchanged" in command(*raw, "small", "--size", "16").out


# Options of `pack`, and what differs from the defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "--val 0.5 --no-shuffle --seed 3 --maxcount 4 --maxsize 5 --workers 6 --time-limit 7": {
        "val": 0.5, "shuffle": False, "seed": 3, "maxcount": 4, "maxsize": 5, "workers": 6, "time_limit_s": 7,
    },
    "--encode jpeg --size 8x9 --fit pad --enlarge --quality 50 --lossless --max-pixels 99": {
        "encode": "jpeg", "size": (8, 9), "fit": "pad", "enlarge": True, "quality": 50, "lossless": True,
        "max_pixels": 99,
    },
    "--splits a=0.5,b=50% --dedup --max-rejected 1% --engine ray --address x --resume --append": {
        "splits": (("a", 0.5), ("b", 0.5)), "dedup": True, "max_rejected": 0.01, "engine": "ray", "address": "x",
        "resume": True, "append": True,
    },
    "--overwrite --check header": {"overwrite": True, "check": "header"},
    "--mode L --keep webp,tiff": {"mode": "L", "keep": ("webp", "tiff")},
    "--points no --jpeg baseline": {"points": "no", "jpeg": "baseline"},
    "--png points": {"png": "points"},
    "--page 2 --depth 12 --alpha drop --icc srgb --damaged keep": {
        "page": 2, "depth": 12, "alpha": "drop", "icc": "srgb", "damaged": "keep",
    },
    "--bands 3,2,1 --scale 0:4095": {"bands": (3, 2, 1), "scale": (0, 4095)},
    "--window 40:400": {"window": (40, 400)},
    "--encode jpeg --size 8x9 --resize depth=nearest": {
        "encode": "jpeg", "size": (8, 9), "resize": ("depth=nearest",),
    },
    "--masks levels --turn-masks no": {"masks": "levels", "turn_masks": "no"},
    "--class-numbers masks,ids": {"class_numbers": ("masks", "ids")},
}  # fmt: skip


def test_defaults_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PackOptions] = []

    def pack(source: object, out: str, **settings: Any) -> None:
        seen.append(PackOptions(**settings))
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_command.packer, "pack", pack)
    for words, changed in OPTIONS.items():
        assert cli.main(["pack", "a", "b", *words.split()]) == cli.STOPPED
        assert seen[-1] == PackOptions(**changed), words
    assert {name for changed in OPTIONS.values() for name in changed} == {f.name for f in fields(PackOptions)}


@pytest.mark.parametrize("program", [["-m", "gpuload", "pack"], [str(ROOT / "tools" / "pack.py")]])
def test_as_a_program(make_folder: Folder, tmp_path: Path, program: list[str]) -> None:
    root = make_folder({"a/1.jpg": encode(photo())})
    cwd = ROOT if program[0] == "-m" else tmp_path
    run = subprocess.run([sys.executable, *program, root, tmp_path / "out"], cwd=cwd, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert Manifest.read(tmp_path / "out" / "train").samples == 1
    read, write = os.pipe()
    os.close(read)  # as `head` does, once it has its lines
    try:
        command = [sys.executable, "-m", "gpuload", "info", tmp_path / "out" / "train"]
        run = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (run.returncode, run.stderr) == (cli.DONE, "")


@pytest.mark.parametrize("name", ["shard-000001.tar", "manifest.json", "index.arrow"])
@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
def test_what_is_no_file_is_told_in_lines_without_a_traceback(copy: Path, command: Any, kind: str, name: str) -> None:
    path = copy / name
    path.unlink()
    {"folder": path.mkdir, "loop": lambda: path.symlink_to(name), "pipe": lambda: os.mkfifo(path)}[kind]()
    for words in ("info train", "verify train --workers 1", "show train 15"):
        code, out, err = command(*words.split())
        assert code in (cli.DONE, cli.FAULTY, cli.WRONG) and "Traceback" not in err, err
        assert "verify" not in words or (code != cli.DONE and name in out + err)


def test_samples_that_shuffled_epochs_leave_out(packed: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.packing.workers.start_server", lambda: pytest.fail("nothing has workers here"))
    for batch_size, left_out, said in (
        (8, True, "shuffled: 12 batches of 8 on one rank, 1 sample left out (drop_last=False keeps them)"),
        (97, False, ""),
        (96, True, "1 batch of 96 on one rank, 1 sample left out"),
        (10_000, True, "10 of 10 shards mixed at a time"),  # more than there are
    ):
        found = command("info", packed, "--window", "10000", "--batch-size", batch_size)
        assert found.code == cli.DONE and said in found.words and ("left out" in found.words) == left_out


def test_a_report(packed: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr("gpuload.commands.sets.progress_bar", lambda *_: nullcontext(lambda *done: seen.append(done)))
        found = command("report", packed, "-o", "out.html", "--images", "40")
    assert seen[-1] == (40, 40, 0)
    assert found.code == cli.DONE and "looked at 40 images; the facts are in out.json" in found.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]
    facts = json.loads(Path("out.json").read_text())
    assert facts["splits"][0]["samples"] == 97 and facts["looked_at"] == {"images": 40, "of": 97}
    assert f"<h1>{packed}</h1>" in Path("out.html").read_text()
    assert command("report", packed, "--title", "<b>", "--json", "f.json").code == cli.DONE
    assert "<h1>&lt;b&gt;</h1>" in Path("report.html").read_text()
    named = os.fsdecode(b"train\xff")  # a path is bytes
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / named).symlink_to(packed)
    monkeypatch.chdir(tmp_path / "sets")
    assert command("report", named, "-o", tmp_path / "r.html").code == cli.DONE
    for name in ("r.html", "r.json"):  # no other path than what was given
        text = (tmp_path / name).read_text(errors="surrogateescape")
        assert (
            named in text
            and str(packed.parent) not in text
            and str(tmp_path) not in text
            and str(Path.home()) + "/" not in text
        )


def test_without_jinja2(packed: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, _, said = command("report", packed)
    assert code == cli.WRONG and "report: jinja2 is not installed. " in said and "[report]" in said


def test_interrupted_leaves_nothing(
    packed: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuload.report.build.find_findings", interrupt)
    assert command("report", packed).code == cli.STOPPED
    assert list(tmp_path.iterdir()) == []


def test_samples_are_shown(tmp_path: Path, command: Any) -> None:
    folder = pack_painted(tmp_path / "painted", 6)
    first, second = gpuload.Dataset(folder)[0], gpuload.Dataset(folder)[1]
    code, said, _ = command("show", folder, first["key"], "1")
    assert code == cli.DONE
    for line in (
        f"{first['key']}:\n  index: 0\n  source: {first['source']}\n  image: {first['image'].width} × {first['image'].height} pixels",
        "  label: class1 (1)",
        "  boxes_class: class2 (0), class3 (1)",
        f"{second['key']}:",
        "  caption: picture 1",
    ):
        assert line in said
    for sample in (first, second):
        with Image.open(tmp_path / f"{sample['key']}.png") as picture:
            assert picture.size == sample["image"].size


def test_a_folder_of_several_sets_is_described_and_shown(
    command: Any, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpuload.pack([{"image": encode(photo(n)), "label": n} for n in range(3)], tmp_path / "sets", workers=1)
    (tmp_path / "sets" / "val").symlink_to(copy)
    monkeypatch.chdir(tmp_path)
    code, said, _ = command("info", "sets")
    assert code == cli.DONE and re.findall(r"^samples +(\d+)", said, re.M) == ["3", "97"]
    key = gpuload.Dataset(copy).keys([5])[0]
    code, said, _ = command("show", "sets", key)
    assert code == cli.DONE and said.startswith(f"{key}:\n  index: 5\n")
    code, said, _ = command("index", "sets", "--points")
    assert code == cli.DONE and said.splitlines() == [
        "sets/train: 0 of 3 images with seek points",
        "sets/val: 0 of 97 images with seek points",
    ]


# SET: a packed folder. SPLITS: a folder of two. PHOTOS: a folder of images. Each with the words that name what is wrong.
MISTAKES = {
    "": "the following arguments are required: COMMAND",
    "pack nowhere out": "nowhere: no such folder. Give a folder of class folders, as in photos/cat/1.jpg",
    "pack PHOTOS out --column label=x": "--column: ",
    "pack PHOTOS out --no-labels --labels t.csv": "--no-labels packs images alone; --labels and --column say what belongs to them. Give one",
    "pack PHOTOS out --from zip": "--from zip: expected one of 'folder', 'sidecar', 'unlabeled', 'voc', 'coco', 'yolo', ",
    "pack PHOTOS out --from coc": "Did you mean 'coco'?",
    "pack PHOTOS out --encode jpg": "--encode: expected one of 'keep', 'jpeg', 'raw'; got 'jpg'. Did you mean 'jpeg'?",
    "pack PHOTOS out --overwite": "unrecognized arguments: --overwite. Did you mean --overwrite?",
    "pak PHOTOS out": "pak: is no command. Did you mean pack?",
    "info SET/../trian": "trian: no such folder. Did you mean ",
    "show SPLITS 0": "0: is a number, which counts within one set. Give it with one of ",
    "show SPLITS nothing": "nothing: is no key or source of a sample in ",
    "pack PHOTOS out --from tar --labels t.csv": "is packed as 'tar', which takes none",
    "pack PHOTOS out --unknown": "[--from NAME] [--option NAME=VALUE]",
    "pack PHOTOS EMPTY": "OUT: is empty, expected a value",
    "pack PHOTOS PHOTOS": "or lies in it. Give another OUT",
    "report EMPTY": "SHARDS: is empty, expected a value",
    "info SET --window 0": "--window 0: expected a whole number of at least 1",
    "info SET --batch-size -1": "--batch-size -1: expected a whole number of at least 1",
    "report SET --images 0": "--images 0: expected a whole number of at least 1",
    "report SET --size 0": "--size 0: expected a whole number in 1..4096",
    "report SET -o nowhere/x.html": "nowhere/x.html: its folder does not exist. Give another file by -o",
    "report SET -o x.json": "x.json: is named for the page and for the facts. Give two names",
    "show SET nothing": "has no sample of this key or source",
    "show SET 97": "has samples 0 to 96",
    "show SET 0 -o nowhere": "nowhere: no such folder. Make it, or give another -o",
    "doctor .": "no manifest.json",
    "doctor --seconds 0": "--seconds 0.0: expected seconds, above 0",
    "tune nowhere": "no such folder",
    "tune SET --seconds 0": "--seconds 0.0: expected seconds, above 0 and up to 1e6",
    "tune SET --seconds nan": "--seconds nan: expected seconds, above 0 and up to 1e6",
    "tune SET --size 0": "--size 0: expected pixels in 1..65,535",
    "tune SET --batch-size 0": "--batch-size 0: expected a whole number of at least 1",
    "tune SET --batch-size 5000 --device cpu": "a batch of all ranks is larger than",
}


def test_exit_codes_are_those_that_the_help_names() -> None:
    found = (cli.DONE, cli.FAULTY, cli.WRONG, cli.REJECTED, cli.BROKEN, cli.STOPPED)
    assert found == (0, 1, 2, 3, 70, 130)


def place(word: str, places: Mapping[str, Any]) -> str:
    """A word of a command, whose first part may stand for a place."""
    first, slash, rest = word.partition("/")
    return f"{places.get(first, first)}{slash}{rest}"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(command: Any, make_folder: Folder, packed: Path, tmp_path: Path, mistake: str) -> None:
    photos = make_folder({"a/1.jpg": encode(photo())})
    for name in ("train", "val"):
        tmp_path.joinpath("splits").mkdir(exist_ok=True)
        tmp_path.joinpath("splits", name).symlink_to(packed)
    places = {"SET": packed, "SPLITS": tmp_path / "splits", "PHOTOS": photos, "EMPTY": ""}
    before = sorted(tmp_path.iterdir())
    code, out, err = command(*(place(word, places) for word in mistake.split()))
    assert (code, out, err.count("\n")) == (cli.WRONG, "", 1)
    assert err.startswith(("gpuload: ", "usage: gpuload ")) and MISTAKES[mistake] in err
    assert sorted(tmp_path.iterdir()) == before
