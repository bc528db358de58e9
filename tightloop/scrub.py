"""Taking secrets and personal data out of text: for logs, failures, alerts, summaries and prompts.

A rule is a pattern with a checksum or another test where one exists (Luhn for cards, ISO 7064 mod 97-10 for IBANs,
entropy for assigned values), so that hashes in lock files and base64 stay as they are. Rules run in a fixed order:
secrets before personal data, the longer and more certain ones first. What a rule finds becomes `[secret:<name>]` or
`[pii:<name>]`; scrubbing twice changes nothing more. Names of people and addresses of houses are out of its reach.

It is a net, not a wall: encryption and egress levels are what keeps content private.
"""

import hashlib
import json
import math
import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

VERSION = 1
SHORTEST_KNOWN = 6
"""Shorter known secrets are not looked for: they would be found in every other word."""
SHORTEST_FOUND = 6
"""No rule finds anything in a shorter text."""
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
    return 14 <= len(digits) <= 19 and digits[0] in "23456" and len(set(digits)) > 1 and luhn(digits)


def _is_iban(found: re.Match[str]) -> bool:
    return iban(found[0].replace(" ", ""))


def _is_ssn(found: re.Match[str]) -> bool:
    area, group, serial = found[0].split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_public_ipv4(found: re.Match[str]) -> bool:
    parts = [int(part) for part in found[0].split(".")]
    first, second = parts[:2]
    local = first in (0, 10, 127) or first >= 224 or (first, second) in ((192, 168), (169, 254))
    return max(parts) <= 255 and not local and not (first == 172 and 16 <= second <= 31)


def _is_phone(found: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", found[0])
    if found[0].startswith("+"):
        return 8 <= len(digits) <= 15 and digits[0] != "0"
    return len(digits) == 10 and digits[0] in "23456789" and digits[3] in "23456789"


_REFERENCE = re.compile(r"[\w.]*[$%<{(*]|(?:os|env|process|settings|self|config)\.|\[(?:secret|pii):", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z]+(?:[_.\-/][A-Za-z]+)*\d?|[\d.]+|(?:sha\d+|md5)[:-].*", re.IGNORECASE)


def _is_assigned_secret(found: re.Match[str]) -> bool:
    """Tell a value from a reference to one: `secret.token`, `get_token()`, `${TOKEN}` and `changeme` are no secrets."""
    value = found["value"]
    if found["after"] == "(" or _REFERENCE.match(value) or _WORDS.fullmatch(value):
        return False
    return any(letter.isdigit() for letter in value) and entropy(value) >= LEAST_ENTROPY


def _is_rest_of_key(found: re.Match[str]) -> bool:
    """Tell the rest of a key from the rest of a word, a path, a digest or a call."""
    value = found["value"]
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(map(kind, value)) for kind in kinds) and entropy(value) >= LEAST_ENTROPY_CUT


# -- the rules --------------------------------------------------------------------------------------

# Not in the middle of a longer word, nor in a digest of a lock file.
_START, _END = r"(?<![A-Za-z0-9_])(?<![A-Za-z0-9]-)(?<!sha256=)(?<!sha512=)", r"(?![A-Za-z0-9_-])"


def _key(name: str, anchors: str, rest: str) -> Rule:
    """A provider's key: one of some prefixes, then letters of a kind."""
    words = tuple(anchors.split())
    either = "|".join(map(re.escape, words))
    return Rule(f"secret:{name}", rf"{_START}(?:{either}){rest}{_END}", words)


_NAMES = (
    r"(?i:pass(?:word|wd|phrase)|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"auth(?:[_-]?key|orization)|encryption[_-]?key|signing[_-]?key|credential|connection[_-]?string)"
)

SECRETS = (
    Rule(
        "secret:private-key",
        r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[^-]|-(?!----)){0,20000}(?:-----END [A-Z0-9 ]{0,40}-----)?",
        ("-----BEGIN ",),
    ),
    Rule("secret:jwt", r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{0,2000}",
         ("eyJ",)),
    _key("anthropic-key", "sk-ant-", "[A-Za-z0-9_-]{10,400}"),
    _key("openrouter-key", "sk-or-", "[A-Za-z0-9_-]{20,400}"),
    _key("openai-key", "sk-", r"(?=[A-Za-z_-]{0,200}\d)[A-Za-z0-9_-]{16,400}"),
    _key("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_", "[A-Za-z0-9]{10,300}"),
    _key("stripe-webhook", "whsec_", "[A-Za-z0-9+/=]{16,200}"),
    _key("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", "[A-Za-z0-9_]{16,400}"),
    _key("github-token", "github_pat_", "[A-Za-z0-9_]{20,200}"),
    _key("gitlab-token", "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- gloas- glimt-",
         "[A-Za-z0-9_.-]{16,300}"),
    _key("aws-key-id", "AKIA ASIA ABIA ACCA AROA AIDA", "[A-Z2-7]{16}"),
    _key("google-key", "AIza", "[A-Za-z0-9_-]{35}"),
    _key("google-oauth", "GOCSPX- ya29.", "[A-Za-z0-9_-]{20,400}"),
    _key("slack-token", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- xoxe.xoxb- xoxe.xoxp-",
         "[A-Za-z0-9-]{10,300}"),
    Rule("secret:slack-webhook", r"hooks\.slack\.com/(?P<kept>)(?:services|workflows)/[A-Za-z0-9+/_-]{20,200}",
         ("hooks.slack.com/",)),
    Rule("secret:discord-webhook", r"/api/webhooks/\d{5,30}/[\w-]{20,200}", ("/api/webhooks/",)),
    _key("npm-token", "npm_", "[A-Za-z0-9]{36}"),
    _key("pypi-token", "pypi-AgE", "[A-Za-z0-9_-]{50,500}"),
    _key("docker-token", "dckr_pat_ dckr_oat_", "[A-Za-z0-9_-]{20,100}"),
    _key("huggingface-token", "hf_ api_org_", "[A-Za-z0-9]{30,100}"),
    _key("sendgrid-key", "SG.", r"[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}"),
    Rule("secret:mailgun-key", r"(?<![A-Za-z0-9_-])key-[0-9a-f]{32}(?![0-9A-Za-z_-])", ("key-",)),
    Rule("secret:twilio-key", r"(?<![A-Za-z0-9_/-])(?:SK|AC)[0-9a-f]{32}(?![0-9A-Za-z_/+-])", ("SK", "AC")),
    _key("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", "[0-9a-f]{64}"),
    _key("vault-token", "hvs. hvb. hvr.", "[A-Za-z0-9_-]{20,400}"),
    Rule("secret:terraform-token", r"\.atlasv1\.[A-Za-z0-9_-]{40,100}", (".atlasv1.",), before=r"[A-Za-z0-9]{14}"),
    _key("databricks-token", "dapi", r"[0-9a-f]{32}(?:-\d)?"),
    _key("shopify-token", "shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32}"),
    _key("linear-key", "lin_api_ lin_oauth_", "[A-Za-z0-9]{32,100}"),
    _key("notion-key", "ntn_ secret_", "[A-Za-z0-9]{40,60}"),
    _key("atlassian-token", "ATATT3", "[A-Za-z0-9_=-]{40,400}"),
    _key("postman-key", "PMAK-", "[0-9a-f]{24}-[0-9a-f]{34}"),
    _key("grafana-token", "glc_ glsa_", "[A-Za-z0-9+/=_]{30,300}"),
    _key("newrelic-key", "NRAK-", "[A-Z0-9]{27}"),
    _key("groq-key", "gsk_", "[A-Za-z0-9]{40,100}"),
    _key("xai-key", "xai-", "[A-Za-z0-9]{40,200}"),
    _key("perplexity-key", "pplx-", "[A-Za-z0-9]{32,100}"),
    _key("replicate-token", "r8_", "[A-Za-z0-9]{30,100}"),
    _key("fireworks-key", "fw_", r"(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{20,100}"),
    _key("cerebras-key", "csk-", "[A-Za-z0-9]{30,100}"),
    _key("langsmith-key", "lsv2_pt_ lsv2_sk_", "[0-9a-f]{32}_[0-9a-f]{10}"),
    _key("age-key", "AGE-SECRET-KEY-1", "[A-Z0-9]{58}"),
    Rule("secret:telegram-token", r":AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])", (":AA",), before=r"\d{8,10}"),
    Rule("secret:azure-key", r"(?P<kept>(?:AccountKey|SharedAccessKey)=)[A-Za-z0-9+/]{40,200}={0,2}",
         ("AccountKey=", "SharedAccessKey=")),
    Rule("secret:url-password", r"(?P<kept>://[^\s/:@'\"<>\\]{0,100}:)"
         r"(?!\[secret:|\$\{?\w|\*|\{|%)[^\s/@'\"<>\\]{1,200}(?P<rest>@)", ("://",)),
    Rule("secret:bearer-token", r"(?P<kept>(?i:bearer|basic)\s)(?=[A-Za-z._~+/-]{0,200}\d)[A-Za-z0-9._~+/-]{16,4000}=*",
         ("bearer ", "basic "), folded=True),
    Rule(
        "secret:assigned",
        rf"(?P<kept>{_NAMES}[A-Za-z0-9_-]{{0,30}}(?:\\?[\"'])?\]?\s{{0,4}}(?::=|=>|[:=])\s{{0,4}}(?:\\?[\"'`])?)"
        r"(?P<value>[^\s\"'`,;(){}\[\]<>\\]{8,400})(?P<rest>(?P<after>.?))",
        ("pass", "pwd", "secret", "token", "api", "access", "private", "auth", "encryption", "signing", "credential",
         "connection"),
        accepts=_is_assigned_secret,
        folded=True,
    ),
    # `tightloop.value.clip` keeps the end of a text, and may take the prefix of a key that its own rule needs.
    Rule("secret:cut", r"(?P<kept>\A\[\.\.\.\] )(?P<value>[A-Za-z0-9_-]{16,400})(?![A-Za-z0-9_./+=(-])", ("[...] ",),
         accepts=_is_rest_of_key),
)  # fmt: skip
"""Keys, tokens and passwords."""

PII = (
    Rule("pii:email", r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,6}[A-Za-z]{2,24}(?![\w-])", ("@",),
         before=r"(?!git\Z)[A-Za-z0-9](?:[A-Za-z0-9._%+-]{0,62}[A-Za-z0-9_+-])?"),
    Rule("pii:card", r"(?<![\w.+/=-])[2-6][0-9]{3}(?:[ -]?[0-9]{4,6}){2}(?:[ -]?[0-9]{1,7})?(?![\w/+=-]|\.[0-9])",
         accepts=_is_card, shape=(14, "")),
    Rule("pii:ssn", r"(?<![\w.-])[0-9]{3}-[0-9]{2}-[0-9]{4}(?![\w-]|\.[0-9])", accepts=_is_ssn, shape=(11, "-")),
    Rule("pii:ipv4", r"(?<![\w.=~^@/-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9])",
         accepts=_is_public_ipv4, shape=(7, ".")),
    Rule("pii:phone", r"(?<![\w+/=])\+[1-9](?:[ ./-]?(?:\([0-9]{1,4}\) ?)?[0-9]){7,14}(?![\w/+=-]|\.[0-9])",
         accepts=_is_phone, shape=(7, "+")),
    Rule("pii:phone", r"(?<![\w.+/=-])(?:\([0-9]{3}\) ?|[0-9]{3}[ -])[0-9]{3}[ -][0-9]{4}(?![\w-]|\.[0-9])",
         accepts=_is_phone, shape=(12, "")),
)  # fmt: skip
"""Personal data, in the order in which one would otherwise eat the other."""

IBAN = Rule("pii:iban", r"[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?", accepts=_is_iban)

RULES = (*SECRETS, IBAN, *PII)
RULES_ID = f"rules/{VERSION}+" + hashlib.sha256(json.dumps([rule[:4] for rule in RULES]).encode()).hexdigest()[:12]
"""Version and digest of the rules: kept next to what they were used on."""


# -- finding ----------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[0-9](?:[0-9]|[ ./()-](?=[0-9 (])){6,48}")
"""What may be a card, a phone, an SSN or an address of a host."""
_COMPILED = {rule: re.compile(rule.pattern) for rule in RULES}
_BEFORE = {rule: re.compile(rf"(?<![A-Za-z0-9])(?:{rule.before})\Z") for rule in RULES if rule.before}
_ANCHORED = tuple(rule for rule in RULES if rule.anchors)
_NUMERIC = tuple(rule for rule in PII if not rule.anchors)
_LONGEST_BEFORE = 64


class Mark(NamedTuple):
    """Something that a rule finds: where, and the name of the rule."""

    start: int
    end: int
    name: str


def marks(text: str) -> list[Mark]:
    """Return what is to be taken out, by position; where two overlap the earlier rule wins."""
    taken: list[Mark] = []
    folded = text.replace("\u0130", "I").lower()  # the one letter that becomes two in lower case
    for found in (*_anchored(text, folded), *_ibans(text), *_numbers(text)):
        at = bisect_left(taken, (found.start,))
        free_before = at == 0 or taken[at - 1].end <= found.start
        if free_before and (at == len(taken) or found.end <= taken[at].start):
            insort(taken, found)
    return taken


def _anchored(text: str, folded: str) -> Iterator[Mark]:
    for rule in _ANCHORED:
        within = folded if rule.folded else text
        for anchor in rule.anchors:
            at = within.find(anchor)
            while at >= 0:
                found = _at(rule, text, at)
                if found is not None:
                    yield found
                at = within.find(anchor, max(at + 1, found.end if found else 0))


def _at(rule: Rule, text: str, at: int) -> Mark | None:
    match = _COMPILED[rule].match(text, at)
    if match is None or (rule.accepts is not None and not rule.accepts(match)):
        return None
    start, end = match.span()
    if rule.before:
        front = _BEFORE[rule].search(text, max(0, at - _LONGEST_BEFORE), at)
        if front is None:
            return None
        start = front.start()
    groups = match.re.groupindex
    start = match.end("kept") if "kept" in groups else start
    end = match.start("rest") if "rest" in groups else end
    return Mark(start, end, rule.name)


def _ibans(text: str) -> Iterator[Mark]:
    for match in _COMPILED[IBAN].finditer(text):
        around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        if not any(letter.isalnum() or letter in "/+=_-" for letter in around) and _is_iban(match):
            yield Mark(*match.span(), IBAN.name)


def _numbers(text: str) -> Iterator[Mark]:
    for number in _NUMBER.finditer(text):
        start, end = number.span()
        seen = text[max(0, start - 2) : end]
        for rule in _NUMERIC:
            least, sign = rule.shape
            if end - start < least or sign not in seen:
                continue
            # A sign or a bracket may stand before the first digit; what follows decides where it ends.
            match = _COMPILED[rule].search(text, max(0, start - 2), end + 2)
            if match is not None and rule.accepts is not None and rule.accepts(match):
                yield Mark(*match.span(), rule.name)


# -- taking out -------------------------------------------------------------------------------------


class Scrubber:
    """Takes out what the rules find, and secrets whose values are known."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Take known secrets, such as the values of the keys of this process; short ones are left out."""
        plain = {secret for secret in known if len(secret) >= SHORTEST_KNOWN}
        quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in plain for ascii_only in (True, False)}
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
