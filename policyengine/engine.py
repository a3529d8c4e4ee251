"""`Engine`: the current policy snapshot, and the runs that start under it.

Knows: how a policy becomes the snapshot in force, and how it is replaced.
Must not know: how a run is decided, the loop, when files change (see `policyengine.policy.reload`).

Replacing a policy builds the whole new snapshot at the side and swaps one reference; on any error the last good one
stays in force. Runs keep the snapshot they started with, unless the policy pins them per iteration.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal
from uuid import uuid4

import msgspec
from loguru import logger

from policyengine.errors import ConfigError, ExtensionError, UsageError
from policyengine.jsontext import decode
from policyengine.killswitch import KillSwitch
from policyengine.plugins.registry import Registry, discover
from policyengine.policy.changes import compare
from policyengine.policy.days import today
from policyengine.policy.disk import Disk, code_digest
from policyengine.policy.files import is_path
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.problems import Position, Problem
from policyengine.policy.reload import POLL_S, Watch
from policyengine.protocols import PROTOCOLS, check_choice
from policyengine.run import SAVE_VERSION, Journal, Run, SavedRun, Sink
from policyengine.runstate import Conversation, RunState
from policyengine.selftest import LEAST_S, self_test
from policyengine.snapshot import PolicySnapshot, build_snapshot
from policyengine.workers import call_with_limit

_ATTEMPTS = 5
"""How often `reload` reads files that change under its hands."""

Attempt = Literal["replaced", "unchanged", "rejected", "moving"]
"""What came of building the policy anew."""


class Rejection(msgspec.Struct, frozen=True):
    """Why files were not put in force: their fingerprint, the problems, and these as text."""

    fingerprint: str
    problems: tuple[Problem | ExtensionError, ...]
    text: str


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
        listeners: called with `("policy_loaded", snapshot)`, the first one included, and
            `("policy_rejected", problems)`.
        pin: overrides the policy's `reload.pin`.
        env: stands for the environment variables of the process, which a policy names with `$env`.
        today: the present day in UTC, on which exceptions expire.

    Attributes: `snapshot` is the policy in force; `rejected` says why the files as they are now are not in force, or
    is `None`; `disk` are those files; `switch` is the kill switch, shared by all runs.

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
        self._registry = registry
        self._lock = threading.Lock()
        self.switch = KillSwitch()
        self.rejected: Rejection | None = None
        self.disk = _disk(policy, self.overlays, () if registry is not None else self.folders)
        self.snapshot = self._build(1)
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
    ) -> Run:
        """Return a new run under the policy in force. Report its events to it and obey its decisions.

        Runs that share a `conversation` share the state of rules with scope `conversation`.

        Raises:
            UsageError: there is no such protocol.
        """
        check_choice(protocol, PROTOCOLS, "protocol")
        state = RunState(run_id or uuid4().hex, agent, protocol=protocol)
        # Named from the beginning: a sub-agent may come to share it, and a replay must know with whom.
        shared = conversation if conversation is not None else Conversation()
        if self.journal is not None:
            self.journal.begin(state.run_id, agent=agent, protocol=protocol, conversation=shared.id)
        return self._run(state, shared, clock)

    def resume_run(self, saved: bytes) -> tuple[Run, Any]:
        """Return the run that `Run.save` wrote, and the driver's part of it.

        Its rules' state carries over by rule id wherever extension and state version are unchanged.

        Raises:
            UsageError: the bytes are no saved run, or one of another version.
        """
        try:
            kept = decode(saved, SavedRun)
        except msgspec.DecodeError as error:
            raise UsageError(f"not a saved run: {error}") from error
        if kept.version != SAVE_VERSION:
            raise UsageError(f"the run was saved as version {kept.version}; this engine reads {SAVE_VERSION}")
        if self.journal is not None:
            self.journal.resume(kept.state.run_id, saved)
        return self._run(kept.state, kept.conversation, None), kept.loop

    def _run(self, state: RunState, conversation: Conversation | None, clock: Callable[[], float] | None) -> Run:
        return Run(
            self.snapshot,
            state,
            conversation=conversation,
            sinks=self.sinks,
            journal=self.journal,
            clock=clock or self.clock,
            latest=lambda: self.snapshot,
            enforce_time=self.enforce_time,
            today=self.today,
            switch=self.switch,
        )

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
            logger.warning("the kill switch is on: no rule has an effect until it is off")
        elif before and not self.switch.on:
            logger.warning("the kill switch is off: rules have their effect again")
        elif by_hand is False and self.switch.on:
            logger.warning("the kill switch stays on: the policy in force says so")

    # ---- replacing the policy

    def reload(self) -> bool:
        """Build the policy anew from its files and put it in force; return whether it was.

        A policy with errors changes nothing: the last good one stays in force, the problems are logged once per
        content, told to `on_policy_rejected` observers and kept in `rejected`.
        """
        for _ in range(_ATTEMPTS):
            attempt = self.try_reload()
            if attempt != "moving":
                return attempt == "replaced"
        fault = Problem("E806", "the files kept changing while they were read", Position(str(self.source)))
        self._reject(self.disk.fingerprint(), ConfigError([fault]))
        return False

    def try_reload(self) -> Attempt:
        """Build the policy anew once, and put it in force if it is sound and another one than before.

        `moving` means that a file changed meanwhile. What was read may be a mixture, so nothing is concluded from it:
        neither a policy nor an error.
        """
        with self._lock:
            before, last = self.disk.fingerprint(), self.snapshot
            built = self._try_build(last)
            if self.disk.fingerprint() != before:
                return "moving"
            if isinstance(built, PolicySnapshot) and built.digest != last.digest:
                self.snapshot = built
                self.rejected = None
                self._switch(by_policy=built.policy.kill_switch)
        if not isinstance(built, PolicySnapshot):
            self._reject(before, built)
            return "rejected"
        if built.digest == last.digest:
            self._restore()
            return "unchanged"
        self._announce(built, last)
        return "replaced"

    def watch(self, *, poll_s: float = POLL_S) -> Watch:
        """Return a watch on the policy's files: start it with `with`, it reloads when they have settled.

        Raises:
            UsageError: the policy was not read from files that can be edited.
        """
        return Watch(self, poll_s=poll_s)

    def _try_build(self, last: PolicySnapshot) -> PolicySnapshot | ConfigError | ExtensionError:
        """Build the generation after `last`; return what is wrong where that fails, whatever it is."""
        try:
            _check_present(self.disk)
            fresh = self._build(last.generation + 1)
            _check_shrunk(last.policy, fresh.policy)
        except ConfigError as error:
            self.disk.look_for(error.tried)
            return error
        except ExtensionError as error:
            return error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever is wrong with new files, the old policy must stay in force
            logger.opt(exception=True).debug("the policy could not be built")
            fault = f"the policy could not be built: {type(error).__name__}: {error}"
            return ConfigError([Problem("E807", fault, Position(str(self.source)))])
        return fresh

    def _build(self, generation: int) -> PolicySnapshot:
        # Before the code is read: if it changes meanwhile, the digest is that of the old one and the next look differs.
        code = code_digest(self.disk.folders)
        registry = self._registry or discover(folders=self.folders)
        policy = self.source
        if not isinstance(policy, Policy):
            policy = load_policy(policy, registry=registry, overlays=self.overlays, env=self.env, today=self.today())
        self.disk.learn(policy)
        policy = with_code(policy, code)
        if self.pin is not None:
            policy = msgspec.structs.replace(policy, reload=msgspec.structs.replace(policy.reload, pin=self.pin))
        snapshot = build_snapshot(policy, registry, generation)
        self_test(snapshot)
        return snapshot

    def _announce(self, snapshot: PolicySnapshot, before: PolicySnapshot | None = None) -> None:
        policy = snapshot.policy
        what = f"policy {policy.name} revision {policy.revision!r} in force"
        if before is not None:  # the first one is no news to whoever made this engine
            generations = f"generation {before.generation} -> {snapshot.generation}"
            logger.info("{}, {}, digest {}: {}", what, generations, snapshot.digest[:12], compare(before, snapshot))
        _observe(snapshot, "on_policy_loaded", {"snapshot": snapshot})
        self._tell("policy_loaded", snapshot)

    def _restore(self) -> None:
        """After a rejection, say that the files are again those of the policy in force."""
        if self.rejected is not None:
            self.rejected = None
            kept = self.snapshot
            logger.info("policy {} is as it was, generation {} stays in force", kept.policy.name, kept.generation)

    def _reject(self, fingerprint: str, error: ConfigError | ExtensionError) -> None:
        problems = error.problems if isinstance(error, ConfigError) else (error,)
        rejection = Rejection(fingerprint, tuple(problems), str(error))
        known = self.rejected
        if known is not None and (known.fingerprint, known.text) == (fingerprint, rejection.text):
            return
        self.rejected = rejection
        logger.error("policy rejected, generation {} stays in force:\n{}", self.snapshot.generation, error)
        _observe(self.snapshot, "on_policy_rejected", {"problems": problems})
        self._tell("policy_rejected", problems)

    def _tell(self, event: str, subject: Any) -> None:
        for listener in self.listeners:
            try:
                listener(event, subject)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a listener must not undo a reload, nor end the watch
                logger.error("a listener failed at {}: {}: {}", event, type(error).__name__, error)


def with_code(policy: Policy, code: str) -> Policy:
    """Return the policy with a digest that covers the code of drop-in folders too (`code`: see `code_digest`)."""
    if not code:
        return policy
    digest = hashlib.sha256(f"{policy.digest} {code}".encode()).hexdigest()
    return msgspec.structs.replace(policy, digest=digest)


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
        job = partial(entry.call, None, tuple(payload.values()))
        limit_s = max(entry.limit_ns / 1e9, LEAST_S)
        in_time, _, fault = call_with_limit(job, limit_s)
        if not in_time:
            fault = f"no answer after {limit_s:g} s"
        if fault:
            logger.error("rule {} failed at {}: {}", entry.rule.id, hook, fault)
