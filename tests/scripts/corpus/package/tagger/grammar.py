import random
from typing import Iterator, NamedTuple

TAGS = ["PAD", "DET", "ADJ", "NOUN", "VERB"]
LEXICON = {
    "DET": ["the", "a", "this"],
    "ADJ": ["small", "red", "old", "light", "cold"],
    "NOUN": ["dog", "cold", "house", "light", "walk", "run"],
    "VERB": ["sees", "walk", "likes", "run", "light"],
}
WORDS = ["<pad>"] + sorted({w for words in LEXICON.values() for w in words})


class Sentence(NamedTuple):
    words: list
    tags: list


def noun_phrase(rng: random.Random) -> list:
    return ["DET"] + ["ADJ"] * rng.randint(0, 2) + ["NOUN"]


def sentences(count: int, seed: int) -> Iterator[Sentence]:
    rng = random.Random(seed)
    for _ in range(count):
        tags = noun_phrase(rng) + ["VERB"] + noun_phrase(rng)
        yield Sentence([rng.choice(LEXICON[t]) for t in tags], tags)
