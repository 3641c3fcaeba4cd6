"""Models that ship with the package, one folder each, with the recipe that made them."""
