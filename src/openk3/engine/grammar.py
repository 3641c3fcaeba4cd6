"""Which tokens may follow, for answers that must match a grammar; llguidance decides, over the bytes of tokens.

Unusual: llguidance is told of an end token that no model has, so that a grammar may itself hold stop tokens. It never
forces a tokenisation: every way to spell a text in tokens is allowed.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from openk3.errors import ConfigError, EngineError
from openk3.protocol.deep_stack import with_deep_stack
from openk3.protocol.request import Grammar

MAX_LENGTH = 4 << 20
"""Most characters of a grammar."""
# Time to refuse a chain of rules that refer to one another grows with the square of its length: 10 s for this many.
_MAX_DEFINITIONS = 8192
_NUM_CACHED = 64

_DEFINITION = re.compile(r"^[ \t]*[!?]?[A-Za-z_]", re.MULTILINE)
# Last, so that it counts, and so that errors name the right lines.
_ANY_TOKENISATION = '\n%llguidance {"no_forcing": true}\n'
_LIMITS = LLParserLimits(max_grammar_size=100_000, verbose_errors=False)
# What llguidance says when a lexer has as many states as it may. Copies of an automaton have one lexer together.
_LEXER_IS_FULL = "too many states"


class GrammarCompiler:
    """Compile grammars over one vocabulary; any thread may.

    ``token_bytes`` gives the text of each id, None for one that is not text: a grammar reaches it as ``<[id]>`` only.
    Ids from there up to ``vocab_size`` are no tokens. Raise `ConfigError` if these do not fit together.
    """

    def __init__(self, token_bytes: Sequence[bytes | None], stop_token_ids: Collection[int], vocab_size: int) -> None:
        if len(token_bytes) > vocab_size:
            raise ConfigError(f"{len(token_bytes)} tokens have bytes, expected at most vocab_size, {vocab_size}")
        if not stop_token_ids or not all(0 <= token < vocab_size for token in stop_token_ids):
            raise ConfigError(
                f"stop token ids are {sorted(stop_token_ids)}, expected at least one, each from 0 to {vocab_size - 1}"
            )
        self._vocabulary = _Vocabulary(token_bytes, vocab_size)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> Matcher:
        """Compile a grammar, or take it from the latest that were; each matcher is independent of all others.

        Raises:
            ConfigError: it is no grammar, matches nothing, or is too large.
        """
        compiled = self._cached(grammar.lark)
        if compiled is None:
            compiled = self._compile(grammar.lark)
            self._keep(grammar.lark, compiled)
        renewed = partial(self._renewed, grammar.lark)
        return Matcher(compiled.deep_copy(), self._stop_token_ids, self._vocabulary.size, renewed)

    def _renewed(self, lark: str) -> LLMatcher:
        """Compile a grammar again, for one answer alone, and forget the copy that others have filled."""
        with self._lock:
            self._compiled.pop(lark, None)
        return self._compile(lark)

    def _cached(self, lark: str) -> LLMatcher | None:
        with self._lock:
            if lark in self._compiled:
                self._compiled.move_to_end(lark)
            return self._compiled.get(lark)

    def _keep(self, lark: str, compiled: LLMatcher) -> None:
        with self._lock:
            self._compiled[lark] = compiled
            if len(self._compiled) > _NUM_CACHED:
                self._compiled.popitem(last=False)

    def _compile(self, lark: str) -> LLMatcher:
        _check_text(lark)
        with self._lock:
            tokenizer = self._vocabulary.tokenizer

        def build() -> LLMatcher:
            automaton = LLMatcher(tokenizer, lark + _ANY_TOKENISATION, log_level=0, limits=_LIMITS)
            automaton.compute_bitmask()  # only now it says that nothing matches
            return automaton

        automaton = with_deep_stack(build)
        if automaton.is_error():
            raise ConfigError(f"the grammar cannot be compiled: {_reason(automaton)}")
        return automaton


class Matcher:
    """Follow one answer through its grammar; not for several threads at once.

    Answers to one grammar share a lexer, which has a largest size. One that finds it full goes on with a lexer of its
    own, from ``renewed``: whether an answer is too much for the grammar's limits depends on that answer alone.
    """

    def __init__(
        self,
        automaton: LLMatcher,
        stop_token_ids: frozenset[int],
        vocab_size: int,
        renewed: Callable[[], LLMatcher],
    ) -> None:
        self._automaton, self._renewed = automaton, renewed
        self._accepted: list[int] = []
        self._stop_token_ids = stop_token_ids
        self._stops = torch.tensor(sorted(stop_token_ids))
        self._vocab_size = vocab_size
        self._is_stopped = False

    @property
    def finished(self) -> bool:
        """Whether only a stop token can follow."""
        return self._is_stopped or self._automaton.is_stopped()

    def allowed(self) -> Tensor:
        """Return which tokens may follow, [V] bool; raise `EngineError` if the grammar came to a dead end or limit."""
        if self._is_stopped:
            return torch.zeros(self._vocab_size, dtype=torch.bool).index_fill_(0, self._stops, True)
        mask = self._automaton.compute_bitmask()
        if self._makes_room():
            mask = self._automaton.compute_bitmask()
        packed = np.frombuffer(mask, np.uint8)
        if self._automaton.is_error():
            raise EngineError(f"the grammar allows no further token: {_reason(self._automaton)}")
        bits = np.unpackbits(packed, bitorder="little", count=self._vocab_size + 1).view(np.bool_)
        allowed = torch.from_numpy(bits[:-1])
        return allowed.index_fill_(0, self._stops, True) if bits[-1] else allowed

    def accept(self, token: int) -> None:
        """Take the next token; raise `EngineError`, and stay as before, if it is not allowed."""
        is_token = 0 <= token < self._vocab_size
        if is_token and not self._is_stopped and self._consumes(token):
            self._accepted.append(token)
            return
        if not (token in self._stop_token_ids and self._may_stop(self._automaton)):
            reason = f": {_reason(self._automaton)}" if self._automaton.is_error() else ""
            raise EngineError(f"token {token} does not match the grammar{reason}")
        self._is_stopped = True

    def count_allowed(self, ids: Sequence[int]) -> int:
        """Count how many of ``ids`` could follow, one after the other, up to the first that could not.

        A grammar's limits on tokens are not looked at: of a draft, `allowed` stops what is beyond them.
        """
        in_range = next((n for n, token in enumerate(ids) if not 0 <= token < self._vocab_size), len(ids))
        count = 0 if self._is_stopped else self._automaton.validate_tokens(list(ids[:in_range]))
        if self._makes_room():
            return 0
        num_stops = next(
            (n for n, token in enumerate(ids[count:]) if token not in self._stop_token_ids), len(ids) - count
        )
        if not num_stops:
            return count
        ahead = self._automaton.deep_copy()
        ahead.try_consume_tokens(list(ids[:count]))
        return count + num_stops if self._may_stop(ahead) else count

    def _consumes(self, token: int) -> bool:
        if self._automaton.try_consume_tokens([token]) == 1:
            return True
        return self._makes_room() and self._automaton.try_consume_tokens([token]) == 1

    def _makes_room(self) -> bool:
        """Start anew, at the same place, if the lexer is full; tell whether it was."""
        if not (self._automaton.is_error() and _LEXER_IS_FULL in self._automaton.get_error()):
            return False
        self._automaton = self._renewed()
        self._automaton.try_consume_tokens(self._accepted)
        return True

    def _may_stop(self, automaton: LLMatcher) -> bool:
        return self._is_stopped or (automaton.is_accepting() and not automaton.is_error())


class _Vocabulary:
    """Tokens as llguidance reads them, under the names that it asks for."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, token_bytes: Sequence[bytes | None], size: int) -> None:
        self.size = self.eos_token_id = size
        self._token_bytes = token_bytes

    @property
    def tokens(self) -> list[bytes]:
        given = [text or _name(token) for token, text in enumerate(self._token_bytes)]
        return given + [_name(token) for token in range(len(given), self.size + 1)]

    @property
    def special_token_ids(self) -> list[int]:
        named = [token for token, text in enumerate(self._token_bytes) if not text]
        return [*named, *range(len(self._token_bytes), self.size + 1)]

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """Half a second's work for a large vocabulary."""
        return LLTokenizer(self, n_vocab=self.size + 1, eos_token=self.size)  # type: ignore[arg-type]

    def __call__(self, text: str) -> list[int]:
        raise EngineError("a grammar wants to choose the tokens of a text itself", hint="leave out no_forcing")


def _name(token: int) -> bytes:
    return f"<[{token}]>".encode()


def _check_text(lark: str) -> None:
    if len(lark) > MAX_LENGTH:
        raise ConfigError(f"the grammar has {len(lark)} characters, expected at most {MAX_LENGTH}")
    num_definitions = len(_DEFINITION.findall(lark))
    if num_definitions > _MAX_DEFINITIONS:
        raise ConfigError(f"the grammar has {num_definitions} definitions, expected at most {_MAX_DEFINITIONS}")
    try:
        lark.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"the grammar holds half a surrogate pair: {lark[error.start]!r}") from None


def _reason(automaton: LLMatcher) -> str:
    """Give llguidance's own words, without what it adds for its developers."""
    words = re.split(r"<non-verbose/>|\n<backtrace>|\n<state>", automaton.get_error())[0].strip()[:500]
    return "nothing matches it" if words == "NoExtensionBias" else words
