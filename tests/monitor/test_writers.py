"""The snippets of docs/waiting.md about TensorBoard, Weights & Biases and Prometheus, as they are written there."""

import re
import sys
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loaders import load

import gpuload

PAGE = Path(__file__).parents[2] / "docs" / "waiting.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("\n## TensorBoard")[2], re.DOTALL)


class Recorder:
    """In place of TensorBoard's writer and of a run of Weights & Biases, neither of which the tests install."""

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.log({tag: float(scalar_value)}, global_step)

    def log(self, data: dict[str, Any], step: int) -> None:
        for name, value in data.items():
            self.told.setdefault(name, []).append(value)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def run(text: str, packed: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    for name, attribute, value in (
        ("torch.utils.tensorboard", "SummaryWriter", lambda: recorder),
        ("wandb", "init", lambda project: recorder),
    ):
        module = ModuleType(name)
        setattr(module, attribute, value)
        monkeypatch.setitem(sys.modules, name, module)
    with load(packed, 1, fields=("image", "label"), steps_per_epoch=200) as loader:
        exec(text, {"loader": loader, "gpuload": gpuload, "recorder": recorder, "urllib": urllib})
    return recorder


@pytest.mark.parametrize("number", [0, 1])
def test_writers(packed: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    assert len(SNIPPETS) == 3
    told = run(SNIPPETS[number], packed, monkeypatch).told
    assert told["loader/images"] == [100, 100] and len(told["loader/wait_share"]) == 2
    assert ("loader/binds" in told) == (number == 1)
    assert len(told) == len(gpuload.monitor.Metrics._fields) - (number == 0)


def test_prometheus(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    assert SNIPPETS[2].count("(9464)") == 1
    read = "urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/metrics').read()"
    end = f"\nrecorder.told['page'] = [{read}]\nserver.shutdown(); server.server_close()"
    text = SNIPPETS[2].replace("(9464)", "(0)") + end
    (page,) = run(text, packed, monkeypatch).told["page"]
    assert re.search(rb"gpuload_images_per_s [1-9]", page) and b"gpuload_wait_share 0." in page
