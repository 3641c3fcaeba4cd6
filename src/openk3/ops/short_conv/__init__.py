"""See README.md for the equations; `reference.py` is the definition."""
