"""Arithmetic, counting, comparing: digits are single tokens, and the steps are those taught at school.

Unusual: at low effort the result comes without steps, so those answers are less reliable; that is the trade.
"""

from __future__ import annotations

from random import Random

from openk3.models.nano.recipe.dialogues.turn import Thinking, Turn, capital, listed, rough

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_PLACES = ("ones", "tens", "hundreds", "thousands")


def in_words(n: int) -> str:
    """Return ``n`` (0 to 99) in English words."""
    if n < 20:
        return _SMALL[n]
    return _TENS[n // 10 - 2] + (f"-{_SMALL[n % 10]}" if n % 10 else "")


def _operand(rng: Random) -> int:
    return rng.randint(0, rng.choice((12, 20, 99, 99, 999)))


def addition(rng: Random) -> Turn:
    """Ask for the sum of two numbers of up to three digits."""
    a, b = _operand(rng), _operand(rng)
    question = rng.choice(
        (
            f"What is {a} + {b}?",
            f"What is {a} plus {b}?",
            f"{a} + {b} = ?",
            f"{a}+{b}",
            f"Add {a} and {b}.",
            f"How much is {a} + {b}?",
            f"Can you add {a} and {b}?",
        )
    )
    low, high = sorted((a, b))
    return _arithmetic(
        rng,
        "addition",
        f"{low}+{high}",
        question,
        f"{a} + {b}",
        a + b,
        _sum_steps(a, b),
        f"Check: {a + b} - {b} = {a}.",
    )


def subtraction(rng: Random) -> Turn:
    """Ask for a difference that is not negative."""
    b, a = sorted((_operand(rng), _operand(rng)))
    question = rng.choice(
        (
            f"What is {a} - {b}?",
            f"What is {a} minus {b}?",
            f"{a} - {b} = ?",
            f"{a}-{b}",
            f"Subtract {b} from {a}.",
            f"Take {b} away from {a}.",
        )
    )
    return _arithmetic(
        rng,
        "subtraction",
        f"{a}-{b}",
        question,
        f"{a} - {b}",
        a - b,
        _difference_steps(a, b),
        f"Check: {a - b} + {b} = {a}.",
    )


def multiplication(rng: Random) -> Turn:
    """Ask for a product within the table of twelve."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    question = rng.choice(
        (
            f"What is {a} times {b}?",
            f"What is {a} * {b}?",
            f"{a} x {b} = ?",
            f"Multiply {a} by {b}.",
            f"How much is {a} times {b}?",
        )
    )
    steps = f"{a} groups of {b} make {a * b}."
    return _arithmetic(
        rng, "multiplication", question, question, f"{a} x {b}", a * b, steps, f"Check: {b} x {a} = {a * b}."
    )


def division(rng: Random) -> Turn:
    """Ask for a quotient without remainder within the table of twelve."""
    b, quotient = rng.randint(1, 12), rng.randint(0, 12)
    a = b * quotient
    question = rng.choice(
        (f"What is {a} divided by {b}?", f"What is {a} / {b}?", f"{a} / {b} = ?", f"Divide {a} by {b}.")
    )
    steps = f"I look for the number that times {b} gives {a}. {quotient} x {b} = {a}."
    return _arithmetic(
        rng, "division", question, question, f"{a} / {b}", quotient, steps, f"Check: {b} x {quotient} = {a}."
    )


def _arithmetic(
    rng: Random, task: str, key: str, question: str, expression: str, result: int, steps: str, check: str
) -> Turn:
    thinking = Thinking(low=f"{expression} = {result}.", steps=f"I compute {expression}. {steps}", check=check)
    return Turn(
        task=task,
        key=key,
        question=rough(rng, question),
        thinking=thinking,
        brief=str(result),
        answer=f"{expression} = {result}.",
    )


def _sum_steps(a: int, b: int) -> str:
    steps, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        steps.append(
            f"{capital(_PLACES[place])}: {x} + {y}{carried} = {total}"
            + (f", write {total % 10}, carry 1." if total > 9 else ".")
        )
        carry = total // 10
    return f"{' '.join(steps)} So {a + b}."


def _difference_steps(a: int, b: int) -> str:
    steps, borrow = [], 0
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        taken = f" - {borrow}" if borrow else ""
        left = x - y - borrow
        borrow = int(left < 0)
        raised = f"{x + 10} - {y}{taken} = {left + 10}, borrow 1." if borrow else f"{x} - {y}{taken} = {left}."
        steps.append(f"{capital(_PLACES[place])}: {raised}")
    return f"{' '.join(steps)} So {a - b}."


def compare(rng: Random) -> Turn:
    """Ask for the larger or smaller of two different numbers."""
    a, b = rng.sample(range(1000 if rng.random() < 0.5 else 100), 2)
    word, pick = rng.choice((("larger", max), ("bigger", max), ("greater", max), ("smaller", min)))
    question = rng.choice(
        (f"Which is {word}, {a} or {b}?", f"Which number is {word}: {a} or {b}?", f"Is {a} or {b} {word}?")
    )
    result = pick(a, b)
    digits = f"{a} has {len(str(a))} digits and {b} has {len(str(b))}."
    steps = f"I compare {a} and {b}. {digits} {max(a, b)} comes after {min(a, b)} when counting."
    return Turn(
        task="compare",
        key=f"{word} {a} {b}",
        question=rough(rng, question),
        answer=f"{result} is {word}.",
        brief=str(result),
        thinking=Thinking(low=f"{result} is {word}.", steps=steps, check=f"So {result} is {word}."),
    )


def largest(rng: Random) -> Turn:
    """Ask for the largest or smallest of three to five numbers."""
    numbers = rng.sample(range(100), rng.randint(3, 5))
    word, pick = rng.choice((("largest", max), ("biggest", max), ("smallest", min)))
    shown, result = listed([str(n) for n in numbers]), pick(numbers)
    question = rng.choice(
        (f"Which is the {word} of {shown}?", f"What is the {word} number in {shown}?", f"Find the {word}: {shown}.")
    )
    best, path = numbers[0], [f"Start with {numbers[0]}."]
    for n in numbers[1:]:
        changed = pick(best, n) == n
        best = pick(best, n)
        path.append(f"{n}: {'now' if changed else 'still'} {best}.")
    return Turn(
        task="largest",
        key=f"{word} {shown}",
        question=rough(rng, question),
        brief=str(result),
        answer=f"The {word} number is {result}.",
        thinking=Thinking(low=f"The {word} is {result}.", steps=" ".join(path), check=f"The {word} is {result}."),
    )


def sort_numbers(rng: Random) -> Turn:
    """Ask to sort three to five numbers."""
    numbers = rng.sample(range(100), rng.randint(3, 5))
    shown = ", ".join(str(n) for n in numbers)
    down = rng.random() < 0.25
    order = "from large to small" if down else "from small to large"
    question = rng.choice(
        (f"Sort {shown} {order}.", f"Put {shown} in order, {order}.")
        if down
        else (f"Sort {shown}.", f"Sort these numbers: {shown}.", f"Sort {shown} {order}.", f"Put {shown} in order.")
    )
    ordered, rest, path = sorted(numbers, reverse=down), list(numbers), []
    for n in ordered[:-1]:
        rest.remove(n)
        path.append(f"{n}, left {', '.join(map(str, rest))}.")
    result = ", ".join(map(str, ordered))
    return Turn(
        task="sort_numbers",
        key=f"{down} {shown}",
        question=rough(rng, question),
        answer=f"{result}.",
        brief=result,
        thinking=Thinking(
            low=f"I sort {len(numbers)} numbers.",
            steps=f"I sort {order}. {' '.join(path)} Last {ordered[-1]}.",
            check=f"{len(numbers)} numbers in, {len(ordered)} numbers out.",
        ),
    )


def count(rng: Random) -> Turn:
    """Ask to count up or down between two numbers."""
    start, length, step = rng.randint(0, 40), rng.randint(3, 10), rng.choice((1, 1, 1, -1, 2))
    numbers = [start + step * i for i in range(length)]
    if numbers[-1] < 0:
        numbers, step = numbers[::-1], -step
        numbers = [n - numbers[0] + rng.randint(0, 5) for n in numbers]
    way = {1: "Count", -1: "Count down", 2: "Count by twos"}[step]
    question = rng.choice(
        (f"{way} from {numbers[0]} to {numbers[-1]}.", f"Can you {way.lower()} from {numbers[0]} to {numbers[-1]}?")
    )
    result = ", ".join(map(str, numbers))
    rule = {1: "Each number is one more.", -1: "Each number is one less.", 2: "Each number is two more."}[step]
    steps = f"I start at {numbers[0]} and stop at {numbers[-1]}. {rule}"
    return Turn(
        task="count",
        key=f"{step} {numbers[0]} {numbers[-1]}",
        question=rough(rng, question),
        answer=f"{result}.",
        brief=result,
        thinking=Thinking(
            low=f"From {numbers[0]} to {numbers[-1]}.", steps=steps, check=f"The last number is {numbers[-1]}."
        ),
    )


def neighbour(rng: Random) -> Turn:
    """Ask for the number before or after."""
    n = rng.randint(1, 999)
    word, result = rng.choice((("after", n + 1), ("before", n - 1)))
    question = rng.choice(
        (f"What number comes {word} {n}?", f"Which number is just {word} {n}?", f"What comes {word} {n}?")
    )
    step = f"{n} {'+' if word == 'after' else '-'} 1 = {result}."
    return Turn(
        task="neighbour",
        key=f"{word} {n}",
        question=rough(rng, question),
        brief=str(result),
        answer=f"{result} comes {word} {n}.",
        thinking=Thinking(
            low=step,
            steps=f"The number {word} {n} is one {'more' if word == 'after' else 'less'}. {step}",
            check=f"So {result}.",
        ),
    )


def parity(rng: Random) -> Turn:
    """Ask whether a number is even or odd."""
    n = rng.randint(0, 999)
    kind = "odd" if n % 2 else "even"
    question = rng.choice((f"Is {n} even or odd?", f"Is {n} odd or even?", f"Is the number {n} even or odd?"))
    return Turn(
        task="parity",
        key=str(n),
        question=rough(rng, question),
        answer=f"{n} is {kind}.",
        brief=capital(kind),
        thinking=Thinking(
            low=f"{n % 10} is {kind}.",
            steps=f"I look at the last digit of {n}. It is {n % 10}, which is {kind}.",
            check=f"So {n} is {kind}.",
        ),
    )


def number_words(rng: Random) -> Turn:
    """Ask for a number in words, or the digits of a number in words."""
    n = rng.randint(0, 99)
    words = in_words(n)
    if rng.random() < 0.5:
        question = rng.choice((f"Write {n} in words.", f"How do you write {n} in words?"))
        result = words
    else:
        question = rng.choice((f"Write {words} as a number.", f"Which number is {words}?"))
        result = str(n)
    steps = f"The number is {n}. In words it is {words}."
    return Turn(
        task="number_words",
        key=question,
        question=rough(rng, question),
        brief=capital(result),
        answer=f"{capital(result)}.",
        thinking=Thinking(low=f"{n} is {words}.", steps=steps, check=f"{n} is {words}."),
    )


TASKS = {
    addition: 5.0,
    subtraction: 3.5,
    multiplication: 2.5,
    division: 1.0,
    compare: 1.5,
    largest: 1.2,
    sort_numbers: 1.5,
    count: 1.2,
    neighbour: 0.8,
    parity: 0.6,
    number_words: 0.8,
}
