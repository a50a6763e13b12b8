"""Functions in processes: the same results, what they raise, and that nothing waits for ever where one ends."""

import multiprocessing
import os
import subprocess
from pathlib import Path
from typing import Any

import global_draws
import numpy as np
import prepared
import pytest
import torch
from loaders import drain, load
from painted import KEYPOINTS
from sample_functions import NotThere, end_at_seven, raise_own, speckle, swap_sides, turn

from gpuload import ArgumentError, Augment, FunctionError
from gpuload.functions.processes import SharedMemory
from gpuload.transforms import Function

STOPPED = Path(__file__).parent / "stopped.py"


def calling(function: Any, processes: int = 1) -> Augment:
    return Augment(12, dtype="uint8", transforms=[Function(function, processes=processes)])


@pytest.mark.parametrize(
    "functions",
    [[(speckle, False), (swap_sides, False)], [(turn, True)]],
    ids=["after", "before"],
)  # fmt: skip
def test_results_are_those_of_threads(painted: Path, functions: Any) -> None:
    options: dict[str, Any] = {"fields": ("image", "mask", "boxes", KEYPOINTS), "drop_last": False}
    epochs = []
    for processes in (0, 2):
        augments = [Augment(12, dtype="uint8", transforms=[Function(*one, processes)]) for one in functions]
        with load(painted, augment=augments, **options) as loader:
            epochs.append(list(loader))
            metrics = loader.metrics()
            assert metrics.function_s > 0 and metrics.decode_s > 0
            loader.close()  # and again where the loop ends
    torch.testing.assert_close(*epochs, rtol=0, atol=0)


def test_global_generators_are_seeded_for_each_sample_there(packed: Path) -> None:
    with load(packed, 8, augment=calling(global_draws.speckle, 2)) as loader:
        epochs = [dict(drain([loader])) for _ in range(2)]
    with load(packed, 5, augment=calling(global_draws.speckle), drop_last=False) as loader:
        again = dict(drain([loader]))
    assert all(again[sample] == pixels for sample, pixels in epochs[0].items())
    assert all(epochs[1][sample] != pixels for sample, pixels in epochs[0].items() if sample in epochs[1])


def test_what_cannot_be_unpickled_is_raised_as_its_text(packed: Path) -> None:
    with (
        load(packed, augment=calling(raise_own)) as loader,
        pytest.raises(FunctionError, match=r"raise_own raised RuntimeError: OwnError: 1 and 2"),
    ):
        list(loader)


def test_a_process_that_ends_is_replaced(packed: Path) -> None:
    with load(packed, 4, augment=calling(end_at_seven, 2), shuffle=False) as loader:
        for epoch in (0, 1, 0):
            loader.set_epoch(epoch)
            batches = 0
            with pytest.raises(FunctionError, match=r"end_at_seven did not return: its process ended with exit code 3"):
                for _ in loader:
                    batches += 1
            assert batches == 1


def test_what_cannot_go_to_a_process(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda sample, rng: sample, r"Function\(processes=1\): .*lambda.* cannot be sent to a process .* top level"),
        (NotThere(), "a process does not start: ModuleNotFoundError: No module named 'not_there'"),
    ]
    for function, message in cases:
        with pytest.raises(ArgumentError, match=message):
            load(packed, augment=calling(function))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"Function\(processes=1\): this process is a daemon, .* cannot start"):
        load(packed, augment=calling(speckle))
    monkeypatch.undo()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ArgumentError, match=r"imports the main .* under if __name__ == '__main__':"):
        load(packed, augment=calling(speckle))


def test_nothing_waits_for_ever(packed: Path) -> None:
    """Nor is a process left behind: stderr, which all of them hold, would stay open. Thirty of each were tried."""
    ways = "kill,interrupt,close,leave,exit"
    command = [*prepared.python(), "-W", "error", str(STOPPED), str(packed), ways, "2", "5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("gpuload compiles its CPU decoder")]
    assert len(done.stdout.split()) == 5 and not said


def test_arrays_go_through_shared_memory_and_once() -> None:
    memory, image = SharedMemory(), np.arange(100_000, dtype=np.int64).astype(np.uint8)
    first, end = memory.dump({"image": image})
    inside = memory.load(first)["image"]
    second, _ = memory.dump({"inside": inside, "larger": np.ones(10_000_000, np.uint8)}, end)
    assert first[1][0] in second[1] and len(first[0]) + len(second[0]) < 1000  # neither holds pixels
    again = SharedMemory(os.dup(memory.fd))
    assert np.array_equal(again.load(second)["inside"], image) and np.array_equal(inside, image)
    again.close()
    memory.close()
