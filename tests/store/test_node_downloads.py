"""What each of several nodes downloads: with lanes its share of the set, and in later passes hardly anything."""

from pathlib import Path
from typing import Any

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
