import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.engines.packing import Packing, row_indices, select
from pivot.models.encoding import EncodedPrompt
from pivot.models.rows import PromptWithResponses
from pivot.types import Prompt


def unit(prompt_length, lengths):
    ids = torch.zeros(prompt_length, dtype=torch.int64)
    prompt = EncodedPrompt(Prompt("p", "?", "1"), ids, ids.expand(3, -1), prompt_length, ())
    return PromptWithResponses(prompt, [torch.zeros(n, dtype=torch.int64) for n in lengths])


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=6)
batches = st.lists(st.builds(unit, st.integers(1, 40), lengths), min_size=1, max_size=8)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(batches, st.sampled_from(["tree", "repeated"]), st.integers(1, 400))
def test_every_response_once_within_the_budget(units, layout, budget):
    plan = Packing(layout, budget).plan(units)
    rows = torch.cat([row_indices(units, batch) for batch in plan]).tolist()
    assert sorted(rows) == list(range(sum(len(u.responses) for u in units)))
    for batch in plan:
        chosen = select(units, batch)
        num_rows = sum(len(u.responses) for u in chosen)
        tree, repeated = (
            sum(u.tree_length for u in chosen),
            num_rows * max(len(u.prompt) + max(map(len, u.responses)) for u in chosen),
        )
        assert (tree if layout == "tree" else repeated) <= budget or rows_are_single(chosen)
        assert batch.layout == layout


def rows_are_single(chosen):
    """What cannot be split any further may exceed the budget, alone."""
    return len(chosen) == 1 and len(chosen[0].responses) == 1
