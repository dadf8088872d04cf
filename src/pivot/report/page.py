"""One self-contained HTML page with its style, script, data and images; it fetches nothing.

Text passes through `escape` or, as data, through `data_block`; the page's security policy allows only its own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pivot import __version__
from pivot.report.charts import Chart
from pivot.report.svg import NUM_COLOURS, draw

FOLDER = Path(__file__).parent
FIGURES = " The figures are beside this page in <code>figures/</code>, as SVG and PDF."
SUN = "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm0 2v14a7 7 0 0 1 0-14z"


@dataclass
class Page:
    """The sections of a page in order; the numbers of its charts are collected for the script."""

    title: str
    brand: str
    header: str = ""
    parts: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    readouts: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    assets: str = "tokens"
    """Name of the style and script beside the page's own."""
    has_figures: bool = True
    """Whether the charts are also written as files beside the page."""

    def add(self, anchor: str, title: str, inside: str, intro: str = "") -> None:
        """Add a section with its heading and a link in the navigation."""
        lead = f'<p class="intro">{escape(intro)}</p>' if intro else ""
        self.links.append((anchor, title))
        self.parts.append(
            f'<section class="part" id="{anchor}"><h2>{escape(title)}</h2>{lead}{inside}</section>'
        )

    def chart(self, chart: Chart) -> str:
        """A figure with its caption, legend and read-out."""
        drawing = draw(chart)
        self.readouts[chart.name] = drawing.readout
        caption = f"<figcaption><b>{escape(chart.title)}</b><span>{escape(chart.note)}</span></figcaption>"
        inside = f"{caption}{_keys(chart)}{drawing.svg}"
        return f'<figure class="chart" data-chart="{escape(chart.name)}">{inside}</figure>'

    def charts(self, charts: Sequence[Chart], style: str = "charts") -> str:
        return f'<div class="{style}">{"".join(map(self.chart, charts))}</div>' if charts else ""

    def html(self) -> str:
        """The whole page."""
        sheets = dict.fromkeys(("page.css", "tokens.css", f"{self.assets}.css"))
        style = "".join((FOLDER / name).read_text() for name in sheets)
        script = "\n".join((FOLDER / name).read_text() for name in ("page.js", f"{self.assets}.js"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        links = "".join(f'<a href="#{anchor}">{escape(text)}</a>' for anchor, text in self.links)
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><nav aria-label="Sections of this page"><div><a class="brand" href="#top">{escape(self.brand)}</a>
<div class="links">{links}</div><button id="theme" type="button"><svg viewBox="0 0 24 24" aria-hidden="true">
<path d="{SUN}"/></svg></button></div></nav>
<header class="top" id="top">{self.header}</header>
<main>{"".join(self.parts)}</main>
<footer>Written by <code>pivot {__version__}</code>.{FIGURES if self.has_figures else ""}</footer>
{data_block("chart-data", self.readouts)}
{data_block("group-data", self.groups)}
<script>{script}</script></body></html>
"""


def data_block(name: str, data: Any) -> str:
    """JSON for the script; `<`, `>` and `&` are escaped, so that no text in it can end the block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def gaps_note(gaps: Iterable[str]) -> str:
    """A box that lists what is missing; empty if nothing is."""
    listed = "".join(f"<li>{escape(gap)}</li>" for gap in gaps)
    return f'<aside class="gaps"><b>Missing or damaged files</b><ul>{listed}</ul></aside>' if listed else ""


def chips(texts: Iterable[tuple[str, str]]) -> str:
    """Small labels above the title: (text, style)."""
    spans = "".join(f'<span class="chip {style}">{escape(text)}</span>' for text, style in texts)
    return f'<div class="chips">{spans}</div>'


def definition_list(facts: dict[str, Any]) -> str:
    rows = "".join(
        f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items() if v not in (None, "")
    )
    return f'<dl class="facts-list">{rows}</dl>'


def _keys(chart: Chart) -> str:
    """The legend of a chart with more than one label."""
    keys = chart.keys if len(chart.keys) > 1 else []
    spans = "".join(f'<span class="c{colour % NUM_COLOURS}">{escape(label)}</span>' for label, colour in keys)
    return f'<div class="keys">{spans}</div>'
