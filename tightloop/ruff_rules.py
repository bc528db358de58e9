"""What ruff says in its output, which of its rules it can fix, and the command that fixes one of them."""

import re
from collections.abc import Iterable

from tightloop.check import CheckResult
from tightloop.toolcall import ToolCall
from tightloop.value import clip

_CLIPPED = clip("a long text", 7)[:5]
_KEPT_VALUES = frozenset(
    {
        "--config",
        "--exclude",
        "--extend-exclude",
        "--target-version",
        "--line-length",
        "--per-file-ignores",
        "--extension",
    }
)
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

_WITHOUT_FIX = """
A: 001 002 003 004 005 006
ANN: 001 002 003 401
ARG: 001 002 003 004 005
ASYNC: 100 109 110 119 210 212 220 221 222 230 240 250 251 401
B: 002 003 005 008 012 015 016 017 018 019 020 021 022 023 024 025 026 027 029 030 031 032 034 035 039 901 903 904
  909 911
BLE: 001
C: 415 901
D: 100 101 102 103 104 105 106 107 206 401 402 404 414 417 418 419 420 421
DTZ: 001 002 003 004 005 006 007 011 012 901
E: 101 111 112 113 114 115 116 117 501 701 702 721 722 741 742 743 902
ERA: 001
F: 402 403 404 405 406 407 501 502 503 505 506 507 508 509 521 524 525 621 622 631 633 634 701 702 704 706 707 722
  821 822 823 842
FBT: 001 002 003
G: 001 002 003 101 201 202
N: 801 802 803 806 807 811 812 813 814 815 816 817 818 999
PERF: 203 402
PLC: 0105 0131 0132 0205 0206 0415 1901 2401 2403 2701 3002
PLE: 0100 0101 0115 0116 0117 0118 0211 0237 0302 0303 0304 0305 0307 0308 0309 0604 0605 0643 0704 1132 1142 1205
  1206 1300 1307 1310 1507 1700 2502
PLR: 0124 0133 0206 0904 0911 0912 0913 0914 0915 0916 0917 1702 1704 1708 2004 6301
PLW: 0127 0128 0129 0131 0177 0211 0244 0406 0602 0603 0604 0642 0711 0717 1501 1508 1509 1641 2101 2901 3201
PT: 002 008 010 011 012 013 015 016 017 019 021 028 029 030 031
PTH: 118 122 124 206 207
RUF: 001 002 003 006 008 009 012 016 018 029 034 040 043 045 048 049 054 060 063 065 066 067 069 073 074 075 104 200
S: 101 102 103 104 105 106 107 108 110 112 113 201 202 301 302 303 304 305 306 307 308 310 311 312 313 314 315 316
  317 318 319 321 323 324 401 402 403 404 405 406 407 408 409 411 412 413 415 501 502 503 504 505 506 507 508 509
  601 602 603 604 605 606 607 608 609 610 611 612 701 702 704
SIM: 107 113 115 116
TRY: 002 003 004 203 300 301 401
W: 191 505
"""
"""Common rules of ruff 0.17 with "Fix is not available", from `ruff rule --all --output-format json`."""


def _codes(table: str) -> frozenset[str]:
    found: list[str] = []
    prefix = ""
    for word in table.split():
        if word.endswith(":"):
            prefix = word[:-1]
        else:
            found.append(prefix + word)
    return frozenset(found)


WITHOUT_FIX = _codes(_WITHOUT_FIX)
"""Rules that are known to have no fix; one that ruff gained later is simply tried."""
NEVER_SAFE = frozenset({"B006", "B011", "B905", "E711", "E712", "F601", "F841", "RUF013", "RUF024"})
"""Rules whose fix ruff always marks as unsafe: trying a safe one first would only cost an iteration."""


def is_lint(call: ToolCall) -> bool:
    """Return whether a call is `ruff check`."""
    return call.name == "ruff" and "check" in call.args


def named_rules(result: CheckResult) -> tuple[str, ...]:
    """Return the rules that the output of a `ruff check` names, in the order in which they are to be fixed."""
    listed = (code for code in result.failing if _CODE.fullmatch(code))
    codes = tuple(dict.fromkeys((*listed, *_CODE.findall(result.tail))))
    return tuple(sorted(codes, key=lambda code: _LATE.index(code) + 1 if code in _LATE else 0))


def offered_fixes(tail: str, code: str) -> tuple[bool, bool]:
    """Return whether ruff offers a safe and an unsafe fix of a rule; both where its output does not say."""
    if code in WITHOUT_FIX:
        return False, False
    may_be_safe = code not in NEVER_SAFE
    if not _SUMMARY.search(tail):
        return may_be_safe, True
    safe = may_be_safe and bool(_SAFE_OFFER.search(tail))
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
    return tuple(options), tuple(_below(call.folder, path) for path in paths or ["."])


def _below(folder: str, path: str) -> str:
    return f"{folder}/{path}".removesuffix("/.") if folder else path
