"""One folder per operation: `reference.py` defines it in plain PyTorch, faster forms stand beside it."""
