"""Generation on token ids: this package and everything below it never sees text."""
