"""A drafter keeps notes of a bounded number of tokens, also where sequences share their pages."""

from __future__ import annotations

from collections.abc import Sequence

from openk3.engine.config import EngineConfig
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from tests.engine.harness import Harness, build, drain, ids, plain


class Noting:
    """Notes all tokens of whom it is asked about, and guesses nothing."""

    max_depth = 4
    bytes_per_token = 1
    bytes_per_sequence = 0

    def __init__(self) -> None:
        self.noted: dict[EngineSequence, int] = {}
        self.most = 0

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        return self._note(sequences)

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        self._note([row.sequence for row in rows])

    def release(self, sequence: EngineSequence) -> None:
        self.noted.pop(sequence, None)

    def _note(self, sequences: Sequence[EngineSequence]) -> list[list[int]]:
        self.noted.update((sequence, len(sequence.tokens)) for sequence in sequences)
        self.most = max(self.most, sum(self.noted.values()))
        return [[] for _ in sequences]


def test_notes_are_bounded_by_what_was_planned_although_all_share_one_long_prefix() -> None:
    config, blocks = EngineConfig(page_size=16, max_running=8), 60
    shared, params = ids(400, 1), SamplingParams(temperature=0.0, max_tokens=6)
    noting = Noting()
    harness = Harness(build(), config, slots=8, blocks=blocks, drafter=noting)
    requests = [Request(prompt_ids=shared + ids(3, seed), params=params) for seed in range(8)]
    harness.answer(requests[0])
    streams = [harness.submit(request) for request in requests]
    most_running = 0
    while harness.core.has_work:
        harness.step()
        most_running = max(most_running, len(harness.core.scheduler.running))
    assert most_running > 2, "they were to run together, which only shared pages allow"
    assert 0 < noting.most <= blocks * config.page_size
    assert not noting.noted
    for stream, request in zip(streams, requests, strict=True):
        assert tuple(drain(stream)[0]) == plain(build(), request).outputs
