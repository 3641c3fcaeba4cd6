"""Following grammars: what is allowed is what is accepted, matchers are independent, hostile grammars are refused."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import pytest
import torch
from llguidance import LLMatcher, LLParserLimits
from torch import Tensor

from openk3.chat.grammar import answer_grammar, token_bytes
from openk3.checkpoint.resolve import resolve_model
from openk3.engine import grammar as engine_grammar
from openk3.engine.grammar import GrammarCompiler, Matcher
from openk3.errors import ConfigError, EngineError
from openk3.protocol.messages import ResponseFormat
from openk3.protocol.request import Grammar
from openk3.tokenizer.bpe import Tokenizer

TOKENIZER = Tokenizer.load(resolve_model("nano"))
END = TOKENIZER.special.end_of_msg
EOS = TOKENIZER.special.eos
STOPS = (END, EOS)
VOCAB = TOKENIZER.vocab_size + 8  # a model may have more logits than there are tokens
COMPILER = GrammarCompiler(token_bytes(TOKENIZER), STOPS, VOCAB)

GRAMMARS = {
    "json": 'start: %json {"type": "object", "properties": {"é": {"type": "array", "items": {"type": "integer"}}}}',
    "text": "start: /(?s:.*)/",
    "choice": 'start: "yes" | "yesterday" | ""',
    "control": f"start: /[a-z]*/ <[{END}]>",
    "nested": 'start: "(" start ")" | /[ab]/',
}
_answer = answer_grammar(
    channel="think", special=TOKENIZER.special, response_format=ResponseFormat(type="regex", regex=r"\d+")
)
assert _answer is not None
GRAMMARS["answer"] = _answer.lark
every_grammar = pytest.mark.parametrize("name", GRAMMARS)


def matcher(name: str, said: Sequence[int] = ()) -> Matcher:
    made = COMPILER.compile(Grammar(GRAMMARS[name]))
    for token in said:
        made.accept(token)
    return made


def takes(made: Matcher, token: int) -> bool:
    try:
        made.accept(token)
    except EngineError:
        return False
    return True


def walk(made: Matcher, rng: random.Random, length: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < length and not made.finished:
        ids.append(rng.choice(made.allowed().nonzero().flatten().tolist()))
        made.accept(ids[-1])
    return ids


@every_grammar
def test_a_token_is_accepted_just_if_it_is_allowed(name: str) -> None:
    rng = random.Random(name)
    for _ in range(4):
        said = walk(matcher(name), rng, 15)
        allowed = matcher(name, said).allowed()
        assert allowed.shape == (VOCAB,)
        assert allowed.dtype == torch.bool
        possible = allowed.nonzero().flatten().tolist()
        made = matcher(name, said)
        forbidden = sorted(set(range(VOCAB)) - set(possible))
        for token in [-1, VOCAB, *rng.sample(forbidden, min(100, len(forbidden)))]:
            assert not takes(made, token)
            assert torch.equal(made.allowed(), allowed)  # it stays as it was
        for token in {*rng.sample(possible, min(25, len(possible))), *(set(STOPS) & set(possible))}:
            assert takes(matcher(name, said), token)


@every_grammar
def test_what_is_counted_is_what_is_accepted(name: str) -> None:
    rng = random.Random(name)
    for _ in range(40):
        said = walk(matcher(name), rng, rng.randrange(6))
        ids = walk(matcher(name, said), rng, rng.randrange(8))
        for _ in range(rng.randrange(4)):
            ids.insert(rng.randint(0, len(ids)), rng.choice([END, EOS, -1, VOCAB, VOCAB - 1, rng.randrange(VOCAB)]))
        made, again = matcher(name, said), matcher(name, said)
        before = made.allowed()
        counted = made.count_allowed(ids)
        assert torch.equal(made.allowed(), before)  # nothing was taken
        accepted = next((n for n, token in enumerate(ids) if not takes(again, token)), len(ids))
        assert counted == accepted, ids


@every_grammar
def test_what_no_token_stands_for_is_never_allowed(name: str) -> None:
    assert not matcher(name).allowed()[TOKENIZER.vocab_size :].any()


def test_no_answer_begins_but_as_the_grammar_says() -> None:
    made = matcher("choice")
    texts = {
        TOKENIZER.token_bytes(token) for token in made.allowed().nonzero().flatten().tolist() if token not in STOPS
    }
    assert texts
    assert all(b"yesterday".startswith(text) for text in texts)
    assert made.allowed()[list(STOPS)].all()  # the empty text is a whole one


def test_every_spelling_in_tokens_is_allowed() -> None:
    made = matcher("choice", [TOKENIZER.encode(letter)[0] for letter in "yes"])
    assert not made.finished
    assert set(STOPS) < set(made.allowed().nonzero().flatten().tolist())


def test_after_a_stop_only_stops_can_follow() -> None:
    made = matcher("text", [*TOKENIZER.encode("Hello"), END])
    assert made.finished
    assert made.allowed().nonzero().flatten().tolist() == sorted(STOPS)
    assert made.count_allowed([EOS, END, 5]) == 2
    assert not takes(made, 5)


def test_a_grammar_that_ends_leaves_nothing_but_stops() -> None:
    made = matcher("nested", TOKENIZER.encode("a"))
    assert made.finished
    assert made.allowed().nonzero().flatten().tolist() == sorted(STOPS)
    made.accept(EOS)


def test_a_stop_that_the_grammar_wants_comes_only_where_it_says() -> None:
    made = matcher("control", TOKENIZER.encode("abc"))
    assert [bool(made.allowed()[token]) for token in (END, EOS)] == [True, False]
    made.accept(END)
    assert made.finished


def test_matchers_of_one_grammar_are_independent() -> None:
    first, second = matcher("nested"), matcher("nested")
    start = second.allowed()
    first.accept(TOKENIZER.encode("a")[0])
    assert torch.equal(second.allowed(), start)
    assert torch.equal(matcher("nested").allowed(), start)


def test_the_latest_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_grammar, "_NUM_CACHED", 2)
    compiler = GrammarCompiler(token_bytes(TOKENIZER), STOPS, VOCAB)
    compiled: list[str] = []
    original = compiler._compile

    def counted(lark: str) -> LLMatcher:
        compiled.append(lark)
        return original(lark)

    monkeypatch.setattr(compiler, "_compile", counted)
    for letter in "abacab":  # b falls out when c comes, as a was used after it
        compiler.compile(Grammar(f'start: "{letter}"'))
    assert [lark[-2] for lark in compiled] == ["a", "b", "c", "b"]


@pytest.mark.parametrize("num_cached", [1, 64])
def test_several_threads_compile_at_once(monkeypatch: pytest.MonkeyPatch, num_cached: int) -> None:
    monkeypatch.setattr(engine_grammar, "_NUM_CACHED", num_cached)
    compiler = GrammarCompiler(token_bytes(TOKENIZER), STOPS, VOCAB)
    texts = ["abc", "xyz", "abc", "q(]", "xyz", "abc", ""]
    wrong: list[str] = []
    done: list[str] = []
    barrier = threading.Barrier(len(texts), timeout=30)

    def work(text: str) -> None:
        barrier.wait()
        for _ in range(20):
            made = compiler.compile(Grammar(f'start: "{text}"'))
            ids = TOKENIZER.encode(text)
            if made.count_allowed([*ids, END, 1]) != len(ids) + 1:
                wrong.append(text)
        done.append(text)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == sorted(texts)
    assert wrong == []
    assert len(compiler._compiled) == min(num_cached, len(set(texts)))


def test_a_grammar_that_is_refused_is_not_kept() -> None:
    compiler = GrammarCompiler(token_bytes(TOKENIZER), STOPS, VOCAB)
    for _ in range(2):
        with pytest.raises(ConfigError, match="unknown name"):
            compiler.compile(Grammar("start: foo"))
    assert not compiler._compiled


def masks_along(name: str, ids: Sequence[int]) -> list[Tensor]:
    """Give what is allowed after each token."""
    made, masks = matcher(name), []
    for token in ids:
        made.accept(token)
        masks.append(made.allowed().clone())
    return masks


@every_grammar
def test_matchers_in_turn_are_as_each_alone(name: str) -> None:
    walks = [walk(matcher(name), random.Random(f"{name}{n}"), 12) for n in range(5)]
    alone = [masks_along(name, ids) for ids in walks]
    together = [matcher(name) for _ in walks]
    for step in range(12):
        for made, ids, masks in zip(together, walks, alone, strict=True):
            if step < len(ids):
                made.accept(ids[step])
                assert made.count_allowed(ids[step + 1 :]) == len(ids) - step - 1
                assert torch.equal(made.allowed(), masks[step])


@pytest.mark.parametrize(
    ("lark", "reason"),
    [
        ("", "no start rule"),
        ("start: foo", "unknown name"),
        ("start: /(a/", "regex"),
        ("start: /[a&&b]/", "nothing matches it$"),
        ('start: "a"\0', "lexer error"),
        ('start: "\ud800"', "half a surrogate pair"),
        (f"start: <[{VOCAB + 100}]>", "too large"),
        ("start: " + "(" * 30_000 + '"a"' + ")" * 30_000, "deeply nested"),
        ("start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(10_000)), "definitions, expected at most"),
        ("start: /a/ //" + "x" * engine_grammar.MAX_LENGTH, "characters, expected at most"),
        ('start: %json {"type": "array", "items": ' * 300, "grammar cannot be compiled"),
    ],
    ids=range(11),
)
def test_a_grammar_that_cannot_be_followed_is_refused(lark: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        COMPILER.compile(Grammar(lark))
    assert len(str(caught.value)) < 700


def test_a_long_chain_of_rules_is_compiled() -> None:
    lark = "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(1500)) + '\nr1500: "a"\n'
    assert COMPILER.compile(Grammar(lark)).count_allowed(TOKENIZER.encode("a")) == 1


def test_vocabularies_that_do_not_fit_are_refused() -> None:
    for texts, stops, size in (([b"a"] * 3, [1], 2), ([b"a"], [], 5), ([b"a"], [5], 5), ([b"a"], [-1], 5)):
        with pytest.raises(ConfigError, match="expected"):
            GrammarCompiler(texts, stops, size)


def test_what_others_wrote_in_the_same_grammar_uses_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of an automaton share a lexer, whose states have a limit; here few answers fill it."""
    grammar = Grammar(r"start: /[a-z ]*a[a-z ]{40}X/")
    letters = [token for token, text in enumerate(token_bytes(TOKENIZER)) if text and set(text) <= set(b"abcdef ")]

    def write(compiler: GrammarCompiler, seed: int) -> list[Tensor]:
        made, rng, masks = compiler.compile(grammar), random.Random(seed), []
        for _ in range(40):
            masks.append(made.allowed())
            drafts = rng.choices(letters, k=3)
            made.accept(drafts[0] if made.count_allowed(drafts) else next(t for t in letters if masks[-1][t]))
        return masks

    expected = write(GrammarCompiler(token_bytes(TOKENIZER), STOPS, VOCAB), seed=0)
    monkeypatch.setattr(engine_grammar, "_LIMITS", LLParserLimits(max_lexer_states=4000, verbose_errors=False))
    small, renewed = GrammarCompiler(token_bytes(TOKENIZER), STOPS, VOCAB), []
    compile_anew = small._renewed
    monkeypatch.setattr(small, "_renewed", lambda lark: (renewed.append(lark), compile_anew(lark))[1])
    for seed in (*range(12), 0):
        masks = write(small, seed)
    assert renewed
    assert all(torch.equal(mask, other) for mask, other in zip(masks, expected, strict=True))
