"""Work on all units with Ray: on this machine, or on a cluster whose every node can read the files.

Knows: Ray, how little of it is started, and what becomes of a unit whose worker dies.
Must not know: what a unit holds, rates.

Units are tasks, a bounded number of them at a time. Ray that is started here listens on this machine only, reports
nothing to anybody, and is gone with its files when the work is done (but for `~/.ray`, where Ray keeps the token that
its processes know each other by); one that runs already is left running.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import msgspec

from policyengine.backtest.judge import Assignment, Judged, PolicySource
from policyengine.backtest.local import ATTEMPTS, died, work
from policyengine.backtest.work import Unit
from policyengine.errors import UsageError
from policyengine.policy.files import is_path

AHEAD = 2
"""How many units there are at a time for each core: one is worked on, one waits."""

STORE_BYTES = 128 * 2**20
"""The object store of a Ray that is started here. Results are small, and each is taken out at once."""

LONGEST_FOLDER = 40
"""In a folder with a longer name, the sockets of Ray would have names that are too long."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: listen on the loopback address only
    "RAY_task_oom_retries": str(ATTEMPTS - 1),  # by default a unit that needs too much memory is tried for ever
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What is said to a Ray that is started here. It is read when Ray is imported and when it begins."""


def judge_on_ray(assignment: Assignment, units: Sequence[Unit], address: str | None = None) -> Iterator[Judged]:
    """Return an iterator over what comes of every unit, in no particular order.

    Without an address Ray is started on this machine, unless this process uses one already. With an address, all nodes
    must find this package, the policies and the recordings, under the same paths.

    Raises:
        UsageError: Ray is not installed or does not answer, or the worker of a unit died again and again.
    """
    with _environment({} if address else _ENVIRONMENT):
        try:
            ray = import_module("ray")
        except ImportError:
            raise UsageError("Ray is not installed: pip install 'agent-policyengine[ray]'") from None
    return _judged(ray, _absolute_assignment(assignment), [_absolute_unit(unit) for unit in units], address)


def _judged(ray: Any, assignment: Assignment, units: Sequence[Unit], address: str | None) -> Iterator[Judged]:
    if not units:
        return
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(_connected(ray, address))
        task = ray.remote(max_retries=ATTEMPTS - 1, retry_exceptions=False, num_cpus=1)(work)
        shared = ray.put(assignment)
        waiting = iter(units)
        running: dict[Any, Unit] = {}
        stack.callback(_cancel, ray, running)
        while True:
            while len(running) < _bound(ray) and (unit := next(waiting, None)) is not None:
                running[task.remote(shared, unit)] = unit
            if not running:
                return
            for reference in ray.wait(list(running), num_returns=1)[0]:
                unit = running.pop(reference)
                yield _result(ray, reference, unit, lambda unit: task.options(max_retries=0).remote(shared, unit))


def _result(ray: Any, reference: Any, unit: Unit, begin: Callable[[Unit], Any]) -> Judged:
    try:
        judged = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        raise cause from None
    except ray.exceptions.RayError as error:
        raise died(_deadly(ray, unit, begin)) from error
    assert isinstance(judged, Judged)
    return judged


def _deadly(ray: Any, unit: Unit, begin: Callable[[Unit], Any]) -> Unit:
    """Return what a worker dies of, each piece of a unit tried alone; the whole unit if it is none of them alone."""
    for piece in unit.pieces if len(unit.pieces) > 1 else ():
        alone = Unit(unit.number, (piece,))
        try:
            ray.get(begin(alone))
        except ray.exceptions.RayTaskError:
            continue
        except ray.exceptions.RayError:
            return alone
    return unit


def _bound(ray: Any) -> int:
    # Asked again each time: nodes come and go.
    return max(AHEAD, AHEAD * int(ray.cluster_resources().get("CPU", 1)))


def _cancel(ray: Any, running: Mapping[Any, Unit]) -> None:
    for reference in running:
        ray.cancel(reference, force=True)


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Begin with Ray and end with it: one that is started here is ended, a cluster is only left."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        stack.enter_context(_environment({} if address else _ENVIRONMENT))
        if not address:
            options = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
            if len(tempfile.gettempdir()) <= LONGEST_FOLDER:
                folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
                options["_temp_dir"] = stack.enter_context(folder)
        stack.callback(ray.shutdown)
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            place = f"at {address}" if address else "on this machine"
            raise UsageError(f"Ray does not begin {place}: {error}") from error
        yield


@contextmanager
def _environment(names: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and afterwards take them and what Ray has set back."""
    before = dict(os.environ)
    os.environ.update(names)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            if name in names or name.startswith("RAY_") or os.environ[name].startswith("ray."):
                del os.environ[name]
        os.environ.update({name: before[name] for name in names if name in before})


def _absolute_assignment(assignment: Assignment) -> Assignment:
    return msgspec.structs.replace(assignment, policies=tuple(map(_absolute_policy, assignment.policies)))


def _absolute_policy(policy: PolicySource) -> PolicySource:
    # A worker of Ray has a working directory of its own.
    return msgspec.structs.replace(
        policy,
        source=os.path.abspath(policy.source) if is_path(policy.source) else policy.source,
        overlays=tuple(map(os.path.abspath, policy.overlays)),
        folders=tuple(map(os.path.abspath, policy.folders)),
    )


def _absolute_unit(unit: Unit) -> Unit:
    pieces = tuple(msgspec.structs.replace(piece, path=piece.path.absolute()) for piece in unit.pieces)
    return msgspec.structs.replace(unit, pieces=pieces)
