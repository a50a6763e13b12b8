"""What a run is compared with that nothing stopped; and what Accelerate keeps for a process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small import EPOCHS, load


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    """Accelerate's state, which Trainer sets, too."""
    yield
    if (state := sys.modules.get("accelerate.state")) is not None:
        for one in (state.AcceleratorState, state.GradientState, state.PartialState):
            one._reset_state()


@pytest.fixture(scope="session")
def undisturbed(packed: Path) -> list[list[str]]:
    """The keys of each batch of the run."""
    with load(packed, fields=("key",)) as loader:
        return [keys for _ in range(EPOCHS) for (keys,) in loader]
