"""The results page: what stands between its marks is written from the raw numbers, the rest is written by people."""

from __future__ import annotations

from pathlib import Path

from pivot.durable import write_bytes
from pivot.errors import UserError
from pivot.reproduce.charts import figures, write_figures
from pivot.reproduce.plan import Plan
from pivot.reproduce.results import Results
from pivot.reproduce.sections import all_sections

BEGIN = "<!-- results: written by `pivot reproduce --report`, don't edit by hand -->"
END = "<!-- end of results -->"
EMPTY = f"# Results\n\n{BEGIN}\n{END}\n"
FIGURES = {
    "learning-steps": "Learning curves over steps",
    "learning-time": "Learning curves over training time",
    "training-accuracy": "Accuracy of the rollouts over steps",
    "claims": "All claims with their intervals",
    "worlds": "Difference to DAPO in each world, every seed",
    "sensitivity": "In-domain accuracy over beta and lambda_exp, every seed",
    "push": "Responses in form over the weight of the push, every seed",
}
HOMES = {
    "worlds": "Where each module helps",
    "sensitivity": "Sensitivity: beta",
    "push": "What Eq. 14 does in expectation: a perception term",
}
"""Figure -> the section that it stands in; any other stands with the verdicts."""


def write_page(plan: Plan, results: Path, page: Path) -> Path:
    """Write the part between the marks of `page`, and the figures beside it; a page that is not there is made."""
    found = Results.load(plan, results)
    drawn = figures(plan, found)
    folder = page.parent / "images" / "results"
    text = page.read_text(encoding="utf-8") if page.exists() else EMPTY
    filled = fill(text, body(plan, found, list(drawn)), page)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_figures(drawn, folder)
    write_bytes(page, filled.encode())
    return page


def body(plan: Plan, results: Results, drawn: list[str]) -> str:
    """All sections, each followed by its figures."""
    parts = []
    for section in all_sections(plan, results):
        parts.append(section.markdown())
        here = [name for name in drawn if HOMES.get(name, "Verdicts") == section.title]
        parts += [f"![{FIGURES[name]}](images/results/{name}.svg)" for name in here]
    return "\n\n".join(parts)


def fill(text: str, written: str, page: Path) -> str:
    """`text` with what stands between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{page} lacks the marks {BEGIN!r} and {END!r}: put them where the results belong.")
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"
