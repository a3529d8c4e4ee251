"""Put rules into run order: as written, except where a rule says after or before which others it runs.

Knows: ids and constraints. Must not know: what rules are.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence


def arrange(ids: Sequence[str], after: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the ids in order, and a circle of ids if there is one (the order is then incomplete).

    `after` maps an id to those that must come before it. Ids without constraints keep their written order.
    """
    rank = {name: index for index, name in enumerate(ids)}
    waiting = {name: set(after.get(name, ())) for name in ids}
    followers: dict[str, list[str]] = {name: [] for name in ids}
    for name, earlier in waiting.items():
        for other in earlier:
            followers[other].append(name)
    ready = [rank[name] for name in ids if not waiting[name]]
    heapq.heapify(ready)
    ordered: list[str] = []
    while ready:
        name = ids[heapq.heappop(ready)]
        ordered.append(name)
        for follower in followers[name]:
            waiting[follower].discard(name)
            if not waiting[follower]:
                heapq.heappush(ready, rank[follower])
    left = [name for name in ids if waiting[name]]
    return ordered, _circle(left, waiting) if left else []


def _circle(left: Sequence[str], waiting: Mapping[str, set[str]]) -> list[str]:
    """Return one circle among ids that wait for each other; every id of `left` waits for another one of them."""
    path = [left[0]]
    while path.count(path[-1]) < 2:
        path.append(min(waiting[path[-1]]))
    circle = path[path.index(path[-1]) :]
    return circle[::-1]
