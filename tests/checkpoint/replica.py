"""A full-size checkpoint without its contents: true headers and index, files that are holes up to their true size."""

from __future__ import annotations

import json
from pathlib import Path

from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.shards import plan_shards
from openk3.checkpoint.writer import header_bytes, index_content
from openk3.model.config import K3Config
from openk3.model.published import config_to_dict


def write_replica(folder: Path, config: K3Config, *, vision: bool = True) -> None:
    """Write the header-only replica of a model's checkpoint into ``folder``."""
    plans = plan_shards(config, vision=vision)
    for plan in plans:
        with (folder / plan.file).open("wb") as file:
            size = file.write(header_bytes(plan.specs)) + plan.nbytes
            file.truncate(size)
    (folder / "config.json").write_text(json.dumps(config_to_dict(config)), encoding="utf-8")
    (folder / INDEX_FILE).write_text(json.dumps(index_content(plans)), encoding="utf-8")
