"""Samples that end a decoder are found by `verify`, listed in a file, and left out by a loader."""

import json
from pathlib import Path

import pytest
from damaged import damage
from images import encode, photo
from loaders import load
from reading import files_of
from stand_ins import crashes_by_width

import gpuload
from gpuload.cli import main
from gpuload.packing.verify import verify

BAD = (0, 15, 25, 96)


@pytest.fixture(scope="module")
def bad(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(packed, tmp_path_factory.mktemp("bad") / "train", BAD)


def test_a_sample_that_kills_its_decoder_is_blamed_and_no_other(tmp_path: Path) -> None:
    """Two that crash are in one shard, beside sound ones."""
    source = tmp_path / "photos"
    for number in range(20):
        path = source / "ab"[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(number, 50 + number, 30)))
    assert main(["pack", str(source), str(tmp_path / "out"), "--maxcount", "10", "--workers", "1"]) == 0
    folder, listed = tmp_path / "out" / "train", tmp_path / "list.jsonl"
    before = files_of(folder)
    faults = verify(folder, 2, decode=crashes_by_width, quarantine=listed)
    found = {line.split("sample ")[1].split(":")[0]: line.split(": its ")[-1] for line in faults if "is 65" in line}
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    reasons = {line["key"].rpartition("-")[2]: line["reason"] for line in lines}
    assert reasons == {
        "11": "the decoder crashed: SIGSEGV",
        "12": "the decoder crashed: SIGABRT",
        "13": "the decoder was killed (SIGKILL) twice; out of memory?",
        "14": "took longer than 60 s",
        "15": "its image is 65 wide",
    }
    assert len(faults) == 5 and len(found) == 1 and files_of(folder) == before
    with load(gpuload.Dataset(folder, exclude=listed), shuffle=False, drop_last=False, batch_size=4) as loader:
        assert len(loader.dataset) == 15
        assert sum(len(batch[0]) for batch in loader) == 15


def test_the_list_holds_what_does_not_decode_and_the_loader_leaves_it_out(
    packed: Path, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.jsonl"
    assert main(["verify", str(bad), "--workers", "1", "--quarantine", str(listed)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(BAD) * 2 + 1  # as many shards as samples
    keys = gpuload.Dataset(packed).keys(list(BAD))
    assert [json.loads(line)["key"] for line in listed.read_text().splitlines()] == keys
    with load(gpuload.Dataset(bad, exclude=listed), shuffle=False, drop_last=False) as loader:
        seen = [n for batch in loader for n in batch[0].tolist()]
    assert seen == [n for n in range(97) if n not in BAD]


def test_an_intact_set_gives_an_empty_list_that_excludes_nothing(packed: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.jsonl"
    assert verify(packed, 1, quarantine=listed) == [] and listed.read_bytes() == b""
    with load(gpuload.Dataset(packed, exclude=listed)) as loader:
        assert loader.dataset.fingerprint == gpuload.Dataset(packed).fingerprint


def test_a_list_that_cannot_be_written_is_refused_before_the_work(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(gpuload.OutputError, match=r"cannot be written \(.*\). Give another file to --quarantine"):
        verify(packed, 1, quarantine=tmp_path / "no" / "list", watch=lambda *_: pytest.fail("it began"))
