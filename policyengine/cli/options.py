"""Options that several verbs share, and what they mean.

Knows: names and help texts. Must not know: any verb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from policyengine.cli import FORMAT
from policyengine.protocols import PROTOCOLS

if TYPE_CHECKING:
    from policyengine.policy.problems import Problem
    from policyengine.snapshot import PolicySnapshot

F = TypeVar("F", bound=Callable[..., Any])

policy_option = click.option(
    "--policy", "-p", default="default", show_default=True, metavar="NAME|PATH", help="Policy: a shipped one or a file."
)
overlay_option = click.option(
    "--overlay", "overlays", multiple=True, metavar="FILE", help="Overlay on the policy; repeatable, applied in order."
)
folder_option = click.option(
    "--folder", "folders", multiple=True, metavar="DIR", help="Folder of drop-in extensions; repeatable."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Machine output on stdout.")
strict_option = click.option("--strict", is_flag=True, help="Exit with 3 where there are only warnings.")
host_option = click.option(
    "--host", metavar="HOST", help="Also check that this framework can do what the rules may want."
)
allow_empty_option = click.option("--allow-empty", is_flag=True, help="Exit with 0 where there is nothing to do.")


protocol_option = click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="native",
    show_default=True,
    help="How calls are written in plain chat messages (openai_chat): text is what the policy declares.",
)
"""For recordings that do not say themselves how calls are written."""


def _keep_form(ctx: click.Context, _option: click.Parameter, form: str | None) -> str | None:
    """Remember the form for a policy that cannot be loaded at all; `Verbs` then reports its problems."""
    if form is not None and form != "full":
        ctx.meta[FORMAT] = form
    return form


_FORMS = click.Choice(["full", "short", "json", "github"])

form_option = click.option(
    "--format", "form", type=_FORMS, default="full", show_default=True, help="How problems are written."
)
"""`--format` of a verb that reports problems itself, passed as `form`."""

json_form_option = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
"""`--json` beside `form_option`."""


def load_format(*names: str) -> Callable[[F], F]:
    """Return the option that says how the problems of a policy are written which a verb only loads.

    It is not passed: these problems end the verb, and are reported for it.
    """
    about = "How the problems of a policy that cannot be used are written."
    facts: Any = {"type": _FORMS, "default": "full", "show_default": True, "expose_value": False}
    return click.option(*(names or ("--format",)), callback=_keep_form, help=about, **facts)


def policy_source(verb: F) -> F:
    """Add `--policy`, `--overlay` and `--folder`, passed as `policy`, `overlays` and `folders`."""
    return policy_option(layers(verb))


def layers(verb: F) -> F:
    """Add `--overlay` and `--folder`."""
    return overlay_option(folder_option(verb))


def require_named(snapshot: PolicySnapshot, host: str) -> tuple[Problem, ...]:
    """Return the warnings about a policy on the host of this name.

    Raises:
        UsageError: there is no such host.
        ConfigError: the policy asks for what the host cannot do.
    """
    from policyengine.hosts.able import require
    from policyengine.hosts.table import host_named

    return require(snapshot, host_named(host))
