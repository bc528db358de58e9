"""What the rules about a change look for, and what they report (`rules.toml`)."""

from tightloop.safety.tables import read_tables
from tightloop.value.toml import read_toml

PATTERNS, WORDS, VIOLATIONS = read_tables(read_toml("tightloop.safety.change", "rules.toml"))
TEST = PATTERNS["test"]
EXAMPLE = PATTERNS["example"]
GENERATED = PATTERNS["generated"]
