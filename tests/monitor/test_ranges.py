"""What others see of a run: ranges in profilers, without an import where nobody looks; and metrics where they are written."""

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from loaders import load

from gpuload import monitor
from gpuload.monitor import Metrics


class Nvtx:
    """The package, where a tool listens; notes the ranges of each thread."""

    def __init__(self) -> None:
        self.open: dict[int, list[str]] = {}
        self.seen: list[tuple[str, ...]] = []
        self.threads: dict[str, set[str]] = {}

    @contextmanager
    def annotate(self, name: str, domain: str) -> Iterator[None]:
        assert domain == "gpuload"
        stack = self.open.setdefault(threading.get_ident(), [])
        stack.append(name)
        self.seen.append(tuple(stack))
        self.threads.setdefault(name, set()).add(threading.current_thread().name)
        try:
            yield
        finally:
            stack.pop()


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_nvtx(packed: Path, monkeypatch: pytest.MonkeyPatch, decoder: str) -> None:
    domain = Nvtx()
    monkeypatch.setattr(monitor, "_nvtx", lambda: domain)
    with load(packed, decoder=decoder) as loader:
        for _ in loader:
            assert domain.open[threading.get_ident()] == []  # the training step is in none of them
    assert not any(domain.open.values())
    assert domain.seen.count(("hand over",)) == 12
    assert domain.seen.count(("wait",)) == 13  # and for the end
    here = threading.current_thread().name
    assert domain.threads["wait"] == domain.threads["hand over"] == {here}
    reading = {"native": {"gpuload-decode-start_0"}, "dali": {"gpuload-feed_0"}}
    assert domain.threads["read"] == reading.get(decoder, {"gpuload-read_0"})
    assert domain.seen.count(("read",)) >= 12
    if decoder != "dali":
        assert domain.threads["decode"] == {"gpuload-decode_0"} and domain.seen.count(("decode",)) == 12


def test_torchs_profiler(packed: Path) -> None:
    with load(packed) as loader:
        batches = iter(loader)
        next(batches)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3):
                next(batches)
        next(batches)
    names = [event.key for event in profile.events()]
    assert names.count("gpuload: wait") == names.count("gpuload: hand over") == 3


@pytest.mark.parametrize(("variable", "imported"), [("", False), ("/nonexistent.so", True)])
def test_nvtx_is_imported_only_where_a_tool_listens(variable: str, imported: bool) -> None:
    """And a range is a range of the real package; without the package, none."""
    pytest.importorskip("nvtx")
    code = (
        "import sys; from gpuload import monitor\n"
        "with monitor.annotate('a'):\n    pass\n"
        "print('nvtx' in sys.modules, 'torch' in sys.modules)\n"
        "sys.modules['nvtx'] = None; monitor._nvtx.cache_clear()\n"
        "with monitor.annotate('a'):\n    pass\n"
    )
    environment = {"NVTX_INJECTION64_PATH": variable, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{imported} False\n", "")


# The snippets of docs/waiting.md about TensorBoard, Weights & Biases and Prometheus, as they are written there.

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
