"""The tables of the rules: every name that the code uses is in them, and every row of them is used."""

import re
from pathlib import Path

import pytest

from tightloop.safety.change import reading as change_tables
from tightloop.safety.commands import rules as command_tables

SAFETY = Path(change_tables.__file__).parents[1]


def names_in(folder: Path, pattern: str) -> set[str]:
    return {name for path in folder.glob("*.py") for name in re.findall(pattern, path.read_text())}


@pytest.mark.parametrize(("folder", "tables"), [("change", change_tables), ("commands", command_tables)])
@pytest.mark.parametrize("table", ["PATTERNS", "WORDS"])
def test_code_and_tables_have_the_same_names(folder: str, tables: object, table: str) -> None:
    assert names_in(SAFETY / folder, rf'{table}\["(\w+)"\]') == getattr(tables, table).keys()


def test_every_violation_of_a_change_is_told_by_a_rule() -> None:
    told = names_in(SAFETY / "change", r'\.make_finding\(\s*"(\w+)"') | names_in(
        SAFETY / "change", r'VIOLATIONS\["(\w+)"\]'
    )
    either = names_in(SAFETY / "change", r'\.make_finding\("(\w+)" if .* else "\w+"')
    either |= names_in(SAFETY / "change", r'\.make_finding\("\w+" if .* else "(\w+)"')
    assert told | either == change_tables.VIOLATIONS.keys()


def test_every_violation_of_a_command_has_a_name_in_code() -> None:
    assert names_in(SAFETY / "commands", r'VIOLATIONS\["(\w+)"\]') == command_tables.VIOLATIONS.keys()
