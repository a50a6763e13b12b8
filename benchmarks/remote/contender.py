"""The process of one loader: python -m benchmarks.remote.contender NAME ORDER JSON, answers JSON in lines.

Orders: "prepare" writes the set in the loader's format; "epochs" measures one with an empty cache and one from the
cache; "resume" loads the state that "epochs" has saved in the middle of its first one, and gets a batch.
"""

import importlib
import importlib.metadata
import json
import os
import pickle
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.remote.loaders import LOADERS, Loader, Task
from benchmarks.remote.processes import end_with_parent, now, stats

_PACKAGES = ("torch", "numpy", "simplejpeg", "obstore", "boto3")


def prepare(
    loader: Loader, packed: str, folder: str, shard_bytes: int
) -> Iterator[dict[str, Any]]:
    assert loader.prepare is not None
    loader.prepare(Path(packed), Path(folder), shard_bytes)
    yield {}


def epochs(
    loader: Loader, started: float, task: Task, state: str, middle: int
) -> Iterator[dict[str, Any]]:
    """state: the file for the state. middle: after how many batches it is taken."""
    before = stats(task.server)
    opened = now()
    with loader.open(task) as batches:
        taken = iter(batches)
        images = _count(next(taken), task)
        first = now()
        for number, batch in enumerate(taken, start=2):
            images += _count(batch, task)
            if number == middle:
                with open(state, "wb") as file:
                    pickle.dump(batches.state_dict(), file)
        ended = now()
        after = stats(task.server)
        figures = {
            "first_batch_s": first - started,
            "import_s": opened - started,
            "images": images,
            "cold_s": ended - opened,
            "bytes": after.bytes - before.bytes,
            "requests": after.requests - before.requests,
            "server_cpu_s": after.cpu_s - before.cpu_s,
        }
        del taken
        begun = now()
        images = sum(_count(batch, task) for batch in batches)
        yield {
            **figures,
            "warm_images": images,
            "warm_s": now() - begun,
            "versions": _versions(loader),
        }


def resume(
    loader: Loader, started: float, task: Task, state: str | None
) -> Iterator[dict[str, Any]]:
    """state: None begins anew. bytes: downloaded until the first batch is there."""
    before = stats(task.server)
    loaded = None
    if state is not None:
        with open(state, "rb") as file:
            loaded = pickle.load(file)
    with loader.open(task, state=loaded) as batches:
        _count(next(iter(batches)), task)
        took = now() - started
        after = stats(task.server)
        yield {"resume_s": took, "bytes": after.bytes - before.bytes}


def _count(batch: Any, task: Task) -> int:
    images, labels = batch
    if (
        tuple(images.shape) != (task.batch_size, 3, task.size, task.size)
        or len(labels) != task.batch_size
    ):
        raise ValueError(f"a batch is {tuple(images.shape)}, with {len(labels)} labels")
    return len(images)


def _versions(loader: Loader) -> dict[str, str]:
    answer = {"python": platform.python_version()}
    for name in (*_PACKAGES, loader.distribution):
        try:
            answer[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return answer


def main() -> None:
    end_with_parent()
    loader = LOADERS[sys.argv[1]]
    order = sys.argv[2]
    options = json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    import torch  # noqa: F401

    # It imports torchvision, but uses none of its operators.
    if sys.argv[1] == "mosaic":
        try:
            import torchvision  # noqa: F401
        except RuntimeError:  # PyPI's build for CUDA beside a CPU build of torch
            import torchvision_anywhere  # noqa: F401
    importlib.import_module(loader.package)
    if "task" in options:
        options["task"] = Task(**options["task"])
    # Loaders are closed after they have answered: that may take 10 s.
    for answer in {"prepare": prepare, "epochs": epochs, "resume": resume}[order](
        loader, **options
    ):
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
