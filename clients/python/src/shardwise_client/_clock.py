"""The clock of every deadline: it counts while the machine sleeps, where the system has such a clock. And pauses."""

import asyncio
import random
import time
from typing import Callable

_PAUSE_FIRST, _PAUSE_LONGEST = 0.1, 5.0
Clock = Callable[[], float]


def _clock() -> Clock:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    try:
        if boottime is not None and time.clock_gettime(boottime) > 0:
            return lambda: time.clock_gettime(boottime)
    except OSError:
        pass
    return time.monotonic


# Seconds since some moment. On systems without CLOCK_BOOTTIME it may stand still during a suspend; then only the fence covers that time.
now = _clock()


def pause_of(tries: int, first: float = _PAUSE_FIRST, longest: float = _PAUSE_LONGEST) -> float:
    """How long to wait after that many failures, in seconds."""
    return min(longest, first * 2.0 ** min(tries, 20)) * random.uniform(0.5, 1.0)


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, and sets it after so many seconds. Unlike `asyncio.wait_for` before Python 3.12 it loses no cancellation."""
    timer = asyncio.get_running_loop().call_later(max(0.0, seconds), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
