"""Shell script parser based on tree-sitter.

It undoes obfuscation and yields simple commands with unquoted words.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tightloop.value.toml import read_toml

if TYPE_CHECKING:
    from tree_sitter import Language, Node

LONGEST = 20_000
"""Maximum length of a script that is parsed."""
DEEPEST = 40
"""Maximum nesting depth. Scripts with deeper nesting cannot be reviewed."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0]|[\U000e0000-\U000e007f]"
)
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕԁһӏѡКМНТАВЕОРСХԛΑΒΕΖΗΙΚΜΝΟΡΤΥΧορνικα‐‑‒–—―−⁃﹣－∕⁄╱｜∣⼁ɡɑı‘’“”",
    "aeopcyxijsdhlwKMHTABEOPCXqABEZHIKMNOPTYXopvika----------///|||gai''\"\"",
)
"""Letters of other scripts, dashes and strokes that look like characters in commands, based on Unicode TR 39."""
_FIELDS = re.compile(r"\$\{?IFS\}?(?:\$\d)?")
_REFERENCE = re.compile(r"\$\{[\w-]+(?:\.[\w-]+|\[[\w-]*\])+\}")
"""A plan reference, such as `${collect.sources[0]}`.

In bash, it is a bad substitution, which does not run anything.
"""
_CHANGED = re.compile(r"\s*(?:\[[^\]]*\]\s*)?[^\w\s]{0,2}=(?!=)")
_FOREIGN = re.compile(r"[^\x01-\x7f]")
NESTING = frozenset({"command_substitution", "process_substitution", "subshell", "compound_statement", "do_group"})
_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution"})
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_COMMANDS = frozenset({"command", "declaration_command", "unset_command", "test_command"})
_TEXTS = frozenset({"raw_string", "string", "ansi_c_string"})


def plain(text: str) -> str:
    """Return text as it looks to a person.

    Invisible characters are removed, and lookalike letters are replaced with Latin letters. The result
    has up to `LONGEST` + 1 characters, so that the caller can detect the truncation.
    """
    if text.isascii():
        return text[: LONGEST + 1]
    # Lookalikes first: NFKC keeps them. Again afterwards, because compatibility forms may produce new ones.
    bare = _INVISIBLE.sub("", text[: LONGEST + 1]).translate(_LOOKALIKES)
    return unicodedata.normalize("NFKC", bare).translate(_LOOKALIKES)


@dataclass(slots=True)
class SimpleCommand:
    """A program and its arguments, as started by a script."""

    argv: tuple[str, ...]
    """Unquoted words, including leading assignments. Expansions stay literal."""
    redirects: tuple[str, ...] = ()
    """Redirections such as `2>&1`, or `>` and `out.txt`."""
    fed_by: tuple[str, ...] = ()
    """Words of the command whose output is piped into this one."""


class Assignment(NamedTuple):
    """A variable set by a script or a step."""

    name: str
    value: str
    reaches_programs: bool = True
    """True if the variable is set for a program or exported.

    Otherwise it is a shell variable, which may have been exported earlier.
    """

    @property
    def call(self) -> "Call":
        """The equivalent command, `env NAME=value`, to which the rules can be applied."""
        return Call("env", (f"{self.name}={self.value}",))


class Script(NamedTuple):
    """A parsed script."""

    commands: tuple[SimpleCommand, ...] = ()
    """Commands in order, including those in substitutions, functions and loops."""
    embedded: tuple[str, ...] = ()
    """Here-documents and multi-line strings, which may be scripts for another program."""
    is_complete: bool = True
    """True if all parts could be parsed. False if, for example, a quote is not closed."""
    is_too_deep: bool = False
    assignments: tuple[Assignment, ...] = ()


@cache
def _language() -> "Language":
    # Deferred import: neither the client nor a workflow needs a C extension.
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def parse(text: str) -> "Node":
    """Parse a script. Byte offsets in the syntax tree equal text offsets.

    Non-ASCII characters are hidden from the parser, because tree-sitter-bash 0.25.1 calls isdigit() with
    any code point. For `{` followed by a rare letter, the C library then reads out of bounds and the
    process crashes.
    """
    from tree_sitter import Parser

    # One parser per text, because threads must not share one.
    hidden = _REFERENCE.sub(lambda found: re.sub(r"[^\w${}]", "_", found.group()), _FOREIGN.sub(".", text))
    return Parser(_language()).parse(hidden.encode("ascii")).root_node


def read_script(text: str) -> Script:
    """Find the simple commands in a bash script.

    Text with syntax errors is also split at white space and operators, so that no command can hide in it.
    """
    is_cut = len(text) > LONGEST
    text = _FIELDS.sub(" ", text[:LONGEST].replace("\r\n", "\n").replace("\\\n", " "))
    root = parse(text)
    reader = _Reader(text)
    # Iterative, because scripts may be nested deeper than Python's stack.
    waiting = [(root, 0, 0)]
    while waiting:
        node, level, scope = waiting.pop()
        if node.type in NESTING and (level := level + 1) > DEEPEST:
            return Script(tuple(reader.commands), is_complete=False, is_too_deep=True)
        if node.type in _SUBSTITUTIONS:
            scope = node.start_byte + 1
        reader.read(node, scope)
        # Reversed, because the last child added is visited first.
        waiting += [(child, level, scope) for child in reversed(node.children)]
    # Error recovery of the parser may skip text around the error.
    more = _split(text) if root.has_error else ()
    return Script(
        (*reader.commands, *more),
        tuple(reader.embedded),
        is_complete=not root.has_error and not is_cut,
        assignments=tuple(reader.assignments),
    )


class _Reader:
    """Collects the contents of syntax tree nodes in text order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.commands: list[SimpleCommand] = []
        self.embedded: list[str] = []
        self.assignments: list[Assignment] = []
        self._last: dict[int, SimpleCommand] = {}
        """Last command in each substitution, by substitution. The key 0 stands for no substitution."""
        self._feeding: dict[int, tuple[str, ...]] = {}

    def read(self, node: "Node", scope: int) -> None:
        kind = node.type
        if kind in _COMMANDS:
            self._add(self._command(node), scope)
        elif kind in ("|", "|&") and scope in self._last:
            self._feeding[scope] = self._last[scope].argv
        elif kind == "redirected_statement" and node.child_by_field_name("body") is None:
            self._add(SimpleCommand(()), scope)
        elif kind in _REDIRECTS and node.parent is not None and node.parent.type not in _COMMANDS:
            if scope in self._last:
                self._last[scope].redirects += self._redirect(node)
        elif kind == "heredoc_body" or (kind in _TEXTS and "\n" in self._source(node)):
            self.embedded.append(self._word(node))
        elif kind in ("variable_assignment", "for_statement"):
            self._assign(node)
        elif kind == "variable_name" and _CHANGED.match(self._text, node.end_byte):
            # In arithmetic, `PATH=1`, and in expansions, `${PATH:=x}`.
            self.assignments.append(Assignment(self._source(node), "", reaches_programs=False))
        if kind == "herestring_redirect":
            self.embedded.append(self._word(node.children[-1]))

    def _assign(self, node: "Node") -> None:
        is_loop = node.type == "for_statement"
        name, value = node.child_by_field_name("variable" if is_loop else "name"), node.child_by_field_name("value")
        if name is not None:
            alone = is_loop or node.parent is None or node.parent.type not in _COMMANDS
            text = "" if value is None or is_loop else self._word(value)
            self.assignments.append(Assignment(self._source(name), text, reaches_programs=not alone))

    def _add(self, command: SimpleCommand, scope: int) -> None:
        command.fed_by = self._feeding.pop(scope, ())
        self._last[scope] = command
        self.commands.append(command)

    def _command(self, node: "Node") -> SimpleCommand:
        if node.type == "test_command":
            return SimpleCommand(tuple(self._source(node).split()))
        parts = [child for child in node.children if child.type not in _REDIRECTS]
        redirects = [
            redirect for child in node.children if child.type in _REDIRECTS for redirect in self._redirect(child)
        ]
        return SimpleCommand(self._join_words(parts), tuple(redirects))

    def _redirect(self, node: "Node") -> tuple[str, ...]:
        return self._join_words(
            child for child in node.children if child.type not in ("heredoc_body", "heredoc_end", "pipeline")
        )

    def _join_words(self, nodes: "Iterable[Node]") -> tuple[str, ...]:
        """Return the words in the nodes. Adjacent nodes without a space between them form one word."""
        parts: list[str] = []
        end = -1
        for node in nodes:
            if node.start_byte == end:
                parts[-1] += self._word(node)
            else:
                parts.append(self._word(node))
            end = node.end_byte
        return tuple(parts)

    def _source(self, node: "Node") -> str:
        return self._text[node.start_byte : node.end_byte]

    def _word(self, node: "Node") -> str:
        """Return a node's text as the shell reads it. Expansions are not performed."""
        text = self._source(node)
        match node.type:
            case "command_name" | "concatenation":
                return "".join(map(self._word, node.children))
            case "translated_string":
                return self._word(node.children[-1])
            case "raw_string":
                return text[1:-1]
            case "string":
                return re.sub(r"\\([$`\"\\])", r"\1", text[1:-1])
            case "ansi_c_string":
                try:
                    return text[2:-1].encode("ascii", "backslashreplace").decode("unicode_escape")
                except UnicodeDecodeError:
                    return text[2:-1]
            case "word":
                return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
        return text


def _split(text: str) -> Iterator[SimpleCommand]:
    """Split the lines of an incomplete script into commands. Quotes are ignored."""
    for line in text.replace('"', "").replace("'", "").splitlines():
        fed_by: tuple[str, ...] = ()
        for segment, operator in re.findall(r"([^;&|()`]*)([;&|()`]*)", line):
            command = SimpleCommand(tuple(segment.split()), fed_by=fed_by)
            yield command
            fed_by = command.argv if operator in ("|", "|&") else ()


class Call(NamedTuple):
    """A simple command without its path and without wrappers such as `sudo` and `env`."""

    name: str
    arguments: tuple[str, ...]
    """Arguments and redirections."""
    fed_by: str = ""
    """Command whose output is piped into this one."""
    redirects: tuple[str, ...] = ()
    """Redirections at the end of `arguments`. For a bare redirection, these are all the arguments."""
    assigned: tuple[str, ...] = ()
    """Variables set for the command, such as `A=b`."""
    has_more_words: bool = False
    """True if `xargs` adds arguments that are not known."""

    def has(self, *flags: str) -> bool:
        """Return whether any of the flags is present.

        A short flag such as `-f` may be part of a bundle such as `-xdf`.
        """
        for flag in flags:
            short = len(flag) == 2 and flag[0] == "-"
            for argument in self.arguments:
                if argument == flag or (argument.startswith(flag + "=") and not short):
                    return True
                if short and re.fullmatch(r"-[A-Za-z]+", argument) and flag[1] in argument:
                    return True
        return False

    @property
    def operands(self) -> tuple[str, ...]:
        """Arguments that are not flags."""
        return tuple(argument for argument in self.arguments if not argument.startswith("-"))

    def starts(self, *words: str) -> bool:
        """Return whether the arguments start with these words. Flags are ignored."""
        return self.operands[: len(words)] == words


_EXPANSION = re.compile(r"[$<>]\(.*\)|`[^`]*`|\$\{[^}]*\}|\$\w+", re.DOTALL)
AS_ROOT = "--as-root"
"""Artificial last argument that marks a call with root privileges."""
_WRAPPERS = frozenset((
    "sudo", "doas", "env", "nohup", "time", "nice", "ionice", "exec", "command", "builtin", "setsid", "stdbuf", "then",
    "do", "else", "if", "while", "until", "!", "{", "(", "xargs", "timeout", "busybox", "run:", "-", "$", "@", "&",
))  # fmt: skip
"""Words that can precede a program, including keywords in incomplete scripts and prefixes in Makefiles and YAML."""
_WITH_OPTIONS = frozenset({"sudo", "doas", "env", "xargs", "timeout", "nice", "stdbuf"})
WITH_VALUE: dict[str, list[str]] = read_toml("tightloop.safety.commands", "effects.toml")["wrappers"]


def calls(script: Script) -> Iterator[Call]:
    for command in script.commands:
        before = _call(command.fed_by)
        redirects = tuple(redirect for redirect in command.redirects if redirect)
        argv = [*filter(None, command.argv), *redirects]
        if redirects and len(argv) == len(redirects):
            # `> file` alone empties the file.
            yield Call(redirects[0], redirects[1:], redirects=redirects)
            continue
        while (call := _call(argv)) is not None:
            call = call._replace(redirects=redirects[-len(call.arguments) :] if call.arguments else ())
            yield call._replace(fed_by=" ".join((before.name, *before.arguments))) if before else call
            # An expansion in the program position may be empty; then the next word is the program.
            expanded = _EXPANSION.match(argv[0])
            argv = [argument for argument in (argv[0][expanded.end() :], *argv[1:]) if argument] if expanded else []


def _call(argv: Iterable[str]) -> Call | None:
    rest = [argument for argument in argv if argument]
    through, assigned = set[str](), list[str]()
    while rest:
        head = rest[0].removeprefix("@")
        bare = head.rpartition("/")[2]
        # RUN and the like are instructions of a Dockerfile.
        if re.match(r"\w+\+?=", head) or bare in ("RUN", "CMD", "ENTRYPOINT"):
            assigned += [head] if "=" in head else []
            rest = rest[1:]
        elif bare in _WRAPPERS:
            through.add(bare)
            rest = _past_options(bare, rest[1:]) if bare in _WITH_OPTIONS else rest[1:]
        else:
            break
    if not rest:
        return None
    name = rest[0].removeprefix("@").rpartition("/")[2].replace("\\", "").lower()
    is_root = not through.isdisjoint(("sudo", "doas"))
    arguments = (*rest[1:], AS_ROOT) if is_root else tuple(rest[1:])
    return Call(name, arguments, assigned=tuple(assigned), has_more_words="xargs" in through)


def _past_options(wrapper: str, arguments: list[str]) -> list[str]:
    """Return the words after a wrapper's options. Assignments are kept."""
    rest = arguments
    while rest and (rest[0].startswith("-") or re.fullmatch(r"\d+[smhd]?", rest[0])):
        # `env -S 'A=b program'` takes its program out of one word.
        split = (
            re.fullmatch(r"-[A-Za-z]*?S(.*)|--split-string(?:=(.*))?", rest[0], re.DOTALL) if wrapper == "env" else None
        )
        if split is not None:
            inside = split[1] or split[2]
            text = inside or (rest[1] if len(rest) > 1 else "")
            rest = [*text.split(), *rest[1 if inside else 2 :]]
            break
        rest = rest[2:] if rest[0] in WITH_VALUE.get(wrapper, ()) else rest[1:]
    return rest
