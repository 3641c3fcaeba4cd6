"""Very short stories from a grammar: the only long answers, so that the model can write a few sentences in a row."""

from __future__ import annotations

from random import Random

from openk3.models.nano.recipe.dialogues.turn import Thinking, Turn, article, capital, rough

# hero, where it lives, what it likes to eat or have
_HEROES = [
    ("fox", "forest", "berries"),
    ("cat", "small house", "milk"),
    ("dog", "village", "bones"),
    ("mouse", "old barn", "cheese"),
    ("bear", "cave", "honey"),
    ("bird", "tall tree", "seeds"),
    ("rabbit", "green field", "carrots"),
    ("frog", "pond", "flies"),
    ("horse", "farm", "apples"),
    ("boy", "town", "cake"),
    ("girl", "town", "plums"),
    ("king", "castle", "gold"),
    ("fisherman", "hut by the sea", "fish"),
    ("duck", "lake", "bread"),
    ("owl", "dark wood", "quiet nights"),
    ("sailor", "harbour", "stories"),
    ("baker", "warm bakery", "fresh bread"),
    ("queen", "palace", "roses"),
]
_ADJECTIVES = "little old young brave clever lonely happy hungry kind shy".split()
_TROUBLES = [
    ("it began to rain", "ran under a big leaf", "the sun came back"),
    ("a storm came", "hid behind a stone", "the wind went to sleep"),
    ("it lost its way", "asked the moon for help", "the moon showed the way home"),
    ("there was nothing to eat", "looked everywhere", "a friend brought {food}"),
    ("it heard a strange noise", "went to look", "it was only the wind"),
    ("it met a stranger", "said hello", "the two became friends"),
    ("it found a golden key", "tried every door", "one door led to a garden"),
    ("the river was too wide", "built a small bridge", "everyone could cross"),
]
_ENDS = (
    "From that day on, the {hero} was never alone.",
    "The {hero} went home and slept well.",
    "The {hero} told the story to all its friends.",
    "And the {hero} was happy again.",
)


def story(rng: Random) -> Turn:
    """Ask for a story, about a given hero or any."""
    hero, home, food = rng.choice(_HEROES)
    adjective, (trouble, act, rescue) = rng.choice(_ADJECTIVES), rng.choice(_TROUBLES)
    asked = rng.random() < 0.8
    about = f" about {article(hero)}" if asked else ""
    question = rng.choice(
        (
            f"Tell me a story{about}.",
            f"Tell me a short story{about}.",
            f"Write a story{about}.",
            f"Can you tell a story{about}?",
            f"I want a story{about}.",
        )
    )
    text = (
        f"Once there was {article(adjective)} {hero} who lived in {article(home)}. The {hero} liked {food}. "
        f"One day {trouble}. "
        f"The {hero} {act}. Then {rescue.format(food=food)}. {rng.choice(_ENDS).format(hero=hero)}"
    )
    steps = f"The user wants a story. The hero is {article(adjective)} {hero}. {capital(trouble)}."
    return Turn(
        task="story",
        key=text,
        question=rough(rng, question),
        answer=text,
        thinking=Thinking(low=f"A story about {article(hero)}.", steps=steps, check="It ends well."),
    )


TASKS = {story: 2.0}
