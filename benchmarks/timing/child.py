"""The process of one contender: reads orders from standard input and answers in JSON lines.

    python -m timing.child NAME

Contenders run in separate processes so that none uses the memory, threads or caches of another, and so that a peer may
have its own Python environment: nothing imported here needs gpuload. Answers go to standard output, and what libraries
print there to standard error.
"""

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
import textwrap
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from timing.contenders import CONTENDERS
from timing.examine import Examined, describe, examine
from timing.usage import cpu_seconds, memory_bytes
from timing.work import Batches, Contender, Work

# A loader fills its queues during the others' turns; these batches empty them before the clock starts.
WARM_UP_BATCHES = 8

_MOST = 400  # characters of an error, which is told in a line

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def serve(name: str, orders: Any, answers: Any) -> None:
    """Executes one order per line: {"order": "prepare" | "examine" | "cold" | "start" | "warm"}; "warm" is the last."""
    contender = CONTENDERS[name]

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        _import(contender)
        answer(versions=_versions(contender))
        for line in orders:
            order = json.loads(line)
            work = Work(
                **{
                    **order["work"],
                    "folder": Path(order["work"]["folder"]),
                    "cache": Path(order["work"]["cache"]),
                }
            )
            if order["order"] == "prepare":
                assert contender.prepare is not None
                contender.prepare(work, Path(order["folder"]))
                answer(done=True)
            elif order["order"] == "examine":
                answer(**_examine(contender, work)._asdict())
            elif order["order"] == "cold":
                answer(**_first_epoch(contender, work))
            elif order["order"] == "start":
                answer(**_first_seconds(contender, work, order["seconds"]))
            else:
                _rounds(contender, work, orders, answer)
    except Exception as error:
        answer(
            error=textwrap.shorten(
                f"{type(error).__name__}: {error}", _MOST, placeholder=" …"
            )
        )


def _rounds(
    contender: Contender, work: Work, orders: Iterator[str], answer: Any
) -> None:
    """Opens a loader; answers with the time to its first batch, then with a round for each further order."""
    started = time.perf_counter()
    with contender.open(work, **contender.without_end) as loader:
        batches = _endless(loader)
        first = next(batches)
        seconds = time.perf_counter() - started
        answer(first_batch_s=seconds, **describe(first, contender, work))
        del first
        try:
            for _ in orders:
                answer(**_round(batches, contender, work))
        finally:
            batches.close()
            # The workers of a DataLoader exit when the last reference to it is gone.
            del (
                batches,
                loader,
            )


def _round(batches: Iterator[Any], contender: Contender, work: Work) -> dict[str, Any]:
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    _synchronise(contender)
    cpu = cpu_seconds(os.getpid())
    began = time.time()
    started = time.perf_counter()
    images = 0
    while images < work.images:
        images += _count(next(batches), work)
    _synchronise(contender)
    elapsed = time.perf_counter() - started
    cpu = cpu_seconds(os.getpid()) - cpu
    memory = memory_bytes(os.getpid())
    _settle()
    return {
        "images": images,
        "elapsed_s": elapsed,
        "cpu_s": cpu,
        "memory_bytes": memory,
        "began": began,
    }


def _first_epoch(contender: Contender, work: Work) -> dict[str, Any]:
    """The first epoch of a loader, timed from its first batch: what it has read by then is not charged."""
    cpu = cpu_seconds(os.getpid())
    opened = time.perf_counter()
    with contender.open(work) as loader:
        batches = iter(loader)
        _count(next(batches), work)
        started = time.perf_counter()
        images = 0
        for batch in batches:
            images += _count(batch, work)
            if images >= work.images:
                break
        _synchronise(contender)
        elapsed = time.perf_counter() - started
        cpu = cpu_seconds(os.getpid()) - cpu
        memory = memory_bytes(os.getpid())
        del batches, loader
    if not images:
        raise ValueError("its epoch has only one batch; a cold round needs two")
    result = {
        "images": images,
        "elapsed_s": elapsed,
        "cpu_s": cpu,
        "memory_bytes": memory,
    }
    return {**result, "first_batch_s": started - opened}


def _first_seconds(contender: Contender, work: Work, seconds: float) -> dict[str, Any]:
    """When a new loader is opened, and when each batch of its first seconds comes, by the machine's monotonic clock."""
    opened = time.monotonic()
    came = []
    with contender.open(work, **contender.without_end) as loader:
        batches = _endless(loader)
        while not came or came[-1] - opened < seconds:
            _count(next(batches), work)
            came.append(time.monotonic())
        batches.close()
        # The workers of a DataLoader exit when the last reference to it is gone.
        del batches, loader
    return {"opened": opened, "came": came}


def _examine(contender: Contender, work: Work) -> Examined:
    """Examines one epoch; then times resuming after its middle, from the loader's state where it has one."""
    with contender.open(work, **contender.with_state) as loader:
        result, state = examine(loader, contender, work)
        del loader
    gc.collect()  # LitData's loader is part of a reference cycle; when collected, it waits 10 s for its workers
    started = time.perf_counter()
    if state is not None:
        with contender.open(work, state=state) as loader:
            # None: the state was taken at the end of the epoch.
            next(iter(loader), None)
            return result._replace(
                resume_s=time.perf_counter() - started, resumes="state_dict"
            )
    with contender.open(work) as loader:
        batches = iter(loader)
        for _ in range(result.middle + 1):
            next(batches)
        resume_s = time.perf_counter() - started
        del batches, loader
    return result._replace(resume_s=resume_s, resumes="reads again")


def _count(batch: tuple[Any, Any], work: Work) -> int:
    pixels, labels = batch
    if len(pixels) != work.batch_size or len(labels) != work.batch_size:
        raise ValueError(
            f"a batch has {len(pixels)} images and {len(labels)} labels, expected {work.batch_size}"
        )
    return len(pixels)


def _endless(loader: Batches) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _import(contender: Contender) -> None:
    """Imports what any user of the loader imports, before the first batch is timed."""
    import torch  # noqa: F401

    if (
        contender.distribution == "mosaicml-streaming"
        or contender.package == "torchvision"
    ):
        try:
            import torchvision  # noqa: F401
        except RuntimeError:  # PyPI's CUDA build beside a CPU build of torch; none of its operators is used
            import torchvision_anywhere  # noqa: F401
    if contender.package:
        importlib.import_module(contender.package)
    if contender.package == "nvidia.dali":
        import nvidia.dali.plugin.pytorch  # noqa: F401
    if "gpuload" in contender.name:
        import gpuload

        gpuload.DaliIterator  # noqa: B018  (imported when it is first used, in each version)


def _versions(contender: Contender) -> dict[str, str]:
    answer = {"python": platform.python_version()}
    names = (
        "torch",
        "torchvision",
        "numpy",
        "pillow",
        "simplejpeg",
        "numba",
        "opencv-python-headless",
        "opencv-python",
    )
    for name in (*names, *filter(None, [contender.distribution])):
        try:
            answer[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return answer


def _synchronise(contender: Contender) -> None:
    if contender.device == "cuda":
        import torch

        torch.cuda.synchronize()


def _settle() -> None:
    """Waits until this contender has filled its queues and uses no CPU, so that it does not slow the next one down."""
    for _ in range(50):
        before = cpu_seconds(os.getpid())
        time.sleep(0.1)
        if cpu_seconds(os.getpid()) - before < 0.02:
            return


def _end_with_parent() -> None:
    """Has Linux end this process when the benchmark ends, also by SIGTERM or SIGKILL; a turn may take minutes."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before
        sys.exit(1)


if __name__ == "__main__":
    _end_with_parent()
    with open(os.dup(1), "w") as answer_file:
        os.dup2(2, 1)
        serve(sys.argv[1], sys.stdin, answer_file)
