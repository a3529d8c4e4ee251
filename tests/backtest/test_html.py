"""The HTML report: one file, complete, safe against what was recorded, and readable without scripts."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from policyengine.backtest import html as module
from policyengine.backtest.charts import charts
from policyengine.backtest.figures import BacktestReport
from policyengine.backtest.grids import alive, all_grids
from policyengine.backtest.html import html
from policyengine.backtest.markdown import markdown
from policyengine.backtest.run import assigned, backtest
from policyengine.backtest.timeline import Timelines, timelines
from policyengine.cli import cli
from policyengine.errors import UsageError

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]></pre></details>{{ 7*7 }}{% raw %}",
    "\u2028line\u2029 \u202eright to left\u2066 \u061c",
    "half a pair \ud800 \x00\x1b[31m\x07",
    '" onmouseover="alert(1)\' javascript:alert(1)',
)
VOID = {"meta", "link", "input", "br", "img", "hr"}


def chat(number: int, text: str, *, label: bool | None) -> dict[str, object]:
    """Return a run that goes round in circles, with a text wherever a recording has one."""
    messages: list[dict[str, object]] = [{"role": "user", "content": f"user {text}"}]
    for place in range(8):
        arguments = json.dumps({"q": text})
        call = {"id": f"c{place}", "type": "function", "function": {"name": f"tool {text}", "arguments": arguments}}
        messages.append({"role": "assistant", "content": f"model {place} {text}", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{place}", "content": f"result {text}"})
    messages.append({"role": "assistant", "content": text})
    return {"messages": messages, "id": f"run {number} {text}", "model": text, "task": text, "label": label}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "<b>set & co"
    folder.mkdir()
    runs = [chat(number, text, label=number % 2 == 0) for number, text in enumerate(HOSTILE)]
    quiet = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "label": True}
    (folder / "runs.jsonl").write_text("\n".join(map(json.dumps, [*runs, quiet, quiet])) + "\n{broken\n")
    (folder / "notes<i>.txt").write_text("no recording")
    return folder


@pytest.fixture(scope="module")
def judged(hostile) -> tuple[BacktestReport, Timelines]:
    sources = assigned(["unattended", "cautious"], baseline="default").policies
    report = backtest([hostile], ["unattended", "cautious"], baseline="default", by_task=True)
    return report, timelines(report, sources, [hostile])


@pytest.fixture(scope="module")
def page(judged, hostile) -> str:
    return html(judged[0], [str(hostile)], judged[1])


class Seen(HTMLParser):
    """Every element with its attributes, and what is in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def inside(self, tag: str) -> list[str]:
        found: list[str] = []
        for inner, text in self.texts:
            if inner == tag:
                found.append(text)
        return found

    def words(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))


@pytest.fixture(scope="module")
def seen(page) -> Seen:
    return Seen(page)


def without_scripts(page: str) -> str:
    return re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL)


# ---- safe


def test_every_element_is_closed_and_none_comes_from_a_recording(seen):
    assert seen.open == []
    assert {tag for tag, _ in seen.elements} <= {
        *("html", "head", "meta", "title", "link", "style", "body", "header", "main", "nav", "section", "footer"),
        *("h1", "h2", "h3", "h4", "p", "a", "div", "span", "dl", "dt", "dd", "ol", "ul", "li", "details", "summary"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "bdi", "code", "pre", "strong", "em", "figure"),
        *("figcaption", "noscript", "label", "input", "select", "option", "button", "script"),
    }


def test_no_element_has_a_handler_and_no_link_leads_out_of_the_page(seen):
    for tag, attributes in seen.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            target = attributes.get(name)
            assert target is None or target == "data:," or target.startswith("#"), (tag, target)


def test_only_the_two_scripts_of_the_page_may_run_and_nothing_may_be_loaded(seen):
    (policy,) = [item["content"] for item in seen.all("meta") if item.get("http-equiv") == "Content-Security-Policy"]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    scripts = [text for text, about in zip(seen.inside("script"), seen.all("script"), strict=True) if not about]
    digests = {f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts}
    assert len(digests) == 2
    assert set(parts["script-src"].split()) == digests
    assert parts["default-src"] == "'none'"
    assert parts["img-src"] == "data: blob:"
    assert not {"connect-src", "font-src", "frame-src"} & set(parts)


def test_hostile_texts_are_shown_with_what_controls_or_reorders_made_visible(page, seen):
    shown = without_scripts(page)
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    assert {letter for letter in shown if unicodedata.category(letter) in kinds} <= {"\n", "\t"}
    words = seen.words()
    for text in ("</script><img src=x onerror=alert(1)>", "{{ 7*7 }}", "\\u2028line\\u2029", "\\u202eright", "\\ud800"):
        assert text in words
    page.encode("utf-8")


def test_figures_and_their_data_cannot_end_their_element(judged):
    report = msgspec.structs.replace(
        judged[0],
        policies=tuple(msgspec.structs.replace(item, policy="</script><b>&\u202e") for item in judged[0].policies),
    )
    found = Seen(html(report, []))
    (data,) = [text for text, about in zip(found.inside("script"), found.all("script"), strict=True) if about]
    assert not set("<>&") & set(data)
    names = {trace["name"] for chart in json.loads(data) for trace in chart["data"]}
    assert "&lt;/script&gt;&lt;b&gt;&amp;\\u202e" in names


def test_without_content_no_recorded_text_is_in_any_report(hostile, judged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secret = chat(1, "secret", label=True) | {"id": "r1", "model": "m"}
    Path("runs.jsonl").write_text(json.dumps(secret))
    reports = [word for name in ("a.html", "a.md", "a.json") for word in ("--report", name)]
    done = CliRunner().invoke(cli, ["backtest", "runs.jsonl", *reports, "--by-task", "--no-content", "--json"])
    assert done.exit_code == 0, done.output
    assert "secret" not in done.stdout
    for name in ("a.html", "a.md", "a.json"):
        assert "secret" not in Path(name).read_text(), name
    assert "made without recorded texts" in Path("a.html").read_text()
    assert "stopped in turn" in Path("a.html").read_text()


# ---- complete


def cells(report: BacktestReport) -> Iterator[str]:
    for grid in all_grids(report):
        yield grid.title
        for row in grid.rows:
            yield from row


def test_every_table_of_the_report_is_in_the_page_with_all_its_figures(judged, seen):
    titles = seen.inside("caption")
    assert titles == [grid.title for grid in all_grids(judged[0])]
    assert set(filter(None, cells(judged[0]))) <= {*titles, *seen.inside("bdi")}


def test_the_tables_of_markdown_are_those_of_the_page(judged, seen):
    lines = markdown(judged[0]).splitlines()
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert len(heads) == len(seen.inside("caption"))
    rows = sum(len(grid.rows) for grid in all_grids(judged[0]))
    assert sum(line.startswith("| ") and "---" not in line for line in lines) == rows + len(heads)
    assert {line.count("|") for line in lines if line.startswith("| ")} >= {4}


def test_json_has_what_the_tables_are_made_of(judged):
    told = json.loads(msgspec.json.encode(judged[0]))
    assert msgspec.convert(told, BacktestReport, strict=False) == judged[0]
    assert set(told["policies"][0]) >= {"groups", "rules", "landmarks", "lengths", "stops", "ends", "samples"}


def test_the_head_says_what_was_judged_and_how(judged, seen, hostile):
    words = seen.words()
    assert str(hostile) in words
    for policy in judged[0].policies:
        assert policy.digest in words
    assert "8 runs, 1 read errors" in words
    assert "Clopper-Pearson" in words
    assert {"{broken", "notes<i>.txt"} & {Path(cell).name for cell in seen.inside("bdi")}


def test_timelines_show_interventions_with_what_was_observed_against_the_limit(seen):
    words = seen.words()
    assert "(observed 3, limit 3)" in words
    assert "after the stop: recorded, would not have happened" in words
    classes = {about.get("class") for about in seen.all("div")}
    assert {"mark hint", "mark deny", "mark stop"} <= classes


def test_the_same_input_gives_the_same_page(judged, page, hostile):
    again = backtest([hostile], ["unattended", "cautious"], baseline="default", by_task=True, workers=2)
    sources = assigned(["unattended", "cautious"], baseline="default").policies
    again = msgspec.structs.replace(again, seconds=judged[0].seconds)
    assert html(again, [str(hostile)], timelines(again, sources, [hostile])) == page


def test_a_report_of_nothing_is_a_page_too(tmp_path):
    found = Seen(html(backtest([tmp_path], ["default"]), [str(tmp_path)], Timelines()))
    assert found.open == []
    assert "No policy did anything that is worth looking at." in found.words()


def test_long_texts_do_not_make_a_large_page(tmp_path):
    runs = [chat(number, "long <&> " * 10_000, label=None) | {"id": f"r{number}"} for number in range(4)]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, runs)))
    report = backtest([tmp_path], ["default"])
    text = html(report, ["runs"], timelines(report, assigned(["default"]).policies, [tmp_path]))
    assert len(without_scripts(text)) < 1_000_000


def test_without_plotly_the_verb_says_what_to_install_before_it_works(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape("pip install 'agent-policyengine[report]'")):
        html(backtest([tmp_path], ["default"]), [])
    done = CliRunner().invoke(cli, ["backtest", str(tmp_path), "--report", str(tmp_path / "a.html")])
    assert "agent-policyengine[report]" in done.stderr
    assert "nothing was read" not in done.stderr


# ---- accessible


def test_the_page_has_a_language_a_title_and_headings_in_order(seen):
    assert seen.all("html") == [{"lang": "en"}]
    assert seen.inside("title")[0].startswith("Backtest of default, unattended")
    levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_have_captions_and_heads_and_what_scrolls_can_be_reached_by_keyboard(seen):
    assert len(seen.all("table")) == len(seen.all("caption"))
    assert all(about.get("scope") in ("col", "row") for about in seen.all("th"))
    scrolling = [about for about in seen.all("div") if about.get("class") == "scroll"]
    assert {about.get("tabindex") for about in scrolling} == {"0"}
    names = {about.get("id") for _, about in seen.elements}
    assert {about.get("aria-labelledby") for about in scrolling} <= names


def test_ids_are_unique_and_links_lead_to_them(seen):
    ids = [about["id"] for _, about in seen.elements if "id" in about]
    assert len(ids) == len(set(ids))
    assert {about["href"] for about in seen.all("a")} <= {f"#{name}" for name in ids}


def test_figures_have_a_text_for_those_who_do_not_see_them(seen):
    drawn = [about for about in seen.all("div") if about.get("class") == "chart"]
    assert [about["id"] for about in drawn] == ["front", "survival", "stops"]
    assert all(about.get("role") == "img" and len(about.get("aria-label") or "") > 80 for about in drawn)


def test_fields_are_labelled_and_shown_only_where_scripts_run(page, seen):
    fields = seen.all("input", "select")
    assert page.count("<label>") == len(fields) == 3
    assert [about for about in seen.all("div") if about.get("id") == "tools"] == [{"id": "tools", "hidden": None}]


# ---- figures


def test_plotly_takes_every_figure(judged):
    from plotly import graph_objects as graphs

    for chart in charts(judged[0]):
        text = re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps({"data": chart.data, "layout": chart.layout}))
        graphs.Figure(json.loads(text))


def test_the_front_has_a_point_for_every_policy_where_its_rates_are(judged):
    front = next(iter(charts(judged[0])))
    for trace, policy in zip(front.data, judged[0].policies, strict=False):
        assert (trace["name"], trace["x"]) == (policy.policy, [policy.rates.turns_saved_share])
        assert trace["y"] == [policy.rates.working_stop_rate.value]
        top = trace["y"][0] + trace["error_y"]["array"][0]
        assert top == pytest.approx(policy.rates.working_stop_rate.high)


def test_no_two_policies_of_a_figure_look_the_same_without_colours(judged):
    front, survival, stops = charts(judged[0])
    policies = len(judged[0].policies)
    assert len({trace["marker"]["symbol"] for trace in front.data[:policies]}) == policies
    assert len({trace["line"]["dash"] for trace in survival.data[1:]}) == policies
    assert len({trace["marker"]["pattern"]["shape"] for trace in stops.data}) == policies


def test_runs_alive_are_those_that_end_later():
    assert alive({1: 2, 3: 1}, [1, 2, 3, 4]) == [3, 1, 1, 0]
    assert alive({0: 1, 5: 1}, [1]) == [1]
    assert alive({}, [1, 2]) == [0, 0]


def test_runs_alive_under_a_policy_end_where_it_stops_them(judged):
    for policy in judged[0].policies:
        assert sum(policy.ends.values()) == sum(policy.lengths.values()) == judged[0].runs
        saved = sum(turn * count for turn, count in policy.lengths.items())
        saved -= sum(turn * count for turn, count in policy.ends.items())
        assert saved == policy.total.turns_saved


# ---- Markdown


def test_markdown_shows_hostile_names_as_they_are(judged):
    text = markdown(judged[0])
    assert not re.search(r"<(?=[a-zA-Z/!])", text)
    assert "\u202e" not in text
    assert "{{ 7\\*7 }}" in text


def test_a_cell_cannot_begin_another_cell(judged):
    group = msgspec.structs.replace(judged[0].policies[0].groups[0], set="a|b \\| c `d` [e](f)", model="__init__")
    policy = msgspec.structs.replace(judged[0].policies[0], groups=(group, group), sets=(), samples=())
    text = markdown(msgspec.structs.replace(judged[0], policies=(policy,)))
    assert r"| a&#124;b \\&#124; c \`d\` [e]\(f) | \_\_init\_\_ |" in text
