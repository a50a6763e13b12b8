"""What each of several nodes downloads: with lanes its share of the set, and in later passes hardly anything, where its
cache holds the windows that are read; with buckets, too."""

from pathlib import Path
from typing import Any

import bucket_sets
import pytest
from loaders import load
from store.servers import file_server, proxied, running

import gpuload
from gpuload import ArgumentError


def downloaded(many: Path, cache: Path, nodes: int, shuffle: gpuload.Shuffle) -> list[list[dict[str, int]]]:
    """For each node and each of two epochs, the bytes of each shard that it downloads. A node is a rank with a cache of
    its own."""
    found = []
    with proxied(many) as proxy:
        for rank in range(nodes):
            dataset: Any = gpuload.Dataset(proxy.url, cache / f"{nodes}-{rank}")
            with load(dataset, 8 // nodes, fields=("index",), rank=rank, world_size=nodes, shuffle=shuffle) as loader:
                epochs = []
                for _ in range(2):
                    proxy.reset()
                    assert sum(1 for _ in loader) == 12
                    epochs.append({path: sent for path, sent in proxy.sent.items() if path.endswith(".tar")})
                found.append(epochs)
    return found


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_a_node_downloads_its_share(many: Path, tmp_path: Path, nodes: int) -> None:
    shards = gpuload.Dataset(many).manifest.shards
    total, largest = sum(shard.bytes for shard in shards), max(shard.bytes for shard in shards)
    found = downloaded(many, tmp_path, nodes, gpuload.Shuffle(lanes=8))
    for first, second in found:
        # Its lanes adjoin, so that shards are cut at two places: those that it reads in part.
        assert abs(sum(first.values()) - total / nodes) <= 2 * largest
        assert len(second) <= 2
    assert set.union(*(set(first) for first, _ in found)) == {f"/{shard.name}" for shard in shards}


def test_without_lanes_each_node_downloads_everything(many: Path, tmp_path: Path) -> None:
    found = downloaded(many, tmp_path, 2, gpuload.Shuffle(window=8))
    assert all(len(first) >= 48 for first, _ in found)  # of the last, all samples may have been left out


def test_a_cache_holds_the_windows_of_the_lanes_of_a_node(many: Path, tmp_path: Path) -> None:
    """Two windows of each of them, and what is read at once: here everything."""
    dataset = gpuload.Dataset(many)
    size = max(shard.bytes for shard in dataset.manifest.shards)
    with running(file_server(many)) as server:
        remote: Any = gpuload.Dataset(server.url, tmp_path, 60 * size)
        load(remote, 8, shuffle=gpuload.Shuffle(window=4, lanes=4)).close()
        small: Any = gpuload.Dataset(server.url, tmp_path, 20 * size)
        with pytest.raises(ArgumentError, match="two windows of 1 shard in each of 4 lanes take .* Raise c"):
            load(small, 8, shuffle=gpuload.Shuffle(window=1, lanes=4))


def test_a_small_cache_is_enough_for_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for what waits in the queues, out of shards that are not there any more, and for a run that is resumed with
    an empty cache."""
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 12)  # else one read takes the whole of so small a set
    gpuload.pack(bucket_sets.make_samples(), tmp_path / "set", workers=1, maxcount=7, shuffle=False)
    local = bucket_sets.load(tmp_path / "set" / "train", shuffle=gpuload.Shuffle(window=1))
    expected = bucket_sets.steps([local], epochs=2)
    with running(file_server(tmp_path / "set")) as server:
        url, largest = f"{server.url}/train", max(shard.bytes for shard in local.dataset.manifest.shards)
        others = sum(path.stat().st_size for path in (tmp_path / "set" / "train").iterdir() if path.suffix != ".tar")
        size = others + 6 * largest
        with bucket_sets.load(
            gpuload.Dataset(url, tmp_path / "first", size), shuffle=gpuload.Shuffle(window=1)
        ) as loader:
            assert bucket_sets.steps([loader], stop=7) == expected[:7]
            state = loader.state_dict()
        with bucket_sets.load(
            gpuload.Dataset(url, tmp_path / "second", size), shuffle=gpuload.Shuffle(window=1)
        ) as loader:
            loader.load_state_dict(state)
            assert bucket_sets.steps([loader], epochs=2) == expected[7:]
        # Of a closed loader, since threads of an open one may delete a shard that was just listed.
        there = sum(path.stat().st_size for path in (tmp_path / "second").rglob("*") if path.is_file())
        assert there <= size
