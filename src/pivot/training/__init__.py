"""The training step: selection, anchors, batch, advantages, update."""
