"""From a model's folder to an engine that runs, with its tokenizer and settings.

Unusual: a small model is kept to one thread, unless the user chose a number.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from openk3.chat.grammar import token_bytes
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.progress import Progress
from openk3.checkpoint.resolve import resolve_model
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.engine.grammar import GrammarCompiler
from openk3.errors import ConfigError, TokenizerError
from openk3.model.accounting import account
from openk3.model.generation_config import GenerationConfig, load_generation_config
from openk3.model.model import K3ForCausalLM
from openk3.model.published import load_config
from openk3.protocol.checks import shown
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.vocabulary import VOCABULARY_FILE

DType = Literal["bfloat16", "float32"]
"""What activations and dense weights are computed in."""

# Below this, one thread decoded fastest on two cores, and 25 times faster than two threads while others used them.
_WORTH_THREADS = 50_000_000


@dataclass(frozen=True)
class LoadedModel:
    """What it takes to answer with a model; ``about`` says in one line what was loaded."""

    engine: Engine
    tokenizer: Tokenizer
    generation: GenerationConfig
    about: str


def load(
    name: str,
    dtype: DType,
    config: EngineConfig | None = None,
    draft_model: str | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model folder or bundled model and start its engine; raise `OpenK3Error` for whatever is wrong with it."""
    if dtype not in get_args(DType):
        raise ConfigError(f"dtype is {dtype!r}, expected {' or '.join(get_args(DType))}")
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"engine is {shown(config)}, expected EngineConfig", hint="write EngineConfig(max_running=4)")
    folder = resolve_model(name)
    parameters = account(load_config(folder), vision=False).total.parameters
    _choose_threads(parameters)
    generation = load_generation_config(folder)
    tokenizer = _load_tokenizer(folder)
    model = load_model(folder, dtype=getattr(torch, dtype), progress=progress)
    drafts = None if draft_model is None else load_model(resolve_model(draft_model), dtype=model.dtype)
    engine = _start(model, tokenizer, generation, config, drafts, lambda: fingerprint(folder))
    device, threads = model.lm_head.weight.device, torch.get_num_threads()
    about = f"{name}: {parameters:,} parameters, {dtype} on {device}, {threads} thread{'s' * (threads > 1)}"
    return LoadedModel(engine, tokenizer, generation, about)


def fingerprint(folder: Path) -> str:
    """Name the weights in ``folder`` by the names, sizes and times of its shards and by its configuration.

    Changing a file in place within the clock's resolution, at the same size, is not noticed.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for shard in sorted(folder.glob("*.safetensors")):
        about = shard.stat()
        digest.update(f"\0{shard.name}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _start(
    model: K3ForCausalLM,
    tokenizer: Tokenizer,
    generation: GenerationConfig,
    config: EngineConfig | None,
    draft_model: K3ForCausalLM | None,
    name_weights: Callable[[], str],
) -> Engine:
    stop_ids = {tokenizer.special.end_of_msg, model.config.eos_token_id, *generation.eos_token_ids}
    on_disk = config is not None and config.cache_folder is not None
    return Engine(
        model,
        config,
        stop_token_ids=stop_ids,
        grammars=GrammarCompiler(token_bytes(tokenizer), stop_ids, model.config.vocab_size),
        draft_model=draft_model,
        fingerprint=name_weights() if on_disk else "",
    )


def _load_tokenizer(folder: Path) -> Tokenizer:
    file = folder / VOCABULARY_FILE
    if not file.exists():
        raise TokenizerError(
            f"{file}: no such file",
            hint="`openk3 init` writes a model without a vocabulary; "
            f"copy the {VOCABULARY_FILE} of a model with as many tokens in beside its config.json",
        )
    return Tokenizer.load(folder)


def _choose_threads(parameters: int) -> None:
    """Keep a small model to one thread, unless the user chose: others only wait for work, long on a busy machine."""
    if parameters < _WORTH_THREADS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
