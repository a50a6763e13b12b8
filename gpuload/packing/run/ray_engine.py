"""Packs shards on a Ray cluster (extra `ray`): Ray chooses the machines, and restarts the tasks of a lost one.

Source and output folder must be on a file system that all machines share, under the same path. In each Ray task a
separate process packs the shard, so that an image that crashes it is identified, as on a single machine.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gpuload.errors import GpuloadError, OutputError
from gpuload.packing.run.lost_workers import MOST_DEATHS, LostWorkers
from gpuload.packing.run.shard import ShardJob, modules_to_preload, pack_shard
from gpuload.packing.run.shard_report import ShardReport
from gpuload.packing.run.workers import Workers

_POLL_S = 0.2  # between two calls of `watch`


class RayWorkers:
    """`Workers` for shards, with Ray tasks of one core each instead of processes.

    count: largest number of concurrent tasks; None: the number of the cluster's cores.

    Raises:
        GpuloadError: there is no cluster at this address.
    """

    def __init__(self, count: int | None, address: str | None) -> None:
        import ray

        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            _check_address(address)
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False, include_dashboard=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise GpuloadError(
                    f"--address {address}: no Ray cluster there ({reason}). `ray status` shows one"
                ) from None
        self._count = count
        # Ray restarts the tasks of a lost machine; the number of times is limited as it is for local workers.
        self._task = ray.remote(num_cpus=1, max_retries=MOST_DEATHS)(pack_guarded)

    def start(self) -> None:
        """Does nothing: Ray starts processes when it needs them."""

    def run(
        self,
        tasks: Iterable[ShardJob],
        done: Callable[[ShardJob, ShardReport], None],
        died: Callable[[ShardJob, int], ShardJob],
        watch: Callable[[list[ShardJob]], None],
    ) -> None:
        """Runs all tasks; results come in any order. Never calls `died`, since each task handles its own process."""
        ray, waiting = self._ray, deque(tasks)
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
                    done(job, ray.get(reference))
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause
                    raise (cause if isinstance(cause, GpuloadError) else error) from None
                except ray.exceptions.RayError as error:
                    raise GpuloadError(
                        f"Ray gave up on {job.name} ({type(error).__name__}). Check the cluster with `ray status`, and "
                        "continue with --resume"
                    ) from None
            watch(list(running.values()))

    def __enter__(self) -> "RayWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._ray.shutdown()


def _check_address(address: str | None) -> None:
    """Tries to connect; raises GpuloadError if that fails. Ray itself would wait two minutes for a missing cluster."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise GpuloadError(
            f"--address {address}: no Ray cluster there ({error.strerror or error}). `ray status` shows one"
        ) from None


def pack_guarded(job: ShardJob) -> ShardReport:
    """Runs `pack_shard` in a process that may die."""
    results: list[ShardReport] = []
    if not job.plan.exists():
        raise OutputError(
            f"{job.plan}: does not exist on this machine. With --engine ray, OUT must be on a shared file system"
        )
    preload = modules_to_preload(job.encoding)
    with Workers[ShardJob, ShardReport](1, pack_shard, need_main=False, preload=preload) as workers:
        workers.run([job], lambda _, packed: results.append(packed), LostWorkers(), lambda _: None)
    return results[0]
