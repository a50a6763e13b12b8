"""Packs shards on a Ray cluster (extra `ray`): Ray chooses the machines, and restarts the tasks of a lost one.

Source and output folder must be on a file system that all machines share, under the same path. In each Ray task a
separate process packs the shard, so that an image that crashes it is identified, as on a single machine.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuload.errors import GpuloadError, OutputError
from gpuload.packing.shard import ShardJob, ShardReport, pack_shard
from gpuload.packing.split_plan import plan_path
from gpuload.packing.workers import MOST_DEATHS, Blame, Workers

_POLL_S = 0.2  # between two calls of `watch`


class RayWorkers:
    """`Workers` for shards, with Ray tasks of one core each instead of processes.

    Args:
        count: Largest number of concurrent tasks; None: the number of the cluster's cores.
        address: Of the cluster; None: a running one, else a new one.

    Raises:
        GpuloadError: there is no cluster at this address.
    """

    def __init__(self, count: int | None, address: str | None) -> None:
        import ray

        self._ray = ray
        self._count = count
        self._started = not ray.is_initialized()
        if self._started:
            try:
                _connect(address)
                ray.init(
                    address=address,
                    log_to_driver=False,
                    configure_logging=False,
                    include_dashboard=False,
                )
            except (OSError, ValueError, RuntimeError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise GpuloadError(
                    f"--address {address}: no Ray cluster there ({reason}). `ray status` shows one"
                ) from None
        # Ray restarts the tasks of a lost machine; the number of times is limited as it is for local workers.
        self._task = ray.remote(num_cpus=1, max_retries=MOST_DEATHS)(pack_guarded)

    def run(
        self,
        tasks: Iterable[ShardJob],
        died: object,
        watch: Callable[[list[ShardJob]], None],
    ) -> Iterator[tuple[ShardJob, ShardReport]]:
        """Runs all tasks; results come in any order.

        Args:
            tasks: One for each shard.
            died: Never called, since each task handles its own process.
            watch: Called a few times a second with the tasks in progress.
        """
        ray = self._ray
        waiting = deque(tasks)
        running: dict[Any, ShardJob] = {}
        while waiting or running:
            most = self._count or max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting and len(running) < most:
                job = waiting.popleft()
                running[self._task.remote(job)] = job
            ready, _ = ray.wait(list(running), timeout=_POLL_S)
            for reference in ready:
                job = running.pop(reference)
                try:
                    yield job, ray.get(reference)
                except ray.exceptions.RayError as error:
                    if isinstance(cause := getattr(error, "cause", None), Exception):
                        raise cause from error
                    raise GpuloadError(
                        f"Ray gave up on {job.path.name} ({type(error).__name__}). Check the cluster with `ray "
                        "status`, and continue with --resume"
                    ) from None
            watch(list(running.values()))

    def __enter__(self) -> "RayWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._ray.shutdown()


def _connect(address: str | None) -> None:
    """Raises OSError if nothing answers at a host and port, since Ray itself would wait two minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=5).close()


def pack_guarded(job: ShardJob) -> ShardReport:
    """Runs `pack_shard` in a process that may die."""
    plan = plan_path(job.scratch, job.folder.name)
    if not plan.exists():
        raise OutputError(
            f"{plan}: does not exist on this machine. With --engine ray, OUT must be on a shared file system"
        )
    job.position.unlink(
        missing_ok=True
    )  # the process of a task that was killed may still write to it
    with Workers[ShardJob, ShardReport](1, pack_shard, need_main=False) as workers:
        ((_, report),) = workers.run([job], Blame())
    return report
