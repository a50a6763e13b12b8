"""Who is to blame when a worker dies: the image that it was at, the machine, or nobody."""

import signal
from collections import Counter
from dataclasses import replace

from gpuload.errors import GpuloadError
from gpuload.packing.run.shard import ShardJob
from gpuload.packing.run.worker_position import NOWHERE, read_position

MOST_DEATHS = 100  # of workers, without one image to blame: then something is wrong with the machine or the caller


class LostWorkers:
    """Called with the job of a worker that died and its exit code; gives the job to run in its place.

    An image that brought a worker down is left out of that, with its reason.

    Raises:
        GpuloadError: workers die again and again with no image to blame.
    """

    def __init__(self) -> None:
        self._killed: Counter[tuple[str, int, int]] = Counter()
        self._count = 0

    def __call__(self, job: ShardJob, code: int) -> ShardJob:
        position, _ = read_position(job.position_path)
        job.position_path.unlink(missing_ok=True)
        for temporary in job.folder.glob(f"{job.name}.*.tmp"):
            temporary.unlink(missing_ok=True)
        place = (job.folder.name, job.number, position)
        self._count += 1
        if position != NOWHERE:
            self._killed[place] += 1
            # SIGKILL may be the kernel's, short of memory, and no fault of this image: it gets a second chance.
            if code != -signal.SIGKILL or self._killed[place] > 1:
                self._count -= 1
                return replace(job, known_bad={**job.known_bad, position: _reason(code, job.time_limit_s)})
        if self._count > MOST_DEATHS:
            raise GpuloadError(
                f"workers died {self._count} times with no image to blame, at last with {_exit_name(code)}. Is memory "
                'short? Try fewer --workers. From Python, call pack() under `if __name__ == "__main__":`'
            )
        return job


def _reason(code: int, time_limit_s: float) -> str:
    if code == -signal.SIGALRM:
        return f"took longer than {time_limit_s:g} s"
    if code == -signal.SIGKILL:
        return "the decoder was killed (SIGKILL) twice; out of memory?"
    return f"the decoder died: {_exit_name(code)}"


def _exit_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
