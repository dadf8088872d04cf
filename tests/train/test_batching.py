import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.policy.encoding import EncodedPrompt
from pivot.policy.rows import Unit
from pivot.train.batching import Packing, row_indices, select
from pivot.types import Prompt


def unit(prompt_length, lengths):
    ids = torch.zeros(prompt_length, dtype=torch.int64)
    prompt = EncodedPrompt(Prompt("p", "?", "1"), ids, ids.expand(3, -1), prompt_length, ())
    return Unit(prompt, [torch.zeros(n, dtype=torch.int64) for n in lengths])


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=6)
batches = st.lists(st.builds(unit, st.integers(1, 40), lengths), min_size=1, max_size=8)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(batches, st.sampled_from(["auto", "tree", "repeated"]), st.integers(1, 400), st.integers(1, 200))
def test_every_response_once_within_the_budget(units, layout, budget, tree_row):
    plan = Packing(layout, budget, tree_row).plan(units)
    rows = torch.cat([row_indices(units, batch) for batch in plan]).tolist()
    assert sorted(rows) == list(range(sum(len(u.responses) for u in units)))
    for batch in plan:
        chosen = select(units, batch)
        tree = batch.layout == "tree"
        num_rows = len(chosen) if tree else sum(len(u.responses) for u in chosen)
        longest = max(u.tree_length if tree else u.repeated_length for u in chosen)
        assert num_rows * longest <= budget or rows_are_single(chosen)
        if layout != "auto":
            assert batch.layout == layout


def rows_are_single(chosen):
    """What cannot be split any further may exceed the budget, alone."""
    return len(chosen) == 1 and len(chosen[0].responses) == 1


def test_auto_takes_the_tree_where_it_fits():
    short, long = unit(10, [20, 20]), unit(10, [90, 90])
    plan = Packing("auto", 1000, tree_row_tokens=100).plan([short, long])
    assert {batch.layout: [part.unit for part in batch.parts] for batch in plan} == {
        "tree": [0],
        "repeated": [1],
    }
