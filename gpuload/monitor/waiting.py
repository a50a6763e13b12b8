"""When to say that training waits: once, and never in a short run."""

from typing import Any

from gpuload.monitor.binding import WAIT_SHARE

# Steps and seconds of a look at a run. The first look is not judged: code is compiled meanwhile, the page cache is
# cold, and torch chooses its kernels. So nothing is said in the first 200 steps, nor in the first minute.
_STEPS, _SECONDS = 100, 30.0
# A loop whose body takes less than this does not train: it counts, or measures the loader.
_TRAINING_S = 50e-6


class SlowRun:
    """Looks at a run every 100 steps, over 30 s at least.

    next_look: the number of steps after which to look again.
    """

    def __init__(self) -> None:
        self.next_look = _STEPS
        self._then: Any = None

    def look(self, now: Any) -> Any:
        """The totals at the last look, if training waited for 10 % of the time since then or more; else None, as at the
        first look.

        now: the totals (`gpuload.monitor.metrics.Totals`).
        """
        then = self._then
        waited = now.wait_read_s + now.wait_decode_s + now.hand_over_s
        trained, steps = now.training_s, now.steps
        if then is not None:
            waited -= then.wait_read_s + then.wait_decode_s + then.hand_over_s
            trained, steps = trained - then.training_s, steps - then.steps
        self.next_look = now.steps + _STEPS
        if waited + trained < _SECONDS:
            return None
        self._then = now
        trains = trained >= _TRAINING_S * steps
        return then if trains and waited >= WAIT_SHARE * (waited + trained) else None
