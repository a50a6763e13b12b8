"""Memory over many batches of images of mixed sizes: what the loader holds does not grow."""

import gc
from itertools import count
from pathlib import Path
from typing import Any

import torch
from gpu_decoders import Load

BATCHES, WARM_UP = 1_000, 300
MIB = 1 << 20


def host_mib() -> float:
    """Resident memory of this process without that of mapped files, which is the page cache."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def gpu_mib() -> float:
    """Memory in use on the GPU by anything: DALI's allocator is not torch's."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MIB


def test_memory_is_steady_over_a_thousand_batches(
    mixed: Path, load: Load, accelerated: dict[str, Any], record_property: Any
) -> None:
    loader = load(mixed, 4, accelerated)
    seen, host, gpu = 0, [], []
    for _ in count():
        for images, _ in loader:
            seen += 1
            assert len(images) == 4
            if seen in (WARM_UP, BATCHES):
                gc.collect()
                host.append(host_mib())
                gpu.append(gpu_mib())
        if seen >= BATCHES:
            break
    record_property("memory_mib", {"host": host, "gpu": gpu})
    # 700 batches of 4 images are 74 MiB as floats, 105 as decoded pixels. On a CPU a leak of a tenth of either shows; a
    # GPU's allocators, and those of pinned memory, take tens of MiB at once.
    most = 48 if accelerated["device"] == "cuda" else 7
    assert host[1] - host[0] < most
    assert gpu[1] - gpu[0] < most
