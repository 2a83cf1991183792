"""What is typed after `/`: `text`, `~fuzzy`, `/regex/`, and `!` before any of them for the rows that do not match.

Several words must all match, in any order.  Small letters match capitals too; a capital matches only itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MOST_PATTERN = 200
"""Characters of a regular expression; longer ones are refused."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter; `matches` tells for one text."""

    source: str
    matches: Callable[[str], bool]
    words: tuple[tuple[str, bool], ...] = ()
    """(needle, negated) where plain words say it all: what a table of patterns can answer without spelling out names."""
    problem: str = ""
    """Why it cannot be used yet, such as half a regular expression."""

    @property
    def empty(self) -> bool:
        return not self.source.strip()


def parse(source: str) -> Filter:
    """The filter that the text stands for; never raises."""
    text = source.strip()
    negated = text.startswith("!")
    body = text[1:].strip() if negated else text
    if body.startswith("~") and len(body) > 1:
        return _with(source, _fuzzy(body[1:]), negated)
    if body.startswith("/") and len(body) > 1:
        return _regex(source, body[1:].removesuffix("/"), negated)
    words = tuple(_word(word) for word in text.split())
    return Filter(source, _all_of(words), words)


def _all_of(words: tuple[tuple[str, bool], ...]) -> Callable[[str], bool]:
    """All words at once; the usual case, one word in small letters, is spelt out: it is asked half a million times."""
    if len(words) == 1 and not words[0][1] and not has_capital(words[0][0]):
        (word,) = (w for w, _ in words)
        return lambda candidate: word in candidate.lower()
    return lambda candidate: all(holds(candidate, word, negated) for word, negated in words)


def holds(candidate: str, word: str, negated: bool) -> bool:
    """Whether the candidate has the word, or has it not."""
    found = word in (candidate if has_capital(word) else candidate.lower())
    return found is not negated


def has_capital(text: str) -> bool:
    return text != text.lower()


def _word(word: str) -> tuple[str, bool]:
    return (word[1:], True) if word.startswith("!") and len(word) > 1 else (word if word != "!" else "", False)


def _with(source: str, matches: Callable[[str], bool], negated: bool) -> Filter:
    return Filter(source, (lambda candidate: not matches(candidate)) if negated else matches)


def _fuzzy(letters: str) -> Callable[[str], bool]:
    """All letters in order, anything between them."""
    fold = not has_capital(letters)
    wanted = "".join(letters.split())

    def matches(candidate: str) -> bool:
        at = 0
        text = candidate.lower() if fold else candidate
        for letter in wanted:
            at = text.find(letter, at) + 1
            if not at:
                return False
        return True

    return matches


def _regex(source: str, pattern: str, negated: bool) -> Filter:
    if len(pattern) > MOST_PATTERN:
        return Filter(source, lambda _: True, problem=f"at most {MOST_PATTERN} characters")
    try:
        found = re.compile(pattern, 0 if has_capital(re.sub(r"\\.", "", pattern)) else re.IGNORECASE)
    except (re.error, OverflowError) as error:
        return Filter(source, lambda _: True, problem=f"not a regular expression yet: {error}")
    return _with(source, lambda candidate: found.search(candidate) is not None, negated)
