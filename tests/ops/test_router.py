"""Router: worked values, ties, the bias selects and does not weigh, the product stays in float32."""

from __future__ import annotations

import pytest
import torch

from openk3.ops.router.reference import route


def identity_route(logits: list[list[float]], bias: list[float], top_k: int, **options: object) -> object:
    x = torch.tensor(logits)
    return route(x, torch.eye(x.shape[1]), torch.tensor(bias), top_k, **options)  # type: ignore[arg-type]


def test_worked_values() -> None:
    routing = route(torch.tensor([[0.0, 2, -1, 1]]), torch.eye(4), torch.tensor([0.3, -0.5, 0.4, 0.0]), 2)
    assert routing.experts.tolist() == [[0, 3]]
    assert routing.weights[0].tolist() == pytest.approx([0.406154515, 0.593845485], abs=1e-7)
    assert routing.margin.item() == pytest.approx(0.731058579 - 0.668941421, abs=1e-6)


def test_ties_go_to_the_lower_number() -> None:
    routing = route(torch.zeros(3, 8), torch.zeros(896, 8), torch.zeros(896), 16)
    assert routing.experts.tolist() == [list(range(16))] * 3
    torch.testing.assert_close(routing.weights, torch.full((3, 16), 1 / 16))
    assert torch.equal(routing.margin, torch.zeros(3))


def test_bias_can_override_scores_but_never_enters_the_weights() -> None:
    logits = torch.tensor([[5.0, 4.0, -5.0, -4.0]])
    routing = route(logits, torch.eye(4), torch.tensor([0.0, 0.0, 10.0, 10.0]), 2)
    assert routing.experts.tolist() == [[2, 3]]
    scores = torch.sigmoid(torch.tensor([-5.0, -4.0]))
    torch.testing.assert_close(routing.weights[0], scores / scores.sum())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"renormalize": False}, [0.5, 0.5]),
        ({"scaling_factor": 2.5}, [1.25, 1.25]),
        ({}, [0.5, 0.5]),
    ],
)
def test_options(options: dict[str, object], expected: list[float]) -> None:
    routing = route(torch.zeros(1, 4), torch.eye(4), torch.zeros(4), 2, **options)  # type: ignore[arg-type]
    assert routing.weights[0].tolist() == pytest.approx(expected)


def test_one_choice_is_not_renormalised() -> None:
    routing = route(torch.zeros(1, 4), torch.eye(4), torch.zeros(4), 1)
    assert routing.weights.item() == pytest.approx(0.5)


def test_all_experts_chosen_has_no_margin() -> None:
    routing = route(torch.zeros(1, 4), torch.eye(4), torch.zeros(4), 4)
    assert torch.isinf(routing.margin).all()


def test_low_precision_inputs_are_multiplied_in_float32() -> None:
    """Two experts that a bfloat16 product cannot tell apart are told apart."""
    x = torch.tensor([[1.0, 2.0**-9]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.bfloat16)
    assert (x @ weight.T)[0, 0] == (x @ weight.T)[0, 1]
    routing = route(x, weight, torch.zeros(2), 1)
    assert routing.experts.tolist() == [[1]]


def test_nan_never_gives_an_expert_that_does_not_exist() -> None:
    routing = route(torch.full((2, 4), float("nan")), torch.eye(4), torch.zeros(4), 2)
    assert routing.experts.min() >= 0 and routing.experts.max() < 4


def test_imposed_choice_takes_its_own_weights() -> None:
    logits = torch.tensor([[3.0, 0.0, 0.0, -1.0]])
    routing = route(logits, torch.eye(4), torch.zeros(4), 2, imposed=torch.tensor([[3, 1]]))
    assert routing.experts.tolist() == [[1, 3]]
    scores = torch.sigmoid(torch.tensor([0.0, -1.0]))
    torch.testing.assert_close(routing.weights[0], scores / scores.sum())


def test_gradient_flows_to_the_chosen_scores_only_and_not_to_the_bias() -> None:
    x, bias = torch.tensor([[1.0, 0.5, -1.0, -2.0]], requires_grad=True), torch.zeros(4, requires_grad=True)
    routing = route(x, torch.eye(4), bias, 2)
    routing.weights[0, 0].backward()
    assert bias.grad is None
    assert x.grad is not None and x.grad[0, :2].abs().min() > 0 and torch.equal(x.grad[0, 2:], torch.zeros(2))
