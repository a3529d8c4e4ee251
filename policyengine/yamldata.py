"""YAML that is no policy (scripts, providers) as plain data, within bounds.

Knows: how a short YAML text can become something huge. Must not know: what the data means.

Policies have a reader of their own (`policy.yamltext`), which keeps positions and refuses what YAML readers disagree
about. Here a text is read as PyYAML reads it, apart from what multiplies: anchors and aliases, and depth.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
MAX_EVENTS = 1_000_000


class YamlError(ValueError):
    """A text is no YAML, or one that is not read."""


def read(text: str) -> Any:
    """Return what a text says.

    Raises:
        YamlError: it is no YAML, is too large or too deep, or has an alias.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"larger than {MAX_BYTES:,} characters")
    try:
        _check(text)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise error if isinstance(error, YamlError) else YamlError(str(error) or type(error).__name__) from error


def _check(text: str) -> None:
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    depth = 0
    for number, event in enumerate(yaml.parse(text, loader)):
        if number > MAX_EVENTS:
            raise YamlError(f"more than {MAX_EVENTS:,} elements")
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(f"line {_line(event)}: an alias (*{event.anchor}) is refused; write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise YamlError(f"line {_line(event)}: nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0
