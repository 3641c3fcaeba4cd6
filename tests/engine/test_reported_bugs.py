"""Faults that users met in engines for this model, each reproduced on a tiny one; the numbers are those of the survey.

Unusual: memory that nobody holds is NaN (see the harness), so a state that was never written cannot pass for a right
one. Faults of several processes, of GPUs, of parsers and of servers are not here.
"""

# Covered elsewhere under names of their own:
#   17, 50  grammars           test_reported_bugs_grammar.py
#   8, 10   no hits            test_exactness.py: test_warm_equals_cold_... counts every token that could be reused
#   11, 41  unit arithmetic    test_memory.py: test_parts_fill_the_budget_and_no_more, for models of any shape
#   22, 42  useless drafting   test_drafting_depth.py
#   30, 32  foreign files      cache/test_disk.py: test_files_of_another_model_are_not_used, ..._of_other_sizes_...
#   39      bad requests stall test_core.py: TestFailuresStayAlone, and TestRoom for those refused at once
#   44      other images       test_core.py: test_equal_tokens_behind_different_images_or_salts_share_nothing
#   49      memory budgets     test_memory_bound.py

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from openk3.engine.cache.disk import DiskTier
from openk3.engine.cache.identity import HashChain
from openk3.engine.config import EngineConfig
from openk3.engine.speculative.draft_model import DraftModelDrafter
from openk3.errors import NumericsError
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams, TokenOutput
from tests.engine.harness import Harness, Oracle, build, drain, ids, plain

Outputs = tuple[TokenOutput, ...]


def ask(prompt: tuple[int, ...], count: int = 3, **more: object) -> Request:
    return Request(prompt_ids=prompt, params=SamplingParams(temperature=0.0, max_tokens=count), **more)  # type: ignore[arg-type]


@cache
def plain_outputs(model: K3ForCausalLM, request: Request) -> Outputs:
    return plain(model, request).outputs


def cold(requests: Sequence[Request], model: K3ForCausalLM | None = None) -> list[Outputs]:
    return [plain_outputs(model or build(), request) for request in requests]


def served(harness: Harness, requests: Sequence[Request]) -> list[Outputs]:
    """Answer requests side by side."""
    streams = [harness.submit(request) for request in requests]
    harness.run()
    return [tuple(stream) for stream in streams]


def warm(harness: Harness, request: Request) -> tuple[Outputs, int]:
    """Answer one request; return also how many tokens came from the cache."""
    stream = harness.submit(request)
    harness.run()
    assert stream.stats is not None
    return tuple(stream), stream.stats.cached_tokens


def plain_states(prompt: tuple[int, ...]) -> dict[int, bytes]:
    """Return the state at every multiple of 16 tokens, each as a checkpoint's bytes, from the plain loop."""
    model = build()
    state, states = model.new_state(), {}
    for start in range(0, len(prompt) // 16 * 16, 16):
        with torch.inference_mode():
            model(torch.tensor(prompt[start : start + 16]), [16], [state], last_only=True)
        layers = state.kda.values()
        parts = [torch.stack([kda.recurrent for kda in layers]), torch.stack([kda.conv for kda in layers])]
        states[start + 16] = b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)
    return states


def check_checkpoints(harness: Harness, texts: Sequence[tuple[int, ...]]) -> int:
    """Assert that all checkpoints belong to the texts and hold the plain loop's states; return how many there are."""
    expected = {}
    for text in texts:
        chain = HashChain()
        chain.extend(text)
        expected |= {chain.keys[position // 16 - 1]: state for position, state in plain_states(text).items()}
    for checkpoint in harness.core.cache.checkpoints:
        assert harness.core.cache.state(checkpoint).numpy().tobytes() == expected[checkpoint.key], checkpoint.position
    return len(harness.core.cache.checkpoints)


@pytest.mark.parametrize("unit", [16, 48])
@pytest.mark.parametrize("units", [2, 3])
def test_1_a_first_prompt_of_whole_units_can_be_resumed(unit: int, units: int) -> None:
    """1: nothing at all was reused when the first prompt was an exact multiple of the unit."""
    first = ask(ids(unit * units, 1), 2)
    longer = ask((*first.prompt_ids, *ids(5, 2)), 2)
    harness = Harness(build(), EngineConfig(identity_unit=unit, ladder=0))
    harness.answer(first)
    for request in (first, longer):
        answer, cached = warm(harness, request)
        assert answer == cold([request])[0]
        assert cached >= unit * (units - 1)


def test_2_hits_do_not_depend_on_pages_or_the_ladder() -> None:
    """2: hits came at every 1,536th token only, and a ladder of 32 K was refused, as pages decided both."""
    harness = Harness(build(), EngineConfig(page_size=1536, ladder=32_768), blocks=20)
    request = ask(ids(100, 1), 1)
    harness.answer(request)
    assert warm(harness, request) == (cold([request])[0], 96)


def test_4_38_several_go_on_from_one_stored_checkpoint(tmp_path: Path) -> None:
    """4, 38: what came from outside was not copied before it was written to, or came without its state."""
    shared = ids(70, 1)
    requests = [ask((*shared[:cut], *ids(9, cut))) for cut in (70, 64, 69)] + [ask(shared)]
    expected = cold(requests)
    for run in range(2):
        harness = Harness(build(), EngineConfig(page_size=48), disk=DiskTier(tmp_path, "4", 1 << 26))
        assert served(harness, requests) == expected
        assert served(harness, requests[::-1]) == expected[::-1]
        assert harness.core.metrics.cache.disk.hits >= run
        harness.core.close()


def test_5_a_nan_while_writing_ends_one_request_only() -> None:
    """5: after NaN logits a request repeated token 0 for ever, and so did all later ones."""
    poison = 200
    model = copy.deepcopy(build())
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = float("nan")
    prompt = tuple(min(token, poison - 1) for token in ids(40, 1))
    params = [SamplingParams(temperature=0.0, max_tokens=8, logit_bias={poison: bias}) for bias in (1000.0, -1000.0)]
    sick, sound = (Request(prompt_ids=prompt, params=p) for p in params)
    expected = plain(model, sound).outputs
    harness = Harness(model, slots=3)
    streams = [harness.submit(request) for request in (sound, sick, sound)]
    harness.run()
    outputs, error = drain(streams[1])
    assert [output.token_id for output in outputs] == [poison]
    assert isinstance(error, NumericsError)
    assert [tuple(streams[i]) for i in (0, 2)] == [expected, expected]
    assert served(harness, [sound] * 4) == [expected] * 4
    harness.check_nothing_is_held()


@pytest.mark.parametrize("page", [5, 64])
def test_7_the_last_token_of_the_longest_text_has_a_place(page: int) -> None:
    """7: tables of blocks were too short for the longest text, and others' memory was written."""
    length = 320
    request = ask(ids(length - 6, 1), 6)
    harness = Harness(build(), EngineConfig(page_size=page), blocks=length // page)
    assert harness.core.max_tokens == length
    assert harness.answer(request) == cold([request])[0]


@pytest.mark.parametrize("budget", [16, 50])
def test_9_25_only_states_that_were_computed_have_a_name(budget: int) -> None:
    """9, 25: positions that the kernel never stood at were kept as checkpoints, holding whatever was there."""
    text = ids(90, 1)
    request = ask(text, 40, replayed=lambda generated: 90 + len(generated))
    harness = Harness(build(), EngineConfig(token_budget=budget, ladder=32), stop=())
    answer = harness.answer(request)
    whole = (*text, *(output.token_id for output in answer))
    assert check_checkpoints(harness, [whole]) >= 4  # 32, 64, 80 and the answer's end


def test_21_hits_are_counted() -> None:
    """21: the counter of hits stayed 0 while prompts were reused."""
    harness = Harness(build())
    request = ask(ids(80, 1), 1)
    harness.answer(request)
    before = harness.core.metrics
    assert (before.cache.lookups, before.cache.hits, before.tokens_read) == (1, 0, 80)
    _, cached = warm(harness, request)
    after = harness.core.metrics
    assert (after.cache.lookups, after.cache.hits, after.cache.hit_tokens) == (2, 1, cached)
    assert after.tokens_read - before.tokens_read == 80 - cached == 16


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_23_nothing_is_left_of_who_had_the_memory_before(prefix_cache: bool) -> None:
    """23: the reasoning of another prompt appeared; here all use one slot and hardly any pages, unspoiled."""
    requests = [ask(ids(length, length), 4) for length in (40, 17, 33, 16)]
    harness = Harness(build(), EngineConfig(prefix_cache=prefix_cache, page_size=16), slots=1, blocks=12)
    harness.poison = lambda: None  # type: ignore[method-assign]  # what others left is to stay readable
    for request, expected in zip(requests, cold(requests), strict=True):
        gone = harness.submit(ask(ids(50, 9), 50))
        for _ in range(3):
            harness.core.step()
        gone.cancel()
        assert harness.answer(request) == expected


def test_24_everybody_gets_their_own_answer_under_load() -> None:
    """24: under load, answers were for other users' questions."""
    rng = random.Random(0)
    requests = [ask(ids(16 + n % 20, n % 12), 3) for n in range(36)]
    expected = dict(zip([r.prompt_ids for r in requests], cold(requests), strict=True))
    harness = Harness(build(), EngineConfig(max_running=6, page_size=16, token_budget=64), slots=6, blocks=40)
    streams, cancelled = [], set()
    for request in requests:
        streams.append(harness.submit(request))
        harness.step()
        if rng.random() < 0.3:
            cancelled.add(rng.randrange(len(streams)))
            streams[max(cancelled)].cancel()
    harness.run()
    for request, stream in zip(requests, streams, strict=True):
        outputs = tuple(stream)
        assert outputs == expected[request.prompt_ids] or stream.cancelled
        assert outputs == expected[request.prompt_ids][: len(outputs)]
    assert len(set(expected.values())) > 20
    harness.check_nothing_is_held()


def test_25_a_warm_rerun_answers_as_the_cold_run() -> None:
    """25: the second run of the same questions, with a shared beginning, got far worse answers than the first."""
    examples = ids(75, 1)
    requests = [ask((*examples, *ids(3 + 7 * n, n)), 4) for n in range(5)]
    expected = cold(requests)
    harness = Harness(build())
    for _ in range(3):
        assert served(harness, requests) == expected
    assert harness.core.metrics.cache.hit_tokens >= 2 * sum((len(r.prompt_ids) - 1) // 16 * 16 for r in requests)


def test_26_states_of_prompts_packed_into_one_step_are_each_their_own() -> None:
    """26: with several prompts in a step, states were taken at the pack's chunks, not the prompt's."""
    texts = [ids(length, length) for length in (50, 19, 97, 33)]
    harness = Harness(build(), EngineConfig(token_budget=512, ladder=32))
    requests = [ask(text, 1) for text in texts]
    assert served(harness, requests) == cold(requests)
    assert check_checkpoints(harness, texts) == 7  # 32 and 48, 16, 32 and 64 and 96, 32


@pytest.mark.parametrize(("name", "dtype"), [("mini4", torch.bfloat16), ("tail9", torch.float32)])
def test_27_one_token_after_a_hit_is_right(name: str, dtype: torch.dtype) -> None:
    """27: the first token was wrong if a hit left one token to compute, as experts then had a tile of one row."""
    model, harness = build(name, dtype), Harness(build(name, dtype))
    for length in (17, 65, 129):
        request = ask(ids(length, 1), 2)
        harness.answer(request)
        assert warm(harness, request) == (cold([request], model)[0], length - 1)


def test_35_a_second_turn_answers_its_own_question() -> None:
    """35: after a partly equal first turn, the second question got the first one's answer."""
    first = ask(ids(75, 1), 8)
    said = (*first.prompt_ids, *(output.token_id for output in cold([first])[0]))
    turns = [first]
    turns += [ask((*said[:cut], *ids(6, cut)), 3) for cut in (83, 75, 41, 64, 5)]
    turns += [ask(said[:50], 3), first]
    harness = Harness(build())
    assert [harness.answer(turn) for turn in turns] == cold(turns)
    assert harness.core.metrics.cache.hits >= 4


def test_36_the_cache_that_is_on_does_something_or_says_why_not() -> None:
    """36: the prefix cache was on and declined every hit without a word."""
    request = ask(ids(100, 1), 1)
    harness = Harness(build(), EngineConfig())
    harness.answer(request)
    assert warm(harness, request)[1] == 96
    tight = Harness(build(), EngineConfig(), blocks=2)
    assert served(tight, [request, request]) == cold([request, request])
    assert tight.core.metrics.cache.hits == 0
    assert tight.core.metrics.cache.refused > 0


@pytest.mark.parametrize("lost", [0, 1])
def test_37_half_a_checkpoint_is_none(tmp_path: Path, lost: int) -> None:
    """37: half of what was stored came back, states without latents, and the answers were wrong without an error."""
    beginning = ids(64, 1)
    requests = [ask((*beginning, *ids(length, length)), 2) for length in (1, 40)]
    expected = cold(requests)
    for last in (False, True):
        disk = DiskTier(tmp_path, "37", 1 << 26)
        harness = Harness(build(), disk=disk)
        assert [harness.answer(request) for request in requests] == expected
        assert disk.metrics.damaged == last * (2 - lost)
        harness.core.close()
        damaged = sorted(tmp_path.glob("*.prefix"), key=lambda path: path.stat().st_mtime_ns)[lost]
        damaged.write_bytes(damaged.read_bytes()[:-1000])


def test_40_drafts_of_different_lengths_are_checked_together() -> None:
    """40: checking drafts took for granted that all sequences of a step have equally many."""
    requests = [ask(ids(20 + n, n), 12) for n in range(5)]
    expected = dict(zip([r.prompt_ids for r in requests], cold(requests), strict=True))
    oracle = Oracle(lambda s: [o.token_id for o in expected[s.request.prompt_ids]], right=0.7, seed=0)
    harness = Harness(build(), EngineConfig(speculate_depth=14, token_budget=64), drafter=oracle)
    seen: list[set[int]] = []
    run = harness.core._runner.run
    harness.core._runner.run = lambda rows: (seen.append({row.drafted for row in rows}), run(rows))[1]  # type: ignore[assignment, method-assign]
    assert served(harness, requests) == [expected[r.prompt_ids] for r in requests]
    assert max(len(lengths) for lengths in seen) >= 3


def test_43_acceptance_does_not_decay_run_by_run() -> None:
    """43: the same requests had fewer accepted drafts each time that they were run."""
    requests = [ask(ids(40, n), 10) for n in range(2)]
    expected = cold(requests)
    harness = Harness(build(), drafter=DraftModelDrafter(build(), build(), 4), stop=())
    counts = []
    for _ in range(3):
        before = harness.core.metrics
        assert [harness.answer(request)[: len(e)] for request, e in zip(requests, expected, strict=True)] == expected
        after = harness.core.metrics
        counts.append((after.drafted - before.drafted, after.accepted - before.accepted))
    assert len(set(counts)) == 1, counts
    assert counts[0][0] == counts[0][1] > 8


def test_47_nobody_uses_anybody_elses_slot_or_pages() -> None:
    """47: all users read and wrote the state in slot 0."""
    requests = [ask(ids(20 + 5 * n, n), 3 + 2 * n) for n in range(5)]
    harness = Harness(build(), EngineConfig(prefix_cache=False, page_size=16))
    streams = [harness.submit(request) for request in requests]
    most = 0
    while harness.core.has_work:
        harness.step()
        running = harness.core.scheduler.running
        most = max(most, len({sequence.slot for sequence in running}))
        assert len({sequence.slot for sequence in running}) == len(running)
        pages = [page for sequence in running for page in sequence.pages]
        assert len(set(pages)) == len(pages)
    assert most == 5
    assert [tuple(stream) for stream in streams] == cold(requests)
