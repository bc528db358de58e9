"""What the rules about a change look for, and what they report (`rules.toml`)."""

from tightloop.safety.tables import read_tables
from tightloop.value.toml import read_toml

PATTERNS, WORDS, VIOLATIONS = read_tables(read_toml("tightloop.safety.change", "rules.toml"))
TEST = PATTERNS["test"]
EXAMPLE = PATTERNS["example"]
GENERATED = PATTERNS["generated"]
"""What people do not write by hand; it may be lost, and is still executed and imported like everything else."""


def is_data(path: str) -> bool:
    """Whether a generated file is only looked at, so that no rule about code has to read it."""
    return bool(GENERATED.search(path) and PATTERNS["generated_data"].search(path))
