"""Benchmarks, how their answers are graded, and the scores of models on them."""
