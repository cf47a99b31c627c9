"""A text to learn, made up sentence by sentence, and how hard it is.

    three small boats wait for one baker by the old mill.

A sentence is a line: each word is drawn at random from a list, and verbs agree
with the number of who acts. A model has to learn letters, words, their order
and the agreement; what is left to chance is known exactly (`floor`).
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Sequence

NUMBERS = ("one", "two", "three", "four", "seven", "nine")
ADJECTIVES = (
  "small",
  "quiet",
  "red",
  "brave",
  "hungry",
  "wooden",
  "golden",
  "sleepy",
)
NOUNS = (
  ("baker", "bakers"),
  ("boat", "boats"),
  ("crow", "crows"),
  ("fox", "foxes"),
  ("goose", "geese"),
  ("lamp", "lamps"),
  ("mouse", "mice"),
  ("sailor", "sailors"),
  ("tinker", "tinkers"),
  ("wolf", "wolves"),
)
VERBS = (
  ("waits for", "wait for"),
  ("sings to", "sing to"),
  ("follows", "follow"),
  ("remembers", "remember"),
  ("greets", "greet"),
  ("watches", "watch"),
)
PLACES = (
  "by the old mill",
  "on the frozen lake",
  "under the bridge",
  "at the edge of the wood",
  "in the market square",
  "near the lighthouse",
)
_CHOICES = (NUMBERS, ADJECTIVES, NOUNS, VERBS, NUMBERS, NOUNS, PLACES)


def text(seed: int, sentences: int) -> str:
  """The same sentences for the same seed."""
  rng = random.Random(seed)
  draws = ([rng.choice(c) for c in _CHOICES] for _ in range(sentences))
  return "".join(_sentence(words) for words in draws)


def alphabet() -> str:
  """All characters that a text may have, sorted."""
  words: list[str] = ["\n", ".", " "]
  for choices in _CHOICES:
    for choice in choices:
      words += [choice] if isinstance(choice, str) else choice
  return "".join(sorted(set("".join(words))))


def floor() -> float:
  """Nats of chance in a character: no model's loss is lower for long.

  A sentence can be read in one way only, so that it has the chance of its
  choices; and sentences are drawn independently.
  """
  chance = sum(math.log(len(choices)) for choices in _CHOICES)
  return chance / _mean_length()


def unigram(characters: str) -> float:
  """Nats a character that the best guess from frequencies alone costs."""
  counts = collections.Counter(characters).values()
  return -sum(n * math.log(n / len(characters)) for n in counts) / len(
    characters
  )


def _sentence(words: Sequence) -> str:
  number, adjective, actors, verb, other_number, others, place = words
  actor = actors[number != "one"]
  does = verb[number != "one"]
  other = others[other_number != "one"]
  return (
    f"{number} {adjective} {actor} {does} {other_number} {other} {place}.\n"
  )


def _mean_length() -> float:
  """The mean number of characters of a sentence."""

  def mean(choices: Sequence[str]) -> float:
    return sum(len(choice) for choice in choices) / len(choices)

  one = 1 / len(NUMBERS)
  noun, verb = (
    one * mean([pair[0] for pair in pairs])
    + (1 - one) * mean([pair[1] for pair in pairs])
    for pairs in (NOUNS, VERBS)
  )
  words = 2 * mean(NUMBERS) + mean(ADJECTIVES) + 2 * noun + verb + mean(PLACES)
  return words + len(_CHOICES) - 1 + len(".\n")
