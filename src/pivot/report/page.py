"""One self-contained HTML page: style, script, data and pictures inside, nothing fetched.

Text passes through `escape` or, as data, through `data_block`; the page's policy runs no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pivot.report.charts import Chart, HeatMap, IntervalChart, LineChart, StackChart
from pivot.report.svg import NUM_COLOURS, draw

ROOM = Path(__file__).parent
SUN = "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm0 2v14a7 7 0 0 1 0-14z"


@dataclass
class Page:
    """Parts in order of reading; the charts' numbers are gathered for the script as the parts are made."""

    title: str
    brand: str
    header: str = ""
    parts: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    readouts: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)

    def add(self, anchor: str, title: str, inside: str, intro: str = "") -> None:
        """A part with its heading, listed in the page's navigation."""
        said = f'<p class="intro">{escape(intro)}</p>' if intro else ""
        self.links.append((anchor, title))
        self.parts.append(
            f'<section class="part" id="{anchor}"><h2>{escape(title)}</h2>{said}{inside}</section>'
        )

    def chart(self, chart: Chart) -> str:
        """A figure with its caption, its keys and its read-out."""
        drawing = draw(chart)
        self.readouts[chart.name] = drawing.readout
        caption = f"<figcaption><b>{escape(chart.title)}</b><span>{escape(chart.note)}</span></figcaption>"
        inside = f"{caption}{_keys(chart)}{drawing.svg}"
        return f'<figure class="chart" data-chart="{escape(chart.name)}">{inside}</figure>'

    def charts(self, charts: list[Chart], style: str = "charts") -> str:
        return f'<div class="{style}">{"".join(map(self.chart, charts))}</div>' if charts else ""

    def html(self) -> str:
        """The whole page."""
        style = "".join((ROOM / name).read_text() for name in ("page.css", "tokens.css"))
        script = "\n".join((ROOM / name).read_text() for name in ("page.js", "tokens.js"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        links = "".join(f'<a href="#{anchor}">{escape(text)}</a>' for anchor, text in self.links)
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><nav aria-label="Parts of this page"><div><a class="brand" href="#top">{escape(self.brand)}</a>
<div class="links">{links}</div><button id="theme" type="button"><svg viewBox="0 0 24 24" aria-hidden="true">
<path d="{SUN}"/></svg></button></div></nav>
<header class="top" id="top">{self.header}</header>
<main>{"".join(self.parts)}</main>
<footer>Written by <code>pivot</code> from files of the run alone. The figures are in <code>figures/</code>
beside this page, as SVG and PDF.</footer>
{data_block("chart-data", self.readouts)}
{data_block("group-data", self.groups)}
<script>{script}</script></body></html>
"""


def data_block(name: str, data: Any) -> str:
    """Data for the script that no text in it can break out of: `<`, `>` and `&` are written as escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def definition_list(facts: dict[str, Any], style: str = "facts-list") -> str:
    rows = "".join(
        f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items() if v not in (None, "")
    )
    return f'<dl class="{style}">{rows}</dl>'


def _keys(chart: Chart) -> str:
    """The legend of a chart with several lines, layers or marks."""
    match chart:
        case LineChart():
            keys = [(curve.label, curve.colour) for curve in chart.curves]
        case StackChart():
            keys = [(label, i) for i, label in enumerate(chart.labels)]
        case IntervalChart():
            keys = [(label, i) for i, label in enumerate(chart.series)]
        case HeatMap():
            keys = []
    if len(keys) < 2:
        keys = []
    spans = "".join(f'<span class="c{colour % NUM_COLOURS}">{escape(label)}</span>' for label, colour in keys)
    return f'<div class="keys">{spans}</div>'
