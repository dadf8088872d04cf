"""Benchmarks (one small file each), how their answers are matched, and the scores over graded samples."""
