"""What a run is compared with that nothing stopped."""

from pathlib import Path

import pytest
from small import EPOCHS, load


@pytest.fixture(scope="session")
def undisturbed(packed: Path) -> list[list[str]]:
    """The keys of each batch of the run."""
    with load(packed, fields=("key",)) as loader:
        return [keys for _ in range(EPOCHS) for (keys,) in loader]
