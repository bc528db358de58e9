"""Programs of a Mac as files in a folder: they note how they are called, and answer as recorded."""

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import json, sys, time
from pathlib import Path
folder = Path({folder!r})
name = Path(sys.argv[0]).name
text = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode()
script = Path(sys.argv[3]).read_text() if name == "osascript" else ""
with (folder / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps({{"name": name, "argv": sys.argv[1:], "stdin": text, "script": script}}) + "\\n")
key = Path(sys.argv[3]).stem if name == "osascript" else name
answer = json.loads((folder / "answers.json").read_text()).get(key, {{}})
time.sleep(answer.get("sleep", 0))
sys.stdout.write(answer.get("out", ""))
sys.stderr.write(answer.get("err", ""))
sys.exit(answer.get("code", 0))
"""


class FakeMac:
    """A folder to be put first into PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("osascript", "pbcopy", "pbpaste"):
            program = folder / name
            program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
            program.chmod(0o755)
        self.answer()

    def answer(self, **answers: dict[str, Any]) -> None:
        """Set what each script, or program, answers."""
        (self.folder / "answers.json").write_text(json.dumps(answers))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All calls so far."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
