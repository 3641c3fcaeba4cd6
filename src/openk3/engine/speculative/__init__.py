"""Drafting tokens ahead: who guesses, and how many are worth it."""
