"""The routed sum: against a loop over tokens, in parts over ranks, independent of company."""

from __future__ import annotations

import torch

from openk3.ops.experts.reference import routed_sum

EXPERTS, TOP_K, WIDTH = 6, 3, 4


def case(tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(tokens, WIDTH, generator=generator)
    experts = torch.rand(tokens, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K].sort(-1).values
    weights = torch.rand(tokens, TOP_K, generator=generator)
    return latent, experts, weights, torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator)


def test_against_a_loop_over_tokens() -> None:
    latent, experts, weights, matrices = case(20)
    got = routed_sum(latent, experts, weights, lambda e, rows: rows @ matrices[e])
    for t in range(20):
        expected = sum(weights[t, j] * (latent[t] @ matrices[experts[t, j]]) for j in range(TOP_K))
        torch.testing.assert_close(got[t], expected)


def test_parts_held_by_ranks_add_to_the_whole() -> None:
    latent, experts, weights, matrices = case(20)

    def run(expert: int, rows: torch.Tensor) -> torch.Tensor:
        return rows @ matrices[expert]

    parts = [routed_sum(latent, experts, weights, run, held) for held in (range(0, 2), range(2, 5), range(5, 6))]
    torch.testing.assert_close(sum(parts), routed_sum(latent, experts, weights, run))


def test_only_chosen_experts_run_and_only_on_their_rows() -> None:
    latent, _, weights, _ = case(5)
    experts = torch.tensor([[0, 2, 5]] * 5)
    seen: dict[int, int] = {}

    def run(expert: int, rows: torch.Tensor) -> torch.Tensor:
        seen[expert] = rows.shape[0]
        return rows

    routed_sum(latent, experts, weights, run)
    assert seen == {0: 5, 2: 5, 5: 5}


def test_sum_is_float32_for_bfloat16_outputs() -> None:
    latent, experts, weights, matrices = case(8)
    low = latent.bfloat16()
    got = routed_sum(low, experts, weights, lambda e, rows: rows @ matrices[e].bfloat16())
    assert got.dtype == torch.float32
    for t in range(8):
        outputs = torch.stack([(low[t : t + 1] @ matrices[e].bfloat16())[0] for e in experts[t].tolist()])
        expected = (outputs.float() * weights[t][:, None]).sum(0)
        torch.testing.assert_close(got[t], expected, rtol=2**-7, atol=2**-7)


def test_gradients_reach_rows_weights_and_matrices() -> None:
    latent, experts, weights, matrices = (x.double() if x.is_floating_point() else x for x in case(7))
    leaves = [latent.requires_grad_(), weights.requires_grad_(), matrices.requires_grad_()]

    def run(rows: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return routed_sum(rows, experts, w, lambda e, r: r @ m[e])

    assert torch.autograd.gradcheck(run, leaves)
