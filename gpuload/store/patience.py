"""Retries of requests to a server or to the Hub's API."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gpuload.counted import counted
from gpuload.errors import RemoteError

T = TypeVar("T")

# Not the global generator, which the program may have seeded: retries run in other threads.
_DRAWS = random.SystemRandom()


@dataclass(frozen=True)
class Patience:
    """How long a request is tried, in seconds.

    silent_s: without a byte, until a request has failed. request_s: for a whole request, of a few MB. give_up_s: from
        the first attempt on, no further one is made. first_wait_s, longest_wait_s: between two attempts; they double.
    """

    silent_s: float = 20
    request_s: float = 120
    give_up_s: float = 300
    first_wait_s: float = 0.2
    longest_wait_s: float = 15


class Problem(NamedTuple):
    """Why an attempt failed.

    final: no further attempt will change it. kind: of the error. wait_s: for which the server asks to wait. limit_s:
    seconds after the first attempt in which others are made.
    """

    what: str
    advice: str
    final: bool = False
    kind: type[RemoteError] = RemoteError
    wait_s: float | None = None
    limit_s: float = float("inf")


async def persist(
    where: str,
    once: Callable[[], Awaitable[T]],
    explain: Callable[[Exception], Problem],
    patience: Patience,
    give_up_s: float | None = None,
) -> T:
    """The result of `once`, from the first attempt that succeeds.

    where: subject of the message. explain: describes an error, or raises another one. give_up_s: in place of the
    patience's.

    Raises:
        RemoteError: no attempt succeeded.
    """
    give_up_s = patience.give_up_s if give_up_s is None else give_up_s
    started, wait_s, attempt = time.monotonic(), patience.first_wait_s, 1
    while True:
        try:
            return await once()
        except Exception as error:
            problem = explain(error)
        passed_s = time.monotonic() - started
        pause_s = wait_s * _DRAWS.uniform(0.75, 1.25) if problem.wait_s is None else problem.wait_s
        if problem.final or passed_s + pause_s > min(give_up_s, problem.limit_s):
            after = "" if problem.final else f" after {counted(attempt, 'attempt')} in {passed_s:.0f} s"
            raise problem.kind(f"{where}: {problem.what}{after}. {problem.advice}")
        await asyncio.sleep(pause_s)
        wait_s, attempt = min(2 * wait_s, patience.longest_wait_s), attempt + 1
