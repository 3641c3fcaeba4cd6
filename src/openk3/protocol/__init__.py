"""Torch-free types that cross the boundaries between the parts of OpenK3."""
