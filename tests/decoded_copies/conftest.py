"""What the tests of decoded copies share."""

from collections.abc import Iterator

import pytest

from gpuload.decoded_copies import places


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """A process holds its copies until it ends; the tests share one process."""
    yield
    for handle in places._held.values():
        handle.close()
    places._held.clear()
