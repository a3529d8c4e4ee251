"""Threads for what an asynchronous driver waits for in a store.

Knows: threads, forks. Must not know: what is done there.

The default executor of asyncio has a few threads, which tools and humans may occupy for hours; a run must be kept all
the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

THREADS = 8
"""Stores let one thread write at a time, so more of them would only wait."""

_pools: list[ThreadPoolExecutor] = []

os.register_at_fork(after_in_child=_pools.clear)  # the threads stay in the parent


def submit(function: Callable[..., T], *args: object) -> Future[T]:
    """Have a blocking function called in one of the threads."""
    if not _pools:
        _pools.append(ThreadPoolExecutor(THREADS, thread_name_prefix="policyengine-store"))
    return _pools[0].submit(function, *args)


async def off_loop(function: Callable[..., T], *args: object) -> T:
    """Return what a blocking function returns, without keeping the event loop waiting."""
    return await asyncio.wrap_future(submit(function, *args))
