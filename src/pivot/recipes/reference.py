"""Writes the reference of all settings: `python -m pivot.recipes.reference > docs/configuration.md`."""

from __future__ import annotations

from pivot.config.describe import reference
from pivot.recipes import get, names

INTRODUCTION = """\
# Configuration

Written by `python -m pivot.recipes.reference > docs/configuration.md`; don't edit it by hand.

A run's configuration is put together in this order, later ones win:

1. a recipe (`--recipe NAME`),
2. a YAML, TOML or JSON file (`--config FILE`; a run's own `config.json` is one),
3. `--method`, `--corruption`, `--steps`, `--seed`, `--model`, `--data`,
4. `--set section.field=value`, as often as you like.

`--method NAME` replaces the whole `method` section by that preset; in a file write `method: dapo`, or
`method: {name: dapo, clip_high: 0.3}` for a preset with changes. What a run resolved to stands in its
folder's `config.json`. From Python:

```python
from pivot import recipes
from pivot.config import apply_settings

config = apply_settings(recipes.get("tiny"), ["train.steps=20", "method.beta=0.3"])
```

An unknown setting is refused with the nearest known one. `null` (or `none`) is the empty value, lists are
written `a,b` or `[a, b]`.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, _recipes(), reference()]).rstrip("\n")


def _recipes() -> str:
    """One line a recipe: what it is and what it sets."""
    rows = [
        "## Recipes\n",
        "| recipe | model | data | steps | prompts a step | G | lr |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names():
        config = get(name)
        cells = [f"`{name}`", config.model.path, config.data.train, config.train.steps]
        cells += [config.train.prompts_per_step, config.rollout.responses, config.train.lr]
        rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(document())
