"""Cycles: the same block of different calls with the same results, again and again.

Knows: the last few units of a sequence as opaque keys, and for every period how long it has held.
Must not know: tools, options other than the longest period, what is done about a cycle.

One unit costs one comparison per period, whatever the length of the run: for each period the number of units in a row
that equal the unit one period before is kept up to date.
"""

from __future__ import annotations

import msgspec


class Cycles(msgspec.Struct, omit_defaults=True):
    """The last units (oldest first) and the match count of every period.

    `calls[i]` says which calls a unit made, `results[i]` what they answered (empty: unknown, equal to anything).
    `runs[p]` counts the latest units in a row that equal the unit `p` before them. `same` counts the latest units in a
    row that are `alike`: such a stretch is a repeat, never a cycle. `told` is what the model was told: 1 hint, 2 give
    up.
    """

    calls: list[str] = []
    results: list[str] = []
    runs: list[int] = []
    alike: str = ""
    same: int = 0
    told: int = 0

    def push(self, calls: str, results: str, alike: str, max_period: int) -> None:
        """Take in a finished unit."""
        if calls in self.calls:
            runs = self.runs
            if len(runs) <= max_period:
                runs += [0] * (max_period + 1 - len(runs))
            held = False
            for period in range(2, min(max_period, len(self.calls)) + 1):
                if self.calls[-period] == calls and _equal(self.results[-period], results):
                    runs[period] += 1
                    held = True
                else:
                    runs[period] = 0
            del runs[max_period + 1 :]
            if not held:
                self.told = 0
        elif self.runs:
            self.break_off()
        self.same = self.same + 1 if alike == self.alike else 1
        self.alike = alike
        self.calls.append(calls)
        self.results.append(results)
        excess = len(self.calls) - max_period
        if excess > 0:
            del self.calls[:excess]
            del self.results[:excess]

    def repetitions(self, calls: str, alike: str, max_period: int) -> list[tuple[int, int]]:
        """Return `(period, repetitions)` that a unit making these calls would complete, if it answers as before.

        Only what repeats at least twice is returned, shortest period first, and only periods with two different calls.
        """
        if calls not in self.calls:
            return []
        same = self.same + 1 if alike == self.alike else 1
        found: list[tuple[int, int]] = []
        for period in range(2, min(max_period, len(self.calls)) + 1):
            if self.calls[-period] != calls or same >= period:
                continue
            held = (self.runs[period] if period < len(self.runs) else 0) + 1
            if held >= period:
                found.append((period, held // period + 1))
        return found

    def break_off(self) -> None:
        """Forget every period that holds, but not the units."""
        self.runs = []
        self.told = 0


def _equal(one: str, other: str) -> bool:
    return one == other or not one or not other
