"""Warns about sentences and names of a change that read as translated: part of `make check`.

It reads only added lines, shows a few places and never fails. Words that must not come back fail
`tests/unit/test_docs.py`.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = 20
FILES = ("*.py", "*.md", "*.html")
CLAUSE = re.compile(r'"""(?:Return |Tell |Say )?(?:what|how|who|where|why|when|which)\b', re.IGNORECASE)
"""A docstring that begins with a clause in place of a noun or a verb."""
PHRASES = re.compile(
    r"\b(?:so (?:long|many|far) as|goes on|is told|are told|whoever|of (?:them|which) (?:each|one|all)|in place of"
    r"|anew|taken? away|stands? (?:there|in)|lies? (?:there|in)|nobody (?:is|has|does)|there is none)\b",
    re.IGNORECASE,
)
PARTICIPLE = re.compile(r"\bdef _?(?:told|shown|said|asked|kept|found|made|given|seen|held|known|wanted|\w{3,}ed)\(")
VAGUE = re.compile(
    r"^\s*(?:for )?(?:one|each|found|said|told|given|made|kept|word|words|mark|seen|known|left)\b(?: =| in |:)"
)


def added_lines(base: str) -> Iterator[tuple[str, int, str]]:
    """Yield file, number and text of each line that was added since a commit.

    Raises:
        subprocess.CalledProcessError: the commit is unknown.
    """
    command = ["git", "diff", "--unified=0", "--no-color", base, "--", *FILES]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=True).stdout
    path, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif line.startswith("@@ "):
            number = int(line.split("+", 1)[1].split(" ", 1)[0].split(",")[0]) - 1
        elif line.startswith("+"):
            number += 1
            if not path.startswith("tests/data/"):
                yield path, number, line[1:]


def doubts(path: str, text: str) -> list[str]:
    """Return the reasons to read a line once more."""
    is_prose = path.endswith((".md", ".html")) or '"' in text or text.lstrip().startswith("#")
    reasons = ["begin with a noun or a verb"] if CLAUSE.search(text) else []
    if is_prose and (match := PHRASES.search(text)):
        reasons.append(f"{match[0]!r} reads as translated")
    if path.endswith(".py") and PARTICIPLE.search(text):
        reasons.append("a function is a verb")
    if path.endswith(".py") and VAGUE.search(text):
        reasons.append("name what it holds")
    return reasons


def main() -> int:
    """Print the doubtful lines since a commit; the exit code is 0 even if there are some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", nargs="?", default="HEAD", help="commit to compare with; default: HEAD")
    try:
        lines = [
            f"{path}:{number}: {'; '.join(reasons)}: {text.strip()[:100]}"
            for path, number, text in added_lines(parser.parse_args().base)
            if (reasons := doubts(path, text))
        ]
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"English: not checked: {error}", file=sys.stderr)
        return 0
    for line in lines[:SHOWN]:
        print(f"English: {line}")
    if len(lines) > SHOWN:
        print(f"English: and {len(lines) - SHOWN} more lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
