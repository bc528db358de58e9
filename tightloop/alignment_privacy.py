"""Rules about secrets and personal data in what was added."""

import itertools
import re
from collections.abc import Iterable, Iterator

from tightloop.alignment import Finding, Stand, Topic
from tightloop.alignment_patch import EXAMPLE, GENERATED, TEST, Line
from tightloop.alignment_reading import Marked, OutOfTimeError, Seen
from tightloop.scrub import scrub

PERSONS = 5
"""So many different addresses in one file of data are personal data; one is the author of something."""
SAMPLE = 50
"""Lines with personal data that are looked at where there is no time for all."""

_SECRET = (
    "secret_added",
    Topic.PRIVACY,
    Stand.NO,
    "take the value out of the file and read it from the environment; a real key must be revoked",
)
_MAYBE_SECRET = (
    _SECRET[0],
    Topic.PRIVACY,
    Stand.ASK,
    "a value that is plainly made up, such as one with the word example",
)
_SECRET_FILE = (
    "secret_file_added",
    Topic.PRIVACY,
    Stand.NO,
    "leave the file out of the tree and name it in .gitignore",
)
_PERSONAL = (
    "personal_data_added",
    Topic.PRIVACY,
    Stand.ASK,
    "use made-up people, addresses at example.com and test numbers",
)

_MADE_UP = re.compile(
    r"example|dummy|fake|planted|made[-_ ]?up|placeholder|changeme|change[-_]me|sample|not[-_ ]?a[-_ ]?real|"
    r"redacted|your[-_ ]|(?:x|0|\*|\.){6,}|1234567|abcdef|test[-_]?(?:key|token|secret|password)|insert[-_]",
    re.IGNORECASE,
)
_DATA_FILE = re.compile(r"\.(?:csv|tsv|jsonl?|ndjson|sql|txt|ya?ml|xml|dump|log|vcf|parquet|html)$", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"(?:^|/)(?:\.env(?:\.(?:local|prod\w*|staging|dev\w*))?|id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.pgpass|"
    r"\.pypirc|[^/]+\.(?:p12|pfx|jks|keystore|kdbx)|credentials\.json|service[-_]account[\w-]*\.json)$"
)


_PATH_ASSIGNED = re.compile(r"[:=]\s*[\"']?(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w. -]+[/\\]")
"""A folder in a variable such as PWD, which is named like a password."""
_NO_PASSWORD = re.compile(
    r"://(?:([\w.-]+):\1|[\w.-]*:(?:postgres|mysql|root|admin|guest|password|passwd|pass|secret|test|dev))@",
    re.IGNORECASE,
)
"""The user's name or a word in the place of a password, as in services that are started for tests."""


_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@((?:[\w-]+\.)+[A-Za-z]{2,})")
_MADE_UP_HOST = re.compile(
    r"(?:^|\.)(?:example\.\w+|example|test|invalid|localhost|local|foo\.com|bar\.com|acme\.\w+|domain\.com|"
    r"email\.com|company\.com|users\.noreply\.github\.com)$|noreply",
    re.IGNORECASE,
)
_TEST_CARDS = re.compile(r"4242 ?-?4242|4111 ?-?1111|5555 ?-?5555|5105 ?-?1051|3782 ?-?8224|4000 ?-?0000|4012 ?-?8888")


_MAY_BE_PERSONAL = re.compile(r"@[A-Za-z0-9]|[0-9][0-9 ./()-]{7}|[A-Z]{2}[0-9]{2}[A-Z0-9 ]{10}")
_NUMBERS = frozenset(["pii:card", "pii:iban", "pii:ssn"])


def secret_files(seen: Seen) -> Iterator[Finding]:
    """Return a file that is named like those that hold keys."""
    if seen.file.new and _SECRET_NAME.search(seen.file.path) and not TEST.search(seen.file.path):
        yield seen.tell(_SECRET_FILE, None)


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
        guessed = set(re.findall(r"\[secret:([\w-]+)\]", shown)) == {"assigned"}
        if _MADE_UP.search(line.text) or (guessed and _PATH_ASSIGNED.search(line.text)):
            continue
        if "[secret:" not in scrub(_NO_PASSWORD.sub("://", line.text)):
            continue
        if tame and re.search(r"\[secret:(?:assigned|url-password|bearer-token)\]", shown):
            continue
        yield seen.tell(_MAYBE_SECRET if tame or guessed else _SECRET, line, shown)


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
    """Return numbers of persons, and gather in `people` what is known of whom."""
    places = sorted({*kinds, *seen.places(("@",))})
    for place, line in zip(places, seen.reading.watch.each(seen.fresh, places), strict=False):
        if not _MAY_BE_PERSONAL.search(line.text):
            continue
        of_line = kinds.get(place, frozenset())
        if not of_line.isdisjoint(_NUMBERS) and not _is_made_up_number(seen, line):
            yield seen.tell(_PERSONAL, line, scrub(line.text))
        _note_people(line, of_line, people)


def _note_people(line: Line, kinds: frozenset[str], people: dict[str, Line]) -> None:
    for match in _ADDRESS.finditer(line.text) if "@" in line.text else ():
        if not _MADE_UP_HOST.search(match[1]):
            people.setdefault(match[0].lower(), line)
    if "pii:phone" in kinds and "@" not in line.text:
        people.setdefault(line.text, line)


def _many(seen: Seen, people: dict[str, Line]) -> Iterator[Finding]:
    if len(people) >= PERSONS and _DATA_FILE.search(seen.file.path):
        line = next(iter(people.values()))
        yield seen.tell(_PERSONAL, line, f"{len(people)} addresses or numbers of people, such as {scrub(line.text)}")


def _is_made_up_number(seen: Seen, line: Line) -> bool:
    known = _TEST_CARDS.search(line.text) or _MADE_UP.search(line.text)
    return bool(known or TEST.search(seen.file.path))
