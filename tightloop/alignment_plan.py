"""Rules about a plan, before it is handed off: its commands, its scope, its words."""

import re
from collections.abc import Iterator

from tightloop.alignment import Finding, Rubric, Stand, Topic, bounded, found, planners_own
from tightloop.alignment_commands import of_words, offences
from tightloop.alignment_offences import Offence
from tightloop.alignment_shell import plain
from tightloop.message import PlanMessage

_CODE = re.compile(r"`{1,3}(?:sh|bash|console|shell)?\n?([^`]{2,2000})`{1,3}|^\s*\$ (.{2,2000})$", re.MULTILINE)
_STARTS = re.compile(
    r"(?:^|[:;,]\s|\b(?:run|execute|then|with|using|do|and|call|via)\s+)(?:the command\s+)?"
    r"((?:sudo\s+)?(?:rm\s+-|git\s+(?:push|reset|clean|stash|filter|branch\s+-)|curl\s|wget\s|chmod\s|dd\s+if|mkfs|"
    r"shutdown\s|find\s+\S+\s+-|"
    r"terraform\s|kubectl\s|docker\s|psql\s|scp\s|nc\s|npm\s+publish|twine\s)[^`\n]*)",
    re.IGNORECASE,
)
"""Commands in a sentence without marks around them; only those whose words are no words of English."""
_LEAVES_IT = re.compile(
    r"(?:\b(?:do not|don't|never|avoid|without|instead of|rather than|must not|no longer|refuses?|reject|block|"
    r"forbid|prevent|"
    r"guard(?:s|ed)? against|warn(?:s|ing)? (?:about|against)|replac(?:e|es|ing)|remov(?:e|es|ing)|document(?:s|ing)?|"
    r"explain(?:s|ing)?|detect(?:s|ing)?|why)\b[^.;]{0,40})$",
    re.IGNORECASE,
)
_CASE_SQL = re.compile(
    r"\bDROP (?:TABLE|DATABASE|SCHEMA) (?:IF EXISTS )?[a-z_]\w*|\bdrop (?:table|database) [\w.]+\s*;"
)

_DESTROYED = Offence("destructive_command", Topic.DAMAGE, Stand.ASK, "keep the data, or a migration that can go back")
_CHECKS = Offence("weakens_checks", Topic.CHECKS, Stand.ASK, "make the check pass instead of taking it away")
_PRIVATE = Offence(
    "private_data", Topic.PRIVACY, Stand.ASK, "use made-up data, and names of variables in place of keys"
)
_LAW = Offence(
    "licence_in_plan", Topic.LICENCE, Stand.ASK, "use code whose licence allows it, and keep notices as they are"
)
_COSTLY = Offence("costly_plan", Topic.COST, Stand.ASK, "a step that ends within minutes")
_OUTSIDE = Offence("outside_workspace", Topic.DAMAGE, Stand.ASK, "name only paths inside the workspace")
_CI = Offence(
    "changes_ci", Topic.CHECKS, Stand.ASK, "leave CI and git hooks alone, or say in the goal that they change"
)

_WORDS = (
    (_CASE_SQL, _DESTROYED),
    (
        re.compile(
            r"\b(?:delete|remove|skip|disable|comment out|xfail|mute|deactivate|turn off|ignore)\s+(?:all\s+|the\s+|"
            r"these\s+|those\s+|every\s+)?"
            r"(?:failing|broken|flaky|red|remaining|slow)\s+(?:\w+\s+)?(?:tests?|checks?|assertions?)\b",
            re.IGNORECASE,
        ),
        _CHECKS,
    ),
    (
        re.compile(
            r"\b(?:disable|turn off|bypass|circumvent|weaken|switch off)\s+(?:the\s+|all\s+)?(?:\w+\s+)?"
            r"(?:test suite|tests|ci|pipeline|linter|lint(?:ing)?|type[- ]check\w*|security (?:scan|check)\w*|branch "
            r"protection|pre-commit)\b",
            re.IGNORECASE,
        ),
        _CHECKS,
    ),
    (
        re.compile(
            r"\b(?:hard-?code|commit|check in|embed|paste|inline|print|log|upload|send|e-?mail)\s+(?:the\s+|our\s+|"
            r"my\s+|an?\s+|all\s+)?(?:\w+\s+){0,2}"
            r"(?:api[- ]?keys?|passwords?|credentials?|private keys?|access tokens?|secrets?)\b(?!\s*(?:manager|name|"
            r"reference|handling|scann|detect|page|field|form|reset|rotation))",
            re.IGNORECASE,
        ),
        _PRIVATE,
    ),
    (
        re.compile(
            r"\b(?:upload|send|post|copy|export|dump|download|use|import|seed|share)\s+(?:the\s+|our\s+|real\s+|all\s+|"
            r"a\s+dump\s+of\s+)*(?:real\s+|live\s+)?"
            r"(?:production (?:database|data|dump|users?)|customer (?:data|records|e-?mails|database|list)|user "
            r"(?:data|records|e-?mails)|personal data|patient (?:data|records))\b"
            r"(?!\s*(?:model|type|class|table|schema|form|page))",
            re.IGNORECASE,
        ),
        _PRIVATE,
    ),
    (
        re.compile(
            r"\b(?:remove|strip|delete|drop|change|replace)\s+(?:the\s+|all\s+|its\s+|their\s+)*(?:licen[cs]e|"
            r"copyright)\s*(?:headers?|notices?|files?|texts?|s)?\b(?!\s*(?:plate|checker|key))|"
            r"\bcopy\s+(?:the\s+)?(?:code|implementation|source|function)\b[^.]{0,60}\b(?:gpl|proprietary|decompiled|"
            r"leaked|stack ?overflow)\b",
            re.IGNORECASE,
        ),
        _LAW,
    ),
    (
        re.compile(
            r"\b(?:train|run|fuzz|benchmark|sweep|search|simulate|crawl|scrape|wait|sleep|"
            r"mine)\w*\b[^.;\n]{0,60}\b(?:for|over|about|takes?)\s+(?:about\s+|at least\s+|up to\s+)?"
            r"(?:\d{1,4}|several|a few|many)\s*(?:hours?|h|days?|weeks?)\b|\bmine\s+(?:crypto|bitcoin|monero)",
            re.IGNORECASE,
        ),
        _COSTLY,
    ),
)
_CI_PATH = re.compile(
    r"(?:^|/)(?:\.github/workflows|\.gitlab-ci\.yml|\.circleci|Jenkinsfile|azure-pipelines\.yml|\.travis\.yml|"
    r"\.git/hooks|\.husky|\.githooks|\.pre-commit-config\.yaml)"
)
_CI_WORDS = re.compile(
    r"\bci\b|\bci/cd\b|workflow|pipeline|github action|hook|pre-commit|jenkins|deploy|release", re.IGNORECASE
)


def of_plan(
    plan: PlanMessage, rubric: Rubric = Rubric(), *, goal: str = "", roots: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Return what the rules find in a plan, bounded.

    Args:
        plan: the message.
        rubric: bounds.
        goal: what was asked for; by default what the plan says.
        roots: absolute paths of the workspace, which a plan may name.
    """
    findings: list[Finding] = []
    for number, step in enumerate(plan.steps, start=1):
        place = f"step {number}"
        if step.run:
            findings.extend(_told(offence, " ".join(step.run), place) for offence in of_words(step.run))
        findings.extend(_of_text(step.title, place))
    findings.extend(_of_text(plan.context, "context"))
    findings.extend(_of_scope(plan, goal or plan.goal, roots))
    if plan.alignment.answer != "yes":
        findings.append(planners_own(plan.alignment.rationale))
    return bounded(findings, rubric)


def _told(offence: Offence, text: str, place: str) -> Finding:
    return found(
        offence.rule,
        offence.topic,
        offence.stand,
        at=("", plain(text).strip()),
        where=place,
        evidence=plain(text),
        mend=offence.mend,
    )


def _of_text(text: str, place: str) -> Iterator[Finding]:
    text = plain(text)
    for match in (*_CODE.finditer(text), *_STARTS.finditer(text)):
        if _LEAVES_IT.search(text[max(match.start() - 80, 0) : match.start() + len(match[0]) - len(match[0].lstrip())]):
            continue
        command = next(group for group in match.groups() if group)
        for offence in offences(command):
            yield _told(offence, command, place)
    for pattern, offence in _WORDS:
        for match in pattern.finditer(text):
            if not _LEAVES_IT.search(text[max(match.start() - 80, 0) : match.start()]):
                yield _told(offence, _around(text, match.start(), match.end()), place)
                break


def _around(text: str, start: int, end: int) -> str:
    """Return the sentence of a finding."""
    first = max(text.rfind(mark, 0, start) for mark in (". ", "\n", "; ")) + 1
    ends = [at for mark in (". ", "\n", "; ") if (at := text.find(mark, end)) >= 0]
    return text[first : min(ends, default=len(text))].strip()


def _of_scope(plan: PlanMessage, goal: str, roots: tuple[str, ...]) -> Iterator[Finding]:
    for item in plan.scope:
        path = plain(item).split(" - ")[0].strip("`'\" ")
        inside = any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
        if (
            (path.startswith(("/", "~", "../", "$HOME")) and not inside)
            or "/../" in path
            or re.match(r"\.git(?:/|$)", path)
        ):
            yield _told(_OUTSIDE, path, "scope")
        elif _CI_PATH.search(path) and not _CI_WORDS.search(goal):
            yield _told(_CI, path, "scope")
