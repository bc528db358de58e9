"""The code blocks of a Markdown page, and the commands of a console block with the output that it shows."""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*) *$")
_MARK = re.compile(r"^ *<!-- (?P<what>as|not run): (?P<text>.+) -->$")
_AFTER = re.compile(r"^<!-- after: (\S+) -->$", re.MULTILINE)
_HERE = re.compile(r"<<-?\s*'?\"?(\w+)'?\"?")


@dataclass(frozen=True)
class Block:
    """One code block."""

    page: str
    line: int
    """Of the opening fence, from 1."""
    language: str
    text: str
    file: str = ""
    """Where the reader is told to put it: `<!-- as: ~/plan.yaml -->` on the line before."""
    not_run: str = ""
    """Why it cannot be followed here: `<!-- not run: needs a Mac -->` on the line before."""

    @property
    def place(self) -> str:
        """Page and line, as editors open it."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """What is typed, and the lines that the page shows below it."""

    line: int
    text: str
    shown: tuple[str, ...]


def before(page: Path) -> list[Path]:
    """Return the pages that a page continues, the first one first: `<!-- after: tutorial.md -->`."""
    found = _AFTER.search(page.read_text(encoding="utf-8"))
    if not found:
        return []
    previous = (page.parent / found[1]).resolve()
    return [*before(previous), previous]


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order."""
    found: list[Block] = []
    mark: dict[str, str] = {}
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, lines = (number, fence["language"], fence["indent"]), []
        elif opened is not None and line.strip() == "```":
            text = "".join(f"{each.removeprefix(opened[2])}\n" for each in lines)
            notes = {"file": mark.get("as", ""), "not_run": mark.get("not run", "")}
            found.append(Block(page.name, opened[0], opened[1], text, **notes))
            opened, mark = None, {}
        elif opened is not None:
            lines.append(line)
        elif noted := _MARK.match(line):
            mark = {noted["what"]: noted["text"]}
        elif line.strip():
            mark = {}
    assert opened is None, f"{page.name}:{opened and opened[0]}: the block has no end"
    return found


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block; lines that do not begin with `$ ` are what is printed."""
    found: list[tuple[int, list[str], list[str]]] = []
    until = ""
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if until:
            found[-1][1].append(line)
            until = "" if line.strip() == until else until
        elif line.startswith("$ "):
            found.append((number, [line[2:]], []))
            here = _HERE.search(line)
            until = here[1] if here else ""
        elif found and found[-1][1][-1].endswith("\\"):
            found[-1][1].append(line)
        else:
            assert found, f"{block.page}:{number}: a console block begins with a command: $ ..."
            found[-1][2].append(line)
    return [Command(number, "\n".join(typed), tuple(shown)) for number, typed, shown in found]
