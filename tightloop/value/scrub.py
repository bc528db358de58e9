"""Removal of secrets and personal data from logs, failures, alerts, summaries and prompts.

A rule is a pattern, combined with a checksum or another test if one exists (Luhn for cards, ISO 7064 mod 97-10 for
IBANs, entropy for assigned values). This leaves hashes in lock files and base64 unchanged. Rules are applied in a fixed
order: secrets before personal data, and longer and more certain rules first. A match is replaced with `[secret:<name>]`
or `[pii:<name>]`. Scrubbing is idempotent. People's names and postal addresses are not detected. Scrubbing is best
effort. To keep content private, use encryption and prompt privacy.
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
"""Minimum length of a known secret. Shorter secrets would match parts of ordinary words."""
SHORTEST_FOUND = 6
"""Texts shorter than this cannot match any rule."""
# Only assigned values are judged by entropy: on its own, entropy flags the hashes of lock files (740 of 741 false
# positives of detect-secrets 1.5.0 with its defaults).
LEAST_ENTROPY = 2.75
"""Minimum entropy, in bits per character, of a value that is assigned to a name that suggests a secret."""
LEAST_ENTROPY_CUT = 3.5
"""Minimum entropy, in bits per character, of the remainder of a truncated key."""

_Accepts = Callable[[re.Match[str]], bool]


class Rule(NamedTuple):
    """A detection rule for one kind of secret or personal data."""

    name: str
    """Replacement text without brackets, such as `secret:openai-key`."""
    pattern: str
    """Regular expression tried at each anchor. The groups `kept` (before) and `rest` (after) stay in the text."""
    anchors: tuple[str, ...] = ()
    """Literal prefixes of the pattern. Searching for them first makes scrubbing fast. Empty for numeric rules."""
    before: str = ""
    """Pattern for text before the anchor that is removed as well."""
    accepts: _Accepts | None = None
    folded: bool = False
    """True if the anchors are lower case and are matched case-insensitively."""
    shape: tuple[int, str] = (7, "")
    """For numeric rules: the minimum length, and a character required in or before the number, so that few numbers are
    tried.
    """


# -- checksums and tests --------------------------------------------------------------------------


def luhn(digits: str) -> bool:
    """Return whether the check digit of a number is correct (ISO/IEC 7812-1, annex B)."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban(text: str) -> bool:
    """Return whether the check digits of an IBAN are correct (ISO 13616, mod 97-10)."""
    moved = text[4:] + text[:4]
    return 15 <= len(text) <= 34 and int("".join(str(int(letter, 36)) for letter in moved)) % 97 == 1


def entropy(text: str) -> float:
    """Return the Shannon entropy of a text, in bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values()) if text else 0.0


def _is_card(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match[0])
    # Repeated digits pass the checksum too.
    return 14 <= len(digits) <= 19 and digits[0] in "23456" and len(set(digits)) > 1 and luhn(digits)


def _is_iban(match: re.Match[str]) -> bool:
    return iban(match[0].replace(" ", ""))


def _is_ssn(match: re.Match[str]) -> bool:
    # Numbers that the Social Security Administration never issued.
    area, group, serial = match[0].split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_public_ipv4(match: re.Match[str]) -> bool:
    parts = [int(part) for part in match[0].split(".")]
    # Private (RFC 1918), loopback, link-local, multicast and reserved addresses (RFC 6890) identify no person.
    first, second = parts[:2]
    local = first in (0, 10, 127) or first >= 224 or (first, second) in ((192, 168), (169, 254))
    return max(parts) <= 255 and not local and not (first == 172 and 16 <= second <= 31)


def _is_phone(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match[0])
    if match[0].startswith("+"):
        # ITU-T E.164: a country code without a leading zero, 15 digits at most.
        return 8 <= len(digits) <= 15 and digits[0] != "0"
    # North American Numbering Plan: area and exchange codes start with 2 to 9.
    return len(digits) == 10 and digits[0] in "23456789" and digits[3] in "23456789"


_REFERENCE = re.compile(r"[\w.]*[$%<{(*]|(?:os|env|process|settings|self|config)\.|\[(?:secret|pii):", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z]+(?:[_.\-/][A-Za-z]+)*\d?|[\d.]+|(?:sha\d+|md5)[:-].*", re.IGNORECASE)


def _is_assigned_secret(match: re.Match[str]) -> bool:
    """Return whether the value is a literal secret.

    `secret.token`, `get_token()`, `${TOKEN}` and `changeme` are not secrets.
    """
    value = match["value"]
    if match["after"] == "(" or _REFERENCE.match(value) or _WORDS.fullmatch(value):
        return False
    return any(letter.isdigit() for letter in value) and entropy(value) >= LEAST_ENTROPY


def _is_rest_of_key(match: re.Match[str]) -> bool:
    """Return whether the value looks like the rest of a key, not of a word, path, digest or call."""
    value = match["value"]
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(map(kind, value)) for kind in kinds) and entropy(value) >= LEAST_ENTROPY_CUT


_TESTS = (_is_assigned_secret, _is_card, _is_iban, _is_phone, _is_public_ipv4, _is_rest_of_key, _is_ssn)
_ACCEPTS: dict[str, _Accepts] = {test.__name__.removeprefix("_is_"): test for test in _TESTS}
# Neither inside a longer word nor in a digest of a lock file.
_START, _END = r"(?<![A-Za-z0-9_])(?<![A-Za-z0-9]-)(?<!sha256=)(?<!sha512=)", r"(?![A-Za-z0-9_-])"
_IBAN = "pii:iban"
_NUMBER = re.compile(r"[0-9](?:[0-9]|[ ./()-](?=[0-9 (])){6,48}")
"""Candidate for a card number, phone number, SSN or IP address."""
# Bounded, because the text before each anchor is searched, and a long log has many anchors.
_LONGEST_BEFORE = 64


def _rule(anchors: Iterable[str] = (), rest: str = "", pattern: str = "", accepts: str = "", **fields: Any) -> Rule:
    keywords = tuple(anchors)
    either = "|".join(map(re.escape, keywords))
    fields["shape"] = tuple(fields.get("shape", (7, "")))
    key = f"{_START}(?:{either}){rest}{_END}"
    return Rule(pattern=pattern or key, anchors=keywords, accepts=_ACCEPTS.get(accepts), **fields)


class _Rules:
    """Compiled rules from `scrub_rules.toml`, loaded when the first text is scrubbed."""

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


class SecretMatch(NamedTuple):
    """A place in a text that matches a rule, with its span and the rule's name."""

    start: int
    end: int
    name: str


def find_secrets(text: str) -> list[SecretMatch]:
    """Return the spans to remove, ordered by position. If two spans overlap, the earlier rule wins."""
    spans: list[SecretMatch] = []
    folded = text.replace("\u0130", "I").lower()  # lower case has two characters and would shift positions
    # IBANs before other numbers: the card rule would match a part of one.
    for span in (*_find_by_anchor(text, folded), *_ibans(text), *_numbers(text)):
        # A tuple with only the start sorts before every span with the same start.
        at = bisect_left(spans, (span.start,))
        free_before = at == 0 or spans[at - 1].end <= span.start
        if free_before and (at == len(spans) or span.end <= spans[at].start):
            insort(spans, span)
    return spans


def _find_by_anchor(text: str, folded: str) -> Iterator[SecretMatch]:
    for rule in _rules().anchored:
        source = folded if rule.folded else text
        for anchor in rule.anchors:
            at = source.find(anchor)
            while at >= 0:
                span = _at(rule, text, at)
                if span is not None:
                    yield span
                at = source.find(anchor, max(at + 1, span.end if span else 0))


def _at(rule: Rule, text: str, at: int) -> SecretMatch | None:
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
    return SecretMatch(start, end, rule.name)


def _ibans(text: str) -> Iterator[SecretMatch]:
    for match in _rules().compiled[_rules().iban].finditer(text):
        neighbours = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        if not any(letter.isalnum() or letter in "/+=_-" for letter in neighbours) and _is_iban(match):
            yield SecretMatch(*match.span(), _IBAN)


def _numbers(text: str) -> Iterator[SecretMatch]:
    for number in _NUMBER.finditer(text):
        start, end = number.span()
        window = text[max(0, start - 2) : end]
        for rule in _rules().numeric:
            least, sign = rule.shape
            if end - start < least or sign not in window:
                continue
            # A sign or a bracket may precede the first digit; the text after the number decides its end.
            match = _rules().compiled[rule].search(text, max(0, start - 2), end + 2)
            if match is not None and rule.accepts is not None and rule.accepts(match):
                yield SecretMatch(*match.span(), rule.name)


# -- replacing -------------------------------------------------------------------------------------


class Scrubber:
    """Replaces rule matches and known secrets.

    Args:
        secrets: literal secrets, such as this process's API keys. Secrets shorter than `SHORTEST_KNOWN`
            are ignored.
        kind: name prefix of the rules to apply, such as `secret:`. If empty, all rules apply.
    """

    def __init__(self, secrets: Iterable[str] = (), *, kind: str = "") -> None:
        self._kind = kind
        plain = {secret for secret in secrets if len(secret) >= SHORTEST_KNOWN}
        # JSON escapes quotes and non-ASCII letters of a secret.
        quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in plain for ascii_only in (True, False)}
        # Longest first: a secret may be a prefix of another.
        self._known = sorted(plain | quoted, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with each match replaced by `[<name>]`."""
        if len(text) < SHORTEST_FOUND:
            return text
        # Known secrets first, because a rule may match only a part of one.
        for secret in self._known:
            text = text.replace(secret, "[secret:known]")
        parts: list[str] = []
        end = 0
        for span in find_secrets(text):
            if span.name.startswith(self._kind):
                parts += (text[end : span.start], f"[{span.name}]")
                end = span.end
        return "".join((*parts, text[end:])) if parts else text

    def model(self, value: "M", keep: frozenset[str] = frozenset()) -> "M":
        """Return a copy of a model with all text scrubbed, except for the fields in `keep`."""
        changed = {
            name: new
            for name in type(value).model_fields
            if name not in keep and (new := self._deep(old := getattr(value, name), keep)) is not old
        }
        return value.model_copy(update=changed) if changed else value

    def _deep(self, value: Any, keep: frozenset[str]) -> Any:
        """Scrub a value recursively. Return the same object if nothing matched."""
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
"""Scrubber that only uses the rules and knows no literal secrets."""
scrub_secrets = Scrubber(kind="secret:")
"""Scrubber that only uses the secret rules, because project data may look like personal data."""
