"""Copying, reversing, picking from lists and short texts: what recurrence and attention do by looking back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from openk3.models.nano.recipe.dialogues.numbers import in_words
from openk3.models.nano.recipe.dialogues.turn import Task, Thinking, Turn, capital, listed, rough

_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor "
    "Amir Bella Carlos Diana Elif Fatima George Hana Ivan Julia Kenji Lucy Maria Nils Omar Petra Ravi Sofia "
    "Tom Yuki Zoe Alex Bob Alice"
).split()
_PETS = "dog cat horse rabbit bird goat pony parrot hamster turtle".split()
_PET_NAMES = "Rex Luna Max Bella Rocky Daisy Coco Shadow Ginger Pepper Buddy Misty Lucky Snow Toffee Spot".split()
_TOWNS = "Oslo Paris Rome Berlin Madrid Vienna Tokyo Cairo Lima Delhi Boston Dublin Prague Lisbon Athens".split()
_JOBS = "baker teacher doctor farmer painter driver nurse cook singer writer sailor builder".split()
_THINGS = "apples books coins eggs stamps cups keys pens shells chairs".split()


def tasks(words: Sequence[str]) -> dict[Task, float]:
    """Return the tasks of this module over ``words``, with their shares."""

    def some(rng: Random, low: int, high: int) -> list[str]:
        return rng.sample(words, rng.randint(low, high))

    def repeat(rng: Random) -> Turn:
        return _repeat(rng, some(rng, 2, 6))

    def reverse(rng: Random) -> Turn:
        return _reverse(rng, some(rng, 2, 5))

    def pick(rng: Random) -> Turn:
        return _pick(rng, some(rng, 3, 6))

    def alphabet(rng: Random) -> Turn:
        return _alphabet(rng, some(rng, 2, 4))

    def how_many(rng: Random) -> Turn:
        return _how_many(rng, some(rng, 2, 7))

    def member(rng: Random) -> Turn:
        chosen = some(rng, 3, 6)
        return _member(rng, chosen, rng.choice(chosen) if rng.random() < 0.5 else rng.choice(words))

    return {repeat: 1.5, reverse: 1.2, pick: 1.5, alphabet: 0.8, how_many: 1.0, member: 0.8, read: 2.0, code: 1.0}


def _repeat(rng: Random, words: list[str]) -> Turn:
    text = " ".join(words)
    question = rng.choice(
        (
            f"Repeat: {text}",
            f"Repeat after me: {text}",
            f"Say {text}.",
            f"Copy this: {text}",
            f"Repeat the words {text}.",
        )
    )
    steps = f"I repeat the words as they are. There are {in_words(len(words))} words."
    return Turn(
        task="repeat",
        key=text,
        question=question,
        answer=text,
        brief=text,
        thinking=Thinking(low="I repeat it.", steps=steps, check=f"The last word is {words[-1]}."),
    )


def _reverse(rng: Random, words: list[str]) -> Turn:
    text, result = " ".join(words), " ".join(reversed(words))
    question = rng.choice(
        (
            f"Reverse the order of the words: {text}",
            f"Say these words backwards: {text}",
            f"Reverse: {text}",
            f"Turn around the order of {text}.",
        )
    )
    steps = f"I start with the last word, {words[-1]}, and end with the first, {words[0]}."
    return Turn(
        task="reverse",
        key=text,
        question=question,
        answer=result,
        brief=result,
        thinking=Thinking(
            low=f"From {words[-1]} to {words[0]}.", steps=steps, check=f"There are {in_words(len(words))} words."
        ),
    )


def _pick(rng: Random, words: list[str]) -> Turn:
    last = rng.random() < 0.3
    index = len(words) - 1 if last else rng.randrange(len(words))
    place, text = "last" if last else _PLACES[index], ", ".join(words)
    question = rng.choice(
        (
            f"What is the {place} word in this list: {text}?",
            f"Which word is {place}: {text}?",
            f"Give me the {place} of {text}.",
        )
    )
    upto = words if last else words[: index + 1]
    counted = " ".join(f"{i} {word}." for i, word in enumerate(upto, 1))
    return Turn(
        task="pick",
        key=f"{place} {text}",
        question=rough(rng, question),
        brief=capital(words[index]),
        answer=f"The {place} word is {words[index]}.",
        thinking=Thinking(
            low=f"{capital(place)}: {words[index]}.",
            steps=f"I count. {counted}",
            check=f"The {place} is {words[index]}.",
        ),
    )


def _alphabet(rng: Random, words: list[str]) -> Turn:
    text, ordered = ", ".join(words), sorted(words)
    question = rng.choice(
        (
            f"Sort these words by the alphabet: {text}.",
            f"Put these words in alphabetical order: {text}.",
            f"Sort alphabetically: {text}.",
        )
    )
    letters = " ".join(f"{word} starts with {word[0]}." for word in words)
    result = ", ".join(ordered)
    return Turn(
        task="alphabet",
        key=text,
        question=rough(rng, question),
        answer=f"{result}.",
        brief=result,
        thinking=Thinking(
            low=f"First {ordered[0]}.", steps=letters, check=f"So {ordered[0]} is first and {ordered[-1]} is last."
        ),
    )


def _how_many(rng: Random, words: list[str]) -> Turn:
    text = ", ".join(words)
    question = rng.choice(
        (
            f"How many words are in this list: {text}?",
            f"Count the words: {text}.",
            f"How many things are there: {text}?",
        )
    )
    counted = " ".join(f"{i} {word}." for i, word in enumerate(words, 1))
    number = in_words(len(words))
    return Turn(
        task="how_many",
        key=text,
        question=rough(rng, question),
        answer=f"There are {number} words.",
        brief=capital(number),
        thinking=Thinking(low=f"I count {len(words)}.", steps=f"I count. {counted}", check=f"That makes {number}."),
    )


def _member(rng: Random, words: list[str], word: str) -> Turn:
    text, inside = ", ".join(words), word in words
    question = rng.choice((f"Is {word} in this list: {text}?", f"Does the list {text} contain {word}?"))
    yes_no = "Yes" if inside else "No"
    found = f"It is word number {words.index(word) + 1}." if inside else "None of them is it."
    return Turn(
        task="member",
        key=f"{word} {text}",
        question=rough(rng, question),
        brief=yes_no,
        answer=f"{yes_no}, {word} is {'' if inside else 'not '}in the list.",
        thinking=Thinking(
            low=f"{yes_no}.",
            steps=f"I look for {word} in {listed(words)}. {found}",
            check=f"So the answer is {yes_no.lower()}.",
        ),
    )


def read(rng: Random) -> Turn:
    """Tell two or three facts about people and ask for one of them."""
    people = rng.sample(_NAMES, rng.randint(1, 3))
    facts = [_fact(rng, name) for name in people]
    text = " ".join(statement for statement, _, _, _ in facts)
    _, question, answer, brief = rng.choice(facts)
    statement = next(fact[0] for fact in facts if fact[1] == question)
    return Turn(
        task="read",
        key=f"{text} {question}",
        question=f"{text} {question}",
        answer=answer,
        brief=brief,
        thinking=Thinking(low=f"{brief}.", steps=f"The text says: {statement}", check=f"So the answer is {brief}."),
    )


def _fact(rng: Random, name: str) -> tuple[str, str, str, str]:
    """Return a statement, a question about it, the answer as a sentence, and in one word."""
    pet, pet_name, town = rng.choice(_PETS), rng.choice(_PET_NAMES), rng.choice(_TOWNS)
    job, thing, number = rng.choice(_JOBS), rng.choice(_THINGS), str(rng.randint(2, 99))
    return rng.choice(
        (
            (
                f"{name} has a {pet} called {pet_name}.",
                f"What is the name of {name}'s {pet}?",
                f"{name}'s {pet} is called {pet_name}.",
                pet_name,
            ),
            (f"{name} lives in {town}.", f"Where does {name} live?", f"{name} lives in {town}.", town),
            (f"{name} is {number} years old.", f"How old is {name}?", f"{name} is {number} years old.", number),
            (f"{name} works as a {job}.", f"What is {name}'s job?", f"{name} is a {job}.", capital(job)),
            (
                f"{name} has {number} {thing}.",
                f"How many {thing} does {name} have?",
                f"{name} has {number} {thing}.",
                number,
            ),
        )
    )


def code(rng: Random) -> Turn:
    """Hide a number among others and ask for it."""
    colours = rng.sample(("red", "blue", "green", "yellow", "black", "white", "brown", "pink"), rng.randint(2, 5))
    codes = {colour: str(rng.randint(100, 9999)) for colour in colours}
    text = ", ".join(f"{colour} is {number}" for colour, number in codes.items())
    wanted = rng.choice(colours)
    question = rng.choice(
        (
            f"The codes are: {text}. What is the {wanted} code?",
            f"Remember: {text}. What is {wanted}?",
            f"{capital(text)}. Tell me the code for {wanted}.",
        )
    )
    number = codes[wanted]
    return Turn(
        task="code",
        key=f"{text} {wanted}",
        question=question,
        answer=f"The {wanted} code is {number}.",
        brief=number,
        thinking=Thinking(
            low=f"{capital(wanted)}: {number}.",
            steps=f"I look for {wanted} in the list. It says {wanted} is {number}.",
            check=f"So the code is {number}.",
        ),
    )
