"""``python -m openk3`` is the ``openk3`` command."""

from __future__ import annotations

from openk3.cli.main import main

main()
