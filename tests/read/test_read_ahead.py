"""Reading ahead: in a process that forks, with checksums, and what becomes of errors in its thread."""

import gc
import shutil
import subprocess
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import prepared
import pytest
from damaged import damage
from loaders import drain, load

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.read import reader as reading
from gpuload.read.reader import Reader

SCRIPT = """
import os, signal, threading
import numpy as np
from gpuload.read.reader import ReadAhead

class Data(np.ndarray):
    def max(self):
        started.set()
        threading.Event().wait()  # as if the disk did not answer

class Shard:
    number, changed_ns, data = 0, 0, np.zeros(9, np.uint8).view(Data)

started = threading.Event()
ahead = ReadAhead()
ahead.want([Shard()])
started.wait()
if (process := os.fork()) == 0:
    signal.alarm(800)  # it would wait for ever
    ahead.stop()
    os._exit(0)
print(os.waitpid(process, 0)[1], flush=True)
os._exit(0)
"""


def test_a_forked_child_does_not_wait_for_a_thread_it_does_not_have() -> None:
    done = subprocess.run([*prepared.python(), "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def flip_a_bit(image: bytes) -> bytes:
    """Within its pixels."""
    at = len(image) // 2
    return image[:at] + bytes([image[at] ^ 1]) + image[at + 1 :]


def test_verify_refuses_a_flipped_bit_before_any_sample_of_its_shard_is_handed_out(
    packed: Path, tmp_path: Path, decoder: str
) -> None:
    options: dict[str, Any] = {"decoder": decoder, "prefetch": 1, "shuffle": gpuload.Shuffle(window=2)}
    expected = drain([load(packed, **options)])
    with load(gpuload.Dataset(packed, verify="sha256"), **options) as loader:
        assert drain([loader]) == expected
    copy = damage(packed, tmp_path / "train", [34], flip_a_bit)
    shard_of = np.repeat(range(10), gpuload.Dataset(copy).shard_sizes)
    with load(gpuload.Dataset(copy, verify="sha256"), **options) as loader:
        for _ in range(2):  # the loop after it is refused, too
            found = []
            with pytest.raises(
                gpuload.ShardError, match=r"shard-000003.tar: is damaged: its SHA-256 is .*, manifest.json says .*Copy"
            ):
                for index, _, _ in loader:
                    found += index.tolist()
            assert 3 not in shard_of[found]
        shutil.copy(packed / "shard-000003.tar", copy)
        loader.set_epoch(0)
        assert drain([loader]) == expected


def test_ctrl_c_leaves_no_request_that_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` would wait for it for ever."""

    def interrupt(job: Any) -> None:
        raise KeyboardInterrupt

    ahead: Any = reading.ReadAhead()
    monkeypatch.setattr(ahead, "_queue", SimpleNamespace(put=interrupt))
    with pytest.raises(KeyboardInterrupt):
        ahead.want([object()])
    assert not ahead._jobs
    ahead = reading.ReadAhead()
    monkeypatch.setattr("threading.Thread.start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ahead.want([object()])
    ahead.stop()  # a thread that never began is not waited for


def test_each_content_is_hashed_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, check = list[int](), resolve_name("gpuload.read.shards:MappedShard.check_digest")
    monkeypatch.setattr(
        "gpuload.read.shards.MappedShard.check_digest",
        lambda shard, *args: (hashed.append(shard.number), check(shard, *args))[1],
    )
    with load(gpuload.Dataset(packed, verify="sha256"), shuffle=gpuload.Shuffle(window=2)) as loader:
        for _ in range(3):
            list(loader)
    assert sorted(hashed) == list(range(10))
    hashed.clear()
    with load(packed, shuffle=gpuload.Shuffle(window=2)) as loader:
        list(loader)
    assert hashed == []


def checked_when_read(ahead: Any, shards: Any, check: Any = reading.ReadAhead.check) -> None:
    """Without checksums, nobody waits for the thread, and its error may come too late for a short loop."""
    for shard in shards:
        with ahead._jobs[shard].running:
            pass
    check(ahead, shards)


@pytest.mark.parametrize("verify", [None, "sha256"])
def test_an_error_in_the_thread_reaches_the_loop_and_the_next_loop_is_whole(
    packed: Path, decoder: str, verify: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    expected = drain([load(packed, decoder=decoder, shuffle=gpuload.Shuffle(window=2))])
    with load(
        gpuload.Dataset(packed, verify=verify), prefetch=1, decoder=decoder, shuffle=gpuload.Shuffle(window=2)
    ) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(reading, "_PAGE_BYTES", "pages")  # the thread fails where it touches, or hashes
            patch.setattr("gpuload.read.shards._HASHED_BYTES", "pages")
            patch.setattr(reading.ReadAhead, "check", checked_when_read)
            with pytest.raises(TypeError, match="slice indices must be integers|cannot be interpreted as an integer"):
                list(loader)
        loader.set_epoch(0)
        assert drain([loader]) == expected


def test_the_thread_ends_with_a_reader_that_nobody_closed(packed: Path) -> None:
    dataset = gpuload.Dataset(packed)
    reader = Reader(dataset)
    reader.read(EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=2), 0, 4)
    thread = reader.ahead._thread
    assert thread is not None and thread.is_alive()
    del reader
    gc.collect()
    thread.join(250)
    assert not thread.is_alive()
