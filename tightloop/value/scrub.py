"""Taking secrets and personal data out of text: for logs, failures, alerts, summaries and prompts.

A rule is a pattern with a checksum or another test where one exists (Luhn for cards, ISO 7064 mod 97-10 for IBANs,
entropy for assigned values), so that hashes in lock files and base64 stay as they are. Rules run in a fixed order:
secrets before personal data, the longer and more certain ones first. What a rule finds becomes `[secret:<name>]` or
`[pii:<name>]`; scrubbing twice changes nothing more. Names of people and addresses of houses are out of its reach.

It is a net, not a wall: encryption and prompt privacy are what keeps content private.
"""

import json
import math
import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from tightloop.value.toml import read_toml

SHORTEST_KNOWN = 6
"""Shorter known secrets are not looked for: they would be found in every other word."""
SHORTEST_FOUND = 6
"""No rule finds anything in a shorter text."""
# Only assigned values are judged by entropy: alone it takes the hashes of lock files for keys (740 of 741 false alarms
# of detect-secrets 1.5.0 with its defaults).
LEAST_ENTROPY = 2.75
"""Bits a character of a value assigned to a secret-like name."""
LEAST_ENTROPY_CUT = 3.5
"""Bits a character of what may be the rest of a key that was cut."""

_Accepts = Callable[[re.Match[str]], bool]


class Rule(NamedTuple):
    """One kind of thing to take out."""

    name: str
    """Such as `secret:openai-key`; it is what stands in the place of what was found."""
    pattern: str
    """Tried where an anchor stands. Groups `kept` (before) and `rest` (behind) stay in the text."""
    anchors: tuple[str, ...] = ()
    """What the pattern begins with. Finding these first is what makes it fast. None: any number."""
    before: str = ""
    """A pattern for what stands in front of the anchor and is taken out with it."""
    accepts: _Accepts | None = None
    folded: bool = False
    """Anchors are in lower case and found in any case."""
    shape: tuple[int, str] = (7, "")
    """Of a number: its least length, and what must stand in or in front of it, so that few are tried."""


# -- checksums and tests --------------------------------------------------------------------------


def luhn(digits: str) -> bool:
    """Return whether the last digit is right (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban(text: str) -> bool:
    """Return whether the check digits are right (ISO 13616, mod 97-10)."""
    moved = text[4:] + text[:4]
    return 15 <= len(text) <= 34 and int("".join(str(int(letter, 36)) for letter in moved)) % 97 == 1


def entropy(text: str) -> float:
    """Return Shannon's entropy of the characters in bits a character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values()) if text else 0.0


def _is_card(found: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", found[0])
    # Equal digits pass the checksum too.
    return 14 <= len(digits) <= 19 and digits[0] in "23456" and len(set(digits)) > 1 and luhn(digits)


def _is_iban(found: re.Match[str]) -> bool:
    return iban(found[0].replace(" ", ""))


def _is_ssn(found: re.Match[str]) -> bool:
    # The Social Security Administration never gave out these.
    area, group, serial = found[0].split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_public_ipv4(found: re.Match[str]) -> bool:
    parts = [int(part) for part in found[0].split(".")]
    # Private (RFC 1918), loopback, link-local, multicast and reserved addresses (RFC 6890) tell nothing of a person.
    first, second = parts[:2]
    local = first in (0, 10, 127) or first >= 224 or (first, second) in ((192, 168), (169, 254))
    return max(parts) <= 255 and not local and not (first == 172 and 16 <= second <= 31)


def _is_phone(found: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", found[0])
    if found[0].startswith("+"):
        # ITU-T E.164: a country code without a leading zero, 15 digits at most.
        return 8 <= len(digits) <= 15 and digits[0] != "0"
    # North American Numbering Plan: area and exchange begin with 2 to 9.
    return len(digits) == 10 and digits[0] in "23456789" and digits[3] in "23456789"


_REFERENCE = re.compile(r"[\w.]*[$%<{(*]|(?:os|env|process|settings|self|config)\.|\[(?:secret|pii):", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z]+(?:[_.\-/][A-Za-z]+)*\d?|[\d.]+|(?:sha\d+|md5)[:-].*", re.IGNORECASE)


def _is_assigned_secret(found: re.Match[str]) -> bool:
    """Tell a value from a reference to one: `secret.token`, `get_token()`, `${TOKEN}`, `changeme` are not secrets."""
    value = found["value"]
    if found["after"] == "(" or _REFERENCE.match(value) or _WORDS.fullmatch(value):
        return False
    return any(letter.isdigit() for letter in value) and entropy(value) >= LEAST_ENTROPY


def _is_rest_of_key(found: re.Match[str]) -> bool:
    """Tell the rest of a key from the rest of a word, a path, a digest or a call."""
    value = found["value"]
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(map(kind, value)) for kind in kinds) and entropy(value) >= LEAST_ENTROPY_CUT


_TESTS = (_is_assigned_secret, _is_card, _is_iban, _is_phone, _is_public_ipv4, _is_rest_of_key, _is_ssn)
_ACCEPTS: dict[str, _Accepts] = {test.__name__.removeprefix("_is_"): test for test in _TESTS}
# Not in the middle of a longer word, nor in a digest of a lock file.
_START, _END = r"(?<![A-Za-z0-9_])(?<![A-Za-z0-9]-)(?<!sha256=)(?<!sha512=)", r"(?![A-Za-z0-9_-])"
_IBAN = "pii:iban"
_NUMBER = re.compile(r"[0-9](?:[0-9]|[ ./()-](?=[0-9 (])){6,48}")
"""What may be a card, a phone, an SSN or an address of a host."""
_LONGEST_BEFORE = 64


def _rule(anchors: Iterable[str] = (), rest: str = "", pattern: str = "", accepts: str = "", **fields: Any) -> Rule:
    words = tuple(anchors)
    either = "|".join(map(re.escape, words))
    fields["shape"] = tuple(fields.get("shape", (7, "")))
    key = f"{_START}(?:{either}){rest}{_END}"
    return Rule(pattern=pattern or key, anchors=words, accepts=_ACCEPTS.get(accepts), **fields)


class _Rules:
    """The rules of `scrub_rules.toml`, compiled; read when the first text is scrubbed."""

    def __init__(self) -> None:
        data = read_toml("tightloop.value", "scrub_rules.toml")
        rules = [_rule(**fields) for fields in (*data["secrets"], *data["personal"])]
        self.anchored = tuple(rule for rule in rules if rule.anchors)
        self.numeric = tuple(rule for rule in rules if not rule.anchors and rule.name != _IBAN)
        self.iban = next(rule for rule in rules if rule.name == _IBAN)
        self.compiled = {rule: re.compile(rule.pattern) for rule in rules}
        self.before = {rule: re.compile(rf"(?<![A-Za-z0-9])(?:{rule.before})\Z") for rule in rules if rule.before}


_rules = cache(_Rules)


# -- finding ----------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A match of a rule: where, and the name of the rule."""

    start: int
    end: int
    name: str


def marks(text: str) -> list[Mark]:
    """Return what is to be taken out, by position; where two overlap the earlier rule wins."""
    taken: list[Mark] = []
    folded = text.replace("\u0130", "I").lower()  # the one letter that becomes two in lower case
    # IBANs before other numbers: the rule for cards would take a part of one.
    for found in (*_anchored(text, folded), *_ibans(text), *_numbers(text)):
        at = bisect_left(taken, (found.start,))
        free_before = at == 0 or taken[at - 1].end <= found.start
        if free_before and (at == len(taken) or found.end <= taken[at].start):
            insort(taken, found)
    return taken


def _anchored(text: str, folded: str) -> Iterator[Mark]:
    for rule in _rules().anchored:
        within = folded if rule.folded else text
        for anchor in rule.anchors:
            at = within.find(anchor)
            while at >= 0:
                found = _at(rule, text, at)
                if found is not None:
                    yield found
                at = within.find(anchor, max(at + 1, found.end if found else 0))


def _at(rule: Rule, text: str, at: int) -> Mark | None:
    match = _rules().compiled[rule].match(text, at)
    if match is None or (rule.accepts is not None and not rule.accepts(match)):
        return None
    start, end = match.span()
    if rule.before:
        front = _rules().before[rule].search(text, max(0, at - _LONGEST_BEFORE), at)
        if front is None:
            return None
        start = front.start()
    groups = match.re.groupindex
    start = match.end("kept") if "kept" in groups else start
    end = match.start("rest") if "rest" in groups else end
    return Mark(start, end, rule.name)


def _ibans(text: str) -> Iterator[Mark]:
    for match in _rules().compiled[_rules().iban].finditer(text):
        around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        if not any(letter.isalnum() or letter in "/+=_-" for letter in around) and _is_iban(match):
            yield Mark(*match.span(), _IBAN)


def _numbers(text: str) -> Iterator[Mark]:
    for number in _NUMBER.finditer(text):
        start, end = number.span()
        seen = text[max(0, start - 2) : end]
        for rule in _rules().numeric:
            least, sign = rule.shape
            if end - start < least or sign not in seen:
                continue
            # A sign or a bracket may stand before the first digit; what follows decides where it ends.
            match = _rules().compiled[rule].search(text, max(0, start - 2), end + 2)
            if match is not None and rule.accepts is not None and rule.accepts(match):
                yield Mark(*match.span(), rule.name)


# -- taking out -------------------------------------------------------------------------------------


class Scrubber:
    """Takes out what the rules find, and secrets whose values are known."""

    def __init__(self, known: Iterable[str] = (), *, kind: str = "") -> None:
        """Take known secrets, such as the values of the keys of this process; short ones are left out.

        Args:
            known: secrets.
            kind: how the names of the rules begin that are used, such as `secret:`; empty: all.
        """
        self._kind = kind
        plain = {secret for secret in known if len(secret) >= SHORTEST_KNOWN}
        # In JSON a quote or a letter beyond ASCII of the secret is escaped.
        quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in plain for ascii_only in (True, False)}
        # The longest first: a secret may be the beginning of another.
        self._known = sorted(plain | quoted, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with each finding replaced by `[<name>]`."""
        if len(text) < SHORTEST_FOUND:
            return text
        for secret in self._known:
            text = text.replace(secret, "[secret:known]")
        parts: list[str] = []
        done = 0
        for found in marks(text):
            if found.name.startswith(self._kind):
                parts += (text[done : found.start], f"[{found.name}]")
                done = found.end
        return "".join((*parts, text[done:])) if parts else text

    def model(self, value: "M", keep: frozenset[str] = frozenset()) -> "M":
        """Return a model with all its texts scrubbed, but for fields with the names in `keep`."""
        changed = {
            name: new
            for name in type(value).model_fields
            if name not in keep and (new := self._deep(old := getattr(value, name), keep)) is not old
        }
        return value.model_copy(update=changed) if changed else value

    def _deep(self, value: Any, keep: frozenset[str]) -> Any:
        """Return the same object where nothing was found in it."""
        if type(value) is str:
            new = self(value)
            return value if new == value else new
        if isinstance(value, BaseModel):
            return self.model(value, keep)
        if isinstance(value, tuple | list):
            items = [self._deep(item, keep) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        if isinstance(value, dict):
            pairs = {key: item if key in keep else self._deep(item, keep) for key, item in value.items()}
            return value if all(pairs[key] is value[key] for key in value) else pairs
        return value


M = TypeVar("M", bound=BaseModel)

scrub = Scrubber()
"""The rules alone, without known secrets."""
scrub_secrets = Scrubber(kind="secret:")
"""Likewise, and personal data stays: what a project works with may look like that."""
