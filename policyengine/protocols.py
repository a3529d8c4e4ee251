"""The names of protocols, and the error for a name that there is not.

Knows: how a choice among names is refused. Must not know: what a protocol means.

A name that is not known is never taken for another one: a misspelt `text` would otherwise run as `native`.
"""

from __future__ import annotations

from collections.abc import Collection

from policyengine.errors import UsageError

PROTOCOLS = ("native", "text")
"""How calls are written. A policy may also say `auto`, which leaves the choice to the driver."""


def check_choice(value: object, names: Collection[str], what: str) -> None:
    """Refuse a value that is none of `names`; `what` says what it should have been.

    Raises:
        UsageError: with the name that may have been meant.
    """
    if isinstance(value, str) and value in names:
        return
    from policyengine.policy.wording import suggestion

    near = suggestion(value, names) if isinstance(value, str) else f"known: {', '.join(names)}"
    raise UsageError(f"no {what} named {value!r}; {near}")
