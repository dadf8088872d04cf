"""The study of the paper's methods on the tiny world: plan, cells, raw results and page (README.md)."""
