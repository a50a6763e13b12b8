"""Accelerate's gradient state. It asks the loader that is iterated whether the last batch is out: `accumulate` then
updates, and `gather_for_metrics` drops what was repeated."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def followed(loader: Any) -> Iterator[None]:
    """Meanwhile, the loader is the one that Accelerate asks, where this process uses it: it has no other protocol than
    its own list, which the loaders that it prepares enter, too."""
    module = sys.modules.get("accelerate.state")
    if module is None:
        yield
        return
    state = module.GradientState()
    state._add_dataloader(loader)
    try:
        yield
    finally:
        if state.initialized:  # and not reset meanwhile
            state._remove_dataloader(loader)
