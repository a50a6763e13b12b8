"""Locks on files: `fcntl`, or what stands for it on a system that has none (Windows).

There a lock is an OSError, as on a file system without locks. The compiled code is then compiled by each process that
needs it; sets at URLs, whose cache several processes share, cannot be opened.
"""

import errno
from typing import Any, NoReturn


class _NoLocks:
    """As much of `fcntl` as gpuload uses."""

    LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN = 1, 2, 4, 8

    def flock(self, handle: int, kind: int) -> NoReturn:
        raise OSError(errno.ENOTSUP, "this system has no locks on files")

    lockf = flock


fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = _NoLocks()
