"""The documents say what is there: paths exist, words of the glossary are words of the code, retired words are gone."""

import ast
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from deploy.reference import FOLDER, pages

ROOT = Path(__file__).parents[2]
PRODUCT = ("tightloop", "activities", "workflows", "worker", "gateway")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATH = re.compile(rf"`((?:{'|'.join(PRODUCT)}|tests|docs|examples|deploy)/[\w/.-]+)`")
ROW = re.compile(r"^\| ([^|]+) \| `([\w.]+)` \| ", re.MULTILINE)
LINK = re.compile(r"\]\(((?!https?:)[^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")
ATTACK = re.compile(r"^\| (?!attack \||-)([^|]+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
"""A row of a table of attacks: attack, defence, test."""
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
RETIRED = {
    "desk": "handlers", "offence": "violation", "remedy": "fix", "mend": "repair", "keeper": "server or process",
    "untold": "not reported", "heed": "handle or settle", "utterance": "message", "whereabouts": "location",
    "ordeal": "fault scenario", "anew": "again", "shall": "must, will or is to", "stance": "verdict",
    "judgement": "verdict or outcome", "complaint": "diagnostics",
}  # fmt: skip
"""Words that are not used any more, and what to use instead."""


def product_texts() -> list[tuple[str, str]]:
    command = ("git", "ls-files", "--", *PRODUCT, "docs", "README.md", "CONTRIBUTING.md", "examples")
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = [ROOT / name for name in names if name.endswith((".py", ".md"))]
    return [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in texts if path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    missing = [path for path in PATH.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()]
    assert not missing, f"{page.name} names {missing}"


def test_nobody_is_told_to_install_the_package_of_that_name_from_the_index() -> None:
    """What is called `tightloop` on PyPI is another project."""
    wrong = [name for name, text in product_texts() if re.search(r"pip install ['\"]?tightloop\b", text)]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in headings_of(target)):
            wrong.append(link)
    assert not wrong, f"{page.name} links to {wrong}"


def headings_of(page: Path) -> set[str]:
    """Return the anchors of a page, as code forges make them from its headings."""
    words = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in words}


def test_every_page_is_in_the_index() -> None:
    folder = ROOT / "docs"
    index = {(folder / link.partition("#")[0]).resolve() for link in LINK.findall((folder / "README.md").read_text())}
    assert {page for page in folder.rglob("*.md") if page.name != "README.md"} <= index


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_reference_is_as_the_code_is(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "write it again: make docs"


def test_every_setting_says_what_it_means() -> None:
    rows = [line.split(" | ") for line in (FOLDER / "settings.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 100, "the tables are read"
    assert not [row[0].strip("| ") for row in rows if row[-1].strip("| ") == ""]


def test_every_word_of_the_glossary_is_a_word_of_the_code() -> None:
    rows = ROW.findall(GLOSSARY)
    assert len(rows) > 40, "the table is read"
    for word, place in rows:
        module, _, name = place.rpartition(".")
        found = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(place) is not None
        assert found, f"{word}: {place} is missing"


def test_no_retired_word_is_used() -> None:
    # As a word of its own, as a part of a snake_case name, or of a CamelCase one.
    patterns = {
        word: re.compile(rf"(?<![A-Za-z]){re.escape(word)}(?![a-z])|(?<![A-Z]){re.escape(word.title())}(?![a-z])")
        for word in RETIRED
    }
    used = [
        f"{name}: {word!r} (use {RETIRED[word]}) in {line.strip()[:80]!r}"
        for name, text in product_texts()
        for word, pattern in patterns.items()
        for line in text.splitlines()
        if pattern.search(line)
    ]
    assert not used, "\n".join(used[:20])


def test_every_attack_of_the_security_page_has_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "trust" / "security.md").read_text(encoding="utf-8")
    tables = [part for part in page.split("\n\n") if part.startswith("| attack |")]
    rows = [row for table in tables for row in ATTACK.findall(table)]
    assert len(rows) > 5, "the tables are read"
    assert not [attack for attack, tests in rows if not TEST.search(tests)]
    named = TEST.findall(page)
    assert not [f"{file}{place}" for file, place in named if not has_test(ROOT / file, place.split("::")[1:])]


def has_test(file: Path, place: list[str]) -> bool:
    """Return whether a file has a class or function at a place such as `["TestSecrets", "test_it"]`."""
    if not file.exists():
        return False
    found: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    for name in place:
        inner = (one for one in ast.iter_child_nodes(found) if getattr(one, "name", "") == name)
        if (one := next(inner, None)) is None:
            return False
        found = one
    return True
