"""Until the JPEG decoder is compiled, libjpeg-turbo makes the same batches."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import prepared
import pytest
import torch

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
