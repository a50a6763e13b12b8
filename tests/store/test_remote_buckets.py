"""Buckets of a set at a URL: batches as from the folder, in a cache that holds two windows of shards."""

from pathlib import Path

import pytest
from bucket_sets import load, make_samples, steps
from store.servers import file_server, running

import gpuload


def test_a_small_cache_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for what waits in the queues, out of shards that are not there any more, and for a run that is resumed with
    an empty cache."""
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 12)  # else one read takes the whole of so small a set
    gpuload.pack(make_samples(), tmp_path / "set", workers=1, maxcount=7, shuffle=False)
    local = load(tmp_path / "set" / "train", shuffle=gpuload.Shuffle(window=1))
    expected = steps([local], epochs=2)
    with running(file_server(tmp_path / "set")) as server:
        url, largest = f"{server.url}/train", max(shard.bytes for shard in local.dataset.manifest.shards)
        others = sum(path.stat().st_size for path in (tmp_path / "set" / "train").iterdir() if path.suffix != ".tar")
        size = others + 6 * largest
        with load(gpuload.Dataset(url, tmp_path / "first", size), shuffle=gpuload.Shuffle(window=1)) as loader:
            assert steps([loader], stop=7) == expected[:7]
            state = loader.state_dict()
        with load(gpuload.Dataset(url, tmp_path / "second", size), shuffle=gpuload.Shuffle(window=1)) as loader:
            loader.load_state_dict(state)
            assert steps([loader], epochs=2) == expected[7:]
        # Of a closed loader, since threads of an open one may delete a shard that was just listed.
        there = sum(path.stat().st_size for path in (tmp_path / "second").rglob("*") if path.is_file())
        assert there <= size
