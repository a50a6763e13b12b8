"""Sets and tars of the Hugging Face Hub, by a server on the loopback that answers as it does."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load
from reading import files_of
from store.hub_server import COMMIT, TOKEN, HubServer

import gpuload
from gpuload import ArgumentError, FormatError, RemoteError
from gpuload.cli import main
from gpuload.packing.index import index_shards
from gpuload.packing.verify import verify

SET = "hf://datasets/me/photos/train"


def test_an_epoch_of_a_private_set(hub: HubServer, packed: Path) -> None:
    """One question to the Hub; its token goes to it, and nowhere else."""
    hub.private, hub.busy = True, 2
    with load(packed) as local, load(SET) as loader:  # type: ignore[arg-type]
        assert drain([loader]) == drain([local])
        assert f"{SET.replace('photos', f'photos@{COMMIT}')}" in repr(loader.dataset)
        assert TOKEN not in repr(loader) + str(loader.state_dict())
    assert hub.asked["api"] == 3 and hub.cdn.tokens == {None}


def test_a_set_stays_at_its_commit(
    hub: HubServer, impatient: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = gpuload.Dataset(SET)
    hub.asked.clear()
    assert gpuload.Dataset(str(first.folder)).fingerprint == first.fingerprint and not hub.asked["api"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("gpuload.disk.fetch._OFFLINE_S", 0)  # of a commit that is known it asks once
    with caplog.at_level(logging.WARNING):
        assert len(gpuload.Dataset(SET)) == 97  # offline: that of the cache
    assert re.search(r"the Hub cannot be reached \(\w+\) after 1 attempt in .* the commit that it was", caplog.text)
    assert TOKEN not in caplog.text


def test_tars_are_indexed_where_they_lie(hub: HubServer, packed: Path, tmp_path: Path) -> None:
    """They are found by one question, and read again by a loader at the commit at which they were indexed."""
    folder, manifest = index_shards(["hf://datasets/me/photos/train/*.tar"], tmp_path / "index")
    assert hub.asked["api"] == 2
    assert {info.name.rpartition("/")[0] for info in manifest.shards} == {f"hf://datasets/me/photos@{COMMIT}/train"}
    here = index_shards([str(packed / "*.tar")], tmp_path / "local")[1]
    assert manifest.fingerprint == here.fingerprint
    hub.asked.clear()
    with load(tmp_path / "local") as local, load(folder) as loader:
        assert drain([loader]) == drain([local])
    assert not hub.asked["api"]
    assert verify(folder, 2) == []


def test_packing_from_the_hub(hub: HubServer, packed: Path, tmp_path: Path) -> None:
    """Tars that gpuload packed, in the folder of a split: their fields and classes are known."""
    for source, out in ((str(packed.parent), "expected"), ("hf://datasets/me/photos", "out")):
        assert main(["pack", source, str(tmp_path / out), "--workers", "2"]) == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("hf://models/me/photos", {}, ArgumentError, "names no data set of the Hub, expected hf://datasets/OWNER/NAME"),
    ("hf://datasets/photos", {}, ArgumentError, "names no data set of the Hub"),
    ("hf://datasets/me/others/train", {}, RemoteError, "the Hub answered 404, there is no such data set.*set HF_TOKEN"),
    ("hf://datasets/me/photos/none", {}, FormatError, "no manifest.json there, so this is not a packed set"),
    (SET, {"private": True}, RemoteError, "the Hub answered 401, .* For a private or gated one, set HF_TOKEN"),
    (SET, {"busy": 10**6}, RemoteError, "the Hub answered 429 after .* s. Check the network, or try again"),
]


@pytest.mark.parametrize(("url", "state", "error", "message"), REFUSED)
def test_what_is_refused(
    url: str, state: dict[str, Any], error: type[Exception], message: str,
    hub: HubServer, impatient: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And no token is given."""
    impatient(give_up_s=0.2)
    vars(hub).update(state)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(error, match=f"^{url[:19]}.*{message}"):
        gpuload.Dataset(url)
