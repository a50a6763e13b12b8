"""The requests under way at a time, and which of those that wait comes next: the one that is needed first."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

# When what a task asks for is needed, as a place in a plan. It is asked for again whenever a request ends, since plans
# change meanwhile. Before all plans comes what is waited for: a manifest, an index, a file to be packed.
NEEDED: ContextVar[Callable[[], float]] = ContextVar("NEEDED", default=lambda: -1.0)


class Connections:
    """`async with` takes one of so many connections, of an event loop, and gives it back."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[Callable[[], float], asyncio.Future[None]]] = []  # in the order in which they came

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        waiting = NEEDED.get(), asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            await waiting[1]
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:  # it had its turn in the same moment
                self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        waiting = [one for one in self._waiting if not one[1].done()]  # others were cancelled
        if not waiting:
            self._free += 1
            return
        first = min(waiting, key=lambda one: one[0]())
        self._waiting.remove(first)
        first[1].set_result(None)
