"""What DALI is fed is made in another thread than the one that trains."""

import threading
from pathlib import Path
from typing import Any

import pytest
from loaders import drain, load

from gpuload.decode.dali.decoder import Feed
from gpuload.decode.runner import Job


def test_the_thread_that_trains_makes_no_inputs(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    begin = Feed.begin

    def make(self: Any, job: Job) -> None:
        threads.add(threading.current_thread())
        begin(self, job)

    monkeypatch.setattr(Feed, "begin", make)
    with load(packed, 8, decoder="dali") as loader:
        assert len(drain([loader])) == 96
    assert len(threads) == 1 and threading.current_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)
