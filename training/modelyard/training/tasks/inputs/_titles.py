"""Job titles and other spellings of them, all made by rule: a small corpus for tasks on text. None is from a source.

A title is a field, a topic within it and a role, such as "sales training manager". Any of the fields can be the topic:
the "training sales manager" is somebody else. Another spelling of a title comes by three rules, each at random: words
are abbreviated ("sls training mgr"), the role goes first ("manager, sales training"), and a letter of one word is left
out, doubled or swapped with the next ("slaes training manager").
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import numpy.typing as npt

Title = tuple[str, ...]

_SHORT = {
    "software": "sw", "network": "netw", "marketing": "mktg", "finance": "fin", "quality": "qual", "security": "sec",
    "production": "prod", "research": "res", "logistics": "log", "sales": "sls", "training": "trng",
    "engineer": "eng", "manager": "mgr", "developer": "dev", "director": "dir", "analyst": "anl",
    "administrator": "admin", "consultant": "cons", "supervisor": "supv", "specialist": "spec", "officer": "off",
}  # fmt: skip
_WORDS = tuple(_SHORT)
#: Fields, topics and roles.
_PLACES = (_WORDS[:11], _WORDS[:11], _WORDS[11:])
#: One title in so many is for the test alone, with the one that has its field and topic exchanged.
_TEST_SHARE = 4
_SEED = 20_16


def title_pairs(
    count: int, *, test: bool
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_], npt.NDArray[np.float32]]:
    """Pairs of spellings, the same ones each time: of one title, and of two titles, in turn.

    Of the pairs of two titles, half differ in the order of field and topic alone, a quarter in a single word, and the
    rest are any two. Titles of the test pairs are in no other pair.

    Returns:
        ``(first, second, same)``: strings ``[N]`` twice, and 1 for the same title, float32 ``[N]``.
    """
    draw = random.Random(_SEED + test)
    titles = _titles(test=test)
    known = set(titles)
    pairs = np.empty((count, 2), dtype=object)
    for number in range(count):
        title = other = draw.choice(titles)
        while number % 2 and (other == title or other not in known):
            # Anew: few titles are for the test, and one of them may have none beside it.
            title = draw.choice(titles)
            other = _another(title, titles, number // 2, draw)
        pairs[number] = _spelling(title, draw), _spelling(other, draw)
    return pairs[:, 0], pairs[:, 1], (np.arange(count) % 2 == 0).astype(np.float32)


def title_spellings(titles: int, each: int) -> tuple[list[str], npt.NDArray[np.int64], list[str]]:
    """Spellings of some titles of the test pairs, the number of the title of each, and the titles."""
    draw = random.Random(_SEED)
    chosen = _titles(test=True)[:titles]
    texts = [_spelling(title, draw) for title in chosen for _ in range(each)]
    return texts, np.repeat(np.arange(titles), each), [" ".join(title) for title in chosen]


def _titles(*, test: bool) -> list[Title]:
    titles = [title for title in itertools.product(*_PLACES) if title[0] < title[1]]
    random.Random(_SEED).shuffle(titles)
    mine = [title for number, title in enumerate(titles) if (number % _TEST_SHARE == 0) == test]
    return [each for field, topic, role in mine for each in ((field, topic, role), (topic, field, role))]


def _another(title: Title, titles: list[Title], number: int, draw: random.Random) -> Title:
    """A title that is not the same: the other way round, with one other word, or any."""
    if number % 2:
        field, topic, role = title
        return topic, field, role
    if number % 4:
        return draw.choice(titles)
    place = draw.randrange(len(title))
    return (*title[:place], draw.choice(_PLACES[place]), *title[place + 1 :])


def _spelling(title: Title, draw: random.Random) -> str:
    words = [_SHORT[word] if draw.random() < 0.3 else word for word in title]
    if draw.random() < 0.5:
        index = draw.randrange(len(words))
        words[index] = _misspelt(words[index], draw)
    return " ".join(words) if draw.random() < 0.5 else f"{words[-1]}, {' '.join(words[:-1])}"


def _misspelt(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word) - 1)
    letter, following = word[at], word[at + 1]
    return word[:at] + draw.choice([following, letter + letter + following, following + letter]) + word[at + 2 :]
