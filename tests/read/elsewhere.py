"""Loads an epoch in a process from which calls were hidden that other systems do not have; prints keys and a checksum.

    python tests/read/elsewhere.py FOLDER SYSTEM

SYSTEM is macos or windows. What gpuload uses is imported before: those packages have code for
other systems, and choose it by calls that are hidden here.
"""

import ctypes
import hashlib
import json
import mmap
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
from typing import Any

import llvmlite.binding
import numba.core.caching
import pyarrow.compute
import simplejpeg
import torch

MACOS = {
    os: ["sched_getaffinity", "posix_fadvise", "posix_fallocate", "pipe2", "memfd_create"],
    mmap: ["MAP_POPULATE", "MADV_DODUMP"],
}
WINDOWS = {
    os: [
        *MACOS[os],
        *("O_CLOEXEC", "O_DIRECTORY", "pread", "preadv", "writev", "register_at_fork", "fork", "getuid"),
        *("geteuid", "statvfs", "getloadavg", "mkfifo", "sysconf"),
    ],
    mmap: [*MACOS[mmap], "PROT_READ", "PROT_WRITE", "MAP_SHARED", "MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_ANON"],
    signal: ["SIGBUS", "SIGALRM", "SIGKILL", "setitimer", "pthread_sigmask", "ITIMER_REAL"],
}


def hide(system: str) -> None:
    for module, names in {"macos": MACOS, "windows": WINDOWS}[system].items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if system == "windows":
        for name in ("fcntl", "resource", "pwd", "termios"):
            sys.modules[name] = None  # type: ignore[assignment]
        load = ctypes.CDLL.__init__

        def refuse(self: Any, name: Any, *arguments: Any, **keywords: Any) -> None:
            if name is None:
                raise TypeError("LoadLibrary() argument 1 must be str, not None")
            load(self, name, *arguments, **keywords)

        ctypes.CDLL.__init__ = refuse  # type: ignore[method-assign]
    # What reads the system's name before the calls were hidden keeps it: this is for gpuload alone.
    sys.platform = {"macos": "darwin", "windows": "win32"}[system]


def main(folder: str, system: str) -> None:
    hide(system)
    print(json.dumps({"platform": sys.platform, **load_epochs(folder)}))


def load_epochs(folder: str) -> dict[str, Any]:
    """The keys of two epochs in their order, a checksum of their pixels, and who decoded them."""
    import gpuload

    augment = gpuload.Augment(32, dtype="uint8")
    fields = ["image", "label", "key"]
    keys: list[str] = []
    pixels = hashlib.sha256()
    with gpuload.DaliIterator(
        folder, 8, augment=augment, fields=fields, device="cpu", decoder="native", num_threads=2
    ) as loader:
        for epoch in range(2):
            for images, _, batch_keys in loader:
                keys += batch_keys
                pixels.update(images.numpy().tobytes())
            if epoch == 0:
                loader.load_state_dict(loader.state_dict())
        return {"keys": keys, "pixels": pixels.hexdigest(), "decoder": loader.decoder}


if __name__ == "__main__":
    assert all((llvmlite.binding, multiprocessing.resource_tracker, numba.core.caching, pyarrow.compute, simplejpeg))
    assert torch.get_num_threads() and tempfile.gettempdir()
    main(*sys.argv[1:3])
