"""Waiting for what is downloaded, by one thread, which another one may end."""

import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar

from gpuload.errors import RemoteError

if TYPE_CHECKING:
    from gpuload.store.url import URL

T = TypeVar("T")


class Waiter:
    """Not used by several threads at a time, but for `interrupt`.

    waited_s: seconds that `wait` has waited so far.
    """

    def __init__(self) -> None:
        self._waiting: Future[Any] | None = None
        self._interrupted = False
        self.waited_s = 0.0

    def begin(self) -> None:
        """`wait` waits again."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Nobody wants what is waited for any more: `wait` raises, in whichever thread, until `begin`."""
        self._interrupted = True
        if (waiting := self._waiting) is not None:
            waiting.cancel()

    def wait(self, coroutine: Coroutine[Any, Any, T], what: "URL | str") -> T:
        """The coroutine's result, of the process's event loop; what: it downloads, for the message.

        Raises:
            RemoteError: nobody wants it any more. What the coroutine raises.
        """
        from gpuload.store.background import background  # asyncio and obstore

        waiting, begun = background().start(coroutine), time.perf_counter()
        self._waiting = waiting
        try:
            if self._interrupted:
                waiting.cancel()
            return waiting.result()
        except CancelledError:
            raise RemoteError(f"{what}: is not waited for any more") from None
        finally:
            waiting.cancel()  # after Ctrl-C
            self._waiting = None
            self.waited_s += time.perf_counter() - begun
