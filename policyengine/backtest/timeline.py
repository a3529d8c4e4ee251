"""The sample runs of a backtest once more, turn by turn, with what each policy would have done where.

Knows: how to find a sample run again, where an intervention belongs, how much of a text is kept.
Must not know: how a timeline is shown.

A backtest keeps no texts. The few runs that its report names are read again from their source and replayed again; a
run that is no longer there is counted and left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

import msgspec

from policyengine.backtest.facts import plain
from policyengine.backtest.figures import BacktestReport, SampleFigures
from policyengine.backtest.judge import PolicySource
from policyengine.backtest.tally import SampleKind
from policyengine.backtest.work import Piece, plan
from policyengine.engine import Engine
from policyengine.messages import ModelResponse, ToolCall, ToolResult
from policyengine.parsing.verdict import Verdict
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid
from policyengine.recordings.readers import Reader, read_file, readers_for
from policyengine.recordings.sidecar import Indexes
from policyengine.replay import Halt, Intervention, ReplayReport, Wish, replay

MOST_RUNS = 40
"""How many timelines a report has, over all policies; kinds and policies take turns."""

MOST_TURNS = 60
"""How many turns of a run are kept: those in which something happens, and their neighbours."""

MOST_CALLS = 20
"""How many calls of a turn are kept."""

TEXT, ARGUMENTS, RESULT, MESSAGE = 800, 500, 700, 500
"""How many characters are kept of a text of the model or the user, arguments, a result, a message of a rule."""

RUN_CHARACTERS = 40_000
"""How many characters a run may have in all; texts after that are cut to a few."""

FEW = 80

WORST_FIRST: tuple[SampleKind, ...] = (
    "stopped_working",
    "denied_succeeded",
    "stopped_finished",
    "stopped_failed",
    "stopped_unlabelled",
    "recovered",
)
"""The order of timelines."""

Found = tuple[str, int, str]
"""Source, line and id: what tells a sample run from others."""


class Mark(msgspec.Struct, frozen=True):
    """One intervention. `mode` is empty, or that of a rule which was not allowed to have an effect."""

    action: str
    rule: str
    code: str
    hook: str
    observed: float | None
    limit: float | None
    message: str = ""
    mode: str = ""


class Made(msgspec.Struct, frozen=True):
    """A call, its recorded result, and what rules said before it and after its result."""

    number: int
    name: str
    arguments: str
    status: str
    result: str
    asked: tuple[Mark, ...] = ()
    answered: tuple[Mark, ...] = ()


class Turn(msgspec.Struct, frozen=True):
    """One model response. `heard` are user messages before it, `unusable` says why it is nothing to act on.

    `late`: it comes after the stop, so that under the policy it would not have happened. `more_calls` are left out.
    """

    number: int
    heard: tuple[str, ...]
    text: str
    unusable: str
    calls: tuple[Made, ...]
    more_calls: int
    before: tuple[Mark, ...]
    after: tuple[Mark, ...]
    late: bool


class Gap(msgspec.Struct, frozen=True):
    """Turns that are left out, and how many interventions they have."""

    first: int
    last: int
    marks: int


class Timeline(msgspec.Struct, frozen=True):
    """One run under one policy. `begin` is what rules said before the first turn."""

    policy: str
    kinds: tuple[SampleKind, ...]
    run: str
    source: str
    line: int
    set: str
    group: str
    label: bool | None
    ended: str
    turns: int
    calls: int
    stop: Halt | None
    begin: tuple[Mark, ...]
    items: tuple[Turn | Gap, ...]


class Timelines(msgspec.Struct, frozen=True):
    """Timelines in order; `missing` runs could not be read again, `content` says whether recorded texts are kept."""

    runs: tuple[Timeline, ...] = ()
    missing: int = 0
    content: bool = True


def timelines(
    report: BacktestReport,
    policies: Iterable[PolicySource],
    paths: Iterable[str | os.PathLike[str]],
    *,
    form: str = "",
    protocol: str = "native",
    content: bool = True,
) -> Timelines:
    """Return the sample runs of a report, read from the same input again.

    Raises:
        ConfigError: a policy cannot be used any more.
        UsageError: a policy is no longer what it was.
    """
    chosen = _chosen(report)
    wanted = {found for _, found in chosen}
    readers = readers_for(form, protocol)
    engines = _engines(report, policies, {name for name, _ in chosen})
    made: dict[tuple[str, Found], Timeline] = {}
    for recording in _again(wanted, paths, readers):
        found = _key(recording)
        for name, engine in engines.items():
            kinds = chosen.get((name, found))
            if kinds is not None:
                made[name, found] = timeline(recording, engine, name, tuple(kinds), content=content)
    runs = tuple(made[key] for key in chosen if key in made)
    return Timelines(runs, len(chosen) - len(runs), content)


def timeline(
    recording: Recording, engine: Engine, policy: str, kinds: tuple[SampleKind, ...] = (), *, content: bool = True
) -> Timeline:
    """Return one run under the policy of an engine, turn by turn."""
    rounds: list[tuple[ModelResponse, Verdict]] = []
    report = replay(recording, engine, lambda response, verdict: rounds.append((response, verdict)))
    texts = _Texts(content)
    marks = _marks(report, texts)
    shown = _shown(len(rounds), {turn for turn, _, _ in marks}, None if report.stop is None else report.stop.iteration)
    return Timeline(
        policy=policy,
        kinds=kinds,
        run=recording.id,
        source=recording.source,
        line=recording.line,
        set=recording.set,
        group=recording.group,
        label=recording.label,
        ended=recording.ended,
        turns=report.iterations,
        calls=report.calls,
        stop=report.stop,
        begin=tuple(mark for turn, _, mark in marks if turn == 0),
        items=tuple(_items(recording, rounds, marks, shown, report.stop, texts)),
    )


# ---- which runs


def _chosen(report: BacktestReport) -> dict[tuple[str, Found], list[SampleKind]]:
    """Return the runs to be shown, each with the kinds of sample that it is."""
    kinds: dict[tuple[str, Found], list[SampleKind]] = {}
    queues: dict[tuple[int, str], list[tuple[str, Found]]] = {}
    for policy in report.policies:
        for sample in policy.samples:
            key = (policy.policy, _found(sample))
            kinds.setdefault(key, []).append(sample.kind)
            queues.setdefault((WORST_FIRST.index(sample.kind), policy.policy), []).append(key)
    in_turn = dict.fromkeys(
        key for row in zip_longest(*(queues[name] for name in sorted(queues))) for key in row if key is not None
    )
    kept = set(list(in_turn)[:MOST_RUNS])
    return {key: sorted(kinds[key], key=WORST_FIRST.index) for key in _worst_first(kinds) if key in kept}


def _worst_first(kinds: dict[tuple[str, Found], list[SampleKind]]) -> list[tuple[str, Found]]:
    """Return the runs of each policy, those in front that say most against it."""
    order = list(dict.fromkeys(policy for policy, _ in kinds))
    return sorted(kinds, key=lambda key: (order.index(key[0]), min(map(WORST_FIRST.index, kinds[key]))))


def _found(sample: SampleFigures) -> Found:
    return sample.source, sample.line, sample.run


def _key(recording: Recording) -> Found:
    return plain(recording.source), recording.line, plain(recording.id)


def _engines(report: BacktestReport, policies: Iterable[PolicySource], needed: set[str]) -> dict[str, Engine]:
    """Return an engine for each policy that is needed; one that has changed since the report raises."""
    digests = {policy.policy: policy.digest for policy in report.policies}
    return {
        policy.name: msgspec.structs.replace(policy, digest=digests[policy.name]).engine()
        for policy in policies
        if policy.name in needed
    }


def _again(
    wanted: set[Found], paths: Iterable[str | os.PathLike[str]], readers: tuple[Reader, ...]
) -> Iterator[Recording]:
    """Yield each of the wanted runs once; of a large file of lines only the parts with one of them are read."""
    if not wanted:
        return
    units, _, _ = plan(paths, readers)
    indexes = Indexes()
    pieces = [piece for unit in units for piece in unit.pieces]
    for piece, following in zip_longest(pieces, pieces[1:]):
        left = {found for found in wanted if found[0] == plain(piece.source) and _within(found[1], piece, following)}
        if not left:
            continue
        for item in read_file(piece.path, piece.source, piece.part, readers=readers, indexes=indexes):
            if isinstance(item, Recording) and (key := _key(item)) in left:
                left.remove(key)
                yield item
            if not left:
                break


def _within(line: int, piece: Piece, following: Piece | None) -> bool:
    if piece.part is None:
        return True
    end = following.part if following is not None and following.source == piece.source else None
    return piece.part.line <= line and (end is None or line < end.line)


# ---- one run


class _Texts:
    """Cuts texts, so that a run does not become longer than a run may be."""

    def __init__(self, content: bool) -> None:
        self._content = content
        self._left = RUN_CHARACTERS

    def cut(self, text: str, most: int) -> str:
        """Return the beginning and the end of a text."""
        if not self._content:
            return ""
        most = min(most, max(self._left, FEW))
        if len(text) > most:
            head = most * 3 // 4
            text = f"{text[:head]} [... {len(text) - most} characters left out ...] {text[head - most :]}"
        self._left -= len(text)
        return text


Placed = tuple[int, int | None, Mark]
"""Turn, call (counted over the run) and what was said there."""


def _marks(report: ReplayReport, texts: _Texts) -> list[Placed]:
    placed: list[Placed] = [(item.iteration, item.call, _mark(item, texts)) for item in report.interventions]
    last = None if report.stop is None else report.stop.iteration
    wishes = (wish for wish in report.would if last is None or wish.iteration <= last)
    return placed + [(wish.iteration, wish.call, _mark(wish, texts)) for wish in wishes]


def _mark(item: Intervention | Wish, texts: _Texts) -> Mark:
    message = mode = ""
    if isinstance(item, Wish):
        mode = item.mode
    elif isinstance(item.message, str):
        message = texts.cut(item.message, MESSAGE)
    return Mark(item.action, item.rule, item.code, item.hook, item.observed, item.limit, message, mode)


def _shown(turns: int, marked: set[int], stop: int | None) -> set[int]:
    """Return the numbers of the turns to be kept: what matters most first, until there are enough."""
    inside = sorted(turn for turn in marked if 1 <= turn <= turns)
    order = [stop or 0, 1, turns, *inside]
    for distance in (1, 2, 3):
        order += [near for turn in inside for near in (turn - distance, turn + distance)]
    order += [2, 3, turns - 1, *range(4, turns)]
    return set(list(dict.fromkeys(turn for turn in order if 1 <= turn <= turns))[:MOST_TURNS])


def _items(
    recording: Recording,
    rounds: Sequence[tuple[ModelResponse, Verdict]],
    marks: Sequence[Placed],
    shown: set[int],
    stop: Halt | None,
    texts: _Texts,
) -> Iterator[Turn | Gap]:
    results = {event.call_id: event.result for event in recording.events if isinstance(event, ToolAnswered)}
    heard = _heard(recording)
    made = gap = 0
    for number, (response, verdict) in enumerate(rounds, start=1):
        first = made + 1
        calls = verdict.calls if verdict.usable else ()
        made += len(calls)
        if number not in shown:
            gap = gap or number
            continue
        if gap:
            yield _gap(gap, number - 1, marks)
            gap = 0
        here = [(call, mark) for turn, call, mark in marks if turn == number]
        kept = tuple(
            _made(call, place, results.get(call.id), here, texts)
            for place, call in enumerate(calls[:MOST_CALLS], start=first)
        )
        loose = [(call, mark) for call, mark in here if call is None or call >= first + len(kept)]
        yield Turn(
            number=number,
            heard=tuple(texts.cut(text, TEXT) for text in heard.get(number, ())),
            text=texts.cut(response.text, TEXT),
            unusable="" if verdict.usable else f"{verdict.kind}: {verdict.reason}".removesuffix(": "),
            calls=kept,
            more_calls=len(calls) - len(kept),
            before=tuple(mark for call, mark in loose if call is None and mark.hook == "before_model_call"),
            after=tuple(mark for call, mark in loose if call is not None or mark.hook != "before_model_call"),
            late=stop is not None and number > stop.iteration,
        )
    if gap:
        yield _gap(gap, len(rounds), marks)


def _heard(recording: Recording) -> dict[int, list[str]]:
    """Return what the user said before each turn; what was said after the last one belongs to no turn."""
    heard: dict[int, list[str]] = {}
    turn = 1
    for event in recording.events:
        if isinstance(event, ModelSaid):
            turn += 1
        elif isinstance(event, UserSaid):
            heard.setdefault(turn, []).append(event.text)
    return heard


def _gap(first: int, last: int, marks: Sequence[Placed]) -> Gap:
    return Gap(first, last, sum(first <= turn <= last for turn, _, _ in marks))


def _made(
    call: ToolCall, number: int, result: ToolResult | None, here: Sequence[tuple[int | None, Mark]], texts: _Texts
) -> Made:
    marks = [mark for place, mark in here if place == number]
    return Made(
        number=number,
        name=texts.cut(call.name, FEW),
        arguments=texts.cut(call.arguments or _written(call.args), ARGUMENTS),
        status="no result recorded" if result is None else result.status,
        result="" if result is None else texts.cut(result.text, RESULT),
        asked=tuple(mark for mark in marks if mark.hook != "after_tool_call"),
        answered=tuple(mark for mark in marks if mark.hook == "after_tool_call"),
    )


def _written(arguments: object) -> str:
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
