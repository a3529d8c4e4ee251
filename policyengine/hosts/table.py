"""Every host that is known, by name: what it can do and what it tells.

Knows: facts about frameworks, from their own sources and documentation. Must not know: how an adapter does it.
"""

from __future__ import annotations

from policyengine.errors import UsageError
from policyengine.hosts.host import ALL, Host
from policyengine.policy.wording import suggestion

_LOOP = ALL - {"retry", "recover", "rewrite_request"}
"""What everybody can do who holds the loop, short of sending requests differently."""

_NO_ERRORS = frozenset({"after_provider_error"})
_ONLY_CALLS = _NO_ERRORS | {"after_model_response", "after_parse", "hist_add_warning.start", "hist_add_warning.end"}

HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        Host("own_loop", _LOOP, _NO_ERRORS),
        Host("langchain", ALL - {"recover"}, _NO_ERRORS),
        Host("openai_agents", _LOOP | {"retry"}, _NO_ERRORS),
        Host("pydantic_ai", ALL - {"recover"}, _NO_ERRORS),
        Host("claude_code", _LOOP, _ONLY_CALLS, shares=False),
        Host("codex", _LOOP - {"rewrite_result", "ask"}, _ONLY_CALLS, shares=False),
        Host("gemini_cli", _LOOP, _ONLY_CALLS, shares=False),
        Host("openhands", _LOOP - {"rewrite", "rewrite_result", "ask"}, _ONLY_CALLS, shares=False),
    )
}
"""All hosts by name."""


def host_named(name: str) -> Host:
    """Return a host by its name; `-` counts as `_`.

    Raises:
        UsageError: there is none of this name.
    """
    host = HOSTS.get(name.strip().lower().replace("-", "_"))
    if host is None:
        raise UsageError(f"there is no host {name!r}; {suggestion(name, HOSTS, 'hosts')}")
    return host
