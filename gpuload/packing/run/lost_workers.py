"""Decides what to do when a worker dies: blame the image that it was processing, or run the job again."""

import signal
from collections import Counter
from dataclasses import replace

from gpuload.errors import GpuloadError
from gpuload.packing.run.shard import ShardJob
from gpuload.packing.run.worker_position import NOWHERE, read_position

MOST_DEATHS = 100  # of workers without an image to blame; more suggest a problem of the machine or the caller


class LostWorkers:
    """Called with the job of a worker that died and its exit code; returns the job to run instead.

    If an image is to blame, it is among the `known_bad` samples of that job, with the reason.

    Raises:
        GpuloadError: more than MOST_DEATHS workers died with no image to blame.
    """

    def __init__(self) -> None:
        self._deaths_at: Counter[tuple[str, int, int]] = Counter()  # by split, shard and position
        self._deaths_without_blame = 0

    def __call__(self, job: ShardJob, code: int) -> ShardJob:
        position, _ = read_position(job.position_path)
        job.position_path.unlink(missing_ok=True)
        for temporary in job.folder.glob(f"{job.name}.*.tmp"):
            temporary.unlink(missing_ok=True)
        sample = (job.folder.name, job.number, position)
        if position != NOWHERE:
            self._deaths_at[sample] += 1
            # SIGKILL may come from the kernel when memory is short, without a fault of this image: it is tried again.
            if code != -signal.SIGKILL or self._deaths_at[sample] > 1:
                return replace(job, known_bad={**job.known_bad, position: _reason(code, job.time_limit_s)})
        self._deaths_without_blame += 1
        if self._deaths_without_blame > MOST_DEATHS:
            raise GpuloadError(
                f"workers died {self._deaths_without_blame} times with no image to blame, most recently with "
                f"{exit_name(code)}. If memory is short, try fewer --workers. From Python, call pack() under "
                '`if __name__ == "__main__":`'
            )
        return job


def _reason(code: int, time_limit_s: float) -> str:
    if code == -signal.SIGALRM:
        return f"took longer than {time_limit_s:g} s"
    if code == -signal.SIGKILL:
        return "the decoder was killed (SIGKILL) twice; out of memory?"
    return f"the decoder crashed: {exit_name(code)}"


def exit_name(code: int) -> str:
    """A signal's name, or the exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
