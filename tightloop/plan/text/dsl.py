"""The text form of plans: `plan` and `task` headers with YAML fields below them.

plan tidy "Tidy the client"
  max_parallel: 2

task lint "Lint" kind:validate
  needs: build docs
  run: |
    make lint
  expect:
    - "${exit_code} == 0"
  on failure -> repair
  on success -> publish
"""

import json
import re
from dataclasses import dataclass, field

from tightloop.errors import Position, did_you_mean
from tightloop.plan.text.located import Map, Seq, TextError
from tightloop.plan.text.yaml_text import parse_yaml, plain_scalar
from tightloop.value.yaml_reading import Bounds

RIGHT_HEADER = 'task build "Build it" kind:tool'
_HEADER = re.compile(r'(?P<word>plan|task)[ \t]+(?P<id>[^\s"]+)(?P<title>[ \t]+"(?:[^"\\]|\\.)*")?(?P<rest>.*)')
_ATTRIBUTE = re.compile(r"(?P<key>[A-Za-z_]+):(?P<value>\S+)")
_ARROW = re.compile(r"\s+on[ _](?P<end>\w+)\s*->\s*(?P<to>[^#]*?)\s*(?:#.*)?")
_SIGNIFICANT = re.compile(r"\s*[^\s#]")


@dataclass
class _Block:
    """A header and the lines below it."""

    line: int
    header: str
    body: list[str] = field(default_factory=list)


def is_dsl(text: str) -> bool:
    """Return whether the first significant word is `plan` or `task`."""
    first = next((line for line in text.splitlines() if _SIGNIFICANT.match(line)), "")
    return re.match(r"(plan|task)[ \t]+[^\s:]", first) is not None


def parse_dsl(text: str, *, slips: list[TextError]) -> Map:
    """Return a plan's fields, in the spelling in which they were written; `slips` as for `parse_yaml`.

    Raises:
        TextError: with line and column.
    """
    # One for all blocks: each of them could stand for as much as a whole text may.
    bounds = Bounds()
    plan = Map(Position(1, 1))
    steps = Seq(Position(1, 1))
    for block in _blocks(text):
        found = _HEADER.fullmatch(block.header)
        if found is None:
            is_field = re.match(r"[a-z_]+:|on[ _]\w+\s*->", block.header) is not None
            fix = "Indent it: fields stand below their header" if is_field else f"Write `{RIGHT_HEADER}`"
            raise TextError(f"not a header: {block.header[:60]}", Position(block.line, 1), fix)
        fields = _fields(block, found, bounds, slips)
        if found["word"] == "task":
            steps.add(fields, fields.at)
        elif plan:
            raise TextError("a second `plan` header", Position(block.line, 1), "Write one plan in one file")
        elif steps:
            raise TextError("the `plan` header comes after a task", Position(block.line, 1), "Put it first")
        else:
            plan = fields
    for step in steps:
        if not isinstance(plan.get("steps"), Seq):
            plan.put("steps", Seq(steps.at), at=steps.items_at[0])
        plan["steps"].add(step, step.at)
    return plan


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    # `splitlines` splits at more characters than YAML does: the numbers of lines would differ.
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if line[:1].strip() and not line.startswith("#"):
            blocks.append(_Block(number, line.rstrip()))
        elif blocks:
            blocks[-1].body.append(line)
        elif _SIGNIFICANT.match(line):
            raise TextError("an indented line without a header above it", Position(number, 1), "Begin with a header")
    return blocks


def _fields(block: _Block, header: re.Match[str], bounds: Bounds, slips: list[TextError]) -> Map:
    made = Map(Position(block.line, 1))
    made.put("id", header["id"], at=Position(block.line, header.start("id") + 1))
    if header["title"]:
        at = Position(block.line, header.end("title") - len(header["title"].lstrip()) + 2)
        try:
            made.put("title", str(json.loads(header["title"])), at=at)
        except ValueError as error:
            said = f"the title {header['title'].strip()[:60]} is not quoted as in JSON"
            raise TextError(said, at, "Write \\\\ for a backslash") from error
    _attributes(made, block.line, header["rest"], header.start("rest"))
    arrows = _arrows(block)
    body = parse_yaml("\n".join(block.body), bounds=bounds, slips=slips, first_line=block.line + 1)
    if body is not None and not isinstance(body, Map):
        at = Position(block.line + 1, 1)
        raise TextError(f"no fields below '{block.header[:60]}'", at, "Write `key: value` lines")
    for source in (body or Map(), arrows):
        for key, value in source.items():
            made.put_new(key, value, at=source.values_at[key], key_at=source.keys_at[key])
    return made


def _attributes(made: Map, line: int, rest: str, start: int) -> None:
    for word in re.finditer(r"\S+", rest):
        if word[0].startswith("#"):
            return
        at = Position(line, start + word.start() + 1)
        if word[0].startswith('"'):
            raise TextError("the quote of a title is not closed", at, f"Write `{RIGHT_HEADER}`")
        found = _ATTRIBUTE.fullmatch(word[0])
        if found is None:
            raise TextError(f"'{word[0][:60]}' in a header is not `key:value`", at, f"Write `{RIGHT_HEADER}`")
        if found["key"] in made:
            raise TextError(f"'{found['key']}' twice in one header", at, "Remove one")
        value_at = Position(line, at.column + found.start("value"))
        made.put(found["key"], plain_scalar(found["value"]), at=value_at, key_at=at)


def _arrows(block: _Block) -> Map:
    """Take the `on failure ->` and `on success ->` lines out of the body."""
    made = Map(Position(block.line, 1))
    # Deeper lines may be part of a text block, such as a shell script.
    indent = next((len(line) - len(line.lstrip()) for line in block.body if _SIGNIFICANT.match(line)), 0)
    for index, line in enumerate(block.body):
        found = _ARROW.fullmatch(line)
        if found is None or len(line) - len(line.lstrip()) != indent:
            continue
        at = Position(block.line + 1 + index, found.start("to") + 1)
        key, key_at = f"on_{found['end']}", Position(at.line, indent + 1)
        if found["end"] not in ("success", "failure"):
            hint = did_you_mean(found["end"], ("success", "failure"))
            raise TextError(f"'on {found['end']}' is not an end of a step", key_at, hint)
        if not found["to"]:
            raise TextError(f"'on {found['end']} ->' names no step", key_at, "Write an id behind it")
        if key in made:
            raise TextError(f"'on {found['end']}' twice", key_at, "Name all steps in one line: `on success -> a b`")
        made.put(key, found["to"], at=at, key_at=key_at)
        # Left empty, not removed: the lines below keep their numbers.
        block.body[index] = ""
    return made
