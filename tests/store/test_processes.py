"""Several processes with one cache, some of which are killed."""

import hashlib
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import prepared
import pytest
from loaders import drain, load
from store.servers import shards_asked

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.read.reader import Reader
from gpuload.store.cache import Cache
from gpuload.store.files import locked, open_own


def start(url: str, cache: Path, size: str, epochs: int) -> "subprocess.Popen[str]":
    script = Path(__file__).with_name("read_remote.py")
    command = [*prepared.python(), "-W", "ignore", script, url, cache, size, str(epochs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> set[str]:
    """What such a process printed of its epochs."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return set(out.split()) - {"begins"}


def needed(packed: Path, shards: int) -> int:
    """Bytes of a cache for the largest shards, and the index and manifest."""
    sizes = sorted((path.stat().st_size for path in packed.glob("*.tar")), reverse=True)
    return sum(sizes[:shards]) + sum((packed / name).stat().st_size for name in ("index.arrow", "manifest.json")) + 500


def test_a_small_cache_holds_what_is_needed_next(
    proxy: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of windows that were read make room; the cache never holds more than it may."""
    monkeypatch.setattr("gpuload.read.batches._READ_AT_ONCE", 1)
    limit = needed(packed, 5)
    with load(packed, 4, drop_last=False, shuffle=gpuload.Shuffle(window=1)) as loader:
        expected = [drain([loader]) for _ in range(3)]
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path, limit)
    (dataset.cache.shards / "notes").touch()  # type: ignore[union-attr]
    used = []
    with load(dataset, 4, drop_last=False, shuffle=gpuload.Shuffle(window=1)) as loader:  # type: ignore[arg-type]
        for epoch in range(3):
            rows = []
            for index, images, _ in loader:
                rows += [(int(i), image.numpy().tobytes()) for i, image in zip(index, images, strict=True)]
                # A shard that gets its name meanwhile is counted twice.
                used.append(min(dataset.cache.used() for _ in range(3)))  # type: ignore[union-attr]
            assert rows == expected[epoch]
    assert max(used) <= limit
    assert (dataset.cache.shards / "notes").exists()  # type: ignore[union-attr]
    assert (
        15 <= sum(shards_asked(proxy).values()) <= 30
    )  # of 30: some shards of an epoch are needed again early in the next


ENDS = """
import os, signal, sys, threading, time
import gpuload
from gpuload.disk import fetch
from gpuload.read import batches

batches._READ_AT_ONCE = 1

def loader(size):
    return gpuload.DaliIterator(
        gpuload.Dataset(*sys.argv[1:], size), 4, augment=gpuload.Augment(8), fields=("index", "image"), device="cpu",
        decoder="native", shuffle=False,
    )

held = []
for size, whole in (("1GB", fetch.WHOLE_BYTES), ("2GB", 0)):
    if not whole:
        fetch.WHOLE_BYTES, sys.argv[2] = whole, sys.argv[2] + "/parts"
    one = loader(size)
    next(iter(one))
    time.sleep(0.5)  # its thread waits by now for what the silent server sends
    for _ in one:  # another loop ends the first
        break
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for _ in one:
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    one.close()
    held.append(iter(loader(size)))
    next(held[-1])
time.sleep(0.5)
print("ended", flush=True)
"""


def test_a_lock_is_waited_for_without_computing(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", 0, TimeoutError()):
        begun = time.thread_time()
        with pytest.raises(TimeoutError), locked(tmp_path / "lock", 0.4, TimeoutError()):
            pass
        assert time.thread_time() - begun < 0.1


def test_a_batch_that_is_still_viewed_holds_no_shard_in_the_cache(proxy: Any, tmp_path: Path) -> None:
    """Its bytes stay mapped, and another shard may take the place."""
    dataset = gpuload.Dataset(f"{proxy.url}/train", tmp_path)
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=1)
    reader = Reader(dataset)
    held, sha256 = reader.read(order, 0, 1), dataset.manifest.shards[int(order.window_shards(0)[0])].sha256
    for start in (20, 40):
        reader.read(order, start, start + 1)
    shard = tmp_path / "gpuload-1" / "shards" / sha256
    assert open_own(shard).lock()
    shard.unlink()
    assert held.image.contents[0].any()
    (copy,) = reader.copy(order[0:1])  # of its window no more, so that it is downloaded again
    assert copy.image.contents[0].tobytes() == held.image.contents[0].tobytes() and shard.exists()
    reader.close()


def test_nothing_waits_for_a_download_that_nobody_wants(proxy: Any, tmp_path: Path) -> None:
    """A server that is silent for hours, about shards or rows of the index, holds up neither `close`, nor another loop,
    nor Ctrl-C, nor the end of the process."""
    # Of the index, after the whole, the last part and the rows of the first shard.
    proxy.fault = lambda path, number: (
        "stall" if path.endswith(("2.tar", "3.tar")) or (path.endswith(".arrow") and number > 3) else None
    )
    proxy.silent_s = 10_000
    command = [*prepared.python(), "-W", "error", "-c", ENDS, f"{proxy.url}/train", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith("gpuload compiles")]
    assert (done.stdout, said, done.returncode) == ("interrupted\n" * 2 + "ended\n", [], 0)
    assert proxy.asked["/train/index.arrow"] > 3


def test_processes_share_what_they_fetch(proxy: Any, packed: Path, tmp_path: Path) -> None:
    proxy.delay_s = 0.3  # so that what one asks for, the other needs, too
    found = [finish(one) for one in [start(f"{proxy.url}/train", tmp_path, "1GB", 1) for _ in range(2)]]
    assert found[0] == found[1] and len(found[0]) == 1
    assert shards_asked(proxy) == {f"/train/shard-{n:06d}.tar": 1 for n in range(10)}
    assert proxy.sent["/train/index.arrow"] <= (packed / "index.arrow").stat().st_size + 3000


def test_what_a_killed_process_leaves(proxy: Any, packed: Path, tmp_path: Path) -> None:
    """Three are killed, at any moment, while they fetch shards or parts of the index; another one goes on with their cache."""
    limit, url, rng = str(needed(packed, 7)), f"{proxy.url}/train", random.Random(0)
    (whole,) = finish(start(url, tmp_path / "whole", "1GB", 1))
    proxy.delay_s = 0.02
    survivor = start(url, tmp_path / "cache", limit, 3)
    for _ in range(3):
        process = start(url, tmp_path / "cache", limit, 100)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.4))
        process.kill()
        process.communicate()
    assert finish(survivor) == {whole}
    proxy.delay_s = 0.0
    assert finish(start(url, tmp_path / "cache", limit, 2)) == {whole}
    cache = Cache(tmp_path / "cache", int(limit))
    assert cache.used() <= int(limit)
    for path in cache.shards.iterdir():  # of parts, none is left
        assert path.name == hashlib.sha256(path.read_bytes()).hexdigest()
