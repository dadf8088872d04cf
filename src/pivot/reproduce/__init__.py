"""The paper's comparison on the tiny world: a plan, cells, statistics, verdicts and a page. See docs/results.md."""
