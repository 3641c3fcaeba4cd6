"""Which tensor goes into which file of a checkpoint that we write.

Unusual: one shard per layer, so that a layer needs exactly one file; MTP layers follow the backbone's, then one shard
for everything outside the layers, then projector and vision tower.
"""

from __future__ import annotations

from dataclasses import dataclass

from openk3.model.catalogue import TensorSpec, layer_specs, model_specs, vision_specs
from openk3.model.config import K3Config


@dataclass(frozen=True)
class ShardPlan:
    """One file to be: its name and its tensors in order."""

    file: str
    specs: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, without the header."""
        return sum(spec.nbytes * spec.experts for spec in self.specs)


def plan_shards(config: K3Config, *, vision: bool) -> list[ShardPlan]:
    """Plan the files of a checkpoint; ``vision`` adds the vision part's two where the configuration has one."""
    contents = [layer_specs(config, layer) for layer in (*range(config.num_hidden_layers), *config.mtp_layers)]
    contents.append(model_specs(config))
    if vision and config.vision is not None:
        specs = vision_specs(config.vision, config.hidden_size)
        contents += [[spec for spec in specs if spec.group == group] for group in ("mm_projector", "vision_tower")]
    return [
        ShardPlan(f"model-{number:05d}-of-{len(contents):06d}.safetensors", tuple(specs))
        for number, specs in enumerate(contents, 1)
    ]
