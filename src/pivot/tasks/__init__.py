"""What is asked and how it is graded: the prompt template, data sets, procedural tasks, the verifier."""
