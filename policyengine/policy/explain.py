"""Say which value of a setting is in force, and where each layer set it.

Knows: the provenance of a loaded policy. Must not know: files, how layers merged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from policyengine.policy.model import Layer, Policy
from policyengine.policy.wording import shown

ENV = "$env"
_DELETED = {"$delete": True}


class Explained(msgspec.Struct, frozen=True, omit_defaults=True):
    """One setting: the value in force and every value it had, lowest layer first."""

    path: str
    value: Any
    layers: tuple[Layer, ...]
    removed: bool = False

    def text(self) -> str:
        """Return the setting and its layers, the one in force first."""
        head = f"{self.path}: removed" if self.removed else f"{self.path} = {_full(self.value)}"
        rows = [f"  {_full(layer.value)}  {layer.position}" for layer in reversed(self.layers)]
        rows[0] += "  (in force)"
        return "\n".join([head, *rows])


def explain(policy: Policy, path: str | None = None) -> list[Explained]:
    """Return every setting at or below a dotted key path; of the whole policy without one.

    Quotes around keys may be left out of `path`. The list is empty if there is no such setting.
    """
    wanted = _bare(path) if path else ""
    parents = {name[:end] for name in policy.provenance for end, char in enumerate(name) if char == "."}
    found: list[Explained] = []
    for name, layers in policy.provenance.items():
        bare, value = _bare(name), layers[-1].value
        below = not wanted or bare == wanted or bare.startswith(f"{wanted}.")
        if below and name not in parents:
            found.append(Explained(name, value, layers, value == _DELETED))
    return found


def _bare(path: str) -> str:
    return path.replace('"', "").strip().rstrip(".")


def shown_value(value: Any) -> str:
    """Return a value as it was written, on one line; lists and mappings in full."""
    return _item(value) if isinstance(value, dict) else _full(value)


def _full(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_item(item) for item in value) + "]"
    if isinstance(value, dict) and ENV in value:
        return f"$env {value[ENV]}"
    return "removed" if value == _DELETED else shown(value)


def _item(value: Any) -> str:
    """Return an item of a list; a mapping in full, since its parts have no paths of their own."""
    if isinstance(value, dict) and value and ENV not in value:
        return "{" + ", ".join(f"{name}: {_item(part)}" for name, part in value.items()) + "}"
    return _full(value)
