"""Loss, balance, rounding, schedule and settings, each against its definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from openk3.errors import ConfigError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.ops.mxfp4.reference import pack, unpack
from openk3.train import loss as loss_module
from openk3.train.balance import Balancer, balanced_bias
from openk3.train.config import OptimConfig, RunConfig, load_train_config
from openk3.train.init import init_for_training
from openk3.train.loss import next_token_loss
from openk3.train.quantization import rounded_to_mxfp4
from openk3.train.schedule import learning_rate, progress


def test_chunked_loss_and_gradients_are_cross_entropys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_TOKENS", 7)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 8, generator=generator, requires_grad=True)
    head = torch.randn(30, 8, generator=generator, requires_grad=True)
    targets = torch.randint(0, 30, (40,), generator=generator)
    targets[::3] = -100
    total, count = next_token_loss(hidden, head, targets)
    mine = torch.autograd.grad(2 * total, (hidden, head))
    expected = F.cross_entropy(hidden @ head.T, targets, reduction="sum")
    torch.testing.assert_close(total, expected)
    assert count == int((targets >= 0).sum())
    for one, other in zip(mine, torch.autograd.grad(2 * expected, (hidden, head)), strict=True):
        torch.testing.assert_close(one, other)


def load(scores: torch.Tensor, bias: torch.Tensor, top_k: int) -> torch.Tensor:
    return torch.bincount((scores + bias).topk(top_k, -1).indices.flatten(), minlength=scores.shape[1]).float()


def test_balancing_evens_out_a_skewed_router() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.sigmoid(torch.randn(2000, 16, generator=generator) + torch.linspace(-2, 2, 16))
    bias = torch.zeros(16)
    before = load(scores, bias, 2)
    for _ in range(5):
        bias = balanced_bias(scores, bias, 2)
    after = load(scores, bias, 2)
    assert before.max() / before.mean() > 3
    assert after.max() / after.mean() < 1.1
    assert bias.mean().abs() < 1e-6


def test_a_step_moves_the_bias_after_the_batch_it_came_from(tiny: K3Config) -> None:
    model = K3ForCausalLM(tiny, dtype=torch.float32)
    init_for_training(model, 3)
    balancer = Balancer(model)
    bias = model.model.layers[1].block_sparse_moe.gate.e_score_correction_bias
    model.hidden(torch.arange(50), [50], observe=balancer.observe)
    assert not bias.any()
    found = balancer.step()
    assert bias.any()
    assert found.max_over_mean >= 1.0
    with torch.no_grad():
        model.hidden(torch.arange(50), [50], observe=balancer.observe)
    kept = bias.clone()
    balancer.step()
    assert torch.equal(bias, kept), "evaluation must not count"


def test_rounding_is_that_of_the_file_and_passes_the_gradient() -> None:
    weights = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rounded = rounded_to_mxfp4(weights)
    assert torch.equal(rounded, unpack(*pack(weights.detach())))
    assert torch.equal(rounded_to_mxfp4(rounded), rounded)
    (rounded * torch.arange(64.0)).sum().backward()
    assert torch.equal(weights.grad, torch.arange(64.0).expand(4, 64))


def test_schedule() -> None:
    optim = OptimConfig(learning_rate=1.0, min_learning_rate=0.1, warmup=0.1)
    shares = [0.0, 0.05, 0.1, 0.55, 1.0]
    assert [learning_rate(optim, share) for share in shares] == pytest.approx([0.0, 0.5, 1.0, 0.55, 0.1])
    run = RunConfig(output=Path(), steps=100, max_minutes=10)
    assert progress(run, 50, 2) == 0.5
    assert progress(run, 50, 8) == 0.8
    assert progress(run, 200, 8) == 1.0


GOOD = """
[run]
output = "out"
steps = 10
[model]
preset = "mini4"
[data]
window = 16
[[data.sources]]
name = "a"
path = "a.txt"
format = "text"
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(GOOD)
    return file


def test_settings_are_read_with_paths_beside_the_file(toml: Path) -> None:
    config = load_train_config(toml, ["optim.learning_rate=1e-2", "optim.kind=adamw", "data.held_out=0"])
    assert config.run.output == toml.parent / "out"
    assert config.data.sources[0].path == toml.parent / "a.txt"
    assert (config.optim.learning_rate, config.optim.kind, config.data.held_out) == (1e-2, "adamw", 0.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.learning_rat=1", "did you mean `learning_rate`"),
        ("optin.learning_rate=1", "did you mean `optim`"),
        ("optim.kind=muom", "did you mean `muon`"),
        ("run.steps=0", r"run\.steps is 0, expected more than 0"),
        ("run.steps=true", r"run\.steps is True, expected int"),
        ("run.seed=1.5", r"run\.seed is 1\.5, expected int"),
        ("optim.betas=[0.9]", r"optim\.betas is \[0\.9\], expected 2 values"),
        ("data.window=1", r"data\.window is 1, expected 2 to"),
        ("data.held_out=0.7", r"data\.held_out is 0\.7"),
        ("optim.min_learning_rate=1", r"min_learning_rate is 1\.0, expected 0 to"),
        ("model.config=x", "exactly one of preset, config and weights"),
        ("data.sources=[]", "expected at least one"),
        ("run.output=3", r"run\.output is 3, expected a path"),
        ("steps=3", "not of the form"),
        ("run=3", "not of the form"),
    ],
)
def test_a_wrong_setting_is_named(toml: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_train_config(toml, [override])
    assert raised.match(message) or message in str(raised.value)


def test_a_run_without_an_end_is_refused(toml: Path) -> None:
    toml.write_text(GOOD.replace("steps = 10", ""))
    with pytest.raises(ConfigError, match=r"neither run\.steps nor run\.max_minutes"):
        load_train_config(toml)


def test_a_file_that_is_not_toml_is_one_line(toml: Path) -> None:
    toml.write_text("[run\n")
    with pytest.raises(ConfigError, match=r"run\.toml: cannot be read"):
        load_train_config(toml)
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_train_config(toml.with_name("none.toml"))
