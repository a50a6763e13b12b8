"""What a tar of a packed set has lost since, and no tar tells: the last pictures of a list, and whole samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from reading import rejected_of
from tars import members, write_tar

import gpuload
from gpuload.cli import main

COUNT = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set whose samples have as many frames as their number and two more, files and pixels."""
    samples = [
        {
            "image": encode(photo(number)),
            "name": f"{number}",
            "frames": [encode(photo(place), "PNG") for place in range(number + 2)],
            "flows": [np.full((4, 5, 2), place, np.float32) for place in range(number + 2)],
        }
        for number in range(COUNT)
    ]
    gpuload.pack(
        samples, tmp_path / "set", pictures=["frames", "flows"], maxcount=2, workers=1, shuffle=False, progress=False
    )
    return tmp_path / "set" / "train"


def write_again(folder: Path, is_kept: Callable[[str], bool]) -> None:
    """Writes the tars anew of what could be read of them."""
    for shard in sorted(folder.glob("*.tar")):
        files = members_of(shard)
        write_tar(shard, {name: data for name, data in files.items() if is_kept(name)})


def members_of(shard: Path) -> dict[str, bytes]:
    alone = shard.parent / "alone"
    alone.mkdir()
    (alone / shard.name).hardlink_to(shard)
    files = members(alone)
    (alone / shard.name).unlink()
    alone.rmdir()
    return files


def packed_again(folder: Path, out: Path) -> Any:
    return gpuload.pack(folder, out, workers=1, shuffle=False, progress=False)


def test_nothing_is_lost_of_whole_tars(folder: Path, tmp_path: Path) -> None:
    report = packed_again(folder, tmp_path / "out")
    assert (report.images, report.rejected) == (COUNT, ())


@pytest.mark.parametrize("name", ["frames", "flows"])
def test_the_end_of_a_list(folder: Path, tmp_path: Path, name: str) -> None:
    keys = gpuload.Dataset(folder).keys([2, 3])
    write_again(folder, lambda member: not member.startswith((f"{keys[0]}.{name}.3.", f"{keys[1]}.{name}.4.")))
    assert any("its SHA-256 is" in line or "bytes" in line for line in gpuload.verify(folder, workers=1))
    report = packed_again(folder, tmp_path / "out")
    assert report.images == 2
    assert [rejection.reason for rejection in report.rejected] == [
        f"has {count} of the {count + 1} pictures in its list {name} that the index of its folder has"
        for count in (3, 4)
    ]


def test_a_sample(folder: Path, tmp_path: Path) -> None:
    (key,) = gpuload.Dataset(folder).keys([1])
    write_again(folder, lambda member: not member.startswith(f"{key}."))
    packed_again(folder, tmp_path / "out")
    assert rejected_of(tmp_path / "out" / "train") == {
        f"shard-000000.tar/{key}": "is in the index of its folder, and its shard has lost it"
    }


def test_a_shard(folder: Path, tmp_path: Path) -> None:
    (folder / "shard-000001.tar").unlink()
    assert packed_again(folder, tmp_path / "out").notes == (
        f"{folder}: 'shard-000001.tar', which its manifest.json names, is not there",
    )


def test_an_index_that_is_damaged_tells_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "index.arrow").write_bytes(b"nothing")
    (note,) = packed_again(folder, tmp_path / "out").notes
    assert note.startswith(f"what shards may have lost is not known: {folder / 'index.arrow'}: ")


def test_index_misses_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of tars that gpuload packed. With --missing skip, what is left is a set."""
    keys = gpuload.Dataset(folder).keys(range(COUNT))
    command = ["index", *map(str, sorted(folder.glob("*.tar"))), "--out", str(tmp_path / "index")]
    assert main(command) == 0
    write_again(folder, lambda member: not member.startswith((f"{keys[2]}.frames.3.", f"{keys[1]}.")))
    assert main([*command, "--overwrite"]) == 2
    assert f"'shard-000000.tar/{keys[1]}' is in the index of its folder, and" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--missing", "skip"]) == 3
    assert sorted(rejected_of(tmp_path / "index")) == [f"shard-000000.tar/{keys[1]}", f"shard-000001.tar/{keys[2]}.jpg"]
    left = gpuload.Dataset(tmp_path / "index")
    assert left.keys(range(2)) == [keys[0], keys[3]] and len(left) == 2


@pytest.mark.parametrize(
    ("lengths", "is_noted"), [([3] * 9 + [2], True), ([3] * 8 + [2, 2], False), ([3] * 9 + [4], False)]
)
def test_few_shorter_lists_of_others_are_noted(
    tmp_path: Path, lengths: list[int], is_noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which may be so, or may have lost pictures."""
    picture = encode(photo(1), "PNG")
    files = {f"{key:02d}.frames.{place}.png": picture for key, length in enumerate(lengths) for place in range(length)}
    tar = write_tar(tmp_path / "tars" / "x.tar", files)
    note = "1 of 10 lists frames have fewer than 3 pictures, such as that of 'NAME': whether they have lost their last"
    assert main(["index", str(tar)]) == 0
    assert (note.replace("NAME", "x.tar/09.frames.0.png") in capsys.readouterr().out) is is_noted
    assert main(["pack", str(tar), str(tmp_path / "out"), "--workers", "1"]) == 0
    assert (note.replace("NAME", "09.frames.0.png") in capsys.readouterr().out) is is_noted
