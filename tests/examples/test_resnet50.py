"""examples/train_resnet50.py: the net is torchvision's, and the figures are of what was trained."""

import importlib
import json
from pathlib import Path

import pytest
import torch
import train_resnet50

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_net_is_torchvisions() -> None:
    torch.manual_seed(0)
    importlib.import_module("torchvision_anywhere")
    theirs = importlib.import_module("torchvision.models").resnet50(weights=None).eval()
    ours = train_resnet50.resnet50(1000).eval()
    values = theirs.state_dict().values()
    names = ours.state_dict().keys()
    ours.load_state_dict(dict(zip(names, values, strict=True)))
    images = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)
    assert sum(weights.numel() for weights in ours.parameters()) == 25_557_032


@pytest.fixture
def small_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole net takes seconds a step on a CPU that others use too."""
    monkeypatch.setattr(train_resnet50, "DEPTHS", (1, 1, 1, 1))
    monkeypatch.setattr(train_resnet50, "WIDTHS", (8, 16, 32, 64))


@pytest.mark.usefixtures("small_net")
def test_figures(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    options = [
        "--size",
        "32",
        "--batch-size",
        "16",
        "--steps",
        "5",
        "--warm-up",
        "2",
        "--rounds",
        "2",
        "--workers",
        "1",
    ]
    assert train_resnet50.main([str(packed / "train"), "--device", "cpu", *options, "--json", str(figures)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said] == ["one resident batch", "gpuload", "DataLoader + Pillow"]
    written = json.loads(figures.read_text())
    assert written["data"]["classes"] == 10 and written["precision"] == "float32"
    rows = {row["name"]: row for row in written["loaders"]}
    assert list(rows) == ["synthetic", "gpuload", "torch"]
    for row in rows.values():
        assert len(row["turns"]) == 2
        assert row["images_per_s"] == pytest.approx(sum(turn["images_per_s"] for turn in row["turns"]) / 2)
        assert row["share_of_resident"] == row["images_per_s"] / rows["synthetic"]["images_per_s"]
        assert all(0 < turn["last_loss"] < 10 for turn in row["turns"])


@pytest.mark.usefixtures("small_net")
def test_a_resident_batch_is_learnt_by_heart() -> None:
    torch.manual_seed(0)
    trainer = train_resnet50.Trainer(10, "cpu")
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    losses = [trainer.step(images, labels).item() for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
