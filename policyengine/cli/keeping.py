"""Runs that a command keeps in a store: what is kept beside them, and which command comes next.

Knows: the options that make a run, how commands are written. Must not know: how a run goes on, what a store is.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

import click
import msgspec

from policyengine.cli.options import folder_option, overlay_option, policy_option
from policyengine.errors import UsageError
from policyengine.identity import raw_fingerprint

if TYPE_CHECKING:
    from policyengine.durable import Head

F = TypeVar("F", bound=Callable[..., Any])

STORE = "POLICYENGINE_STORE"
"""The environment variable that says where runs are kept."""

_HARMLESS = frozenset({"prefix", "db", "api-version"})
"""Parameters of URLs that are no secrets."""

_PLACES = "a file (SQLite), redis://HOST or the like"


def store_option(*, required: bool) -> Callable[[F], F]:
    """Return `--store`."""
    about = f"Where runs are kept: {_PLACES}." if required else f"Keep the run there, to go on with it: {_PLACES}."
    return click.option("--store", required=required, envvar=STORE, show_envvar=True, metavar="PLACE", help=about)


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options that made a run, which are kept beside it: whoever goes on needs to give none of them.

    Nothing secret is among them: of a key the name of its variable, no URL that holds a login or a key. `folder` is
    where the command was given. A run may follow another one (`follows`), as the `number`-th of a conversation that
    began with the run `first`, after `played` turns of its script.
    """

    folder: str = ""
    policy: str = "default"
    overlays: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    model: str = "scripted"
    base_url: str | None = None
    api_key_env: str | None = None
    stream: bool = False
    script: str = "recovers"
    tools: str | None = None
    protocol: Literal["native", "text"] | None = None
    first: str = ""
    follows: str = ""
    number: int = 1
    played: int = 0

    def origin(self) -> dict[str, Any]:
        """Return what is kept of it: paths that lead there from anywhere, and no secret."""
        from policyengine.policy.files import is_path

        whole = msgspec.structs.replace(
            self,
            folder=self.folder or os.getcwd(),
            policy=_absolute(self.policy) if is_path(self.policy) else self.policy,
            overlays=tuple(map(_absolute, self.overlays)),
            folders=tuple(map(_absolute, self.folders)),
            model=_absolute(self.model) if self.model.endswith((".yaml", ".yml")) else self.model,
            script=_absolute(self.script) if self.script.endswith((".yaml", ".yml", ".json")) else self.script,
            base_url="" if _has_secret(self.base_url or "") else self.base_url,
        )
        return {"command": "run", **msgspec.to_builtins(whole)}

    def changed(self, given: Mapping[str, Any]) -> Made:
        """Return it with the options that were given instead. Those of a provider go with its model."""
        chosen = {name: value for name, value in given.items() if value not in (None, (), False)}
        if "model" in chosen:
            chosen = {"base_url": None, "api_key_env": None, "stream": False, **chosen}
        made = msgspec.structs.replace(self, **chosen)
        if made.base_url == "":
            raise UsageError("the URL of the provider held a login or a key and was not kept: give --base-url again")
        return made


MADE = ("policy", "overlays", "folders", "model", "base_url", "api_key_env", "stream", "script", "tools", "protocol")
"""The options among the parameters of a verb that make a run."""


def made_of(head: Head, given: Mapping[str, Any]) -> Made:
    """Return the options of a run that goes on, with those that were `given` instead.

    Raises:
        UsageError: it was begun by another program, so that nobody here knows its model and tools.
    """
    if head.origin.get("command") == "run":
        try:
            return msgspec.convert(head.origin, Made).changed(given)
        except msgspec.ValidationError as error:
            raise UsageError(f"the options kept with run {head.run_id!r} cannot be read: {error}") from error
    if given.get("model") and given.get("policy"):
        return Made().changed(given)
    raise UsageError(
        f"run {head.run_id!r} was begun by another program, which knows its model and tools: go on there with "
        "Agent.resume_run, or give at least --policy and --model"
    )


def making(*, anew: bool) -> Callable[[F], F]:
    """Add the options that make a run: with their defaults `anew`, without any for a run that goes on."""

    def option(*names: str, default: Any = None, **facts: Any) -> Callable[[F], F]:
        return click.option(*names, default=default if anew else None, show_default=bool(default) and anew, **facts)

    policy = policy_option if anew else option("--policy", "-p", metavar="NAME|PATH", help="Another policy.")
    options: list[Callable[[Any], Any]] = [
        policy,
        overlay_option,
        folder_option,
        option(
            "--model",
            default="scripted",
            metavar="NAME|PRESET:MODEL|FILE",
            help="Which model works on it: the embedded one, openai:NAME and the like, or a provider in a YAML file.",
        ),
        option("--base-url", metavar="URL", help="Where the provider is, instead of its preset's place."),
        option("--api-key-env", metavar="NAME", help="The environment variable that holds the key; '' for no key."),
        click.option("--stream", is_flag=True, help="Ask the provider for streams."),
        option("--script", default="recovers", metavar="NAME|FILE", help="What `scripted` says."),
        option("--tools", metavar="MODULE:OBJECT", help="Python functions instead of the scripted tools."),
        option(
            "--protocol",
            type=click.Choice(["native", "text"]),
            help="How calls are written; overrides the policy.",
        ),
    ]

    def add(verb: F) -> F:
        for each in reversed(options):
            verb = each(verb)
        return verb

    return add


# ---- what comes next


def command_for(verb: str, run_id: str, place: str, *more: str) -> str:
    """Return a command about a run, as a shell takes it."""
    named = [shlex.quote(run_id)]
    first, last = ([], ["--", *named]) if run_id.startswith("-") else (named, [])
    return " ".join(["policyengine", "runs", verb, *first, *more, *_store_words(place), *last])


def begin_command(head: Head, place: str) -> str:
    """Return the command that begins a run which was taken and had not begun, once more with its task."""
    follows = str(head.origin.get("follows") or "")
    if follows:
        return command_for("resume", follows, place, "--say", "TEXT")
    return " ".join(["policyengine", "run", "TASK", shlex.quote(f"--run-id={head.run_id}"), *_store_words(place)])


def task_of(head: Head) -> str | None:
    """Return the task of a run that had not begun, if the head holds all of it."""
    return head.task if raw_fingerprint(head.task) == head.task_digest else None


def _store_words(place: str) -> list[str]:
    if os.environ.get(STORE) == place:
        return []
    return ["--store", f'"${STORE}"' if _has_secret(place) else shlex.quote(place)]


def next_commands(head: Head, place: str) -> tuple[str, ...]:
    """Return which commands go on with a run, the likeliest first; none where it is done."""
    run_id = head.run_id
    resume = command_for("resume", run_id, place)
    if head.asked is not None and head.answer is None:
        approve = command_for("approve", run_id, place, "--digest", head.asked.digest)
        reject = command_for("reject", run_id, place, "--digest", head.asked.digest, "--say", "TEXT")
        return (command_for("show", run_id, place), approve, reject, resume)
    if not head.ended:
        return (resume if head.turn or task_of(head) is not None else begin_command(head, place),)
    if head.status in ("stopped", "waiting", "failed"):
        return (command_for("resume", run_id, place, "--say", "TEXT"),)
    return ()


def shown_place(place: str) -> str:
    """Return a place as it may be printed: without a password."""
    return f"{place.partition('://')[0]}://..." if _has_secret(place) else place


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _has_secret(url: str) -> bool:
    """Return whether a URL holds a login, a fragment, or a parameter that is not known to be harmless."""
    if "://" not in url:
        return False
    try:
        parts = urlsplit(url)
        names = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True, separator="&")}
    except ValueError:
        return True
    return "@" in parts.netloc or bool(parts.fragment) or not names <= _HARMLESS
