"""Writes `order.json`, `drawn_order.json` and `laned_order.json`, the golden epoch orders.

    python tests/golden/regenerate_order.py

Right only together with a new `gpuload.disk.manifest.VERSION`: people resume from a state_dict that counts on this
order, and compare runs by it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.order.epoch import EpochOrder
from gpuload.order.sampling import Sampling

CASES = [
    {"shard_sizes": [4, 3, 5, 2], "seed": 0, "epoch": 0, "window": 2},
    {"shard_sizes": [4, 3, 5, 2], "seed": 0, "epoch": 1, "window": 2},
    {"shard_sizes": [4, 3, 5, 2], "seed": 1, "epoch": 0, "window": 2},
    {"shard_sizes": [4, 3, 5, 2], "seed": 0, "epoch": 0, "window": 8},
    {"shard_sizes": [1] * 12, "seed": 2**40, "epoch": 100, "window": 5},
]


def orders(cases: Sequence[dict[str, Any]] = CASES) -> list[dict[str, Any]]:
    made = (EpochOrder(**{**case, "shard_sizes": np.array(case["shard_sizes"])}) for case in cases)
    return [{**case, "order": order[:].tolist()} for case, order in zip(cases, made, strict=True)]


def drawn_orders() -> dict[str, list[int]]:
    """By weights, by classes, and without replacement."""
    sizes, place = np.array([4, 3, 5, 2]), {"seed": 3, "epoch": 5, "window": 2}
    weights, groups = np.arange(14) / 13, np.arange(14, dtype=np.int32) % 5 % 3
    samplings = {
        "weighted": Sampling(20, weights=weights),
        "balanced": Sampling(20, groups=groups),
        "chosen": Sampling(9, weights=weights, replacement=False),
    }
    return {name: sampling.order(sizes, **place)[:].tolist() for name, sampling in samplings.items()}


LANED_CASES = [
    {"shard_sizes": [4, 3, 5, 2], "seed": 0, "epoch": 0, "window": 2, "lanes": 2},
    {"shard_sizes": [4, 3, 5, 2], "seed": 0, "epoch": 1, "window": 2, "lanes": 3},
    {"shard_sizes": [4, 0, 3, 5, 2], "seed": 1, "epoch": 0, "window": 1, "lanes": 4},
    {"shard_sizes": [3] * 12, "seed": 2**40, "epoch": 100, "window": 2, "lanes": 4},
]


def laned_orders() -> list[dict[str, Any]]:
    return orders(LANED_CASES)


if __name__ == "__main__":
    for name, rows in (("order", orders()), ("laned_order", laned_orders())):
        text = "[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n"
        Path(__file__).with_name(f"{name}.json").write_text(text)
    Path(__file__).with_name("drawn_order.json").write_text(json.dumps(drawn_orders(), indent=1) + "\n")
