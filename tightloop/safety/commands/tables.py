"""What the rules about commands look for, and what they report (`rules.toml`)."""

import re

from tightloop.safety.tables import read_tables
from tightloop.value.toml import read_toml

_DATA = read_toml("tightloop.safety.commands", "rules.toml")
PATTERNS, WORDS, VIOLATIONS = read_tables(_DATA)
GIT: dict[str, dict[str, list[str]]] = _DATA["git"]
PROGRAMS = {
    name: (re.compile(pattern, re.VERBOSE), VIOLATIONS[violation])
    for violation, programs in _DATA["programs"].items()
    for name, pattern in programs.items()
}
SCRIPTS = [(re.compile(row["pattern"], re.VERBOSE), VIOLATIONS[row["violation"]]) for row in _DATA["scripts"]]
