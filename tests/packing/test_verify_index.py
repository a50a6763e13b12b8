"""`verify` compares the index with what the manifest tells of it: a changed label is no valid set."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from store.servers import file_server, running

from gpuload.packing.verify import verify


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
    assert first.startswith(f"{copied}/index.arrow: its SHA-256 is ") and "manifest.json says " in first
    with running(file_server(copied)) as server:
        assert verify(server.url) == [line.replace(str(copied), server.url) for line in found]
    change_manifest(copied, index_sha256=None)  # as of older sets
    assert verify(copied) == found[1:]


def test_digests_of_parts_that_are_others(copied: Path) -> None:
    """With those, a loader could not fetch the parts of a set at a URL."""
    parts = json.loads((copied / "manifest.json").read_text())["index_parts"]
    change_manifest(copied, index_parts=[*parts[1:], parts[0]])
    assert verify(copied) == [f"{copied}/index.arrow: its parts, or their SHA-256s, are not those in manifest.json"]
