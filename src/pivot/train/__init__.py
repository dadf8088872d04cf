"""The embedded engine: the step, its batches, and everything that lets a run be stopped and go on."""
