"""Requests that a declared tool answers: the right tool, its arguments from the request, an answer from its result.

Unusual: tool and argument names vary, so that they have to be read from the declaration and not remembered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from openk3.models.nano.recipe.dialogues.turn import Call, Thinking, Turn, rough

Maker = Callable[[Random], Turn]
_CITIES = (
    "Oslo Paris Rome Berlin Madrid Vienna Tokyo Cairo Lima Delhi Boston Dublin Prague Lisbon Athens London Moscow "
    "Sydney Toronto Chicago Bergen Milan Hamburg Kyoto Dallas Seoul"
).split()
_SKY = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear")
_NOTES = (
    "buy milk",
    "call Anna",
    "water the plants",
    "pay the rent",
    "feed the cat",
    "read the book",
    "clean the room",
    "write to Tom",
    "fix the lamp",
    "go to the bank",
    "bring a coat",
    "send the letter",
)


def _declare(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """Return a function declaration whose parameters are all required."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _turn(rng: Random, question: str, tool: dict[str, Any], call: Call, answer: str, want: str) -> Turn:
    name = call.tool
    shown = ", ".join(f"{key} is {value}" for key, value in call.arguments.items())
    thinking = Thinking(
        low=f"I call {name}.",
        steps=f"The user wants {want}. The tool {name} can do it. I call it.",
        check=f"The argument {shown}.",
    )
    return Turn(
        task=f"tool_{want.split()[-1]}",
        key=f"{name} {json.dumps(call.arguments)}",
        question=rough(rng, question),
        thinking=thinking,
        calls=(call,),
        tools=(tool,),
        answer=answer,
    )


def calculate(rng: Random) -> Turn:
    """Ask for a computation that is too large to do in the head."""
    name, key = rng.choice(("calculator", "calc", "compute", "math")), rng.choice(("expression", "input", "formula"))
    a, b, (sign, word) = (
        rng.randint(100, 9999),
        rng.randint(12, 9999),
        rng.choice((("+", "plus"), ("-", "minus"), ("*", "times"))),
    )
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    expression = f"{a} {sign} {b}"
    question = rng.choice((f"What is {expression}?", f"What is {a} {word} {b}?", f"Compute {expression}."))
    call = Call(tool=name, arguments={key: expression}, result=str(result), reading=f"The result is {result}.")
    return _turn(
        rng,
        question,
        _declare(name, "Compute an expression", **{key: "string"}),
        call,
        f"{expression} = {result}.",
        "a sum",
    )


def weather(rng: Random) -> Turn:
    """Ask for the weather in a city."""
    name, key = rng.choice(("get_weather", "weather", "forecast")), rng.choice(("city", "place", "location"))
    city, sky, degrees = rng.choice(_CITIES), rng.choice(_SKY), rng.randint(-9, 35)
    question = rng.choice(
        (
            f"What is the weather in {city}?",
            f"How is the weather in {city}?",
            f"Weather in {city}?",
            f"Is it nice in {city}?",
        )
    )
    call = Call(
        tool=name,
        arguments={key: city},
        result=f"{sky}, {degrees} degrees",
        reading=f"It is {sky} and {degrees} degrees.",
    )
    return _turn(
        rng,
        question,
        _declare(name, "Weather of a city", **{key: "string"}),
        call,
        f"It is {sky} in {city}, with {degrees} degrees.",
        "the weather",
    )


def clock(rng: Random) -> Turn:
    """Ask for the time in a city."""
    name, key = rng.choice(("get_time", "clock", "local_time")), rng.choice(("city", "place", "zone"))
    city, time = rng.choice(_CITIES), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    question = rng.choice((f"What time is it in {city}?", f"Time in {city}?", f"Tell me the time in {city}."))
    call = Call(tool=name, arguments={key: city}, result=time, reading=f"The time is {time}.")
    return _turn(
        rng, question, _declare(name, "Time in a city", **{key: "string"}), call, f"It is {time} in {city}.", "the time"
    )


def note(rng: Random) -> Turn:
    """Ask to write something down."""
    name, key = rng.choice(("add_note", "note", "save_note", "remind")), rng.choice(("text", "note", "content"))
    text = rng.choice(_NOTES)
    question = rng.choice((f"Make a note: {text}", f"Note: {text}", f"Remind me to {text}."))
    call = Call(tool=name, arguments={key: text}, result="ok", reading="The note is saved.")
    return _turn(
        rng, question, _declare(name, "Save a note", **{key: "string"}), call, f'I saved the note "{text}".', "a note"
    )


def timer(rng: Random) -> Turn:
    """Ask to set a timer."""
    name, key, minutes = (
        rng.choice(("set_timer", "timer", "alarm")),
        rng.choice(("minutes", "time")),
        rng.randint(1, 90),
    )
    question = rng.choice(
        (f"Set a timer for {minutes} minutes.", f"Timer: {minutes} minutes", f"Wake me in {minutes} minutes.")
    )
    call = Call(tool=name, arguments={key: minutes}, result="ok", reading="The timer runs.")
    return _turn(
        rng,
        question,
        _declare(name, "Start a timer", **{key: "integer"}),
        call,
        f"The timer is set for {minutes} minutes.",
        "a timer",
    )


TASKS: dict[Maker, float] = {calculate: 1.5, weather: 1.5, clock: 1.0, note: 0.8, timer: 0.8}
