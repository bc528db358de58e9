"""Compares two trees by difflib, in a process of its own with a bound; also the script of that process."""

import difflib
import json
import subprocess
import sys
import time
from pathlib import Path

DIFFLIB_BOUND_S = 2.0
START_S = 20.0


def difflib_seconds(root: Path, base: str, tree: str) -> tuple[float, bool]:
    """Return the seconds of `unified_diff` on all changed files (the bound, if it took longer), and if it ended."""
    command = (sys.executable, "-I", __file__, str(root), base, tree)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            out, _ = process.communicate(timeout=DIFFLIB_BOUND_S)
            return float(json.loads(out)), True
        except subprocess.TimeoutExpired:
            return DIFFLIB_BOUND_S, False
        finally:
            process.kill()


def main() -> None:
    """Read both sides of all changed files, say so, compare them, say how long that took."""
    root, base, tree = sys.argv[1:]

    def git(*arguments: str) -> bytes:
        return subprocess.run(("git", *arguments), cwd=root, capture_output=True, check=True, timeout=START_S).stdout

    raw = git("diff-tree", "-r", "--raw", "-z", "--no-abbrev", base, tree).split(b"\0")[:-1:2]
    blobs = [side.decode() for entry in raw for side in entry.split()[2:4]]
    request = "\n".join(blobs).encode() + b"\n"
    read = subprocess.run(
        ("git", "cat-file", "--batch"), cwd=root, input=request, capture_output=True, check=True, timeout=START_S
    )
    sides = _texts(read.stdout)
    print("ready", flush=True)
    begun = time.perf_counter()
    for old, new in zip(sides[::2], sides[1::2], strict=True):
        for _ in difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm=""):
            pass
    print(time.perf_counter() - begun)


def _texts(out: bytes) -> list[str]:
    texts, position = [], 0
    while position < len(out):
        end = out.index(b"\n", position)
        fields = out[position:end].split()
        size = int(fields[2]) if len(fields) == 3 else -1
        texts.append(out[end + 1 : end + 1 + max(size, 0)].decode("latin-1"))
        position = end + 1 + (size + 1 if size >= 0 else 0)
    return texts


if __name__ == "__main__":
    main()
