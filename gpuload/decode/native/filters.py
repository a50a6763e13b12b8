"""The filters of the resizes, compiled: Pillow's and torch's triangle, and Keys' cubic with a = -0.5.

Both are scaled up by the factor of a reduction
(https://pillow.readthedocs.io/en/stable/handbook/concepts.html#filters).
"""

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.types import F64


@inlined
def fill_taps(center: float, step: float, low: int, high: int, cubic: bool, values: F64) -> tuple[int, int, float]:
    """The filter around a center, at the inputs low..high-1 alone.

    step: inputs from one output to the next. values: float64 (most taps,), filled with what each input weighs, not
    normalised.

    Returns the first input, how many there are, and the sum of the values.
    """
    stretch = max(step, 1.0)
    support, shrink = stretch * (2.0 if cubic else 1.0), 1.0 / stretch
    start = min(max(int(np.floor(center - support + 0.5)), low), high - 1)
    number = max(min(int(np.floor(center + support + 0.5)), high), start + 1) - start
    total = 0.0
    for tap in range(number):
        x = abs(start + tap + 0.5 - center) * shrink
        if not cubic:
            value = max(1.0 - x, 0.0)
        elif x < 1.0:
            value = (1.5 * x - 2.5) * x * x + 1.0
        elif x < 2.0:
            value = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
        else:
            value = 0.0
        values[tap] = value
        total += value
    if total == 0.0:  # the region is outside of its window
        values[0] = total = 1.0
    return start, number, total
