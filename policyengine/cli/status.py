"""`policyengine status`: say what is in force in a running engine.

Knows: how a status is laid out. Must not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec

from policyengine.cli import COULD_NOT, OK
from policyengine.cli.asking import asked, socket_option
from policyengine.cli.options import json_option
from policyengine.cli.output import print_json
from policyengine.control.wire import StatusRequest
from policyengine.policy.problems import render
from policyengine.status import EngineStatus, RunStatus, StopStatus
from policyengine.visible import clean, clean_line

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
_HOLDERS = {"hand": "by hand", "policy": "by the policy in force"}


@click.command("status")
@socket_option
@json_option
def command(socket: str, as_json: bool) -> int:
    """Say what is in force in a running engine, since when, and what is wrong with it.

    Exit code: 0 an engine answered, whatever it said; 2 none did.
    """
    answer = asked(socket, StatusRequest())
    if answer is None or answer.status is None:
        return COULD_NOT
    if as_json:
        print_json(msgspec.to_builtins(answer.status))
    else:
        for name, text in lines(answer.status):
            print(f"{name:<11}{clean(text)}")
    return OK


def lines(status: EngineStatus) -> Iterator[tuple[str, str]]:
    """Yield what a status says, as names and texts."""
    name, digest = clean_line(f"{status.policy} revision {status.revision!r}"), status.digest[:12]
    yield "policy", f"{name}, generation {status.generation}, digest {digest}"
    yield "loaded", f"{moment(status.loaded_at)}, {span(status.age_s)} ago"
    yield "files", ", ".join(map(clean_line, status.files)) or "none"
    if status.folders:
        yield "folders", ", ".join(map(clean_line, status.folders))
    yield "watching", "yes" if status.watching else "no"
    yield "stale", _stale(status)
    yield "killed", " and ".join(_HOLDERS[holder] for holder in status.killed_by) or "no"
    yield "runs", f"{status.runs_active} under way, {status.runs_started} begun"
    for run in status.runs:
        yield "", _run(run)
    if status.decisions:
        counts = (f"{count} {clean_line(action)}" for action, count in sorted(status.decisions.items()))
        yield "decided", ", ".join(counts)
    if status.last_stop is not None:
        yield "last stop", _stop(status.last_stop)
    if status.log_dropped:
        yield "log", f"{status.log_dropped} lines could not be written"
    yield "process", str(status.pid)
    for package in status.restart_needed:
        there = f"{package.installed} is installed" if package.installed else "it is not installed any more"
        yield "restart", f"needed for {clean_line(package.name)}: {clean_line(package.imported)} was imported, {there}"
    rejection = status.rejection
    if rejection is not None:
        times = "once" if rejection.seen == 1 else f"{rejection.seen} times"
        when = f"{moment(rejection.since)}, {span(rejection.age_s)} ago"
        yield "rejected", f"fingerprint {rejection.fingerprint[:12]}, tried {times}, first {when}"
        for line in render(rejection.problems, "short").splitlines():
            yield "", line


def _stale(status: EngineStatus) -> str:
    limit = "" if status.max_staleness_s is None else f" (at most {span(status.max_staleness_s)})"
    if status.differs_s is None:
        return f"no{limit}"
    told = f"the files have differed for {span(status.differs_s)}{limit}"
    return f"yes, no new run starts: {told}" if status.stale else told


def _run(run: RunStatus) -> str:
    agent = f" of {clean_line(run.agent)}" if run.agent else ""
    where = f"iteration {run.iteration}, {run.calls} calls, silent for {span(run.silent_s)}"
    return f"{clean_line(run.run_id)}{agent}: {run.phase}, {where}"


def _stop(stop: StopStatus) -> str:
    facts = {"observed": stop.observed, "limit": stop.limit}
    told = ", ".join(f"{name} {number:g}" for name, number in facts.items() if number is not None)
    by = f"{stop.action} by {clean_line(stop.rule)}: {clean_line(stop.code)}" + (f" ({told})" if told else "")
    return f"{by}, run {clean_line(stop.run_id)}, iteration {stop.iteration}, {span(stop.age_s)} ago"


def moment(at: float) -> str:
    """Return a time of day in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float) -> str:
    """Return a length of time in its largest unit and the one below."""
    for index, (unit, size) in enumerate(_UNITS):
        if seconds >= size:
            lower, lower_size = _UNITS[index + 1] if index + 1 < len(_UNITS) else ("s", 1)
            rest = int(seconds % size // lower_size)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{seconds:.0f} s" if seconds >= 1 or not seconds else f"{seconds:.1g} s"
