"""``openk3 init``: a model with random weights, written shard by shard."""

from __future__ import annotations

from pathlib import Path

from openk3.cli.progress import Progress
from openk3.cli.table import bytes_text
from openk3.errors import CapacityError, CheckpointError
from openk3.model.accounting import account
from openk3.model.presets import preset as find_preset

# from here on, writing takes long enough and fills a disk enough to be asked for twice
_LARGE = 100_000_000_000


def init(folder: Path, /, *, preset: str, seed: int = 0, yes: bool = False, force: bool = False) -> None:
    """Write a model with random weights in the published layout.

    Parameters
    ----------
    folder
        Where to; made if it does not exist.
    preset
        Its sizes: one, mini4, tail9, k128, route896, prop8, mtp5, mid, slice, or k3, the published ones.
    seed
        The same seed gives the same weights.
    yes
        Go ahead with a model of more than 100 GB.
    force
        Replace the model that is in the folder: weights, vocabulary, sampling settings.
    """
    config = find_preset(preset)
    total = account(config).total
    if total.bytes > _LARGE and not yes:
        raise CapacityError(
            f"{preset} would take {total.bytes:,} bytes ({bytes_text(total.bytes)})",
            hint="add --yes if that is what you want",
        )
    _make_room(folder, force=force, nbytes=total.bytes)
    from openk3.checkpoint.random_init import RandomSource
    from openk3.checkpoint.writer import write_checkpoint

    with Progress(f"writing {preset}", total.bytes) as progress:
        write_checkpoint(folder, config, RandomSource(config, seed), vision=True, progress=progress)
    print(
        f"{folder}: {preset} with random weights (seed {seed}), {total.parameters:,} parameters, {total.bytes:,} bytes"
    )


def _make_room(folder: Path, *, force: bool, nbytes: int) -> None:
    from openk3.checkpoint.writer import remove_weights, require_space
    from openk3.model.generation_config import FILE_NAME as SAMPLING_FILE
    from openk3.tokenizer.vocabulary import CONFIG_FILE, VOCABULARY_FILE

    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file, expected a folder to write to")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise CheckpointError(
            f"{folder}: is not empty", hint="choose another folder, or add --force to replace its weights"
        )
    require_space(folder, nbytes)
    if folder.is_dir():
        remove_weights(folder)
        for name in (VOCABULARY_FILE, CONFIG_FILE, SAMPLING_FILE):  # they describe the model that was here
            (folder / name).unlink(missing_ok=True)
