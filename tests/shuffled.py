"""The order of the tests: the longest first, or a random one: pytest --shuffle SEED. Tests of a file stay together, as do
their fixtures."""

import random

import pytest

# Their tests or fixtures take several seconds at a stretch: at the end, the other workers would wait for them.
LONGEST = (
    "test_two_ranks.py",
    "test_never_lost.py",
    "test_faults.py",
    "test_at_urls.py",
    "test_torchrun.py",
    "test_train.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run the tests in a random order, which depends on SEED"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        draw = random.Random(seed)
        places = {path: draw.random() for path in sorted({item.path for item in items})}
        draw.shuffle(items)
        items.sort(key=lambda item: places[item.path])
    else:
        items.sort(key=lambda item: item.path.name not in LONGEST)
