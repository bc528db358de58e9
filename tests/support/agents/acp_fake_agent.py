"""An agent for tests: speaks the Agent Client Protocol over stdin and stdout, and misbehaves as its argument says.

It works in earnest: it asks for permission, runs commands in the working folder and keeps its sessions in HOME.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALLOWED = ("allow_once", "allow_always")
OPTIONS = [
    {"optionId": "o-1", "name": "Always", "kind": "allow_always"},
    {"optionId": "o-2", "name": "Yes", "kind": "allow_once"},
    {"optionId": "o-3", "name": "No", "kind": "reject_once"},
]
LIMIT = "You've hit your usage limit. Upgrade to Pro or try again in 2 hours 10 minutes."
CAPABILITIES: dict[str, dict[str, Any]] = {
    "load": {"loadSession": True},
    "resume": {"loadSession": True, "sessionCapabilities": {"resume": {}}},
    "none": {},
}


class Agent:
    """One process of the agent."""

    def __init__(self, behaviour: str, sessions: str) -> None:
        self.behaviour = behaviour
        self.sessions = sessions
        self.session = ""
        self.cwd = Path()
        self.signed_in = False
        self.cancelled = False
        self._ids = itertools.count(1000)
        self._lines = self._read()

    def main(self) -> None:
        for message in self._lines:
            self.serve(message)

    def _read(self) -> Iterator[dict[str, Any]]:
        for line in sys.stdin:
            yield json.loads(line)

    def serve(self, message: dict[str, Any]) -> None:
        method = message.get("method", "")
        if method == "session/cancel":
            self.cancelled = True
        if "id" not in message or not method:
            return
        name = "on_" + method.replace("/", "_")
        answer = getattr(self, name)(message["params"])
        self.send({"id": message["id"], **(answer if "error" in answer else {"result": answer})})

    def send(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def update(self, kind: str, /, **fields: Any) -> None:
        update = {"sessionUpdate": kind, **fields}
        self.send({"method": "session/update", "params": {"sessionId": self.session, "update": update}})

    def say(self, text: str) -> None:
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            self.update("agent_message_chunk", content={"type": "text", "text": part})

    def on_initialize(self, _params: dict[str, Any]) -> dict[str, Any]:
        if self.behaviour == "exits":
            sys.exit("cannot find module 'missing'")
        if self.behaviour == "never_answers":
            time.sleep(600)
        version = 2 if self.behaviour == "other_version" else 1
        ways = [{"id": "browser", "name": "Log in"}]
        if self.behaviour == "signs_in":
            ways.append({"id": "by_key", "name": "Key"})
        return {
            "protocolVersion": version,
            "agentCapabilities": CAPABILITIES.get(self.sessions, {"loadSession": True}),
            "agentInfo": {"name": "fake", "version": "4.5.6"},
            "authMethods": ways,
        }

    def on_authenticate(self, params: dict[str, Any]) -> dict[str, Any]:
        self.signed_in = params["methodId"] == "by_key"
        return {}

    def on_session_new(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.behaviour in ("wants_a_login", "signs_in") and not self.signed_in:
            return {"error": {"code": -32000, "message": "Authentication required"}}
        self.session, self.cwd = str(uuid.uuid4()), Path(params["cwd"])
        self.remember("")
        modes = [{"id": name, "name": name} for name in ("ask", "https://example.org/modes#agent")]
        return {"sessionId": self.session, "modes": {"currentModeId": "ask", "availableModes": modes}}

    def on_session_set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        self.remember(f"mode {params['modeId']}")
        return {}

    def on_session_resume(self, params: dict[str, Any]) -> dict[str, Any]:
        self.session, self.cwd = params["sessionId"], Path(params["cwd"])
        if not self.file().exists():
            return {"error": {"code": -32002, "message": "Resource not found"}}
        self.remember("resumed")
        return {}

    def on_session_load(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.sessions == "load_fails":
            return {"error": {"code": -32603, "message": "Internal error"}}
        if "error" in (answer := self.on_session_resume(params)):
            return answer
        self.remember("loaded")
        self.update("user_message_chunk", content={"type": "text", "text": "an old task"})
        self.say("words of the past")
        self.update("tool_call", toolCallId="old", title="an old tool", kind="execute", status="completed")
        return {}

    def on_session_prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        self.remember("prompt " + params["prompt"][0]["text"])
        return getattr(self, "do_" + self.behaviour)() or {"stopReason": "end_turn"}

    def file(self) -> Path:
        return Path(os.environ["HOME"]) / f"{self.session}.log"

    def remember(self, line: str) -> None:
        with self.file().open("a") as file:
            file.write(f"{line}\n")

    def asks(self, command: str, kind: str = "execute") -> str:
        """Ask for permission and return the kind of the option that was chosen; `cancelled` without one."""
        number, call = next(self._ids), f"call-{next(self._ids)}"
        tool = {"toolCallId": call, "title": f"Run {command}", "kind": kind, "rawInput": {"command": command}}
        self.send(
            {
                "id": number,
                "method": "session/request_permission",
                "params": {"sessionId": self.session, "toolCall": tool, "options": OPTIONS},
            }
        )
        for message in self._lines:
            if message.get("id") == number and "method" not in message:
                chosen = message["result"]["outcome"].get("optionId", "")
                return next((str(option["kind"]) for option in OPTIONS if option["optionId"] == chosen), "cancelled")
            self.serve(message)
        sys.exit(0)

    def runs(self, command: str) -> None:
        call = f"call-{next(self._ids)}"
        self.update("tool_call", toolCallId=call, title="Terminal", kind="execute", status="pending")
        self.update("tool_call_update", toolCallId=call, title=command, status="in_progress")
        code = subprocess.run(command, shell=True, cwd=self.cwd, stdin=subprocess.DEVNULL, check=False).returncode
        self.update("tool_call_update", toolCallId=call, status="completed", rawOutput={"exitCode": code})

    def waits(self) -> dict[str, Any]:
        """Wait for the cancel."""
        while not self.cancelled and (message := next(self._lines, None)):
            self.serve(message)
        return {"stopReason": "cancelled"}

    def do_works(self) -> dict[str, Any]:
        answer = self.asks("echo made > made.txt")
        if answer not in ALLOWED:
            self.say(f"it was {answer}")
            return {"stopReason": "cancelled" if answer == "cancelled" else "end_turn"}
        self.runs("echo made > made.txt; env > env.txt")
        self.say(f"made with {answer}")
        usage = {"inputTokens": 12, "outputTokens": 3, "cachedReadTokens": 4, "totalTokens": 19}
        return {"stopReason": "end_turn", "usage": usage}

    def do_asks_twice(self) -> None:
        first = self.asks("rm -rf build")
        second = self.asks("app.py", "read")
        self.runs("echo made > made.txt")
        self.say(f"{first}, {second}")

    def do_is_cancelled(self) -> dict[str, Any]:
        self.runs("echo begun > begun.txt")
        return self.waits()

    def do_is_stubborn(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        late = "while [ ! -e go.txt ]; do sleep 0.05; done; echo late > late.txt"
        subprocess.Popen(["/bin/sh", "-c", late], cwd=self.cwd, start_new_session=True)
        (self.cwd / "begun.txt").write_text("begun")
        while True:
            time.sleep(1)

    def do_takes_long(self) -> None:
        """Never end by itself; where another one has begun, do the rest."""
        if not (self.cwd / "begun.txt").exists():
            self.do_is_stubborn()
        self.runs("echo made > made.txt")

    def do_is_silent(self) -> dict[str, Any]:
        return self.waits()

    def do_computes(self) -> None:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            pass
        self.say("computed")

    def do_crashes(self) -> None:
        self.say("so far so good")
        sys.stderr.write("Traceback: something broke\n")
        sys.exit(7)

    def do_crashes_at_a_limit(self) -> None:
        sys.stderr.write(f"ERROR: {LIMIT}\n")
        sys.exit(1)

    def do_leaves_a_child(self) -> None:
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        os._exit(3)

    def do_babbles(self) -> None:
        for line in ("not json", "[1, 2]", '"text"', '{"half": ', "", "\x00\xff", "{}", '{"id": 77, "result": {}}'):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe broken\n")
        self.update("an_update_of_the_future", what=[1])
        self.update("tool_call", toolCallId=None, title=None, kind=None, status="odd", content="none", locations=7)
        self.send({"method": "session/update", "params": None})
        self.send({"method": "cursor/todo", "params": {}})
        self.send({"id": "x", "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}})
        self.update("agent_message_chunk", content={"type": "text", "text": "x" * 3_000_000})
        self.update("agent_message_chunk", content={"type": "text", "text": " and well"})

    def do_floods(self) -> None:
        for _ in range(60):
            sys.stdout.write("y" * 1_000_000)
        sys.stdout.write("\n")
        self.say("after the flood")

    def do_reports_a_limit_as_text(self) -> None:
        self.say(LIMIT)

    def do_quotes_a_limit(self) -> None:
        self.runs("echo made > made.txt")
        self.say(LIMIT)

    def do_reports_a_limit(self) -> dict[str, Any]:
        data = {"errorKind": "rate_limit", "details": "This request would exceed your account's rate limit."}
        return {"error": {"code": -32603, "message": "Internal error", "data": data}}

    def do_has_a_wrong_key(self) -> dict[str, Any]:
        return {"error": {"code": 401, "message": "API key not valid. Please pass a valid API key."}}

    def do_circles(self) -> dict[str, Any]:
        for number in range(10_000):
            self.update("tool_call", toolCallId=f"t{number}", title="ls", kind="execute", status="completed")
            time.sleep(0.002)
        return {"stopReason": "end_turn"}

    def do_refuses(self) -> dict[str, Any]:
        self.say("I will not do that.")
        return {"stopReason": "refusal"}

    def do_fills_its_context(self) -> dict[str, Any]:
        return {"stopReason": "max_tokens"}

    def do_uses_all_its_turns(self) -> dict[str, Any]:
        return {"stopReason": "max_turn_requests"}

    def do_stops_oddly(self) -> dict[str, Any]:
        return {"stopReason": "bored"}

    def do_wants_a_login(self) -> None:
        self.say("never said")

    def do_signs_in(self) -> None:
        self.say("signed in")

    def do_tells_its_key(self) -> None:
        key = os.environ.get("FAKE_AGENT_KEY", "no key")
        sys.stderr.write(f"debug: key {key}\n")
        self.runs(f"echo {key} >/dev/null")
        self.say(f"my key is {key}")


if __name__ == "__main__":
    Agent(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "resume").main()
