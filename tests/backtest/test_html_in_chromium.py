"""The HTML report in a browser: opened from disk, figures drawn, nothing asked for, nothing complained about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import screenshots
from benchmarks.chromium import Page, executable, page
from policyengine.backtest.html import html
from policyengine.backtest.run import assigned, backtest
from policyengine.backtest.timeline import timelines

pytestmark = pytest.mark.skipif(executable() is None, reason="Chromium is not installed")

HOSTILE = (
    "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>{{ \u2028 \u202e \ud800"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Return a report of made-up runs, one of them with texts that would like to be a script."""
    folder = tmp_path_factory.mktemp("report")
    screenshots.recordings(folder / "runs")
    call = {"id": "c", "type": "function", "function": {"name": HOSTILE, "arguments": json.dumps({"q": HOSTILE})}}
    messages: list[dict[str, object]] = [{"role": "user", "content": HOSTILE}]
    for place in range(9):
        messages.append({"role": "assistant", "content": HOSTILE, "tool_calls": [call | {"id": f"c{place}"}]})
        messages.append({"role": "tool", "tool_call_id": f"c{place}", "content": HOSTILE})
    (folder / "runs" / "hostile.json").write_text(json.dumps({"messages": messages, "id": HOSTILE, "label": True}))
    sources = assigned(["default", "unattended"]).policies
    found = backtest([folder / "runs"], sources)
    made = folder / "report <1>.html"
    made.write_text(html(found, [HOSTILE], timelines(found, sources, [folder / "runs"])), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def opened(report) -> Iterator[Page]:
    """Return the report in a browser; tests leave it as they find it."""
    with page() as tab:
        tab.prefer("light")
        tab.open(report.as_uri())
        yield tab


def test_every_figure_is_drawn_and_the_console_stays_empty(opened):
    drawn = (
        "[...document.querySelectorAll('.chart')]"
        ".map(chart => [chart.id, chart.querySelectorAll('svg.main-svg').length])"
    )
    assert [(name, count > 0) for name, count in opened.run(drawn)] == [
        ("front", True),
        ("survival", True),
        ("stops", True),
    ]
    assert opened.run("document.querySelectorAll('#survival .scatterlayer .js-line').length") == 3
    assert opened.run("document.querySelectorAll('#front .scatterlayer .errorbars').length") >= 2
    assert opened.complaints == []


def test_nothing_but_the_file_itself_is_asked_for(opened, report):
    outside = [url for url in opened.requests if not url.startswith(("data:", "blob:"))]
    assert outside == [report.as_uri()]


def test_recorded_texts_do_not_run(opened):
    assert opened.run("document.body.textContent.includes('window.attacked = 1')")
    assert opened.run("typeof window.attacked") == "undefined"
    assert opened.run("document.images.length") == 0
    assert opened.run("document.scripts.length") == 3


def test_the_policy_of_the_page_lets_no_other_script_run_and_nothing_load(report):
    with page() as tab:
        tab.open(report.as_uri())
        tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=\"x.png\" onerror=\"window.attacked = 1\">')")
        tab.run(
            "(() => { const made = document.createElement('script'); made.text = 'window.attacked = 1'; "
            "document.body.append(made) })()"
        )
        assert tab.run("fetch('https://example.org/').then(() => 'loaded', () => 'refused')") == "refused"
        assert tab.run("typeof window.attacked") == "undefined"
        assert len(tab.complaints) >= 3


def test_a_run_is_opened_and_closed_by_keyboard(opened):
    first = "document.querySelector('details.run')"
    opened.run(f"{first}.querySelector('summary').focus()")
    opened.press("Enter", 13)
    assert opened.run(f"{first}.open") is True
    assert opened.run(f"{first}.querySelector('.mark').getBoundingClientRect().height") > 20
    opened.press("Enter", 13)
    assert opened.run(f"{first}.open") is False


def test_runs_are_filtered_by_text_kind_and_policy(opened):
    def shown(text: str = "", kind: str = "", policy: str = "") -> int:
        for name, value in (("filter", text), ("kind", kind), ("policy", policy)):
            opened.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
        opened.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
        count = opened.run("[...document.querySelectorAll('details.run')].filter(run => run.offsetHeight > 0).length")
        assert opened.run("document.getElementById('count').textContent").startswith(f"{count} of ")
        return int(count)

    everything = shown()
    assert shown(policy="default") + shown(policy="unattended") == everything
    assert 0 < shown(kind="stopped_failed") < everything
    assert 0 < shown(text="BUILD_status") < everything
    assert shown(text="no such text anywhere") == 0
    assert shown() == everything


def test_figures_follow_the_theme_of_the_reader(opened):
    colours = (
        "[getComputedStyle(document.body).backgroundColor, "
        "getComputedStyle(document.querySelector('#front .xtick text')).fill]"
    )
    light = opened.run(colours)
    opened.prefer("dark")
    opened.run("new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    dark = opened.run(colours)
    opened.prefer("light")
    opened.run("new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert opened.run(colours) == light


def test_labels_of_figures_do_not_overlap(opened):
    for chart in ("front", "survival", "stops"):
        boxes = opened.run(
            f"[...document.querySelectorAll('#{chart} .xtick text, #{chart} .ytick text, #{chart} .legendtext, "
            f"#{chart} .xtitle, #{chart} .ytitle')].map(label => {{ const b = label.getBoundingClientRect(); "
            "return [b.left, b.top, b.right, b.bottom] })"
        )
        assert len(boxes) > 8
        for index, one in enumerate(boxes):
            for other in boxes[index + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                assert apart, (chart, one, other)


def test_without_scripts_tables_and_runs_are_there_and_no_field_that_does_nothing(report):
    with page(scripts=False) as tab:
        tab.open(report.as_uri())
        texts = tab.visible_text()
        assert "Runs still alive, by turn" in texts
        assert "success, stopped at work" in texts
        assert "The figure needs JavaScript" in texts
        assert "Open all" not in texts


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_is_as_wide_as_the_screen(report, width):
    with page(width, 800) as tab:
        tab.open(report.as_uri())
        tab.run("document.querySelectorAll('details').forEach(item => { item.open = true })")
        assert tab.run("document.documentElement.scrollWidth") <= width


def test_the_pictures_of_the_documentation_can_be_made_again(tmp_path, capsys):
    assert screenshots.main(["--target", str(tmp_path)]) == 0
    there = {path.name for path in screenshots.TARGET.glob("backtest-*.png")}
    assert {path.name for path in tmp_path.iterdir()} == there
    assert all(path.stat().st_size <= screenshots.MOST_BYTES for path in screenshots.TARGET.glob("backtest-*.png"))
