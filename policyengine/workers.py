"""Worker threads: run something in another thread and give it up after a time.

Knows: threads and queues. Must not know: rules, tools, runs.

Python cannot kill a thread. What overruns is abandoned in a daemon thread, which ends with its job; a hang that holds
the interpreter lock is out of reach (docs/decisions/0004).
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from policyengine.masking import without_secrets

Job = Callable[[], Any]

SETUP_S = 10.0
"""How long code that is not built in may take where it is loaded: to be imported, to check options, to be set up."""


class Worker(threading.Thread):
    """A reusable daemon thread that runs one job at a time and puts `(value, fault)` where it is told."""

    def __init__(self) -> None:
        super().__init__(name="policyengine-worker", daemon=True)
        self._jobs: queue.SimpleQueue[tuple[Job, queue.SimpleQueue[tuple[Any, str]]] | None] = queue.SimpleQueue()
        self.start()

    def submit(self, job: Job, answers: queue.SimpleQueue[tuple[Any, str]]) -> None:
        """Run `job`; its value, or the text of its exception, goes to `answers`."""
        self._jobs.put((job, answers))

    def retire(self) -> None:
        """End the thread once its job is done."""
        self._jobs.put(None)

    def run(self) -> None:
        """Serve jobs until it is retired or the process ends."""
        while (work := self._jobs.get()) is not None:
            job, answers = work
            depth = sys.getrecursionlimit()
            try:
                answer = job(), ""
            except BaseException as error:  # noqa: BLE001 - handed to the calling thread as a fault
                answer = None, fault_text(error)
            if sys.getrecursionlimit() < depth:
                sys.setrecursionlimit(depth)  # it is the whole process's: nobody else could run with less
            answers.put(answer)
            del work, job, answers, answer  # an idle thread keeps nothing alive


_idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()


def call_with_limit(job: Job, limit_s: float | None) -> tuple[bool, Any, str]:
    """Run `job` in a worker thread for at most `limit_s` seconds (`None`: however long it takes).

    Returns `(in_time, value, fault)`; a job that overruns is abandoned together with its thread.
    """
    try:
        worker = _idle.get_nowait()
    except queue.Empty:
        worker = Worker()
    answers: queue.SimpleQueue[tuple[Any, str]] = queue.SimpleQueue()
    worker.submit(job, answers)
    try:
        value, fault = answers.get(timeout=limit_s)
    except queue.Empty:
        worker.retire()
        return False, None, ""
    _idle.put(worker)
    return True, value, fault


def call_within(job: Job, limit_s: float) -> Any:
    """Return what `job` returns and raise what it raises, as if it ran in this thread.

    Raises:
        TimeoutError: it has not come to an end after `limit_s` seconds.
    """
    in_time, answer, _ = call_with_limit(lambda: _outcome(job), limit_s)
    if not in_time:
        raise TimeoutError(f"no answer after {limit_s:g} s")
    value, error = answer
    try:
        if error is not None:
            raise error
    finally:
        del answer, error  # a traceback that is held by a frame of its own keeps everything alive that it leads to
    return value


def _outcome(job: Job) -> tuple[Any, BaseException | None]:
    try:
        return job(), None
    except BaseException as error:  # noqa: BLE001 - raised again by `call_within`, in the calling thread
        return None, error


def fault_text(error: BaseException) -> str:
    """Return an exception as one bounded text, also one whose own text cannot be had."""
    try:
        text = str(error)[:1000]
    except BaseException:  # noqa: BLE001 - `__str__` of a foreign exception is foreign code
        text = "(its text cannot be shown)"
    return without_secrets(f"{type(error).__name__}: {text}")[:500]
