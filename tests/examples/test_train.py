"""examples/train.py with both loaders, and what its checkpoints promise."""

import re
import subprocess
from pathlib import Path

import prepared
import pytest
import torch
import train

import gpuload

# Beside decoding threads, torch's own get in each other's way on two cores.
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--size", "24", "--batch-size", "64", "--min-scale", "0.5", "--flip", "0", "--device", "cpu"]


@pytest.mark.parametrize("loader", ["dali", "torch"])
def test_trains_to_better_than_chance(packed: Path, loader: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([str(packed), "--loader", loader, "--epochs", "2", *SMALL]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(
        r"Trained 2 epochs in \d+ s: validation accuracy ([\d.]+)% \((\d+) of (\d+); chance is 10.0%\)", last
    )
    assert found, last
    images = len(gpuload.Dataset(packed / "val"))
    assert int(found[3]) == images  # each once
    assert int(found[2]) / images > 0.3  # chance is 0.1


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=True)["net"]


@pytest.fixture(scope="module")
def whole(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights after a run of two epochs that was never interrupted."""
    checkpoint = tmp_path_factory.mktemp("whole") / "run.pt"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as `one_thread`, which is there for a test only
    assert train.main([str(packed), "--epochs", "2", *SMALL, "--checkpoint", str(checkpoint)]) == 0
    torch.set_num_threads(threads)
    return weights(checkpoint)


# 25 batches an epoch: at the end of one, and in the middle of the last.
@pytest.mark.parametrize("stop", [25, 40])
def test_resumed_equals_undisturbed(packed: Path, tmp_path: Path, whole: dict[str, torch.Tensor], stop: int) -> None:
    parts = tmp_path / "parts.pt"
    run = [str(packed), "--epochs", "2", *SMALL, "--checkpoint", str(parts)]
    assert train.main([*run, "--max-batches", str(stop)]) == 0
    assert any(not torch.equal(value, whole[name]) for name, value in weights(parts).items())
    assert train.main([*run, "--resume"]) == 0
    assert {name: value.tolist() for name, value in weights(parts).items()} == {
        name: value.tolist() for name, value in whole.items()
    }
    assert not list(tmp_path.glob("*.tmp"))


def test_under_torchrun_and_resumed_by_one_process(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(packed), "--epochs", "2", *SMALL, "--batch-size", "32", "--checkpoint", str(tmp_path / "run.pt")]
    done = subprocess.run(
        [*prepared.torchrun(2), train.__file__, *options, "--max-batches", "35"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    images = len(gpuload.Dataset(packed / "val"))
    assert len(re.findall(rf"validation accuracy [\d.]+% \(\d+ of {images}\)", done.stdout)) == 1  # rank 0 alone speaks
    assert "Stopped after 35 of 50 batches" in done.stdout

    assert train.main([*options, "--resume"]) == 0
    said = capsys.readouterr().out
    # 35 batches of 64 are 25 and 640 images: 977 remain, 30 batches of 32, with which the epoch of 50 ends.
    assert "in epoch 2, after 70 of 100 batches" in said
    found = re.search(rf"validation accuracy [\d.]+% \((\d+) of {images}; chance is 10.0%\)", said)
    assert found and int(found[1]) / images > 0.3


def test_a_dataloader_is_for_one_process(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SystemExit) as caught:
        train.main([str(packed), "--loader", "torch"])
    assert caught.value.code == 2
    assert "--loader torch: runs in one process only" in capsys.readouterr().err


def test_a_dataloader_starts_the_epoch_again(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [str(packed), "--loader", "torch", "--epochs", "2", *SMALL, "--checkpoint", str(tmp_path / "run.pt")]
    assert train.main([*run, "--max-batches", "30"]) == 0
    assert train.main([*run, "--resume"]) == 0
    assert "in epoch 2, after 25 of 50 batches" in capsys.readouterr().out
