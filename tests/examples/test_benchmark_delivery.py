"""The look at what a contender delivers: it finds what is missing, what came twice, and other pixels."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from benchmark.examine import Examined, describe, examine, faults
from benchmark.work import Contender, Work

TRUTH = {"0": 128, "1": 128}
WORK = Work(folder=None, batch_size=32, size=16, threads=2, images=1024, samples=256)  # type: ignore[arg-type]
ANY = Contender("any", "any", open=None)  # type: ignore[arg-type]


class Loader:
    """256 images whose red is brighter than their blue; labels 0 and 1 in turn."""

    def __init__(self, batches: int = 8, channels: tuple[int, ...] = (0, 1, 2), labels: int = 2) -> None:
        self.batches, self.channels, self.labels = batches, list(channels), labels
        self.given = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        random = torch.Generator().manual_seed(0)
        for number in range(1, self.batches + 1):
            self.given = number
            images = torch.randn(32, 3, 16, 16, generator=random) + torch.tensor([0.5, 0.0, -0.5]).view(3, 1, 1)
            yield images[:, self.channels], torch.arange(32) % self.labels


class Resumable(Loader):
    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}


def found(loader: Loader) -> Examined:
    return examine(loader, ANY, WORK)[0]


def test_a_whole_epoch_is_counted_and_weighed() -> None:
    result = found(Loader())
    assert (result.images, result.whole, result.labels) == (256, True, TRUTH)
    assert result.mean == pytest.approx([0.5, 0.0, -0.5], abs=0.02)
    assert result.std == pytest.approx([1.0, 1.0, 1.0], abs=0.02)
    assert faults(result, TRUTH, result, WORK) is None


def test_state_is_taken_in_the_middle() -> None:
    assert examine(Loader(), ANY, WORK)[1] is None
    result, state = examine(Resumable(), ANY, WORK)
    assert (result.middle, state) == (4, {"given": 4})


@pytest.mark.parametrize(
    ("loader", "fault"),
    [
        (Loader(batches=5), "its epoch has 160 of 256 images"),
        (Loader(batches=9), "label 0 occurs 144 times in an epoch, but 128 times in the set"),
        (Loader(labels=3), "but 0 times in the set"),
        (Loader(channels=(2, 1, 0)), r"its images differ from the first loader's: mean -0\.\d+, .* in red, green"),
    ],
)
def test_what_is_wrong_is_said(loader: Loader, fault: str) -> None:
    said = faults(found(loader), TRUTH, found(Loader()), WORK)
    assert said is not None
    assert re.search(fault, said)


def test_a_last_batch_of_each_worker_may_be_missing() -> None:
    assert faults(found(Loader(batches=6)), TRUTH, None, WORK) is None


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(32, 3, 16, 8), torch.zeros(32), r"its batches are \(32, 3, 16, 8\), torch.float32 on cpu"),
        (torch.zeros(32, 3, 16, 16, dtype=torch.uint8), torch.zeros(32), "torch.uint8 on cpu; expected"),
        (torch.full((32, 3, 16, 16), torch.nan), torch.zeros(32), "a pixel is not finite"),
        (torch.zeros(32, 3, 16, 16), torch.zeros(31), "a label is missing"),
    ],
)
def test_batches_of_another_form_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe((images, labels), ANY, WORK)
