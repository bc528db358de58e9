"""Reads the output of ruff and builds the commands that fix one of its rules."""

import json
import re
from collections.abc import Iterable

from tightloop.episode.check import CheckResult
from tightloop.episode.fixes.toolcall import ToolCall
from tightloop.value import Value, clip

_CLIPPED = clip("a long text", 7)[:5]
"""How an output begins whose start was cut off."""
_KEPT_VALUES = frozenset(
    {"--config", "--exclude", "--extend-exclude", "--target-version", "--line-length"}
    | {"--per-file-ignores", "--extension"}
)
"""Options that decide what ruff finds; those of `_DROPPED_VALUES` decide what it selects and how it prints."""
_DROPPED_VALUES = frozenset(
    {"--select", "--ignore", "--extend-select", "--extend-ignore", "--output-format", "--output-file", "-o"}
    | {"--cache-dir", "--fixable", "--unfixable", "--extend-fixable", "--color", "--dummy-variable-rgx"}
)
_KEPT = frozenset({"--isolated", "--preview", "--no-preview", "--no-respect-gitignore", "--force-exclude"})
_CODE = re.compile(r"(?:^|[\s\"(])([A-Z]{1,6}\d{3,4})\b(?!-)")
_SUMMARY = re.compile(r"^(?:Found \d+ errors?|\[\*\] \d+ fixable|No fixes available)", re.MULTILINE)
_SAFE_OFFER = re.compile(r"\[\*\] \d+ (?:potentially )?fixable")
_UNSAFE_OFFER = re.compile(r"unsafe fix(?:es)? available|hidden fix")
_LATE = ("F401", "I001")
"""Other fixes leave unused and unsorted imports behind, so these come last."""

NEVER_SAFE = frozenset({"B006", "B011", "B905", "E711", "E712", "F601", "F841", "RUF013", "RUF024"})
"""Rules whose fix ruff always marks as unsafe ("Fix safety" in `ruff rule`): trying a safe one costs an iteration."""


class RuffRules(Value):
    """What a ruff says about its own rules. An empty table knows nothing: every fix is tried."""

    without_fix: frozenset[str] = frozenset()
    """Codes of the rules with "Fix is not available"."""
    problem: str = ""
    """Why ruff could not be asked; empty where it answered or was not needed."""


def read_rules(listed: str) -> RuffRules:
    """Read the output of `ruff rule --all --output-format json`; lines of a launcher around it do no harm.

    Raises:
        ValueError: it is not that.
    """
    try:
        found, _ = json.JSONDecoder().raw_decode(listed, max(listed.find("[\n"), 0))
        rules = [(rule["code"], rule["fix_availability"]) for rule in found]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a list of ruff rules: {error!r}") from error
    return RuffRules(without_fix=frozenset(code for code, fix in rules if code and fix == "None"))


def is_lint(call: ToolCall) -> bool:
    """Return whether a call is `ruff check`."""
    return call.name == "ruff" and "check" in call.args


def named_rules(result: CheckResult) -> tuple[str, ...]:
    """Return the rules that the output of a `ruff check` names, in the order in which they are to be fixed."""
    listed = (code for code in result.failing if _CODE.fullmatch(code))
    codes = tuple(dict.fromkeys((*listed, *_CODE.findall(result.tail))))
    return tuple(sorted(codes, key=lambda code: _LATE.index(code) + 1 if code in _LATE else 0))


def offered_fixes(tail: str, code: str, rules: RuffRules) -> tuple[bool, bool]:
    """Return whether ruff offers a safe and an unsafe fix of a rule; both where its output does not say."""
    if code in rules.without_fix:
        return False, False
    may_be_safe = code not in NEVER_SAFE
    if not _SUMMARY.search(tail):
        return may_be_safe, True
    safe = may_be_safe and bool(_SAFE_OFFER.search(tail))
    # Where the whole output is there, the finding itself must have the mark: the summary counts all rules together.
    if not tail.startswith(_CLIPPED):
        safe = safe and f"{code} [*]" in tail
    return safe, safe or not may_be_safe or bool(_UNSAFE_OFFER.search(tail))


def fix_command(
    start: Iterable[str], code: str, *, unsafe: bool = False, options: Iterable[str] = (), paths: Iterable[str] = (".",)
) -> tuple[str, ...]:
    """Return the command that fixes one rule; it fails only when ruff cannot run."""
    # What is left after the fix is the next plan's business: --exit-zero keeps it from failing this step.
    safety = ("--unsafe-fixes",) if unsafe else ()
    return (*start, "check", "--select", code, "--fix", *safety, "--exit-zero", *options, *paths)


def selected_rules(call: ToolCall) -> tuple[str, ...]:
    """Return the prefixes of the rules that a `ruff check` selects; `F` at least where it does not say."""
    selected = [value for option, value in zip(call.args, call.args[1:], strict=False) if option == "--select"]
    selected.extend(word.removeprefix("--select=") for word in call.args if word.startswith("--select="))
    prefixes = tuple(",".join(selected).split(",")) if selected else ("F",)
    return tuple("" if prefix == "ALL" else prefix for prefix in prefixes)


def kept_arguments(call: ToolCall) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options of a `ruff check` that a fix has to keep, and its paths."""
    options: list[str] = []
    paths: list[str] = []
    words = iter(call.args)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in _KEPT_VALUES | _DROPPED_VALUES:
            value = () if equals else (next(words, ""),)
            options.extend((word, *value) if name in _KEPT_VALUES else ())
        elif word.startswith("-"):
            options.extend((word,) if word in _KEPT else ())
        elif word != "check":
            paths.append(word)
    return tuple(options), tuple(
        (f"{call.folder}/{path}".removesuffix("/.") if call.folder else path) for path in paths or ["."]
    )
