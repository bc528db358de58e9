"""Regex search in files with Python's `re`, run as a subprocess so that a backtracking pattern can be killed.

It reads its request as JSON from standard input and prints its results like `rg --null --line-number`. The exit codes
are the same as ripgrep's: 0 if there is a match, 1 if there is none and 2 if the pattern is invalid.
"""

import json
import os
import re
import stat
import sys

BINARY_BYTES = 8_000
INVALID_PATTERN = 2


def main() -> int:
    """Run the search requested on standard input and return the exit code."""
    order = json.load(sys.stdin)
    try:
        flags = re.IGNORECASE if order["ignore_case"] else 0
        pattern = re.compile(re.escape(order["pattern"]) if order["literal"] else order["pattern"], flags)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stdout.write(f"regex parse error: {error}\n")
        return INVALID_PATTERN
    left = order["lines"]
    for name in order["files"]:
        lines = _matches(_read(name), pattern, order["context"])[:left]
        for number, is_match, line in lines:
            text = (
                line if len(line) <= order["columns"] else line[: order["columns"]] + " [... omitted end of long line]"
            )
            separator = ":" if is_match else "-"
            sys.stdout.buffer.write(
                os.fsencode(name) + b"\0" + f"{number}{separator}{text}\n".encode("utf-8", "replace")
            )
        left -= len(lines)
        if not left:
            break
    return 0 if left < order["lines"] else 1


def _matches(text: str, pattern: "re.Pattern[str]", context: int) -> list[tuple[int, bool, str]]:
    # Not `splitlines`, which also splits at characters that are no line ends for ripgrep.
    lines = text.removesuffix("\n").split("\n") if text else []
    numbers = [number for number, line in enumerate(lines) if pattern.search(line.removesuffix("\r"))]
    context_numbers = {nearby for number in numbers for nearby in range(number - context, number + context + 1)}
    matching = set(numbers)
    return [
        (at + 1, at in matching, lines[at].removesuffix("\r")) for at in sorted(context_numbers) if 0 <= at < len(lines)
    ]


def _read(name: str) -> str:
    try:
        # O_NOFOLLOW, O_NONBLOCK: the file may have become a symlink or a pipe since it was listed.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        content = file.read()
    return "" if b"\0" in content[:BINARY_BYTES] else content.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
