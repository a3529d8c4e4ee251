"""The log of the library: loguru, imported when there is something to say.

Knows: loguru, and how it is set up where it may never be needed. Must not know: what is said, who reads it.

Importing loguru takes about as long as loading a policy, and most processes that load one say nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loguru import Logger

_waiting: list[Callable[[Logger], None]] = []
_lock = threading.Lock()


def log() -> Logger:
    """Return loguru's logger, set up as `set_up` asked for."""
    from loguru import logger

    with _lock:
        while _waiting:
            _waiting.pop()(logger)
    return logger


def set_up(setting_up: Callable[[Logger], None]) -> None:
    """Have the logger set up before anything is said: now if loguru was imported already, else when it is."""
    _waiting[:] = [setting_up]
    settle()


def settle() -> None:
    """Set the logger up if somebody imported loguru; called after foreign code was imported, which may say things."""
    if _waiting and "loguru" in sys.modules:
        log()
