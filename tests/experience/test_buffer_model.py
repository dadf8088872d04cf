"""The buffer equals a naive one of dictionaries and loops under random sequences of calls."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.experience import ExperienceBuffer, StoredResponse


@dataclass
class NaiveRow:
    k: int = 0
    group: int = 1
    step: int = 0
    visited: int = 0
    drawn: int = 0
    responses: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    """(token ids, step), oldest first."""

    @property
    def weight(self) -> Fraction:
        rate = Fraction(self.k, self.group)
        return rate * (1 - rate)


class NaiveBuffer:
    """The rules of docs/decisions.md, section "Experience buffer", word by word."""

    def __init__(self, responses_per_prompt: int, max_prompts: int | None) -> None:
        self.limit, self.cap = responses_per_prompt, max_prompts
        self.rows: dict[str, NaiveRow] = {}
        self.visits = 0

    def record(self, prompt_id: str, k: int, group: int, responses: list[tuple[int, ...]], step: int) -> None:
        if prompt_id not in self.rows:
            if not responses:
                return
            self.rows[prompt_id] = NaiveRow()
        row = self.rows[prompt_id]
        row.k, row.group, row.step, row.visited = k, group, step, self.visits
        self.visits += 1
        for token_ids in responses:
            row.responses = [known for known in row.responses if known[0] != token_ids] + [(token_ids, step)]
            while len(row.responses) > self.limit:
                row.responses.pop(0)
        while self.cap is not None and len(self.rows) > self.cap:
            del self.rows[min(self.rows, key=lambda name: (self.rows[name].weight, self.rows[name].visited))]

    def eligible(self, exclude: set[str]) -> set[str]:
        return {name for name, row in self.rows.items() if row.weight > 0 and name not in exclude}


def assert_equal(buffer: ExperienceBuffer, naive: NaiveBuffer) -> None:
    rows = {row.prompt_id: row for row in buffer.rows()}
    assert set(rows) == set(naive.rows)
    for prompt_id, expected in naive.rows.items():
        row = rows[prompt_id]
        assert (row.num_correct, row.num_sampled, row.step) == (expected.k, expected.group, expected.step)
        assert row.times_drawn == expected.drawn
        kept = [(tuple(r.token_ids.tolist()), r.step) for r in buffer.candidates(prompt_id)]
        assert kept == expected.responses
    stats = buffer.stats()
    assert stats.size == len(buffer) == len(naive.rows)
    assert stats.responses == sum(len(row.responses) for row in naive.rows.values())
    assert stats.eligible == len(naive.eligible(set()))


def run_draw(buffer: ExperienceBuffer, naive: NaiveBuffer, num_draws: int, exclude: set[str]) -> None:
    draws = buffer.draw(num_draws, exclude=exclude)
    names = [draw.prompt_id for draw in draws]
    eligible = naive.eligible(exclude)
    assert len(set(names)) == len(names) == min(num_draws, len(eligible))
    assert set(names) <= eligible
    total = sum(naive.rows[name].weight for name in eligible)
    for draw in draws:
        naive.rows[draw.prompt_id].drawn += 1
        assert draw.times_drawn == naive.rows[draw.prompt_id].drawn
        assert draw.probability == pytest.approx(float(naive.rows[draw.prompt_id].weight / total), rel=1e-12)


names = st.sampled_from("abcdefg")
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple)


@st.composite
def visits(draw):
    group = draw(st.integers(1, 5))
    k = draw(st.integers(0, group))
    return "visit", draw(names), k, group, draw(st.lists(tokens, max_size=k))


calls = st.one_of(
    visits(),
    visits(),
    st.tuples(st.just("draw"), st.integers(0, 5), st.sets(names, max_size=3)),
    st.just(("save",)),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(calls, max_size=30),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 4)),
    st.integers(0, 3),
)
def test_a_random_program_leaves_what_the_naive_buffer_holds(program, limit, cap, seed):
    buffer = ExperienceBuffer(responses_per_prompt=limit, max_prompts=cap, seed=seed)
    naive = NaiveBuffer(limit, cap)
    for step, (kind, *arguments) in enumerate(program):
        if kind == "visit":
            prompt_id, k, group, token_lists = arguments
            stored = [StoredResponse(list(token_ids)) for token_ids in token_lists]
            buffer.record(prompt_id, num_correct=k, num_responses=group, responses=stored, step=step)
            naive.record(prompt_id, k, group, token_lists, step)
        elif kind == "draw":
            run_draw(buffer, naive, *arguments)
        else:
            restored = ExperienceBuffer()
            restored.load_state_dict(buffer.state_dict())
            buffer = restored
        assert_equal(buffer, naive)


def random_visits(buffer: ExperienceBuffer, generator: np.random.Generator, steps: range) -> list:
    """Some steps of a simulated training; returns all draws and statistics."""
    seen = []
    for step in steps:
        seen.append(buffer.draw(4, exclude={"p3", "p5"}, step=step))
        for _ in range(12):
            k = int(generator.integers(0, 9))
            stored = [
                StoredResponse(
                    generator.integers(0, 9, 3), logprobs=generator.random(3), entropy=generator.random()
                )
                for _ in range(k)
            ]
            prompt_id = f"p{generator.integers(0, 60)}"
            buffer.record(prompt_id, num_correct=k, num_responses=8, responses=stored, step=step)
        seen.append(buffer.stats(step))
    return seen


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_same_seed_and_calls_are_identical_interrupted_or_not(tmp_path, interrupted):
    whole, whole_world = ExperienceBuffer(max_prompts=25, seed=3), np.random.default_rng(0)
    expected = random_visits(whole, whole_world, range(1, 31))
    parts, world = ExperienceBuffer(max_prompts=25, seed=3), np.random.default_rng(0)
    seen = random_visits(parts, world, range(1, 14))
    if interrupted:
        parts.save(tmp_path / "buffer")
        parts = ExperienceBuffer.load(tmp_path / "buffer")
    seen += random_visits(parts, world, range(14, 31))
    assert seen == expected
    assert [row.prompt_id for row in parts.rows()] == [row.prompt_id for row in whole.rows()]


def test_another_seed_draws_differently():
    orders = []
    for seed in (0, 1):
        buffer = ExperienceBuffer(seed=seed)
        random_visits(buffer, np.random.default_rng(0), range(1, 10))
        orders.append([draw.prompt_id for draw in buffer.draw(20)])
    assert orders[0] != orders[1]
