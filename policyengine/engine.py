"""`Engine`: the current policy snapshot, and the runs that start under it.

Knows: how a policy becomes the snapshot in force, and how it is replaced.
Must not know: how a run is decided, the loop, when files change (see `policyengine.policy.reload`).

Replacing a policy builds the whole new snapshot at the side and swaps one reference; on any error the last good one
stays in force. Runs keep the snapshot they started with, unless the policy pins them per iteration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import msgspec

from policyengine.errors import ConfigError, ExtensionError, StalePolicyError
from policyengine.killswitch import KillSwitch
from policyengine.log import log
from policyengine.masking import trace_of
from policyengine.plugins.registry import Registry, discover
from policyengine.policy.changes import compare
from policyengine.policy.days import today
from policyengine.policy.disk import Disk, code_digest, with_code
from policyengine.policy.files import is_path
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.problems import Position, Problem, problems_of
from policyengine.policy.reload import POLL_S, Watch
from policyengine.policy.staleness import Freshness, Staleness
from policyengine.policy.whole import cut_off, is_doubtful, loses_rules
from policyengine.protocols import PROTOCOLS, check_choice
from policyengine.run import Journal, Run, Sink, read_saved
from policyengine.runstate import Conversation, RunState
from policyengine.selftest import LEAST_S, self_test
from policyengine.snapshot import PolicySnapshot, build_snapshot
from policyengine.tally import RunTally
from policyengine.workers import call_with_limit, fault_text

if TYPE_CHECKING:
    from policyengine.control.server import Control
    from policyengine.status import EngineStatus

_ATTEMPTS = 5
"""How often `reload` reads files that change under its hands."""

Attempt = Literal["replaced", "unchanged", "rejected", "moving", "doubtful"]
"""What came of building the policy anew."""


class Rejection(msgspec.Struct, frozen=True):
    """Why files were not put in force: their fingerprint, the problems, and these as text.

    `since` is when these files were refused first, in seconds since 1970, and `seen` how often they were tried.
    """

    fingerprint: str
    problems: tuple[Problem | ExtensionError, ...]
    text: str
    since: float = 0.0
    seen: int = 1

    def as_problems(self, source: str) -> tuple[Problem, ...]:
        """Return the problems with a position each; `source` is the policy, for those of an extension."""
        found = (item if isinstance(item, Problem) else problems_of(item, source)[0] for item in self.problems)
        return tuple(found)


class Engine:
    """Holds one policy in force and starts runs under it.

    Args:
        policy: the name of a shipped policy, a path, or a `Policy` that was loaded already.
        overlays: overlay files, applied in order.
        registry: where extensions come from; by default built-in ones and installed packages.
        folders: drop-in folders of extension files.
        sinks: told about every decision (see `telemetry`).
        journal: records every event of every run, for replay.
        clock: seconds; injected in tests and replays.
        wall_clock: seconds since 1970, for what `status` says.
        listeners: called with `("policy_loaded", snapshot)`, the first one included, `("policy_rejected", problems)`
            and `("policy_stale", staleness)`.
        pin: overrides the policy's `reload.pin`.
        env: stands for the environment variables of the process, which a policy names with `$env`.
        today: the present day in UTC, on which exceptions expire.

    Attributes: `snapshot` is the policy in force; `rejected` says why the files as they are now are not in force, or
    is `None`; `disk` are those files; `switch` is the kill switch, shared by all runs; `loaded_at` is when the policy
    in force was put in force; `runs` counts runs; `watches` are the watches that look at the files.

    Raises:
        ConfigError: the policy cannot be used. There is no last good one at start-up, so nothing starts.
        ExtensionError: an extension breaks the contract.
    """

    def __init__(
        self,
        policy: str | Path | Policy = "default",
        *,
        overlays: Sequence[str | Path] = (),
        registry: Registry | None = None,
        folders: Sequence[str | Path] = (),
        sinks: Sequence[Sink] = (),
        journal: Journal | None = None,
        clock: Callable[[], float] = monotonic,
        enforce_time: bool = True,
        listeners: Sequence[Callable[[str, Any], None]] = (),
        pin: Literal["run", "iteration"] | None = None,
        env: Mapping[str, str] | None = None,
        today: Callable[[], date] = today,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        self.source = policy
        self.overlays = tuple(Path(overlay) for overlay in overlays)
        self.folders = tuple(Path(folder) for folder in folders)
        self.sinks = list(sinks)
        self.journal = journal
        self.clock = clock
        self.enforce_time = enforce_time
        self.listeners = list(listeners)
        self.pin = pin
        self.env = env
        self.today = today
        self.wall_clock = wall_clock
        self.watches: set[Watch] = set()
        self.runs = RunTally(wall_clock)
        self._registry = registry
        self._lock = threading.Lock()
        self.switch = KillSwitch()
        self.rejected: Rejection | None = None
        self.disk = _disk(policy, self.overlays, () if registry is not None else self.folders)
        self._freshness = Freshness(self.disk, clock)
        self.loaded_at = wall_clock()
        self.snapshot = self._first()
        self._texts = self.disk.texts()
        self._switch(by_policy=self.snapshot.policy.kill_switch)
        self._announce(self.snapshot)

    def start_run(
        self,
        *,
        run_id: str = "",
        agent: str = "",
        protocol: str = "native",
        conversation: Conversation | None = None,
        clock: Callable[[], float] | None = None,
        snapshot: PolicySnapshot | None = None,
    ) -> Run:
        """Return a new run under the policy in force. Report its events to it and obey its decisions.

        Runs that share a `conversation` share the state of rules with scope `conversation`. Who has read settings of
        the policy in force for the run gives that `snapshot`, since another one may be in force by now.

        Raises:
            UsageError: there is no such protocol.
            StalePolicyError: the files have differed from the policy in force for longer than `reload.max_staleness`.
        """
        check_choice(protocol, PROTOCOLS, "protocol")
        self._check_fresh()
        state = RunState(run_id or uuid4().hex, agent, protocol=protocol)
        # Named from the beginning: a sub-agent may come to share it, and a replay must know with whom.
        shared = conversation if conversation is not None else Conversation()
        if self.journal is not None:
            named = (snapshot or self.snapshot).named
            self.journal.begin(state.run_id, agent=agent, protocol=protocol, conversation=shared.id, policy=named)
        return self._run(state, shared, clock, snapshot)

    def resume_run(self, saved: bytes, *, clock: Callable[[], float] | None = None) -> tuple[Run, Any]:
        """Return the run that `Run.save` wrote, and the driver's part of it. It may have a `clock` of its own.

        Its rules' state carries over by rule id wherever extension and state version are unchanged.

        Raises:
            UsageError: the bytes are no saved run, or one of another version.
            StalePolicyError: as for `start_run`; the bytes can be resumed later.
        """
        kept = read_saved(saved)
        self._check_fresh()
        if self.journal is not None:
            self.journal.resume(kept.state.run_id, saved)
        return self._run(kept.state, kept.conversation, clock), kept.loop

    def _run(
        self,
        state: RunState,
        conversation: Conversation | None,
        clock: Callable[[], float] | None,
        snapshot: PolicySnapshot | None = None,
    ) -> Run:
        run = Run(
            snapshot or self.snapshot,
            state,
            conversation=conversation,
            sinks=self.sinks,
            journal=self.journal,
            clock=clock or self.clock,
            latest=lambda: self.snapshot,
            enforce_time=self.enforce_time,
            today=self.today,
            switch=self.switch,
            tally=self.runs,
        )
        self.runs.begin(run)
        return run

    # ---- the kill switch

    def kill(self, on: bool = True) -> None:
        """Turn the kill switch on or off: while it is on, every rule of every run counts as `shadow`.

        It reaches runs under way at their next event. It stays on, too, while the policy in force has `kill_switch`.
        """
        self._switch(by_hand=on)  # without the lock: it must not wait for a policy that is being built

    @property
    def killed(self) -> bool:
        """Whether the kill switch is on, by `kill` or by the policy in force."""
        return self.switch.on

    def _switch(self, *, by_hand: bool | None = None, by_policy: bool | None = None) -> None:
        before = self.switch.on
        # Each is written by its own caller only: a reload must not write back what `kill` changes meanwhile.
        if by_hand is not None:
            self.switch.by_hand = by_hand
        if by_policy is not None:
            self.switch.by_policy = by_policy
        if self.switch.on and not before:
            log().warning("the kill switch is on: no rule has an effect until it is off")
        elif before and not self.switch.on:
            log().warning("the kill switch is off: rules have their effect again")
        elif by_hand is False and self.switch.on:
            log().warning("the kill switch stays on: the policy in force says so")

    # ---- replacing the policy

    def reload(self) -> bool:
        """Build the policy anew from its files and put it in force; return whether it was.

        A policy with errors changes nothing: the last good one stays in force, the problems are logged once per
        content, told to `on_policy_rejected` observers and kept in `rejected`.
        """
        return self.refresh() == "replaced"

    def refresh(self) -> Literal["replaced", "unchanged", "rejected"]:
        """Do what `reload` does; return what came of it."""
        for _ in range(_ATTEMPTS):
            attempt = self.try_reload()
            if attempt != "moving" and attempt != "doubtful":
                return attempt
        fault = Problem("E806", "the files kept changing while they were read", Position(str(self.source)))
        error, fingerprint = ConfigError([fault]), self.disk.fingerprint()
        with self._lock:
            news = self._keep(fingerprint, error)
        self._announce_rejection(error, news)
        return "rejected"

    def try_reload(self, *, sure: bool = True) -> Attempt:
        """Build the policy anew once, and put it in force if it is sound and another one than before.

        `moving` means that a file changed meanwhile. What was read may be a mixture, so nothing is concluded from it:
        neither a policy nor an error. Unless the caller is `sure`, `doubtful` means that files may have been cut off.
        """
        with self._lock:
            before, last = self.disk.fingerprint(), self.snapshot
            built, texts = self._try_build(last), self.disk.texts()
            if self.disk.fingerprint() != before:
                return "moving"
            if isinstance(built, PolicySnapshot) and built.digest != last.digest:
                if not sure and is_doubtful(self._texts, texts, lost=loses_rules(last.rules, built.rules)):
                    return "doubtful"
                self.snapshot, self._texts = built, texts
                self.loaded_at = self.wall_clock()
                self._switch(by_policy=built.policy.kill_switch)
            # Kept while the lock is held: a later attempt must not have its word taken back by an earlier one.
            refused = self.rejected
            if isinstance(built, PolicySnapshot):
                self._freshness.settle(before)
                self.rejected = None
            else:
                news = self._keep(before, built)
        if not isinstance(built, PolicySnapshot):
            self._announce_rejection(built, news)
            return "rejected"
        if built.digest != last.digest:
            self._announce(built, last)
        elif refused is not None:
            name = last.policy.name
            log().info("policy {} is as it was, generation {} stays in force", name, last.generation)
        if self._freshness.told:
            self.staleness()
        return "unchanged" if built.digest == last.digest else "replaced"

    def watch(self, *, poll_s: float = POLL_S, sighup: bool = False) -> Watch:
        """Return a watch on the policy's files: start it with `with`, it reloads when they have settled.

        With `sighup` the signal has the files tried once more, changed or not, for as long as the block lasts.

        Raises:
            UsageError: the policy was not read from files that can be edited.
        """
        return Watch(self, poll_s=poll_s, sighup=sighup)

    # ---- what a running engine tells

    def status(self) -> EngineStatus:
        """Return what is in force and what is wrong with it. It looks at the files, and waits for no reload."""
        from policyengine.status import status_of

        return status_of(self)

    def control(self, path: str | Path) -> Control:
        """Return a server of this engine at a unix socket: start it with `with` (see `policyengine.control`)."""
        from policyengine.control.server import Control

        return Control(self, path)

    def staleness(self, seen: str | None = None) -> Staleness:
        """Return for how long the files have differed from the policy in force, and for how long they may.

        It looks at the files now (`seen` is their fingerprint, where somebody took it just before). That they have
        differed for too long is logged and told to listeners once, and so is that they do no longer.
        """
        snapshot = self.snapshot
        found = Staleness(self._freshness.look(seen), snapshot.policy.reload.max_staleness_s)
        if self._freshness.tell(found.exceeded):
            if found.exceeded:
                error = self._stale(snapshot, found)
                log().error("{}{}", error, f":\n{error.why}" if error.why else "")
                self._tell("policy_stale", found)
            else:
                log().warning("policy {} is stale no longer: new runs start", snapshot.policy.name)
        return found

    def _stale(self, snapshot: PolicySnapshot, found: Staleness) -> StalePolicyError:
        rejected = self.rejected
        why = rejected.text if rejected else ""
        return StalePolicyError(
            snapshot.policy.name, snapshot.generation, found.differs_s or 0.0, found.limit_s or 0.0, why
        )

    def _check_fresh(self) -> None:
        snapshot = self.snapshot
        if snapshot.policy.reload.max_staleness_s is None:
            return
        found = self.staleness()
        if found.exceeded:
            raise self._stale(snapshot, found)

    def _try_build(self, last: PolicySnapshot) -> PolicySnapshot | ConfigError | ExtensionError:
        """Build the generation after `last`; return what is wrong where that fails, whatever it is."""
        try:
            _check_present(self.disk)
            fresh = self._build(last.generation + 1)
            _check_shrunk(last.policy, fresh.policy)
            if cut := cut_off(self._texts, self.disk.texts(), lost=loses_rules(last.rules, fresh.rules)):
                raise ConfigError(cut)
        except ConfigError as error:
            self.disk.look_for(error.tried)
            return error
        except ExtensionError as error:
            return error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever is wrong with new files, the old policy must stay in force
            log().debug("the policy could not be built:\n{}", trace_of(error))
            fault = f"the policy could not be built: {fault_text(error)}"
            return ConfigError([Problem("E807", fault, Position(str(self.source)))])
        return fresh

    def _first(self) -> PolicySnapshot:
        """Build the first generation, and remember what its files were, unless they changed meanwhile."""
        named = self.disk.parts
        before = self.disk.fingerprint() if self.disk else ""
        snapshot = self._build(1)
        if self.disk and self.disk.fingerprint(named) == before:
            self._freshness.settle(self.disk.fingerprint())
        return snapshot

    def _build(self, generation: int) -> PolicySnapshot:
        # Before the code is read: if it changes meanwhile, the digest is that of the old one and the next look differs.
        code = code_digest(self.disk.folders)
        registry = self._registry or discover(folders=self.folders, env=self.env)
        policy = self.source
        if not isinstance(policy, Policy):
            policy = load_policy(policy, registry=registry, overlays=self.overlays, env=self.env, today=self.today())
        self.disk.learn(policy)
        policy = with_code(policy, code)
        if self.pin is not None:
            policy = msgspec.structs.replace(policy, reload=msgspec.structs.replace(policy.reload, pin=self.pin))
        snapshot = build_snapshot(policy, registry, generation)
        self_test(snapshot)
        snapshot.templates.prepare()
        return snapshot

    def _announce(self, snapshot: PolicySnapshot, before: PolicySnapshot | None = None) -> None:
        policy = snapshot.policy
        what = f"policy {policy.name} revision {policy.revision!r} in force"
        if before is not None:  # the first one is no news to whoever made this engine
            generations = f"generation {before.generation} -> {snapshot.generation}"
            log().info("{}, {}, digest {}: {}", what, generations, snapshot.digest[:12], compare(before, snapshot))
        _observe(snapshot, "on_policy_loaded", {"snapshot": snapshot})
        self._tell("policy_loaded", snapshot)

    def _keep(self, fingerprint: str, error: ConfigError | ExtensionError) -> bool:
        """Keep why files were refused; return whether that is news."""
        problems = error.problems if isinstance(error, ConfigError) else (error,)
        rejection = Rejection(fingerprint, tuple(problems), str(error), self.wall_clock())
        known = self.rejected
        news = known is None or (known.fingerprint, known.text) != (fingerprint, rejection.text)
        self.rejected = rejection if known is None or news else msgspec.structs.replace(known, seen=known.seen + 1)
        return news

    def _announce_rejection(self, error: ConfigError | ExtensionError, news: bool) -> None:
        if news:
            problems = error.problems if isinstance(error, ConfigError) else (error,)
            log().error("policy rejected, generation {} stays in force:\n{}", self.snapshot.generation, error)
            _observe(self.snapshot, "on_policy_rejected", {"problems": problems})
            self._tell("policy_rejected", problems)
        self.staleness()

    def _tell(self, event: str, subject: Any) -> None:
        for listener in self.listeners:
            try:
                listener(event, subject)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a listener must not undo a reload, nor end the watch
                log().error("a listener failed at {}: {}: {}", event, type(error).__name__, error)


def _disk(policy: str | Path | Policy, overlays: Sequence[Path], folders: Sequence[Path]) -> Disk:
    """Return what is edited: nothing of a policy that was loaded by the caller, and nothing of a shipped one."""
    if isinstance(policy, Policy):
        return Disk((), folders)
    own = (Path(policy),) if is_path(policy) else ()
    return Disk((*own, *overlays), folders)


def _check_present(disk: Disk) -> None:
    """A policy or overlay that is gone is no reason to run without it."""
    gone = [Problem("E804", "the file has vanished", Position(str(path))) for path in disk.vanished()]
    if gone:
        raise ConfigError(gone)


def _check_shrunk(before: Policy, after: Policy) -> None:
    """A file that is being written is often a valid, shorter policy: no rules where there were some is refused."""
    if before.rules and not after.rules:
        position = Position(after.files[0] if after.files else after.name)
        raise ConfigError([Problem("E805", "the policy has no rules any more", position)])


def _observe(snapshot: PolicySnapshot, hook: str, payload: dict[str, Any]) -> None:
    """Call observers one by one; one that raises or hangs is logged and the others are called all the same."""
    for entry in snapshot.tables[hook].entries:
        job = partial(entry.call, None, *payload.values())
        limit_s = max(entry.limit_ns / 1e9, LEAST_S)
        in_time, _, fault = call_with_limit(job, limit_s)
        if not in_time:
            fault = f"no answer after {limit_s:g} s"
        if fault:
            log().error("rule {} failed at {}: {}", entry.rule.id, hook, fault)
