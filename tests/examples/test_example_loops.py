"""examples/lightning.py and examples/ddp.py, as they are started: by python and by torchrun."""

import re
import socket
import subprocess
from pathlib import Path

import ddp
import prepared
import pytest
import torch

import gpuload

RUN_EXAMPLE = str(Path(__file__).with_name("run_example.py"))


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lightning_on_two_ranks(packed: Path, tmp_path: Path) -> None:
    options = [str(packed), "--size", "24", "--batch-size", "32", "--accelerator", "cpu", "--runs", str(tmp_path)]
    command = [
        *prepared.torchrun(2, "torchvision_anywhere", "pytorch_lightning"),
        RUN_EXAMPLE,
        "lightning.py",
        *options,
        "--epochs",
        "1",
    ]
    images = len(gpuload.Dataset(packed / "val"))
    accuracy = re.compile(rf"epoch 1: validation accuracy [\d.]+% \((\d+) of {images}\)")  # each image once
    found = accuracy.findall(run([*command, "--save-every", "15"]))
    assert len(found) == 1  # one rank speaks
    assert int(found[0]) / images > 0.2  # chance is 0.1

    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["loops"]["fit_loop"]["state_dict"]
    assert saved["combined_loader"][0]["samples"] == 15 * 64  # of 25 batches
    # The same ten batches again, from the same weights.
    assert accuracy.findall(run([*command, "--resume", str(tmp_path / "last.ckpt")])) == found


def test_ddp_resumes(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train").symlink_to(packed / "val")  # 180 images: enough here
    command = [*prepared.torchrun(2), ddp.__file__, str(tmp_path), str(tmp_path / "run.pt")]
    assert run(command).splitlines() == ["epoch 1 of 2 done", "epoch 2 of 2 done"]
    state = torch.load(tmp_path / "run.pt", weights_only=True)["loader"]
    assert (state["epoch"], state["samples"]) == (2, 0)

    # One process resumes what two have saved: nothing is left to do.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    ddp.main(tmp_path, tmp_path / "run.pt")
    assert capsys.readouterr().out == ""
    # And one epoch more, where it is asked for: whole, by one process.
    ddp.main(tmp_path, tmp_path / "run.pt", epochs=3)
    assert capsys.readouterr().out == "epoch 3 of 3 done\n"
