"""examples/train.py, ddp.py and lightning.py, the latter two by torchrun: they learn, and what checkpoints promise."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ddp
import prepared
import pytest
import torch
import train

import gpuload

# Beside decoding threads, torch's own get in each other's way on two cores.
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--epochs", "2", "--size", "24", "--batch-size", "32", "--min-scale", "0.5", "--flip", "0", "--device", "cpu"]
LIGHTNING = str(Path(train.__file__).with_name("lightning.py"))


@pytest.fixture(scope="module")
def few(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """180 images to train with, 5 batches of 32, which are those to validate, too."""
    folder = tmp_path_factory.mktemp("few")
    for split in ("train", "val"):
        (folder / split).symlink_to(packed / "val")
    return folder


def launch(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Ctrl-C during the given step of all that are trained, from 1; 0: never."""
    before = signal.getsignal(signal.SIGINT)
    steps = 0
    stop = 0

    def loss(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == stop:
            signal.raise_signal(signal.SIGINT)
        return torch.nn.functional.cross_entropy(*arguments)

    def at(step: int) -> None:
        nonlocal steps, stop
        steps = 0
        stop = step

    monkeypatch.setattr(train, "F", SimpleNamespace(cross_entropy=loss))
    yield at
    signal.signal(signal.SIGINT, before)


# In mid-epoch, with the last batch of an epoch, and in the middle of the last epoch.
@pytest.mark.parametrize(("stop", "place"), [(2, (0, 64)), (5, (0, 160)), (8, (1, 96))])
def test_stopped_and_resumed_equals_undisturbed(
    few: Path, tmp_path: Path, ctrl_c: Any, capsys: Any, stop: int, place: tuple[int, int]
) -> None:
    def run(name: str, *more: str) -> tuple[int, Any]:
        code = train.main([str(few / "train"), *SMALL, "--checkpoint", str(tmp_path / name), *more])
        return code, torch.load(tmp_path / name, weights_only=True)

    ctrl_c(stop)
    code, parts = run("parts")
    last = capsys.readouterr().out.splitlines()[-1]
    assert code == 130 and (parts["loader"]["epoch"], parts["loader"]["samples"]) == place
    command = shlex.split(last.removeprefix("Stopped. To go on: python "))
    assert command[1:] == [str(few / "train"), *SMALL, "--checkpoint", str(tmp_path / "parts"), "--resume"]

    ctrl_c(0)
    assert train.main(command[1:]) == 0
    code, whole = run("whole")
    assert code == 0
    parts = torch.load(tmp_path / "parts", weights_only=True)
    torch.testing.assert_close(parts["net"], whole["net"], rtol=0, atol=0)
    assert parts["loader"] == whole["loader"]
    assert not list(tmp_path.glob("*.tmp"))

    capsys.readouterr()
    assert train.main(command[1:]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/parts: 2 epochs are done; to go on, give --epochs 3 or more\n"


def test_stopped_without_a_checkpoint(few: Path, ctrl_c: Any, capsys: Any) -> None:
    ctrl_c(1)
    assert train.main([str(few), *SMALL]) == 130
    assert capsys.readouterr().out == "Stopped. Nothing is saved without --checkpoint FILE\n"


def test_it_learns(packed: Path, tmp_path: Path, ctrl_c: Any, capsys: Any) -> None:
    preview = tmp_path / "batch.png"
    assert train.main([str(packed), *SMALL, "--epochs", "3", "--preview", str(preview)]) == 0
    epochs = re.findall(r"^epoch (\d) of 3: [\d,]+ images/s, accuracy ([\d.]+)%$", capsys.readouterr().out, re.M)
    assert [number for number, _ in epochs] == ["1", "2", "3"]
    assert float(epochs[-1][1]) > 30  # chance is 10
    assert preview.read_bytes().startswith(b"\x89PNG")


def test_lightning_on_two_ranks(packed: Path, tmp_path: Path) -> None:
    options = ["--size", "24", "--batch-size", "32", "--accelerator", "cpu", "--runs", str(tmp_path), "--epochs", "1"]
    command = prepared.torchrun(2, "torchvision_anywhere", "pytorch_lightning")
    command += [LIGHTNING, str(packed), *options]
    images = len(gpuload.Dataset(packed / "val"))
    accuracy = re.compile(rf"epoch 1: validation accuracy [\d.]+% \((\d+) of {images}\)")  # each image once
    found = accuracy.findall(launch(*command, "--save-every", "15"))
    assert len(found) == 1  # one rank speaks
    assert int(found[0]) / images > 0.2  # chance is 0.1

    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["loops"]["fit_loop"]["state_dict"]
    assert saved["combined_loader"][0]["samples"] == 15 * 64  # of 25 batches
    # The same ten batches again, from the same weights, to the same weights.
    ends = []
    for name, *more in (("whole",), ("parts", "--resume", str(tmp_path / "last.ckpt"))):
        runs = ["--runs", str(tmp_path / name), "--save-every", "25"]
        assert accuracy.findall(launch(*command, *runs, *more)) == found
        ends.append(torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(*ends, rtol=0, atol=0)

    # From the end of an epoch, all batches of the next one.
    last = str(tmp_path / "whole" / "last.ckpt")
    launch(*command, "--epochs", "2", "--save-every", "25", "--runs", str(tmp_path / "next"), "--resume", last)
    saved = torch.load(tmp_path / "next" / "last.ckpt", weights_only=True)
    state = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
    assert (saved["global_step"], state["epoch"], state["samples"]) == (50, 1, 25 * 64)


def test_ddp_resumes(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    checkpoint = tmp_path / "run.pt"
    said = launch(*prepared.torchrun(2), ddp.__file__, str(few), str(checkpoint))
    assert said.splitlines() == ["epoch 1 of 2 done", "epoch 2 of 2 done"]
    state = torch.load(checkpoint, weights_only=True)["loader"]
    assert (state["epoch"], state["samples"]) == (2, 0)

    # One process resumes what two have saved: nothing is left to do, but for one epoch more that is asked for.
    places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    for epochs, said in ((2, ""), (3, "epoch 3 of 3 done\n")):
        ddp.main(few, checkpoint, epochs=epochs)
        assert capsys.readouterr().out == said
