"""Until the JPEG decoder is compiled, libjpeg-turbo makes the same batches."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import prepared
import pytest
import torch
from images import encode
from PIL import Image

import gpuload
from gpuload.decode.native.compiled import BackgroundCompilation


@pytest.mark.parametrize("views", [1, 2])
def test_batches_are_the_same_before_and_after(packed: Path, views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    augment = [gpuload.Augment(24), gpuload.Augment(16, crop="center")][:views]

    def batches() -> list[Any]:
        with gpuload.DaliIterator(packed, 16, augment=augment, device="cpu", decoder="native", num_threads=2) as loader:
            return list(loader)

    compiled = batches()
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundCompilation, "start", lambda self, wait: None)
        patch.setattr(BackgroundCompilation, "is_done", False)
        waiting = batches()
    assert len(compiled) == len(waiting) > 3
    for (images, labels), (others, other_labels) in zip(compiled, waiting, strict=True):
        assert torch.equal(labels, other_labels)
        pairs = zip(images, others, strict=True) if views > 1 else [(images, others)]
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("wait", [True, False])
def test_it_is_waited_for_briefly_or_not_at_all(wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go, waited = threading.Event(), list[float]()
    compilation = BackgroundCompilation(go.wait)
    with monkeypatch.context() as patch:
        patch.setattr(compilation.thread, "join", waited.append)
        compilation.start(wait)
    assert not compilation.is_done and waited == [0.5] * wait
    go.set()
    compilation.thread.join()
    assert compilation.is_done


def test_a_fork_and_the_end_of_the_interpreter_wait_for_it() -> None:
    script = (
        "import os, sys, threading, time\n"
        "from gpuload.decode.native.compiled import BackgroundCompilation\n"
        "looked = threading.Event()\n"
        "one = BackgroundCompilation(lambda: looked.wait() and time.sleep(1.5))\n"
        "one.start()\n"
        "assert not one.is_done\n"
        "looked.set()\n"
        "child = os.fork()\n"
        "assert one.is_done\n"  # in both
        "if not child:\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "two = BackgroundCompilation(lambda: (time.sleep(1.5), print('compiled', flush=True)))\n"
        "two.start()\n"
    )
    done = subprocess.run([*prepared.python(), "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "compiled\n", "")


def test_exif_behind_many_other_segments_is_found(tmp_path: Path) -> None:
    """In shards that others packed an image may be rotated, however much comes before that is said."""
    pixels = np.zeros((40, 64, 3), np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    data = encode(Image.fromarray(pixels), exif=exif.tobytes(), progressive=True)
    comment = b"\xff\xe5" + (60_002).to_bytes(2, "big") + bytes(60_000)
    data = data[:2] + 2 * comment + data[2:]
    (tmp_path / "0.jpg").write_bytes(data)
    (tmp_path / "0.cls").write_text("0")
    subprocess.run(["tar", "cf", "shard.tar", "0.jpg", "0.cls"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "gpuload", "index", str(tmp_path / "shard.tar")]
    subprocess.run(command, check=True, capture_output=True, cwd=os.getcwd())
    augment = gpuload.Augment((64, 40), crop="none", dtype="uint8")
    options: dict[str, Any] = {"device": "cpu", "shuffle": False}
    shown = []
    for decoder in ("native", "dali"):
        with gpuload.DaliIterator(tmp_path, 1, augment=augment, decoder=decoder, **options) as loader:
            ((images, _),) = loader
            shown.append(images[0].float().mean(dim=(0, 2)))
    for levels in shown:
        assert levels[:12].min() > 200 and levels[20:].max() < 60  # the white stripe is at the top
