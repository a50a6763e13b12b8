"""The snippets of docs/waiting.md about TensorBoard, Weights & Biases and Prometheus, as they are written there."""

import re
import sys
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from loaders import load

from gpuload.monitor import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "waiting.md"
BOARD, WANDB, PROMETHEUS = re.findall(
    r"```python\n(.*?)```", PAGE.read_text().partition("\n## TensorBoard")[2], re.DOTALL
)


def run(text: str, packed: Path) -> dict[str, Any]:
    with load(packed, 1, fields=("image", "label"), steps_per_epoch=200) as loader:
        exec(text, names := {"loader": loader, "urllib": urllib})
    return names


def test_writers(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests install neither of them."""
    board, wandb = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for text in (BOARD, WANDB):
        run(text, packed)
    names = [f"loader/{name}" for name in Metrics._fields]
    logs = [call.args[0] for call in wandb.init().__enter__().log.call_args_list]
    assert [list(told) for told in logs] == [names, names] and [told["loader/images"] for told in logs] == [100, 100]
    scalars = [(*call.args,) for call in board.SummaryWriter().add_scalar.call_args_list]
    assert [name for name, _, _ in scalars] == 2 * [name for name in names if name != "loader/binds"]
    assert all(isinstance(value, int | float) for _, value, _ in scalars)


def test_prometheus(packed: Path) -> None:
    pytest.importorskip("prometheus_client")
    assert PROMETHEUS.count("(9464)") == 1
    read = "\npage = urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/metrics').read()"
    names = run(f"{PROMETHEUS.replace('(9464)', '(0)')}{read}\nserver.shutdown(); server.server_close()", packed)
    assert re.search(rb"gpuload_images_per_s [1-9]", names["page"]) and b"gpuload_wait_share 0." in names["page"]
