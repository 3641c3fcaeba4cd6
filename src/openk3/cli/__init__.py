"""The ``openk3`` command: ``main`` and one file per verb."""
