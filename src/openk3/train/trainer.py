"""The training loop: batches in, weights out, and at every moment something that can be resumed.

Unusual: in a run limited by steps everything is a function of configuration and step, so stopping and resuming gives
the same bits as not stopping; in a run limited by minutes the schedule follows the clock instead.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from openk3.checkpoint.writer import remove_weights, save_model
from openk3.errors import NumericsError, TrainingError
from openk3.model.model import K3ForCausalLM
from openk3.train.balance import Balancer, Load
from openk3.train.checkpoints import Progress, checkpoints, load_checkpoint, save_checkpoint
from openk3.train.config import TrainConfig
from openk3.train.data.mixture import Mixture, WeightedShard, held_out_pieces
from openk3.train.data.packing import Batch, batches, next_batch
from openk3.train.loss import next_token_loss
from openk3.train.metrics import MetricsLog, write_curves
from openk3.train.optim import build_optimizers, set_learning_rate
from openk3.train.quantization import quantize_experts
from openk3.train.schedule import learning_rate, progress

Outcome = Literal["finished", "stopped"]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimiser step: mean loss in nats per target, gradient norm before clipping, expert load, tokens read."""

    loss: float
    grad_norm: float
    load: Load
    tokens: int


class Trainer:
    """One run of one model over one mixture, on the CPU in float32; ``companions`` are copied beside its weights.

    Raises:
        TrainingError: the data does not fit the model, or the run's folder holds another run and ``resume`` is False.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: K3ForCausalLM,
        shards: Sequence[WeightedShard],
        *,
        resume: bool = False,
        companions: Mapping[str, Path] = MappingProxyType({}),
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        for shard in shards:
            if shard.shard.vocab_size > model.config.vocab_size:
                raise TrainingError(
                    f"source {shard.name!r} was tokenised for {shard.shard.vocab_size} ids, the model has "
                    f"{model.config.vocab_size}",
                    hint="use the vocabulary that belongs to the model",
                )
        self.config, self.model, self.report = config, model.train(), report
        self.progress = Progress()
        self._shards, self._companions = shards, companions
        self._mixture = Mixture(shards, window=config.data.window, held_out=config.data.held_out, seed=config.run.seed)
        self._optimizers = build_optimizers(model, model.config, config.optim)
        self._balancer = Balancer(model)
        self._stop_asked = False
        self._evaluated_at = -1
        self._start(resume)

    @property
    def checkpoint_folder(self) -> Path:
        """Where this run's checkpoints are."""
        return self.config.run.output / "checkpoints"

    def run(self) -> Outcome:
        """Train to the end, or until SIGTERM; the weights are then in ``<output>/model`` or the last checkpoint.

        Raises:
            NumericsError: loss or gradient became NaN or infinite; the last checkpoint is from before.
            TrainingError: a checkpoint could not be written.
        """
        with self._stopping_on_sigterm():
            while self._share() < 1.0:
                if self._stop_asked:
                    self.save()
                    return "stopped"
                self._timed_step()
        self._finish()
        return "finished"

    def step(self) -> StepResult:
        """Do one optimiser step."""
        share = self._share()
        rate = learning_rate(self.config.optim, max(share, self._first_share()))
        quantize_experts(self.model, share >= self.config.quantization.start)
        steps = [
            next_batch(self._mixture, self.config.data.tokens_per_step) for _ in range(self.config.data.accumulate)
        ]
        loss, num_targets = 0.0, sum(int((batch.targets >= 0).sum()) for batch in steps)
        for batch in steps:
            total, _ = self._loss(batch)
            (total / max(1, num_targets)).backward()
            loss += float(total.detach())
        grad_norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip))
        loss /= max(1, num_targets)
        self._require_finite(loss, grad_norm)
        set_learning_rate(self._optimizers, rate)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += sum(batch.num_tokens for batch in steps)
        return StepResult(
            loss=loss, grad_norm=grad_norm, load=self._balancer.step(), tokens=sum(batch.num_tokens for batch in steps)
        )

    def held_out_losses(self) -> dict[str, float]:
        """Return the mean loss on held-out documents of every source that has any, in nats per target."""
        data, losses = self.config.data, {}
        for source in self._shards:
            pieces = held_out_pieces(source.shard, data.held_out, data.window, data.evaluation_tokens)
            results = [self._loss_without_grad(batch) for batch in batches(pieces, data.tokens_per_step)]
            num_targets = sum(count for _, count in results)
            if num_targets:
                losses[source.name] = sum(total for total, _ in results) / num_targets
        return losses

    def save(self) -> Path:
        """Write a checkpoint now."""
        state = {
            "progress": vars(self.progress),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "cursor": self._mixture.cursor(),
            "rng": torch.get_rng_state(),
        }
        return save_checkpoint(self.checkpoint_folder, self.progress.step, state, self.config.run.keep_checkpoints)

    def _finish(self) -> None:
        if self._evaluated_at != self.progress.step:
            self._evaluate()
        self.save()
        folder = self.config.run.output / "model"
        folder.mkdir(exist_ok=True)
        remove_weights(folder)  # of an earlier end, if the run was prolonged
        write_curves(self.config.run.output)
        save_model(self.model, folder, companions=self._companions)

    def _start(self, resume: bool) -> None:
        found = checkpoints(self.checkpoint_folder)
        if found and not resume:
            raise TrainingError(
                f"{self.config.run.output} holds a run already, up to {found[-1].name}",
                hint="go on with --resume, or set another run.output",
            )
        self.config.run.output.mkdir(parents=True, exist_ok=True)
        if found:
            self._restore(load_checkpoint(found[-1]))
            self.report(f"resuming from {found[-1].name}")
        self._metrics = MetricsLog(self.config.run.output, self.progress.step)

    def _restore(self, state: dict[str, Any]) -> None:
        self.progress = Progress(**state["progress"])
        try:
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        except (RuntimeError, ValueError, KeyError) as error:
            raise TrainingError(
                f"the checkpoint belongs to another model or optimiser: {str(error).splitlines()[-1].strip():.200}",
                hint="resume with the configuration the run was started with",
            ) from None
        self._mixture.restore(state["cursor"])
        torch.set_rng_state(state["rng"])

    def _share(self) -> float:
        return progress(self.config.run, self.progress.step, self.progress.seconds / 60)

    def _first_share(self) -> float:
        """Return a share above 0, so that the very first step moves the weights as well."""
        return 1.0 / self.config.run.steps if self.config.run.steps else self.config.optim.warmup / 10

    def _timed_step(self) -> None:
        start = time.perf_counter()
        result = self.step()
        seconds = time.perf_counter() - start
        self.progress.seconds += seconds
        run, step = self.config.run, self.progress.step
        if step % run.log_every == 0 or step == 1:
            self._log(result, seconds)
        if step % run.evaluate_every == 0:
            self._evaluate()
        if step % run.checkpoint_every == 0:
            self.save()

    def _log(self, result: StepResult, seconds: float) -> None:
        rate = self._optimizers[0].param_groups[0]["lr"]
        row = {
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "minutes": round(self.progress.seconds / 60, 3),
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "learning_rate": rate,
            "tokens_per_second": round(result.tokens / seconds, 1),
            "max_load": round(result.load.max_over_mean, 3),
            "unused_experts": round(result.load.unused, 4),
        }
        self._metrics.write(row)
        self.report(
            f"step {row['step']:6}  {self._share():6.1%}  loss {result.loss:.4f}  norm {result.grad_norm:.2f}  "
            f"rate {rate:.2e}  {row['tokens_per_second']:.0f} tokens/s  load {row['max_load']:.2f}"
        )

    def _evaluate(self) -> None:
        start = time.perf_counter()
        losses = self.held_out_losses()
        self._evaluated_at = self.progress.step
        self.progress.seconds += time.perf_counter() - start
        if losses:
            self._metrics.write({"step": self.progress.step, "tokens": self.progress.tokens, "held_out": losses})
            self.report("held out: " + "  ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))

    def _loss(self, batch: Batch) -> tuple[Tensor, int]:
        hidden = self.model.hidden(batch.input_ids, batch.lengths, observe=self._balancer.observe)
        return next_token_loss(hidden, self.model.lm_head.weight, batch.targets)

    def _loss_without_grad(self, batch: Batch) -> tuple[float, int]:
        with torch.no_grad():
            total, count = self._loss(batch)
        return float(total), count

    def _require_finite(self, loss: float, grad_norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        found = checkpoints(self.checkpoint_folder)
        kept = f"{found[-1]} is the last good checkpoint" if found else "there is no checkpoint yet"
        raise NumericsError(
            f"step {self.progress.step + 1}: loss is {loss}, gradient norm {grad_norm}; stopped before the "
            f"weights were touched, {kept}",
            hint="resume with a lower optim.learning_rate",
        )

    @contextmanager
    def _stopping_on_sigterm(self) -> Iterator[None]:
        def ask(number: int, frame: FrameType | None) -> None:
            self._stop_asked = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
