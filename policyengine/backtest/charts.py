"""The figures of a backtest as Plotly draws them: plain data, with names in place of colours.

Knows: what a figure shows. Must not know: HTML, how Plotly is loaded.

A colour is written `var(--name)`: the page puts in what its style sheet says, in light and in dark. No figure tells
series apart by colour alone; each has a marker, a dash or a pattern of its own as well. Plotly reads some HTML in
texts, so every name is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Any

import msgspec

from policyengine.backtest.figures import BacktestReport, PolicyFigures, rate
from policyengine.backtest.grids import alive, bins, percent, span
from policyengine.visible import clean_line

SERIES = 6
"""How many colours there are; more policies begin again with other markers and dashes."""

MOST_RULES = 6
"""How many rules are drawn in the front, over all policies: those that save most."""

MOST_BINS = 60

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "hexagon", "cross")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_PATTERNS = ("", "/", "x", ".", "-", "\\", "+")
_NAME = 40

Data = dict[str, Any]


class Chart(msgspec.Struct, frozen=True):
    """A figure: the id of its element, what it is called, what there is to see in a sentence, and what Plotly is given.

    `title` and `alt` are plain text.
    """

    id: str
    title: str
    alt: str
    data: tuple[Data, ...]
    layout: Data


def charts(report: BacktestReport) -> Iterator[Chart]:
    """Yield all figures of a report that have something to show."""
    if not report.runs:
        return
    yield front(report)
    yield survival(report)
    if any(policy.stops for policy in report.policies):
        yield stops(report)


def front(report: BacktestReport) -> Chart:
    """Return wrong stops against turns saved: a point for each policy, smaller ones for the rules that save most."""
    data = [_point(index, policy) for index, policy in enumerate(report.policies)]
    data += _rule_points(report)
    layout = _layout("turns saved (share of all turns)", "successes stopped at work")
    layout["xaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    layout["yaxis"] |= {"tickformat": ".1%", "rangemode": "tozero"}
    return Chart(
        "front",
        "Wrong stops against turns saved",
        "Points for policies: the further right, the more turns are saved; the higher, the more successful runs are "
        "stopped while they were still at work. Bars are 95 % intervals. "
        + " ".join(
            f"{clean_line(policy.policy)}: {percent(policy.rates.turns_saved_share)} saved, "
            f"{_value(policy)} stopped at work."
            for policy in report.policies
        ),
        tuple(data),
        layout,
    )


def _value(policy: PolicyFigures) -> str:
    value = policy.rates.working_stop_rate.value
    return "no success" if value is None else percent(value)


def _point(index: int, policy: PolicyFigures) -> Data:
    found, bounds = policy.rates.working_stop_rate, policy.rates.turns_saved_bounds
    x, y = policy.rates.turns_saved_share, found.value or 0.0
    low, high = (x, x) if bounds is None else bounds
    name = _label(policy.policy)
    saw = f"{found.events} of {found.trials} successes stopped at work" if found.trials else "no run is labelled"
    return {
        "type": "scatter",
        "mode": "markers",
        "cliponaxis": False,
        "name": name,
        "x": [x],
        "y": [y],
        "error_x": _bars(index, high - x, x - low),
        "error_y": _bars(index, found.high - y, y - found.low) | {"visible": bool(found.trials)},
        "marker": {"size": 14, "color": _colour(index), "symbol": _symbol(index)},
        "hovertext": [f"<b>{name}</b><br>{percent(x)} of turns saved<br>{saw}"],
        "hoverinfo": "text",
    }


def _bars(index: int, up: float, down: float) -> Data:
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(up, 0.0)],
        "arrayminus": [max(down, 0.0)],
        "color": _colour(index),
        "thickness": 1.2,
        "width": 5,
    }


def _rule_points(report: BacktestReport) -> list[Data]:
    found = [
        (rule.turns_saved, index, policy, rule)
        for index, policy in enumerate(report.policies)
        for rule in policy.rules
        if 0 < rule.stopped < policy.total.stopped  # one that stops everything stands where its policy stands
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[3].rule))
    data = []
    for place, (saved, index, policy, rule) in enumerate(found[:MOST_RULES]):
        share, wrong = saved / policy.total.turns, rate(rule.stopped_successes_working, policy.total.successes)
        name = f"{_label(rule.rule)} ({_label(policy.policy)})"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "cliponaxis": False,
                "name": name,
                "x": [share],
                "y": [wrong.value or 0.0],
                "marker": {
                    "size": 9,
                    "color": _colour(index),
                    "symbol": f"{_SYMBOLS[place % len(_SYMBOLS)]}-open",
                    "line": {"width": 1.5},
                },
                "hovertext": [f"<b>{name}</b><br>{percent(share)} of turns saved<br>{rule.stopped} runs stopped"],
                "hoverinfo": "text",
            }
        )
    return data


def survival(report: BacktestReport) -> Chart:
    """Return the share of runs that are alive in each turn: as recorded, and under each policy."""
    lengths = report.policies[0].lengths
    data = [_line("as recorded", lengths, report.runs, {"color": "var(--recorded)", "width": 3, "dash": "solid"})]
    for index, policy in enumerate(report.policies):
        line = {"color": _colour(index), "width": 2, "dash": _DASHES[(index + 1) % len(_DASHES)]}
        data.append(_line(f"under {_label(policy.policy)}", policy.ends, report.runs, line))
    layout = _layout("turn", "runs still alive")
    layout["yaxis"] |= {"tickformat": ".0%", "range": [0, 1.03]}
    layout["xaxis"] |= {"range": [0.5, _far(lengths, report.runs)]}
    return Chart(
        "survival",
        "Runs still alive, by turn",
        "Falling lines: the share of runs that have at least so many turns. Where the line of a policy runs below that "
        "of the recorded runs, it has stopped some of them. The figures are in the table below.",
        tuple(data),
        layout,
    )


def _line(name: str, ends: dict[int, int], runs: int, line: Data) -> Data:
    turns = sorted({1, *(turn for end in ends for turn in (end, end + 1) if turn >= 1)})
    shares = [count / runs for count in alive(ends, turns)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": turns,
        "y": shares,
        "line": line | {"shape": "hv"},
        "hovertemplate": "turn %{x}: %{y:.1%}",
    }


def _far(ends: dict[int, int], runs: int) -> float:
    """Return the turn up to which a figure shows something: after it fewer than one run in a hundred is alive."""
    turns = sorted(ends)
    for turn, count in zip(turns, alive(ends, turns), strict=True):
        if count * 100 < runs:
            return max(turn, 2) + 0.5
    return max([*turns, 2]) + 0.5


def stops(report: BacktestReport) -> Chart:
    """Return how many runs are stopped in which turns."""
    edges = bins(report, MOST_BINS)
    data = []
    for index, policy in enumerate(report.policies):
        counts = [
            sum(count for turn, count in policy.stops.items() if first <= turn < following)
            for first, following in pairwise(edges)
        ]
        spans = [span(first, following - 1) for first, following in pairwise(edges)]
        data.append(
            {
                "type": "bar",
                "name": _label(policy.policy),
                "x": [(first + following - 1) / 2 for first, following in pairwise(edges)],
                "y": counts,
                "customdata": spans,
                "marker": {
                    "color": _colour(index),
                    "pattern": {
                        "shape": _PATTERNS[index % len(_PATTERNS)],
                        "fillmode": "overlay",
                        "fgcolor": "var(--page)",
                        "size": 6,
                    },
                },
                "hovertemplate": "turn %{customdata}: %{y} stops",
            }
        )
    layout = _layout("turn", "runs stopped") | {"barmode": "group", "bargap": 0.15}
    return Chart(
        "stops",
        "Stops, by turn",
        "Bars: how many runs each policy would have stopped in which turns. The figures are in the table below.",
        tuple(data),
        layout,
    )


def _layout(x: str, y: str) -> Data:
    axis = {
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": "var(--line)",
    }
    return {
        "xaxis": axis | {"title": {"text": x, "standoff": 10}},
        "yaxis": axis | {"title": {"text": y, "standoff": 14}},
        "font": {"color": "var(--text)", "family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"bgcolor": "var(--raised)", "bordercolor": "var(--line)", "font": {"color": "var(--text)"}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "showlegend": True,
        "margin": {"l": 10, "r": 16, "t": 10, "b": 10},
        "height": 380,
    }


def _label(text: str) -> str:
    """Return a name that Plotly shows as it is; a long one is cut."""
    text = clean_line(text)
    return escape(text if len(text) <= _NAME else f"{text[: _NAME - 3]}...")


def _colour(index: int) -> str:
    return f"var(--series-{index % SERIES})"


def _symbol(index: int) -> str:
    return _SYMBOLS[index % len(_SYMBOLS)]
