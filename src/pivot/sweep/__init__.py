"""Many runs from one plan file: arms x seeds x settings, claims, intervals, verdicts, tables and a page."""
