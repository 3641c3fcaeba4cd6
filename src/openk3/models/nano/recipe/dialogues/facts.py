"""Small closed tables: opposites, plurals, past tenses, colours, sounds, capitals, days and months.

Unusual: these are memorised, so a held-out question is a known fact asked in words not seen with it.
"""

from __future__ import annotations

from random import Random

from openk3.models.nano.recipe.dialogues.turn import Thinking, Turn, article, capital, rough


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (pair.partition(":") for pair in text.split())]


_OPPOSITES = _pairs("""hot:cold big:small tall:short long:short fast:slow good:bad happy:sad light:dark day:night
up:down left:right
    open:closed full:empty hard:soft old:young new:old rich:poor strong:weak high:low wide:narrow thick:thin near:far
    early:late
    easy:difficult clean:dirty dry:wet loud:quiet heavy:light sweet:sour alive:dead right:wrong true:false first:last
    in:out
    on:off over:under before:after above:below inside:outside push:pull buy:sell give:take win:lose begin:end love:hate
    come:go laugh:cry remember:forget find:lose sit:stand arrive:leave float:sink brave:afraid kind:cruel polite:rude
    beautiful:ugly cheap:expensive deep:shallow smooth:rough sharp:blunt tight:loose safe:dangerous healthy:sick
    awake:asleep simple:complex public:private modern:ancient guilty:innocent friend:enemy summer:winter north:south
    east:west morning:evening man:woman boy:girl king:queen father:mother brother:sister son:daughter uncle:aunt
    question:answer success:failure war:peace top:bottom front:back yes:no all:none always:never many:few more:less
    same:different accept:refuse increase:decrease build:destroy lend:borrow teach:learn enter:exit freeze:melt""")
_IRREGULAR_PLURALS = _pairs("""man:men woman:women child:children foot:feet tooth:teeth mouse:mice goose:geese ox:oxen
person:people
    leaf:leaves knife:knives wolf:wolves life:lives wife:wives shelf:shelves half:halves loaf:loaves thief:thieves
    sheep:sheep fish:fish deer:deer potato:potatoes tomato:tomatoes hero:heroes echo:echoes""")
_REGULAR_NOUNS = """cat dog book tree house car bird apple table chair river flower window door garden school teacher
song star
    stone ship king queen boat road lamp cup pen key hat shoe shirt coat box fox dish bus glass class match bench brush
    church watch baby city lady party story country family berry puppy cherry fly boy toy day monkey donkey""".split()
_PAST = _pairs("""go:went come:came see:saw eat:ate drink:drank run:ran sing:sang swim:swam write:wrote read:read
take:took give:gave
    make:made say:said tell:told think:thought buy:bought bring:brought catch:caught teach:taught find:found feel:felt
    keep:kept
    sleep:slept leave:left meet:met sit:sat stand:stood speak:spoke break:broke choose:chose drive:drove ride:rode
    rise:rose
    fall:fell fly:flew grow:grew know:knew throw:threw draw:drew wear:wore begin:began forget:forgot get:got have:had
    hear:heard
    hold:held lose:lost pay:paid put:put ring:rang sell:sold send:sent shine:shone sink:sank spend:spent steal:stole
    win:won build:built cut:cut do:did be:was walk:walked play:played work:worked talk:talked jump:jumped help:helped
    look:looked ask:asked call:called open:opened close:closed love:loved like:liked dance:danced smile:smiled
    stop:stopped plan:planned try:tried carry:carried cry:cried study:studied""")
_COLOURS = _pairs("""grass:green sky:blue snow:white blood:red banana:yellow lemon:yellow coal:black milk:white
sun:yellow leaf:green
    carrot:orange tomato:red night:black cloud:white sea:blue strawberry:red frog:green elephant:grey chocolate:brown
    cherry:red cucumber:green raven:black swan:white fire:red pumpkin:orange salt:white ink:blue wood:brown
    flamingo:pink sunflower:yellow broccoli:green pea:green corn:yellow gold:yellow silver:grey plum:purple""")
_MASS = frozenset("grass snow blood coal milk fire salt ink wood chocolate broccoli corn gold silver".split())
_THE = frozenset("sky sun night sea".split())
_SOUNDS = _pairs("""dog:barks cat:meows cow:moos sheep:bleats horse:neighs pig:grunts lion:roars duck:quacks bee:buzzes
snake:hisses
    frog:croaks wolf:howls owl:hoots mouse:squeaks donkey:brays rooster:crows bird:sings""")
_LEGS = _pairs("""dog:four cat:four horse:four cow:four sheep:four spider:eight ant:six bee:six fly:six bird:two
duck:two chicken:two
    person:two snake:no fish:no lion:four elephant:four frog:four octopus:no crab:ten""")
_CAPITALS = _pairs("""France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon England:London Ireland:Dublin
Norway:Oslo
    Sweden:Stockholm Denmark:Copenhagen Finland:Helsinki Poland:Warsaw Austria:Vienna Hungary:Budapest Greece:Athens
    Turkey:Ankara Russia:Moscow China:Beijing Japan:Tokyo India:Delhi Egypt:Cairo Kenya:Nairobi Canada:Ottawa
    Mexico:Mexico_City Brazil:Brasilia Argentina:Buenos_Aires Chile:Santiago Peru:Lima Cuba:Havana Australia:Canberra
    Switzerland:Bern Belgium:Brussels Iceland:Reykjavik Ukraine:Kyiv Thailand:Bangkok Vietnam:Hanoi""")
_KINDS = {
    "animal": "dog cat horse cow lion tiger bear wolf fox mouse sheep goat bird fish frog snake bee ant duck owl",
    "fruit": "apple banana pear cherry plum orange lemon grape peach strawberry melon mango",
    "vegetable": "carrot potato onion pea bean cabbage cucumber spinach",
    "colour": "red blue green yellow black white brown pink purple grey orange",
    "tool": "hammer saw knife axe drill spade rake",
    "instrument": "piano violin guitar drum flute trumpet harp",
    "vehicle": "car bus train boat ship bicycle truck plane",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January March May July August October December",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_QUANTITIES = [
    ("days are in a week", "seven"),
    ("months are in a year", "twelve"),
    ("hours are in a day", "twenty-four"),
    ("minutes are in an hour", "sixty"),
    ("seconds are in a minute", "sixty"),
    ("days are in a year", "365"),
    ("seasons are in a year", "four"),
    ("fingers are on a hand", "five"),
    ("letters are in the alphabet", "twenty-six"),
    ("sides does a triangle have", "three"),
    ("sides does a square have", "four"),
    ("wheels does a bicycle have", "two"),
    ("wheels does a car have", "four"),
    ("eyes does a person have", "two"),
    ("cents are in a dollar", "one hundred"),
    ("weeks are in a year", "fifty-two"),
    ("things are in a dozen", "twelve"),
    ("years are in a century", "one hundred"),
]


def _fact(
    rng: Random, task: str, subject: str, questions: tuple[str, ...], answer: str, brief: str, steps: str
) -> Turn:
    question = rng.choice(questions)
    thinking = Thinking(low=f"{capital(brief)}.", steps=steps, check=f"The answer is {brief}.")
    return Turn(
        task=task,
        key=f"{subject} {question}",
        question=rough(rng, question),
        answer=answer,
        brief=capital(brief),
        thinking=thinking,
    )


def opposite(rng: Random) -> Turn:
    """Ask for the opposite of a word."""
    word, other = rng.choice(_OPPOSITES)
    questions = (
        f"What is the opposite of {word}?",
        f"Opposite of {word}?",
        f"Give me the opposite of {word}.",
        f"Which word is the opposite of {word}?",
        f"What is the antonym of {word}?",
    )
    return _fact(
        rng,
        "opposite",
        word,
        questions,
        f"The opposite of {word} is {other}.",
        other,
        f"The user wants the opposite of {word}. If something is not {word}, it is {other}.",
    )


def plural(rng: Random) -> Turn:
    """Ask for the plural of a noun."""
    word, many = rng.choice(_IRREGULAR_PLURALS) if rng.random() < 0.4 else _regular_plural(rng.choice(_REGULAR_NOUNS))
    questions = (
        f"What is the plural of {word}?",
        f"Plural of {word}?",
        f"One {word}, two ...?",
        f"Give me the plural of {word}.",
        f"How do you say more than one {word}?",
    )
    return _fact(
        rng,
        "plural",
        word,
        questions,
        f"The plural of {word} is {many}.",
        many,
        f"The word is {word}. One {word}, two {many}.",
    )


def _regular_plural(word: str) -> tuple[str, str]:
    if word.endswith("y") and word[-2] not in "aeou":
        return word, f"{word[:-1]}ies"
    return word, word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def past(rng: Random) -> Turn:
    """Ask for the past tense of a verb."""
    verb, was = rng.choice(_PAST)
    questions = (
        f"What is the past tense of {verb}?",
        f"Past tense of {verb}?",
        f"What is the past of {verb}?",
        f"Put the verb {verb} into the past.",
        f"Today I {verb}. Yesterday I ...?",
    )
    return _fact(
        rng,
        "past",
        verb,
        questions,
        f"The past tense of {verb} is {was}.",
        was,
        f"The verb is {verb}. Yesterday I {was}.",
    )


def colour(rng: Random) -> Turn:
    """Ask for the usual colour of a thing."""
    thing, shade = rng.choice(_COLOURS)
    named = thing if thing in _MASS else f"the {thing}" if thing in _THE else article(thing)
    questions = (
        f"What colour is {named}?",
        f"What color is {named}?",
        f"Which colour does {named} have?",
        f"Tell me the colour of {named}.",
    )
    return _fact(
        rng,
        "colour",
        thing,
        questions,
        f"{capital(named)} is {shade}.",
        shade,
        f"The user asks for a colour. I think of {named}. It is usually {shade}.",
    )


def sound(rng: Random) -> Turn:
    """Ask what sound an animal makes."""
    animal, verb = rng.choice(_SOUNDS)
    questions = (
        f"What sound does {article(animal)} make?",
        f"What does {article(animal)} do to make a sound?",
        f"Which sound does a {animal} make?" if article(animal)[1] == " " else f"What sound does an {animal} make?",
    )
    return _fact(
        rng,
        "sound",
        animal,
        questions,
        f"{capital(article(animal))} {verb}.",
        verb,
        f"The user asks about {article(animal)}. Its sound: {article(animal)} {verb}.",
    )


def legs(rng: Random) -> Turn:
    """Ask how many legs an animal has."""
    animal, number = rng.choice(_LEGS)
    questions = (
        f"How many legs does {article(animal)} have?",
        f"How many legs has {article(animal)}?",
        f"Tell me how many legs {article(animal)} has.",
    )
    return _fact(
        rng,
        "legs",
        animal,
        questions,
        f"{capital(article(animal))} has {number} legs.",
        number,
        f"I think of {article(animal)}. It has {number} legs.",
    )


def capital_city(rng: Random) -> Turn:
    """Ask for a country's capital, or for the country of a capital."""
    country, city = rng.choice(_CAPITALS)
    city = city.replace("_", " ")
    if rng.random() < 0.25:
        asked = (f"{city} is the capital of which country?", f"Which country has the capital {city}?")
        return _fact(
            rng,
            "capital_of",
            city,
            asked,
            f"{city} is the capital of {country}.",
            country,
            f"The city is {city}. It is the capital of {country}.",
        )
    questions = (
        f"What is the capital of {country}?",
        f"Capital of {country}?",
        f"Which city is the capital of {country}?",
        f"Tell me the capital of {country}.",
    )
    return _fact(
        rng,
        "capital",
        country,
        questions,
        f"The capital of {country} is {city}.",
        city,
        f"The country is {country}. Its capital is {city}.",
    )


def kind(rng: Random) -> Turn:
    """Ask whether a word belongs to a kind, or to which."""
    word = rng.choice(list(_KIND_OF))
    true = _KIND_OF[word]
    steps = f"I think of {word}. It is {article(true)}."
    if rng.random() < 0.4:
        open_questions = (
            f"Is {word} a fruit, an animal or something else?",
            f"What kind of thing is {word}?",
            f"What sort of word is {word}?",
        )
        return _fact(rng, "kind", word, open_questions, f"{capital(word)} is {article(true)}.", article(true), steps)
    asked = true if rng.random() < 0.5 else rng.choice([kind for kind in _KINDS if kind != true])
    if word == "orange" and asked in ("fruit", "colour"):
        asked = true
    yes_no = "Yes" if asked == true else "No"
    questions = (f"Is {word} {article(asked)}?", f"Would you call {word} {article(asked)}?")
    return _fact(rng, "is_a", f"{word} {asked}", questions, f"{yes_no}, {word} is {article(true)}.", yes_no, steps)


def calendar(rng: Random) -> Turn:
    """Ask for the day or month before or after, or at a place in the order."""
    names, unit = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    i = rng.randrange(len(names))
    if rng.random() < 0.3:
        place = _ORDINALS[i]
        whole = "week" if unit == "day" else "year"
        questions = (f"What is the {place} {unit} of the {whole}?", f"Which {unit} is the {place} of the {whole}?")
        return _fact(
            rng,
            "calendar",
            place,
            questions,
            f"The {place} {unit} of the {whole} is {names[i]}.",
            names[i],
            f"I count from {names[0]}. Number {i + 1} is {names[i]}.",
        )
    word, step = rng.choice((("after", 1), ("before", -1)))
    result = names[(i + step) % len(names)]
    asked = (
        f"What {unit} comes {word} {names[i]}?",
        f"Which {unit} is {word} {names[i]}?",
        f"What comes {word} {names[i]}?",
        (f"{capital(word)} {names[i]} comes ...?" if step > 0 else f"Which {unit} comes just {word} {names[i]}?"),
    )
    order = f"{names[i]}, {result}" if step > 0 else f"{result}, {names[i]}"
    return _fact(
        rng,
        "calendar",
        f"{word} {names[i]}",
        asked,
        f"{result} comes {word} {names[i]}.",
        result,
        f"I think of the {unit}s in order: {order}.",
    )


def quantity(rng: Random) -> Turn:
    """Ask how many of something a whole has."""
    thing, number = rng.choice(_QUANTITIES)
    subject, verb, rest = thing.partition(
        " are in " if " are in " in thing else " are on " if " are on " in thing else " does "
    )
    questions = (
        f"How many {thing}?",
        f"Do you know how many {thing}?" if " are " in thing else f"How many {thing} usually?",
    )
    answer = (
        f"There are {number} {subject}{verb.replace(' are', '')}{rest}."
        if " are " in thing
        else f"{capital(rest.removesuffix(' have'))} has {number} {subject}."
    )
    return _fact(
        rng, "quantity", thing, questions, answer, number, f"The user asks how many {subject}. It is {number}."
    )


def recite(rng: Random) -> Turn:
    """Ask for all days, months, seasons or letters in order."""
    name, items = rng.choice(
        (
            ("days of the week", ", ".join(DAYS)),
            ("months of the year", ", ".join(MONTHS)),
            ("four seasons", "spring, summer, autumn, winter"),
            ("letters of the alphabet", " ".join("abcdefghijklmnopqrstuvwxyz")),
            ("numbers from one to ten", "one, two, three, four, five, six, seven, eight, nine, ten"),
        )
    )
    question = rng.choice((f"Name the {name}.", f"What are the {name}?", f"List the {name}.", f"Tell me the {name}."))
    first, last = items.replace(",", "").split()[0], items.replace(",", "").split()[-1]
    return Turn(
        task="recite",
        key=question,
        question=rough(rng, question),
        answer=capital(f"{items}."),
        thinking=Thinking(
            low="In order.",
            steps=f"The user wants the {name}. I say them in order.",
            check=f"The first is {first} and the last is {last}.",
        ),
    )


TASKS = {
    opposite: 2.0,
    plural: 1.2,
    past: 1.2,
    colour: 0.8,
    sound: 0.5,
    legs: 0.5,
    capital_city: 1.2,
    kind: 1.2,
    calendar: 1.2,
    quantity: 0.6,
    recite: 0.4,
}
