"""Compares two big texts in a process of its own; a script, run by `activities/tracking/text_process.py`.

Stdin is a file: a line of JSON, then both texts. Every line on stdout is a list of JSON: ratio, approximate, delta or
null; each supersedes the one before, so that whoever ends this process early has the best answer until then. A
process that nobody ends is ended by the alarm of the system, whatever library it is in.
"""

import json
import resource
import signal
import sys

from activities.tracking.similarity import similarity
from activities.tracking.text_steps import delta_of

MEMORY_LIMIT_BYTES = 4 << 30


def main() -> None:
    """Answer one request."""
    head = json.loads(sys.stdin.buffer.readline())
    signal.setitimer(signal.ITIMER_REAL, head["bound_s"])
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    old, new = (sys.stdin.buffer.read(size).decode("utf-8", "surrogatepass") for size in head["sizes"])
    measured = similarity(old, new)
    _answer(measured.ratio, measured.approximate, None)
    _answer(measured.ratio, measured.approximate, delta_of(old, new, search_s=head["search_s"]))


def _answer(ratio: float, approximate: bool, delta: str | None) -> None:
    sys.stdout.write(json.dumps([ratio, approximate, delta]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
