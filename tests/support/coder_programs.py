"""Small programs with a bug, and the tool calls by which a model would fix each: a list of turns with their calls."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "coder"
CHECK = "python3 -m pytest -q -p no:cacheprovider"
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Program:
    """One project."""

    name: str
    bug: str
    turns: tuple[tuple[Call, ...], ...]

    @property
    def files(self) -> dict[str, str]:
        """What the project begins with."""
        folder = FOLDER / self.name
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
        # Otherwise the caches of Python would belong to the change.
        return {".gitignore": "__pycache__/\n", **{str(p.relative_to(folder)): p.read_text() for p in paths}}


def read(path: str, **more: Any) -> Call:
    return "read_file", {"path": path, "start": None, "end": None, **more}


def edit(path: str, old: str, new: str) -> Call:
    return "edit_file", {"path": path, "old": old, "new": new}


def create(path: str, content: str, *, overwrite: bool | None = None) -> Call:
    return "create_file", {"path": path, "content": content, "overwrite": overwrite}


def find(pattern: str, **more: Any) -> Call:
    optional = dict.fromkeys(("path", "glob", "literal", "ignore_case", "context"))
    return "search", {"pattern": pattern, **optional, **more}


def shell(command: str) -> Call:
    return "run_command", {"command": command, "timeout_s": None}


def finish(summary: str) -> tuple[Call, ...]:
    return (("finish", {"summary": summary}),)


LIST: Call = ("list_files", {"path": None, "glob": None})
TESTS: Call = ("run_tests", {"tests": None})

_CONFIG = """    try:
        found = json.loads(text)
        port = int(found["port"])
    except KeyError as error:
        raise ConfigError(f"missing: {error}")
"""
_CONFIG_FIXED = """    try:
        found = json.loads(text)
        port = int(found["port"])
    except KeyError as error:
        raise ConfigError(f"missing: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"wrong: {error}") from error
"""
_NAMES_FIXED = '''import unicodedata
from pathlib import Path


def read_names(path):
    """Return the names in a file, one a line, without blanks around them and without repetitions."""
    text = Path(path).read_text(encoding="utf-8-sig")
    return list(dict.fromkeys(name for line in text.splitlines() if (name := line.strip())))


def same(one, other):
    """Return whether two names are equal but for case."""
    return _folded(one) == _folded(other)


def _folded(name):
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
'''
_MONTH_FIXED = """    return _months_after(day, 1)


def _months_after(day, months):
    index = day.year * 12 + day.month - 1 + months
    year, month = divmod(index, 12)
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))
"""
_DUE = """    dates = [start]
    while len(dates) < count:
        dates.append(next_month(dates[-1]))
    return dates
"""
_FLATTEN = """    for item in value:
        if hasattr(item, "__iter__"):
            yield from flatten(item)
        else:
            yield item
"""
_FLATTEN_FIXED = """    waiting = [iter(value)]
    while waiting:
        for item in waiting[-1]:
            if isinstance(item, list):
                waiting.append(iter(item))
                break
            yield item
        else:
            waiting.pop()
"""
_DEPTH = """    if not isinstance(value, list):
        return 0
    return 1 + max(depth(item) for item in value)
"""
_DEPTH_FIXED = """    deepest, level = 0, [value]
    while level := [item for item in level if isinstance(item, list)]:
        deepest += 1
        level = [item for inner in level for item in inner]
    return deepest
"""
_TABLE_FIXED = """TABLE = {
    ("locked", "coin"): "unlocked",
    ("locked", "push"): "locked",
    ("locked", "kick"): "broken",
    ("unlocked", "push"): "locked",
    ("unlocked", "coin"): "unlocked",
    ("unlocked", "kick"): "broken",
    ("broken", "repair"): "locked",
}
"""
_HANDLE = """        if event == "coin":
            self.coins += 1
        if event == "push":
            self.passed += 1
        self.state = TABLE[self.state, event]
        return self.state
"""
_HANDLE_FIXED = """        if (self.state, event) not in TABLE:
            raise ValueError(f"{event} does not fit {self.state}")
        if event == "coin":
            self.coins += 1
        if event == "push" and self.state == "unlocked":
            self.passed += 1
        self.state = TABLE[self.state, event]
        return self.state
"""

PROGRAMS = (
    Program(
        "pages",
        "off by one",
        (
            (LIST, read("pages.py"), read("test_pages.py")),
            (edit("pages.py", "    return total // size + 1", "    return -(-total // size)"),),
            (TESTS,),
            # A miss: the line is written from memory.
            (edit("pages.py", "start = page * size", "start = (page - 1) * size"),),
            (edit("pages.py", "    start = number * size\n", "    start = (number - 1) * size\n"),),
            (TESTS,),
            finish("pages are counted without a spare one and begin with number 1"),
        ),
    ),
    Program(
        "basket",
        "mutable default",
        (
            (LIST,),
            (read("shop/basket.py"), read("tests/test_basket.py")),
            # With too little indentation, which is found and carried over.
            (
                edit(
                    "shop/basket.py",
                    "def __init__(self, items={}):\n    self.items = items\n",
                    "def __init__(self, items=None):\n    self.items = dict(items or {})\n",
                ),
            ),
            (TESTS,),
            finish("each basket has items of its own"),
        ),
    ),
    Program(
        "config",
        "wrong exception",
        (
            (TESTS,),
            (read("config.py"),),
            (edit("config.py", _CONFIG, _CONFIG_FIXED),),
            (("run_tests", {"tests": ["test_config.py"]}),),
            (TESTS,),
            finish("whatever is wrong with a configuration is a ConfigError with its cause"),
        ),
    ),
    Program(
        "names",
        "encoding",
        (
            (find("latin-1"), read("test_names.py")),
            (read("names.py"),),
            # As a weak model does it: the whole file, first without saying that it may be replaced.
            (create("names.py", _NAMES_FIXED),),
            (create("names.py", _NAMES_FIXED, overwrite=True),),
            (TESTS,),
            finish("names are read as UTF-8 and compared by their normal form"),
        ),
    ),
    Program(
        "versions",
        "regular expression",
        (
            (read("versions.py"), read("test_versions.py")),
            (
                edit(
                    "versions.py",
                    r're.compile(r"v?(\d+).(\d+).(\d+)(-\w+)?")',
                    r're.compile(r"v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([\w.]+))?")',
                ),
            ),
            (edit("versions.py", "PATTERN.match(text)", "PATTERN.fullmatch(text)"),),
            (TESTS,),
            finish("the whole text has to be a version"),
        ),
    ),
    Program(
        "billing",
        "date arithmetic",
        (
            (read("billing.py"), shell(f"{CHECK} 2>&1 | tail -n 20")),
            (edit("billing.py", "    return day + timedelta(days=30)\n", _MONTH_FIXED),),
            (
                edit(
                    "billing.py",
                    "from datetime import date, timedelta\n",
                    "from calendar import monthrange\nfrom datetime import date\n",
                ),
            ),
            (TESTS,),
            (edit("billing.py", _DUE, "    return [_months_after(start, months) for months in range(count)]\n"),),
            (TESTS,),
            finish("months are counted from the day on which the bill began"),
        ),
    ),
    Program(
        "tree",
        "recursion",
        (
            (read("tree.py"), read("test_tree.py"), LIST),
            (edit("tree.py", _FLATTEN, _FLATTEN_FIXED), edit("tree.py", _DEPTH, _DEPTH_FIXED)),
            (TESTS,),
            finish("both functions go through lists without recursion"),
        ),
    ),
    Program(
        "turnstile",
        "state machine",
        (
            (LIST, find("broken")),
            (read("turnstile/table.py"), read("turnstile/machine.py"), read("test_turnstile.py")),
            (("delete_file", {"path": "turnstile/table.py"}),),
            (create("turnstile/table.py", _TABLE_FIXED),),
            (TESTS,),
            (edit("turnstile/machine.py", _HANDLE, _HANDLE_FIXED),),
            (TESTS,),
            finish("the table has all transitions, and other events are refused"),
        ),
    ),
)
