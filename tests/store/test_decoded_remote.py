"""Decoded copies of sets at URLs."""

from pathlib import Path
from typing import Any

from loaders import drain, load
from store.servers import shards_asked

import gpuload


def test_the_copy_is_that_of_the_folder(proxy: Any, packed: Path, tmp_path: Path) -> None:
    """It has the same name and the same bytes; each shard is downloaded once, and none for a further loader."""
    remote = gpuload.Dataset(f"{proxy.url}/train", tmp_path / "cache")
    copy = gpuload.decoded(remote, folder=tmp_path / "copies", threads=2)
    assert shards_asked(proxy) == {f"/train/{path.name}": 1 for path in packed.glob("*.tar")}
    before = proxy.asked.total()
    local = gpuload.decoded(gpuload.Dataset(packed), folder=tmp_path / "others")
    assert (Path(copy.folder).name, copy.manifest) == (Path(local.folder).name, local.manifest)
    options: dict[str, Any] = {"drop_last": False, "augment": gpuload.Augment(32)}
    with load(packed, **options) as first, load(copy, **options) as second:  # type: ignore[arg-type]
        assert drain([first]) == drain([second])
    assert proxy.asked.total() == before
