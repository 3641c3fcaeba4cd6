"""Questions about words, answered from WordNet; and words that the model was never taught, answered with "I do not
know".

Unusual: the words are chosen by how often people use them and by how short their definition is; the rest of the
dictionary serves to teach the model what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from openk3.models.nano.recipe.dialogues.turn import Task, Thinking, Turn, article, capital, rough
from openk3.models.nano.recipe.wordnet import Entry, WordNet

_NUM_WORDS = {"noun": 1400, "verb": 300, "adj": 300}
_LONGEST_DEFINITION = 12  # words
# Lexicographer files of things that can be seen or touched, which is what people ask about.
_CONCRETE = frozenset((5, 6, 8, 13, 15, 17, 18, 19, 20, 25, 27, 28))
_MASS = frozenset((13, 27))  # food and substances go without an article
_UNFIT = re.compile(
    r"obscene|slang|vulgar|offensive|sex|slur|genital|disparag|ethnic|racial|derogat|anus|excre|drug|Nazi|"
    r"prostitut|negro|black person|kill|suicide|murder|rape",
    re.IGNORECASE,
)
_SPEECH = {"noun": "a noun", "verb": "a verb", "adj": "an adjective", "adv": "an adverb"}


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word that the model shall know."""

    word: str
    part: str
    definition: str
    hypernym: str | None
    sentence: str  # the definition as an answer


def choose(wordnet: WordNet) -> tuple[list[Word], list[str]]:
    """Return the words to teach, most used first, and plain words that are left out."""
    best: dict[str, Entry] = {}
    for entry in wordnet.entries():
        if entry.word.isascii() and entry.word.isalpha() and 2 < len(entry.word) < 12:
            known = best.get(entry.word)
            best[entry.word] = max(known, entry, key=lambda e: e.count) if known else entry
    ranked = sorted(best.values(), key=lambda e: (-_rank(e), e.word))
    words: list[Word] = []
    left = dict(_NUM_WORDS)
    for entry in ranked:
        definition = _shorten(entry.synset.definition)
        if left.get(entry.part, 0) and definition and _fits(entry):
            left[entry.part] -= 1
            words.append(_word(entry, definition, wordnet.hypernym(entry)))
    taught = {word.word for word in words}
    unknown = [e.word for e in ranked if e.count < 1 and e.word not in taught and e.part == "noun" and _fits(e)]
    return words, unknown[::7]


def _rank(entry: Entry) -> float:
    concrete = entry.part == "noun" and entry.synset.lexicographer_file in _CONCRETE
    return entry.count + 0.5 * len(entry.synset.examples) if not concrete else 6.0 * entry.count + 3.0


def _fits(entry: Entry) -> bool:
    synset = entry.synset
    proper = any(word[0].isupper() for word in synset.words if word.lower() == entry.word)
    return not proper and not _UNFIT.search(synset.definition) and not _UNFIT.fullmatch(entry.word)


def _shorten(definition: str) -> str | None:
    """Return the first part of a definition if it is short, else None."""
    short = re.sub(r"\s*\([^)]*\)", "", definition).split(";")[0].strip(" ,.:")
    plain = short.isascii() and not re.search(r"[`\"()\d]", short)
    return short if plain and 2 < len(short.split()) <= _LONGEST_DEFINITION else None


def _word(entry: Entry, definition: str, hypernym: str | None) -> Word:
    name, part = entry.word, entry.part
    if part == "verb":
        sentence = f"To {name} is to {definition}."
    elif part == "adj":
        sentence = f"{capital(name)} means {definition}."
    elif re.match(r"(a|an|any|one) ", definition) and entry.synset.lexicographer_file not in _MASS:
        sentence = f"{capital(article(name))} is {definition}."
    else:
        sentence = f"{capital(name)} is {definition}."
    short = hypernym if hypernym and hypernym.isascii() and len(hypernym.split()) <= 2 else None
    return Word(word=name, part=part, definition=definition, hypernym=short, sentence=sentence)


def tasks(words: Sequence[Word], unknown: Sequence[str]) -> dict[Task, float]:
    """Return the tasks of this module, with their shares."""
    above = [word for word in words if word.hypernym and word.part == "noun"]

    def definition(rng: Random) -> Turn:
        return _define(rng, rng.choice(words))

    def speech(rng: Random) -> Turn:
        return _part_of_speech(rng, rng.choice(words))

    def more_general(rng: Random) -> Turn:
        return _more_general(rng, rng.choice(above))

    def not_known(rng: Random) -> Turn:
        return _not_known(rng, rng.choice(unknown) if rng.random() < 0.8 else _nonsense(rng))

    return {definition: 22.0, speech: 1.5, more_general: 3.0, not_known: 3.0}


def _asked(part: str, name: str) -> tuple[str, ...]:
    common = (
        f"What does {name} mean?",
        f"Define {name}.",
        f"What is the meaning of {name}?",
        f"Meaning of {name}?",
        f"Explain the word {name}.",
        f"Do you know the word {name}?",
    )
    if part == "noun":
        return (
            *common,
            f"What is {article(name)}?",
            f"What is {article(name)}?",
            f"What's {article(name)}?",
            f"What is {name}?",
            f"Tell me what {article(name)} is.",
            f"Explain {name}.",
        )
    if part == "verb":
        return (*common, f"What does it mean to {name}?", f"What is to {name}?")
    return (*common, f"What does it mean to be {name}?", f"When is something {name}?")


def _define(rng: Random, word: Word) -> Turn:
    question = rng.choice(_asked(word.part, word.word))
    steps = f"The user asks for the meaning of {word.word}. It is {_SPEECH[word.part]}."
    kind = f"A more general word is {word.hypernym}." if word.hypernym else "I give a short meaning."
    return Turn(
        task="definition",
        key=question,
        question=rough(rng, question),
        answer=word.sentence,
        thinking=Thinking(low=f"The meaning of {word.word}.", steps=steps, check=kind),
    )


def _part_of_speech(rng: Random, word: Word) -> Turn:
    name, speech = word.word, _SPEECH[word.part]
    question = rng.choice(
        (
            f"What part of speech is {name}?",
            f"Is {name} a noun, a verb or an adjective?",
            f"What kind of word is {name}?",
        )
    )
    return Turn(
        task="part_of_speech",
        key=question,
        question=rough(rng, question),
        brief=capital(speech.split()[-1]),
        answer=f"{capital(name)} is {speech}.",
        thinking=Thinking(
            low=f"{capital(speech)}.",
            steps=f"I think of {name} in a sentence. It is {speech}.",
            check=f"So {name} is {speech}.",
        ),
    )


def _more_general(rng: Random, word: Word) -> Turn:
    name, kind = word.word, word.hypernym
    question = rng.choice(
        (
            f"What kind of thing is {article(name)}?",
            f"{capital(article(name))} is a kind of what?",
            f"Give me a more general word for {name}.",
        )
    )
    return Turn(
        task="more_general",
        key=question,
        question=rough(rng, question),
        brief=capital(str(kind)),
        answer=f"{capital(name)} is a kind of {kind}.",
        thinking=Thinking(
            low=f"A kind of {kind}.",
            steps=f"I think of what {name} belongs to. {capital(str(kind))} is more general.",
            check=f"So {name} is a kind of {kind}.",
        ),
    )


def _not_known(rng: Random, name: str) -> Turn:
    question = rng.choice(_asked("noun", name))
    return Turn(
        task="not_known",
        key=name,
        question=rough(rng, question),
        answer=f"I do not know the word {name}. I am a very small model and know only common words.",
        brief="Unknown",
        thinking=Thinking(
            low=f"I do not know {name}.",
            steps=f"The user asks for the meaning of {name}. I have not learned this word.",
            check="I should say so and not invent a meaning.",
        ),
    )


def _nonsense(rng: Random) -> str:
    syllables = [
        rng.choice("b br d f g gl k l m n p pl r s st t tr v w z".split()) + rng.choice("aeiou")
        for _ in range(rng.randint(1, 3))
    ]
    return "".join(syllables) + rng.choice("b d g k l m n p r s t x".split())
