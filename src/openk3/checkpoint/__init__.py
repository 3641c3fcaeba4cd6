"""Checkpoints in the published layout: reading, writing, checking."""
