"""The page of `pivot credit`: images as the model saw them, tokens coloured by every measure, their agreement."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pivot.durable import write_bytes
from pivot.report.page import Page, chips, definition_list
from pivot.report.tokens import with_marks
from pivot.token_credit import CreditMap
from pivot.token_measures import CreditedResponse, Measure

NUM_TOP = 8
TITLE_LENGTH = 60
NO_SPREAD = "–"


def write_credit(found: CreditMap, path: Path) -> Path:
    """The page as one file; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, credit_page(found).html().encode())
    return path


def credit_page(found: CreditMap) -> Page:
    """Images, the token map, and two tables."""
    page = Page("Token credit", "PIVOT token credit", assets="credit", has_figures=False)
    tokens = sum(len(y.tokens) for y in found.responses)
    labels = [
        (found.model, ""),
        (_count(len(found.responses), "response"), ""),
        (f"{tokens:,} tokens", ""),
        (_count(len(found.measures), "measure"), ""),
    ]
    page.header = (
        f'{chips(labels)}<h1>Token credit</h1><p class="lead asked">{escape(with_marks(found.question))}</p>'
    )
    facts = {"Answer": found.answer, **found.facts}
    page.add("images", "What the model saw", _pictures(found) + definition_list(facts))
    intro = (
        "One row per measure, one column per token; below, the same values as coloured text. Point at a token to see "
        "all of its values; arrow keys walk through a text."
    )
    page.add("credit", "Token by token", '<div id="credit-map"></div>', intro)
    page.add("agreement", "Do the measures agree?", _correlations(found), CORRELATED)
    page.add("top", "Most important tokens", _top_tokens(found), TOP)
    page.groups = [_payload(found)]
    return page


CORRELATED = (
    "Spearman's rank correlation of two measures over the tokens of a response, averaged over the responses. 1: the "
    "same order of tokens; 0: nothing in common; below 0: the opposite order."
)
TOP = "The tokens with the largest value in any response, each text once."


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rho, ties sharing their mean rank; None where all values of one are equal."""
    first, second = (_ranks(np.asarray(values)) for values in (one, other))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts + 1) / 2)[place]


def mean_correlation(found: CreditMap, one: Measure, other: Measure) -> float | None:
    """The mean over the responses in which both measures vary."""
    rhos = [rank_correlation(y.values[one.key], y.values[other.key]) for y in found.responses]
    known = [rho for rho in rhos if rho is not None]
    return sum(known) / len(known) if known else None


def _correlations(found: CreditMap) -> str:
    head = "".join(f'<th scope="col">{_label(measure)}</th>' for measure in found.measures)
    rows = "".join(
        f"<tr>{_row_head(one)}"
        + "".join(
            _cell(None if one is other else mean_correlation(found, one, other), one is other)
            for other in found.measures
        )
        + "</tr>"
        for one in found.measures
    )
    table = f'<table class="matrix"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="table-wrap">{table}</div>'


def _cell(rho: float | None, own: bool) -> str:
    if own:
        return '<td class="own"></td>'
    if rho is None:
        return f"<td>{NO_SPREAD}</td>"
    side, shown = " cool" if rho < 0 else "", f"{rho:.2f}".replace("-", "−")
    return f'<td class="rho{side}" style="--strength:{min(1.0, abs(rho)):.3f}">{shown}</td>'


def _label(measure: Measure) -> str:
    """Short: its symbol, and whose it is where a symbol occurs twice."""
    own = "" if measure.method in ("pivot", "entropy") else f" {escape(measure.method.upper())}"
    return f"<i>{escape(measure.symbol)}</i>{own}"


def _row_head(measure: Measure) -> str:
    return f'<th scope="row"><i>{escape(measure.symbol)}</i> {escape(measure.name)}</th>'


def _top_tokens(found: CreditMap) -> str:
    rows = "".join(
        f"<tr>{_row_head(measure)}<td>{_tops(found, measure)}</td></tr>" for measure in found.measures
    )
    return f'<div class="table-wrap"><table class="tops"><tbody>{rows}</tbody></table></div>'


def _tops(found: CreditMap, measure: Measure) -> str:
    best: dict[str, float] = {}
    for response in found.responses:
        for text, value in zip(response.tokens, response.values[measure.key], strict=True):
            best[text] = max(value, best.get(text, -np.inf))
    top = sorted(best.items(), key=lambda item: -item[1])[:NUM_TOP]
    return "".join(f"<span><code>{escape(_visible(text))}</code> {value:.3g}</span>" for text, value in top)


def _visible(text: str) -> str:
    return text.replace("\n", "↵").strip() or "␣"


def _pictures(found: CreditMap) -> str:
    several = len(found.images) > 1
    shown = [
        _picture(image, f"Image {i + 1}" if several else "Image", "as the model saw it")
        for i, image in enumerate(found.images)
    ]
    for view in found.views:
        names = ", ".join(name.upper() for name in view.methods)
        shown += [_picture(image, names, view.caption) for image in view.images or [""]]
    return f'<div class="views">{"".join(shown)}</div>'


def _picture(image: str, title: str, caption: str) -> str:
    alt = escape(f"{title}: {caption}")
    drawn = (
        f'<img src="{escape(image)}" alt="{alt}">'
        if image
        else f'<div class="hidden-image" role="img" aria-label="{alt}"></div>'
    )
    return f'<figure class="picture">{drawn}<figcaption><b>{escape(title)}</b> {escape(caption)}</figcaption></figure>'


def _payload(found: CreditMap) -> dict[str, Any]:
    keys = ("key", "symbol", "name", "method", "about", "neutral")
    return {
        "measures": [{key: getattr(measure, key) for key in keys} for measure in found.measures],
        "responses": [_response(response) for response in found.responses],
    }


def _response(response: CreditedResponse) -> dict[str, Any]:
    reward = response.reward
    extracted = None if reward is None else reward.extracted
    return {
        "tokens": list(response.tokens),
        "values": {key: [float(f"{v:.4g}") for v in values] for key, values in response.values.items()},
        "logprobs": [float(f"{v:.4g}") for v in response.logprobs],
        "kept": [int(flag) for flag in response.kept],
        "correct": None if reward is None else reward.correct,
        "extracted": None if extracted is None else extracted[:TITLE_LENGTH],
        "truncated": response.truncated,
        "given": response.given,
    }


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
