"""A contender in a process of its own, so that none uses the memory, threads or caches of another."""

import multiprocessing
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmark.contenders import CONTENDERS
from benchmark.work import Batches, Contender, Work

# A loader fills its queues while the others have their turn; these batches empty them before the clock starts.
WARM_UP_BATCHES = 8
_PATIENCE_S = 180.0


@dataclass(frozen=True)
class First:
    """The first batch: seconds from constructing the loader, after imports, and what it looks like."""

    first_batch_s: float
    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float


@dataclass(frozen=True)
class Round:
    """One turn. memory_bytes: of the whole process tree, without the page cache of files."""

    images: int
    elapsed_s: float
    cpu_s: float
    memory_bytes: int

    @property
    def rate(self) -> float:
        return self.images / self.elapsed_s


class ContenderError(Exception):
    """A contender's process raised or vanished; the message says how."""


class ContenderProcess:
    """Runs one contender's rounds when asked."""

    def __init__(self, name: str, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, work), name=f"bench-{name}")
        self._process.start()
        theirs.close()
        self.first: First = self._receive()

    def round(self) -> Round:
        self._pipe.send("round")
        return self._receive()

    def close(self) -> None:
        self._pipe.close()  # the process sees the end of its orders, and ends
        self._process.join(20)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv() if self._pipe.poll(_PATIENCE_S) else f"said nothing for {_PATIENCE_S:.0f} s"
        except EOFError:
            self._process.join()
            answer = f"its process ended with exit code {self._process.exitcode}"
        if isinstance(answer, str):
            self.close()
            raise ContenderError(f"{self.name}: {answer}")
        return answer


def _serve(pipe: Connection, name: str, work: Work) -> None:
    contender = CONTENDERS[name]
    try:
        _import(contender)
        started = time.perf_counter()
        with contender.open(work) as loader:
            batches = _endless(loader)
            first = next(batches)
            pipe.send(_describe(first, time.perf_counter() - started, contender, work))
            try:
                while pipe.recv() == "round":
                    pipe.send(_run(batches, contender, work))
            finally:
                batches.close()
                del first, batches, loader  # a DataLoader's workers end with the last reference to it
    except EOFError:  # no more orders
        pass
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _run(batches: Iterator[Any], contender: Contender, work: Work) -> Round:
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    _synchronise(contender)
    cpu, started, images = _cpu_seconds(), time.perf_counter(), 0
    while images < work.images:
        pixels, labels = next(batches)
        if len(pixels) != work.batch_size or len(labels) != work.batch_size:
            raise ValueError(f"a batch has {len(pixels)} images and {len(labels)} labels, asked were {work.batch_size}")
        images += len(pixels)
    _synchronise(contender)
    elapsed, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    memory = _memory_bytes()
    _settle()
    return Round(images, elapsed, cpu, memory)


def _describe(batch: tuple[Any, Any], first_batch_s: float, contender: Contender, work: Work) -> First:
    """Checks the first batch: form, dtype, no NaN, and for encoded samples that they are JPEG."""
    images, labels = batch
    if contender.reads_only:
        samples = images if isinstance(images, list) else [images.at(place) for place in range(len(images))]
        if any(bytes(sample[:2]) != b"\xff\xd8" for sample in samples):
            raise ValueError("a sample of its first batch is not a JPEG")
        return First(first_batch_s, (len(images),), "encoded", 0.0, 0.0)
    expected = (work.batch_size, 3, work.size, work.size)
    if (
        tuple(images.shape) != expected
        or str(images.dtype) != "torch.float32"
        or images.device.type != contender.device
    ):
        raise ValueError(
            f"its batches are {tuple(images.shape)}, {images.dtype} on {images.device}; "
            f"asked were {expected}, torch.float32 on {contender.device}"
        )
    if len(labels) != work.batch_size or not bool(images.isfinite().all()):
        raise ValueError("a label is missing or a pixel is not finite")
    return First(first_batch_s, expected, "float32", float(images.mean()), float(images.std()))


def _endless(loader: Batches) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _import(contender: Contender) -> None:
    """What a user imports anyway, before the clock for the first batch starts."""
    import torch  # noqa: F401

    if contender.package == "nvidia.dali":
        import nvidia.dali.plugin.pytorch  # noqa: F401

        import gpuload.iterator  # noqa: F401


def _synchronise(contender: Contender) -> None:
    if contender.device == "cuda":
        import torch

        torch.cuda.synchronize()


def _settle() -> None:
    """Waits until this contender's queues are full and it uses no more CPU, so that it does not slow the next one."""
    for _ in range(50):
        before = _cpu_seconds()
        time.sleep(0.1)
        if _cpu_seconds() - before < 0.02:
            return


def _tree() -> list[int]:
    """This process and its descendants."""
    found = [os.getpid()]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in children.read_text().split())
            except OSError:  # a thread that has just ended
                continue
    return found


def _cpu_seconds() -> float:
    """User and system time of the process tree."""
    ticks = 0
    for pid in _tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15 of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_bytes() -> int:
    """Anonymous and shared memory of the process tree, shared pages divided among those who share them."""
    kilobytes = 0
    for pid in _tree():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return kilobytes * 1024
