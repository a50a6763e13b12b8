"""examples/train.py, ddp.py and lightning.py, by python and by torchrun: they learn, and what checkpoints promise."""

import re
import subprocess
from pathlib import Path
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


# At the end of an epoch, and in the middle of the last. A DataLoader starts that again.
@pytest.mark.parametrize(
    ("loader", "stop", "told"), [("dali", 5, "1, after 5"), ("dali", 8, "2, after 8"), ("torch", 8, "2, after 5")]
)
def test_resumed_equals_undisturbed(few: Path, tmp_path: Path, capsys: Any, loader: str, stop: int, told: str) -> None:
    def run(name: str, *more: object) -> Any:
        options = [*SMALL, "--loader", loader, "--checkpoint", str(tmp_path / name), *map(str, more)]
        assert train.main([str(few), *options]) == 0
        weights = torch.load(tmp_path / name, weights_only=True)["net"]
        return {name: value.tolist() for name, value in weights.items()}

    stopped, parts = run("parts", "--max-batches", stop), run("parts", "--resume")
    assert f"in epoch {told} of 10 batches" in capsys.readouterr().out
    assert stopped != parts and (loader == "torch" or parts == run("whole"))
    assert not list(tmp_path.glob("*.tmp"))


def test_under_torchrun_and_resumed_by_one_process(packed: Path, tmp_path: Path, capsys: Any) -> None:
    options = [str(packed), *SMALL, "--checkpoint", str(tmp_path / "run.pt")]
    said = launch(*prepared.torchrun(2), train.__file__, *options, "--max-batches", "35")
    images = len(gpuload.Dataset(packed / "val"))
    assert len(re.findall(rf"validation accuracy [\d.]+% \(\d+ of {images}\)", said)) == 1  # rank 0 alone speaks
    assert "Stopped after 35 of 50 batches" in said

    assert train.main([*options, "--resume"]) == 0
    said = capsys.readouterr().out
    # 35 batches of 64 are 25 and 640 images: 977 remain, 30 batches of 32, with which the epoch of 50 ends.
    assert "in epoch 2, after 70 of 100 batches" in said
    assert train.main([str(packed), "--loader", "torch", *SMALL, "--batch-size", "64"]) == 0
    for told in (said, capsys.readouterr().out):  # by both loaders better than by chance
        [right] = re.findall(rf"validation accuracy [\d.]+% \((\d+) of {images}; chance is 10.0%\)", told)
        assert int(right) / images > 0.3


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
