"""The report of a backtest as one HTML file that needs nothing else: tables, figures, and runs turn by turn.

Knows: how the page is put together and what may run in it. Must not know: how figures come about.

All texts are untrusted: names of files and runs, and everything recorded. Each of them goes through one place
(`finalize` of the template environment), which writes controlling and reordering characters as escapes; then the
template engine escapes what is HTML. The page's own policy lets no script run but the two that are written into it,
known by their digests, and lets nothing be loaded from anywhere.

The figures are drawn by Plotly, whose library is written into the page once (about 4.7 MB). Pictures made beforehand
would be smaller, but with hundreds of turns and several policies one wants to read values off, zoom, and switch
policies off, and colours should follow the reader's light or dark theme. What a figure shows is also in a table, so
that nothing is lost where no script runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from policyengine.backtest import grids
from policyengine.backtest.charts import Chart, charts
from policyengine.backtest.figures import BacktestReport
from policyengine.backtest.tally import SampleKind
from policyengine.backtest.timeline import Timelines
from policyengine.errors import UsageError
from policyengine.telemetry.live import measured
from policyengine.visible import clean

KINDS: dict[SampleKind, str] = {
    "stopped_working": "success, stopped at work",
    "stopped_finished": "success, stopped when done",
    "stopped_failed": "stopped, no success",
    "stopped_unlabelled": "stopped, no label",
    "denied_succeeded": "a call refused that had succeeded",
    "recovered": "calls recovered",
}
"""What samples are called."""


LONGEST = 2000
"""How many characters of any one text there are; those of timelines are shorter, names hardly ever as long."""


def html(report: BacktestReport, inputs: Sequence[str], timelines: Timelines | None = None) -> str:
    """Return the whole page; `inputs` are the files and folders as they were given.

    Raises:
        UsageError: Plotly is not installed.
    """
    library = _plotly()
    drawn = tuple(charts(report))
    script = _source("report.js")
    page = _environment().get_template("report.html")
    text = page.render(
        report=report,
        inputs=inputs,
        summary=grids.summary(report),
        identities=grids.identities(report),
        compared=grids.compared(report),
        survival=grids.survival(report),
        stops=grids.stops(report) if any(policy.stops for policy in report.policies) else None,
        policies=[(policy, tuple(grids.policy_grids(policy, report.baseline))) for policy in report.policies],
        unread=tuple(grids.unread(report)),
        charts={chart.id: chart for chart in drawn},
        specs=Markup(_data(drawn)),
        timelines=timelines,
        kinds=KINDS,
        measured=measured,
        style=Markup(_source("report.css")),
        plotly=Markup(library),
        script=Markup(script),
        allowed=" ".join(map(_digest, (library, script))),
    )
    return text.lstrip()


def check_installed() -> None:
    """Raise `UsageError` where Plotly is not installed: before the work, not after it."""
    if find_spec("plotly") is None:
        raise UsageError("an HTML report needs Plotly: pip install 'agent-policyengine[report]'")


def _plotly() -> str:
    check_installed()
    from plotly.offline import get_plotlyjs

    return _inside_script(get_plotlyjs())


def _inside_script(text: str) -> str:
    """Return a script that cannot end its element early; the browser's digest is of lines that end in `\\n`."""
    return "\n".join(text.splitlines()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _digest(script: str) -> str:
    """Return how a content security policy names a script that may run: by its digest."""
    return f"'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'"


def _source(name: str) -> str:
    return files("policyengine.backtest").joinpath("templates", name).read_text(encoding="utf-8")


def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return clean(value if len(value) <= LONGEST else f"{value[:LONGEST]}...")


def _data(drawn: Sequence[Chart]) -> str:
    """Return the figures as JSON in which nothing is HTML."""
    specs = [{"id": chart.id, "data": chart.data, "layout": chart.layout} for chart in drawn]
    text = json.dumps(specs, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
