"""A larger tiny world, in which DAPO ends below its ceiling; README.md says what is there and what is missing."""
