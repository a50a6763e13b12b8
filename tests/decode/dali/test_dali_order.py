"""How DALI is asked for batches: on the runner's stream, each handed over before the next is begun; stand-ins check it."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from made_batches import make_batch

import gpuload
from gpuload import Augment
from gpuload.decode.dali import decoder as dali
from gpuload.decode.device import Device
from gpuload.decode.interface import Stored
from gpuload.decode.runner import Runner
from gpuload.read.batch import Batch

AUGMENT, PREFETCH = Augment(4, dtype="uint8"), 2


class Stream(Device):
    """A GPU's stream, by its number alone."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(None)
        self.log = log

    @property
    def stream_number(self) -> int:
        return 7

    def upload(self, array: Any) -> torch.Tensor:
        self.log.append("through DLPack")
        return super().upload(array)

    def leave(self, held: list[Any]) -> None:
        self.log += [f"{type(one).__name__} of DALI are held" for outputs in held for one in outputs]


class Outputs:
    def as_tensor(self) -> Any:
        return np.zeros((1, 3, 4, 4), np.uint8)


class Pipeline:
    """DALI's, which asks for inputs until there are none, and notes what it is asked for. fails: what it says then."""

    def __init__(self, log: list[str], take: Callable[[], Any], fails: str = "") -> None:
        self._log, self._take, self._fails = log, take, fails
        self._scheduled: deque[Any] = deque()

    def reset(self) -> None: ...

    def schedule_run(self) -> None:
        while True:
            try:
                self._scheduled.append(self._take())
            except StopIteration:
                return
            self._log.append("scheduled")

    def outputs(self, stream: int | None) -> list[Outputs]:
        if self._fails:
            raise RuntimeError(self._fails)
        self._scheduled.popleft()
        self._log.append(f"outputs on {stream}")
        return [Outputs()]


def open_dali(monkeypatch: pytest.MonkeyPatch, log: list[str], device: Device | None, fails: str = "") -> Runner:
    monkeypatch.setattr(dali, "open_pipeline", lambda _, forms, stored, take, *__, **___: Pipeline(log, take, fails))
    stage = dali.DaliDecoder(
        [AUGMENT.form], Stored(), device, batch_size=1, device_id=None, num_threads=1, prefetch_queue_depth=PREFETCH
    )
    return Runner([stage.feed, stage], PREFETCH, device)


def one_batch() -> Batch:
    image = np.frombuffer(encode(smooth_image(np.random.default_rng(0), 8, 8)), np.uint8)
    return make_batch(AUGMENT, [image], [(8, 8)])


def test_a_batch_is_handed_over_before_the_next_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    runner = open_dali(monkeypatch, log, Stream(log))
    assert len(list(runner.decode(iter([one_batch() for _ in range(9)])))) == 9
    runner.close()
    taken = [number for number, what in enumerate(log) if what == "outputs on 7"]
    assert len(taken) == 9 and all(log[number + 1] == "through DLPack" for number in taken)
    assert log.count("Outputs of DALI are held") == 9
    in_dali = np.cumsum([{"scheduled": 1, "outputs on 7": -1}.get(what, 0) for what in log])
    assert in_dali.max() <= PREFETCH and in_dali[-1] == 0


def test_without_torch_on_the_device_the_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    runner = open_dali(monkeypatch, log, None)
    assert len(list(runner.decode(iter([one_batch(), one_batch()])))) == 2
    runner.close()
    assert log.count("outputs on None") == 2 and "through DLPack" not in log


def test_a_failure_that_no_image_explains_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = open_dali(monkeypatch, [], None, fails='Assert on "x" failed\nStacktrace')
    message = (
        r"DALI failed \(Assert on \"x\" failed\), while Pillow decodes each image of the 1 batch .* Use decoder='n"
    )
    with pytest.raises(gpuload.DecodeError, match=message):
        list(runner.decode(iter([one_batch()])))
    runner.close()


@pytest.mark.parametrize(
    "said", ["cudaErrorStreamCaptureUnsupported (900)", "CUDA error: operation not permitted when stream is capturing"]
)
def test_the_capture_of_a_graph_is_recognised(said: str) -> None:
    found = dali.find_device_fault(RuntimeError(f"CUDA runtime API error {said}"), 0)
    assert isinstance(found, gpuload.DeviceError) and "captured in mode 'global'" in str(found)
    assert "capture_error_mode='thread_local'" in str(found)
