"""The same plan on a Ray cluster (extra `ray`): Ray chooses the machine, and starts a shard again where one is lost.

Source and output folder must lie on a file system that all machines share, under the same path. In each Ray task a
process of gpuload's own packs the shard, so that an image which brings it down is found there, as on one machine.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gpuload.errors import GpuloadError, MissingPackageError, OutputError
from gpuload.packing.run.lost_workers import MOST_DEATHS, LostWorkers
from gpuload.packing.run.shard import ShardJob, modules_for, pack_shard
from gpuload.packing.run.shard_report import ShardReport
from gpuload.packing.run.workers import Workers

_LOOK_S = 0.2


class RayWorkers:
    """`Workers` for shards, with Ray tasks of one core each in place of processes.

    count: most tasks at a time; None: as many as the cluster has cores.

    Raises:
        MissingPackageError: Ray is not installed. GpuloadError: no cluster at this address.
    """

    def __init__(self, count: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError:
            raise MissingPackageError(
                "--engine ray needs Ray, which is not installed: pip install 'gpuload[ray]'"
            ) from None
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
        # A lost machine takes its tasks along; Ray runs them again, without end but for the cluster's.
        self._task = ray.remote(num_cpus=1, max_retries=MOST_DEATHS)(pack_guarded)

    def start(self) -> None:
        """Ray starts what it needs when it needs it."""

    def run(
        self,
        tasks: Iterable[ShardJob],
        done: Callable[[ShardJob, ShardReport], None],
        died: Callable[[ShardJob, int], ShardJob],
        watch: Callable[[list[ShardJob]], None],
    ) -> None:
        """Runs all tasks; results come in any order. Never calls `died`: tasks look after their own processes."""
        ray, waiting = self._ray, deque(tasks)
        running: dict[Any, ShardJob] = {}
        while waiting or running:
            most = self._count or max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting and len(running) < most:
                job = waiting.popleft()
                running[self._task.remote(job)] = job
            ready, _ = ray.wait(list(running), timeout=_LOOK_S)
            for reference in ready:
                job = running.pop(reference)
                try:
                    done(job, ray.get(reference))
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause
                    raise (cause if isinstance(cause, GpuloadError) else error) from None
                except ray.exceptions.RayError as error:
                    raise GpuloadError(
                        f"Ray gave up {job.name} ({type(error).__name__}). Look at the cluster with `ray status`, and "
                        "go on with --resume"
                    ) from None
            watch(list(running.values()))

    def __enter__(self) -> "RayWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._ray.shutdown()


def _check_address(address: str | None) -> None:
    """Asks for a connection: Ray itself waits two minutes for a cluster that is not there."""
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
    """`pack_shard` in a process that may die."""
    results: list[ShardReport] = []
    if not job.plan.exists():
        raise OutputError(f"{job.plan}: is not there on this machine. --engine ray needs OUT on a shared file system")
    preload = modules_for(job.encoding)
    with Workers[ShardJob, ShardReport](1, pack_shard, need_main=False, preload=preload) as workers:
        workers.run([job], lambda _, packed: results.append(packed), LostWorkers(), lambda _: None)
    return results[0]
