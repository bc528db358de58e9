"""Rules about secrets and personal data in what was added."""

import itertools
import re
from collections.abc import Iterable, Iterator

from tightloop.safety.change.patch import Line
from tightloop.safety.change.reading import Marked, OutOfTimeError, Seen
from tightloop.safety.change.tables import EXAMPLE, GENERATED, PATTERNS, TEST
from tightloop.safety.rubric import Finding
from tightloop.value.scrub import scrub

PERSONS = 5
"""This many different addresses in one data file are personal data; a single one is an author's."""
SAMPLE = 50
"""Maximum number of lines with personal data that are read after the time is spent."""
_NUMBERS = frozenset(["pii:card", "pii:iban", "pii:ssn"])


def secret_files(seen: Seen) -> Iterator[Finding]:
    """Return a file that is named like those that hold keys."""
    if seen.file.new and PATTERNS["secret_file_name"].search(seen.file.path) and not TEST.search(seen.file.path):
        yield seen.tell("secret_file_added", None)


def may_be_private(seen: Seen) -> bool:
    """Return whether the file is looked at for secrets and personal data."""
    return not GENERATED.search(seen.file.path)


def secrets(seen: Seen, marked: Iterable[Marked]) -> Iterator[Finding]:
    """Return secrets among the lines in which the scrubber found something."""
    tame = bool(TEST.search(seen.file.path) or EXAMPLE.search(seen.file.path))
    places = [mark.place for mark in marked if any(kind.startswith("secret:") for kind in mark.kinds)]
    for line in seen.reading.watch.each(seen.fresh, places):
        shown = scrub(line.text)
        if shown == line.text or shown.count("[secret:") <= line.text.count("[secret:"):
            continue
        # The value of a variable with a name like `token`: a guess, where a key of a provider is none.
        guessed = set(re.findall(r"\[secret:([\w-]+)\]", shown)) == {"assigned"}
        if PATTERNS["made_up"].search(line.text) or (guessed and PATTERNS["path_assigned"].search(line.text)):
            continue
        if "[secret:" not in scrub(PATTERNS["no_password"].sub("://", line.text)):
            continue
        if tame and re.search(r"\[secret:(?:assigned|url-password|bearer-token)\]", shown):
            continue
        yield seen.tell("maybe_secret" if tame or guessed else "secret_added", line, shown)


def personal(seen: Seen, marked: Iterable[Marked]) -> Iterator[Finding]:
    """Return numbers of persons among the lines in which the scrubber found something, and many addresses."""
    kinds = {mark.place: mark.kinds for mark in marked}
    people: dict[str, Line] = {}
    try:
        yield from _numbers_of_persons(seen, kinds, people)
    except OutOfTimeError:
        for place in itertools.islice(kinds, SAMPLE):
            _note_people(Line(seen.fresh.numbers[place], seen.fresh.texts[place]), kinds[place], people)
        yield from _many(seen, people)
        raise
    yield from _many(seen, people)


def _numbers_of_persons(seen: Seen, kinds: dict[int, frozenset[str]], people: dict[str, Line]) -> Iterator[Finding]:
    """Return numbers of persons, and collect addresses and phone numbers in `people`."""
    places = sorted({*kinds, *seen.places(("@",))})
    for place, line in zip(places, seen.reading.watch.each(seen.fresh, places), strict=False):
        if not PATTERNS["may_be_personal"].search(line.text):
            continue
        of_line = kinds.get(place, frozenset())
        is_made_up = PATTERNS["test_cards"].search(line.text) or PATTERNS["made_up"].search(line.text)
        if not of_line.isdisjoint(_NUMBERS) and not is_made_up and not TEST.search(seen.file.path):
            yield seen.tell("personal_data_added", line, scrub(line.text))
        _note_people(line, of_line, people)


def _note_people(line: Line, kinds: frozenset[str], people: dict[str, Line]) -> None:
    for match in PATTERNS["address"].finditer(line.text) if "@" in line.text else ():
        if not PATTERNS["made_up_host"].search(match[1]):
            people.setdefault(match[0].lower(), line)
    if "pii:phone" in kinds and "@" not in line.text:
        people.setdefault(line.text, line)


def _many(seen: Seen, people: dict[str, Line]) -> Iterator[Finding]:
    if len(people) >= PERSONS and PATTERNS["data_file"].search(seen.file.path):
        line = next(iter(people.values()))
        text = f"{len(people)} addresses or numbers of people, such as {scrub(line.text)}"
        yield seen.tell("personal_data_added", line, text)
