"""The study of experience replay where successes are rare; its README.md says what it asks and how to run it."""
