"""`python -m benchmarks.histories`: what checking, repairing and cutting a history costs per message, by its length.

Knows: how a history is made, what is asked of the figures. Must not know: how histories are checked.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine import check_history, legal_cuts, repair_history

LENGTHS = (100, 1_000, 10_000)
SHAPES = ("openai_chat", "anthropic", "gemini", "openai_responses")
MAX_GROWTH = 1.5
"""By how much a message of the longest history may cost more than one of the shortest."""
ROUNDS = 12


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, or 1 if `--check` and a history costs more per message the longer it is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.histories", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    rows, checks = measure()
    columns = ("what", "shape", *(f"#{length:,} messages, us each" for length in LENGTHS), "#longest / shortest")
    show(Grid("Histories: cost per message", columns, tuple(rows)), markdown=arguments.markdown)
    show(what_is_asked(checks), markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def measure() -> tuple[list[tuple[str, ...]], list[Check]]:
    """Return a row of costs for each function and shape, and what is asked of each."""
    rows, checks = [], []
    for what, work in WORK.items():
        for shape in SHAPES:
            costs = _costs(work, shape)
            growth = costs[-1] / costs[0]
            rows.append((what, shape, *(f"{cost * 1e6:.1f}" for cost in costs), f"{growth:.2f}"))
            asked = f"{what}, {shape}: at most {MAX_GROWTH:g} times as much per message"
            checks.append(Check(asked, f"{growth:.2f}", growth <= MAX_GROWTH))
    return rows, checks


def _costs(work: Callable[[list[Any], str], object], shape: str) -> list[float]:
    """Return the least time in seconds per message for each length; lengths take turns, so that all are disturbed."""
    made = [history(shape, length) for length in LENGTHS]
    least = [float("inf")] * len(made)
    gc.disable()
    for _ in range(ROUNDS):
        for index, messages in enumerate(made):
            times = max(1, LENGTHS[-1] // len(messages) // 4)
            begun = perf_counter()
            for _ in range(times):
                work(messages, shape)
            least[index] = min(least[index], (perf_counter() - begun) / times / len(messages))
        gc.collect()
    gc.enable()
    return least


def history(shape: str, length: int) -> list[dict[str, Any]]:
    """Return a valid history of about `length` messages, two calls to a round; every twentieth result is missing."""
    messages: list[dict[str, Any]] = [MAKE[shape][0]("Find the tide table.")]
    number = 0
    while len(messages) < length:
        number += 1
        messages += MAKE[shape][1](number, number % 20 == 0)
    return messages


def _chat(number: int, broken: bool) -> list[dict[str, Any]]:
    ids = [f"call-{number}-{index}" for index in range(2)]
    calls = [{"id": id, "type": "function", "function": {"name": "look", "arguments": '{"page": 1}'}} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "content": "page 1"} for id in ids[: 1 if broken else 2]]
    return [{"role": "assistant", "content": "I look.", "tool_calls": calls}, *results]


def _anthropic(number: int, broken: bool) -> list[dict[str, Any]]:
    ids = [f"call-{number}-{index}" for index in range(2)]
    calls = [{"type": "tool_use", "id": id, "name": "look", "input": {"page": 1}} for id in ids]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "page 1"} for id in ids[: 1 if broken else 2]]
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


def _gemini(number: int, broken: bool) -> list[dict[str, Any]]:
    calls = [{"functionCall": {"name": "look", "args": {"page": page}}} for page in range(2)]
    answer = {"functionResponse": {"name": "look", "response": {"text": f"page {number}"}}}
    return [{"role": "model", "parts": calls}, {"role": "user", "parts": [answer] * (1 if broken else 2)}]


def _responses(number: int, broken: bool) -> list[dict[str, Any]]:
    ids = [f"call-{number}-{index}" for index in range(2)]
    calls = [{"type": "function_call", "call_id": id, "name": "look", "arguments": '{"page": 1}'} for id in ids]
    results = [{"type": "function_call_output", "call_id": id, "output": "1"} for id in ids[: 1 if broken else 2]]
    return [*calls, *results]


MAKE: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[int, bool], list[dict[str, Any]]]]] = {
    "openai_chat": (lambda text: {"role": "user", "content": text}, _chat),
    "anthropic": (lambda text: {"role": "user", "content": text}, _anthropic),
    "gemini": (lambda text: {"role": "user", "parts": [{"text": text}]}, _gemini),
    "openai_responses": (lambda text: {"type": "message", "role": "user", "content": text}, _responses),
}

WORK: dict[str, Callable[[list[Any], str], object]] = {
    "check_history": lambda messages, shape: check_history(messages, shape=shape),
    "repair_history": lambda messages, shape: repair_history(messages, shape=shape),
    "legal_cuts": lambda messages, shape: legal_cuts(messages, shape=shape),
}

if __name__ == "__main__":
    sys.exit(main())
