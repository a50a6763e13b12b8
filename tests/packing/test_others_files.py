"""What others put into, beside or in place of an output folder is never removed, however a run ends."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from images import encode, photo, write_files
from reading import files_of, rows_of

import gpuload
from gpuload import OutputError, SourceError, cli
from gpuload.disk import Manifest
from gpuload.packing.index import index_shards
from gpuload.packing.verify import verify

FOREIGN: dict[str, bytes] = {
    "web/manifest.json": b'{"name": "an application", "start_url": "/"}',
    "web/index.html": b"<p>",
    "api/manifest.json": b"{}",
    "api/thesis.tex": b"\\section{Everything}",
}


def samples(count: int = 6, first: int = 0) -> list[dict[str, Any]]:
    return [{"image": encode(photo(number)), "label": number % 2} for number in range(first, first + count)]


def pack(out: Path, **options: Any) -> Any:
    return gpuload.pack(options.pop("samples", samples()), out, workers=1, maxcount=2, **options)


def meanwhile(act: Callable[[], object]) -> Iterator[dict[str, Any]]:
    """Samples, while which are listed something else happens."""
    yield from samples(3, 20)
    act()
    yield from samples(3, 30)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A packed set of a split."""
    pack(tmp_path / "out")
    return tmp_path / "out"


def no_set(out: Path) -> None:
    shutil.rmtree(out)
    write_files(out, FOREIGN)


def a_project_beside_it(out: Path) -> None:
    write_files(out, {"app/manifest.json": b'{"format": "other"}', "app/main.py": b"pass"})


def a_damaged_manifest(out: Path) -> None:
    (out / "train" / "manifest.json").write_bytes((out / "train" / "manifest.json").read_bytes()[:-9])


def a_split_elsewhere(out: Path) -> None:
    (out / "train").rename(out.parent / "elsewhere")
    (out / "train").symlink_to(out.parent / "elsewhere")


def tars_of_others(out: Path) -> None:
    for name in ("manifest.json", "index.arrow", "README.md", "rejected.jsonl"):
        (out / "train" / name).unlink()
    index_shards([str(out / "train" / "*.tar")], overwrite=True)


def a_file(out: Path) -> None:
    (out / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    "make", [no_set, a_project_beside_it, a_damaged_manifest, a_split_elsewhere, tars_of_others, a_file]
)
def test_only_a_packed_set_is_replaced(out: Path, make: Callable[[Path], None], capsys: Any) -> None:
    make(out)
    before = files_of(out.parent)
    images = out.parent.parent / f"images-{make.__name__}"
    write_files(images, {f"a/{number}.jpg": encode(photo(number)) for number in range(3)})
    code = cli.main(["pack", str(images), str(out), "--overwrite", "--workers", "1"])
    shutil.rmtree(images)
    assert code == cli.WRONG
    assert (
        "which is no folder that `gpuload pack` wrote, so that --overwrite replaces nothing" in capsys.readouterr().err
    )
    assert files_of(out.parent) == before


def test_what_lies_in_a_replaced_set_keeps_its_place(out: Path) -> None:
    """Beside the shards, and what is added while the new set is packed."""
    mine = {"train/runs/best.ckpt": b"weights", "train/shard-000099.tar": b"not listed", "train/000.tmp": b"mine"}
    write_files(out, mine)
    added = {"checkpoints/last.pt": b"state", "log.txt": b"step 1\n", "train/figure.png": b"png"}

    def add() -> None:
        write_files(out, added)
        log.write("step 2\n")

    with (out.parent / "elsewhere.txt").open("w") as log:
        report = pack(out, samples=meanwhile(add), overwrite=True)
    assert report.images == 6
    others = {name: data for name, data in files_of(out).items() if name in mine | added}
    assert others == {**mine, **added}
    (note,) = (note for note in report.notes if "replaced" in note)
    assert note.startswith("kept what is not of the replaced set: 'checkpoints', 'log.txt', 'train/000.tmp' and 3 more")
    assert [path.name for path in out.parent.glob(".*")] == []
    pack(out.parent / "alone", samples=meanwhile(lambda: None))
    own = {name: data for name, data in files_of(out).items() if name not in mine | added}
    assert own == files_of(out.parent / "alone")


def test_a_place_that_the_new_set_takes_is_named(out: Path) -> None:
    def add() -> None:
        write_files(out, {"val": b"a file of mine", "val.txt": b"another"})

    report = pack(out, samples=meanwhile(add), overwrite=True, val=0.5)
    beside = out.parent / ".out.packing"
    assert files_of(beside) == {"val": b"a file of mine"} and (out / "val.txt").read_bytes() == b"another"
    assert f"{beside} keeps what is not of the replaced set, and whose place the new one takes: 'val'" in report.notes
    assert verify(out, 1) == []
    (out / "val.txt").unlink()
    with pytest.raises(
        OutputError, match=r"out.packing: holds 'val', and --overwrite packs the new set there. Move it"
    ):
        pack(out, overwrite=True)
    assert files_of(beside) == {"val": b"a file of mine"}


def test_a_folder_of_the_name_that_packing_needs_is_kept(out: Path) -> None:
    for folder in (out.parent / ".out.packing", out.parent / "new" / ".packing"):
        write_files(folder, {"thesis.tex": b"text"})
    before = files_of(out.parent)
    with pytest.raises(OutputError, match=r"out.packing: holds 'thesis.tex', and --overwrite packs the new set there"):
        pack(out, overwrite=True)
    for resume in (False, True):
        with pytest.raises(
            OutputError, match=r"new/.packing: is no folder of the packer's, which needs this name. Move"
        ):
            pack(out.parent / "new", resume=resume)
    assert files_of(out.parent) == before


def test_a_link_stays_a_link(out: Path) -> None:
    disk = out.parent / "disk"
    disk.mkdir()
    out.rename(disk / "set")
    out.symlink_to("disk/set")
    report = pack(out, samples=samples(4), overwrite=True)
    assert report.folder == out and report.images == 4
    assert os.readlink(out) == "disk/set" and Manifest.read(disk / "set" / "train").samples == 4
    assert sorted(os.listdir(disk)) == ["set"] and sorted(os.listdir(out.parent)) == ["disk", "out"]
    for path in (out.parent / "to-nothing", out.parent / "to-empty"):
        path.symlink_to(disk / path.name)
    (disk / "to-empty").mkdir()
    for name in ("to-nothing", "to-empty"):
        pack(out.parent / name)
        assert (out.parent / name).is_symlink() and Manifest.read(disk / name / "train").samples == 6


@pytest.mark.parametrize("there", ["new", "empty", "a set to append to", "a set to replace"])
def test_a_run_that_fails_removes_what_it_made_alone(tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {}
    if there == "empty":
        out.mkdir()
    if there.startswith("a set"):
        pack(out)
        options = {"append": True} if "append" in there else {"overwrite": True}
    before = files_of(tmp_path)
    others = {"out/raw/photo.jpg": b"mine", "out/train/notes.txt": b"mine", "out/train/1.tmp": b"mine"}

    def fail(error: Exception | None) -> Iterator[dict[str, Any]]:
        yield {"image": b"no image", "label": 0}
        write_files(tmp_path, others)
        if error is not None:
            raise error

    for error in (None, ValueError("of the source")):
        with pytest.raises(SourceError if error is None else ValueError):
            pack(out, samples=fail(error), **options)
        assert files_of(tmp_path) == {**before, **others}
        for name in others:
            (tmp_path / name).unlink()
        for name in ("raw", "train"):
            if not any((out / name).iterdir()):
                (out / name).rmdir()
    assert files_of(tmp_path) == before


def test_a_shard_that_no_manifest_names_is_not_replaced(out: Path) -> None:
    write_files(out, {"train/shard-000004.tar": b"mine"})
    before = files_of(out)
    with pytest.raises(
        OutputError, match=r"shard-000004.tar: is not in manifest.json, and --append would replace it. Move it a"
    ):
        pack(out, append=True)
    assert files_of(out) == before
    pack(out, samples=samples(2), append=True)
    assert files_of(out)["train/shard-000004.tar"] == b"mine" and len(rows_of(out / "train")) == 8


def test_an_index_of_others_shards_is_not_appended_to(out: Path) -> None:
    tars_of_others(out)
    before = files_of(out)
    with pytest.raises(
        SourceError, match="train is an index of shards that others packed, whose images a loader turns"
    ):
        pack(out, append=True)
    assert files_of(out) == before


def test_a_run_that_was_killed_while_it_replaced_a_set(out: Path) -> None:
    """What is left of the old one is removed by the next run, which keeps what others have put there."""
    manifest = Manifest.read(out / "train")
    beside = out.parent / ".out.packing"
    shutil.copytree(out, beside)
    write_files(beside, {".packing-old": b"", "train/mine.txt": b"mine"})
    (beside / "train" / manifest.shards[0].name).unlink()
    report = pack(out, samples=samples(2, 40), append=True)
    assert report.notes == ("kept what is not of the replaced set: 'train/mine.txt'",)
    assert (out / "train" / "mine.txt").read_bytes() == b"mine" and not beside.exists()
    assert json.loads((out / "train" / "manifest.json").read_text())["samples"] == 8
