#!/usr/bin/env python3
"""Stands in for Cursor's agent, which cannot run here: prints recorded events and ends as its documentation says.

What is printed is chosen by `--scenario=`; how it was called is left in `$HOME/called.json`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
USAGE_LIMIT = (
    "Error: You've hit your usage limit\nGet Cursor Pro for more Agent usage, unlimited Tab, and more.\n"
    "chatMessage: *You've hit your free requests limit. Your usage limits will reset when your monthly cycle ends on "
    "11/17/2099.*\nspendLimitHit: false"
)
FAILURES = {
    "busy": "Provider Error We're having trouble connecting to the model provider. This might be temporary - please "
    "try again in a moment.",
    "usage": USAGE_LIMIT,
    "login": "Error: Authentication required. Please run 'agent login' first, or set CURSOR_API_KEY.",
    "crash": "Segmentation fault",
}


def fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def option(name: str) -> str:
    return next((word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}=")), "")


def main() -> None:
    if "--version" in sys.argv:
        print("2026.01.28-fd13201")
        return
    prompt = sys.stdin.read()
    called = {"argv": sys.argv[1:], "prompt": prompt, "environment": dict(os.environ)}
    (Path.home() / "called.json").write_text(json.dumps(called), encoding="utf-8")
    if not prompt or "-p" not in sys.argv or option("output-format") != "stream-json":
        fail("Error: no prompt, or not asked for events")
    if "--trust" not in sys.argv:
        # It really ends with 0 here.
        fail("Workspace Trust Required\nPass --trust, --yolo, or -f if you trust this directory", code=0)
    scenario = option("scenario")
    lines = (FOLDER / f"cursor_{'rejected' if '--mode=plan' in sys.argv else 'completed'}.jsonl").read_text("utf-8")
    if scenario in FAILURES:
        print(lines.splitlines()[0], flush=True)
        print(lines.splitlines()[0], file=sys.stderr)
        fail(FAILURES[scenario])
    if scenario == "hang":
        print(lines.splitlines()[0], flush=True)
        subprocess.run(("/bin/sh", "-c", "sleep 300; echo late > late.txt"), check=False)
        time.sleep(300)
    if "--force" in sys.argv:
        Path("notes.md").write_text("# Notes\n", encoding="utf-8")
    session = option("resume")
    for line in lines.splitlines():
        event = json.loads(line)
        if session:
            event["session_id"] = session
        print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
