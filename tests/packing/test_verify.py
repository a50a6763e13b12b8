"""`verify` finds samples that end a decoder and lists them for a loader; and an index that is not the manifest's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from damaged import damage
from images import encode, photo
from loaders import load
from reading import files_of
from stand_ins import verify_by_width
from store.servers import file_server, running

import gpuload
from gpuload.cli import main
from gpuload.packing.verify import verify

BAD = (0, 15, 25, 96)
OTHER = "its SHA-256, or those of its parts, are not those in manifest.json"


@pytest.fixture(scope="module")
def bad(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(packed, tmp_path_factory.mktemp("bad") / "train", BAD)


def test_a_sample_that_kills_its_decoder_is_blamed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that crash are in one shard, beside sound ones."""
    source = tmp_path / "photos"
    for number in range(20):
        path = source / "ab"[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(number, 50 + number, 30)))
    assert main(["pack", str(source), str(tmp_path / "out"), "--maxcount", "10", "--workers", "1"]) == 0
    folder, listed = tmp_path / "out" / "train", tmp_path / "list.jsonl"
    before = files_of(folder)
    monkeypatch.setattr("gpuload.packing.verify.verify_shard", verify_by_width)
    faults = verify(folder, 2, quarantine=listed)
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    reasons = {line["key"].rpartition("-")[2]: line["reason"] for line in lines}
    assert reasons == {
        "11": "the decoder crashed: SIGSEGV",
        "12": "the decoder crashed: SIGABRT",
        "13": "the decoder was killed (SIGKILL) twice; out of memory?",
        "14": "took longer than 60 s",
        "15": reasons["15"],
    }
    assert "1 x 30" in reasons["15"]
    assert len(faults) == 5 and files_of(folder) == before
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
    with pytest.raises(gpuload.OutputError, match=r"list: cannot be written .* another file to --quarantine"):
        verify(packed, 1, quarantine=tmp_path / "no" / "list", watch=lambda *_: pytest.fail("it began"))


@pytest.fixture
def copied(packed: Path, tmp_path: Path) -> Path:
    shutil.copytree(packed, tmp_path / "set")
    return tmp_path / "set"


def change_manifest(folder: Path, **values: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **values}))


def change_label(folder: Path) -> None:
    with pa.memory_map(str(folder / "index.arrow")) as file:
        reader = pa.ipc.open_file(file)
        batches = [pa.RecordBatch.from_pylist(b.to_pylist(), b.schema) for b in map(reader.get_batch, range(10))]
    rows = batches[3].to_pylist()
    rows[0]["label"] = 1 - rows[0]["label"] if rows[0]["label"] < 2 else 0
    batches[3] = pa.RecordBatch.from_pylist(rows, batches[3].schema)
    with pa.ipc.new_file(str(folder / "index.arrow"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def test_a_label_that_was_changed(copied: Path) -> None:
    """Its shard holds the label, too; of a set that was indexed where it lies, only the digest tells."""
    assert verify(copied) == []
    change_label(copied)
    first, *_ = found = verify(copied)
    assert first == f"{copied}/index.arrow: {OTHER}"
    with running(file_server(copied)) as server:
        assert verify(server.url) == [line.replace(str(copied), server.url) for line in found]
    change_manifest(copied, index_sha256=None, index_parts=None, index_offsets=None)  # which are optional
    assert verify(copied) == found[1:]


def test_digests_of_parts_that_are_others(copied: Path) -> None:
    """With those, a loader could not fetch the parts of a set at a URL."""
    parts = json.loads((copied / "manifest.json").read_text())["index_parts"]
    change_manifest(copied, index_parts=[*parts[1:], parts[0]])
    assert verify(copied) == [f"{copied}/index.arrow: {OTHER}"]
