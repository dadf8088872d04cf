"""What surrounds the steps: the run folder, checkpoints, metrics, progress and the loop itself."""
