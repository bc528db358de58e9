"""Asks Agent S for one point in a screenshot. It runs once per question, in a Python that has `gui-agents`.

This is a separate process because other parts of the package evaluate model output and retry for minutes. The process
has no display and no secrets other than its key, and it can be killed. Only the package's prompt, image handling and
response parsing are used (`OSWorldACI.generate_coords`, `resize_coordinates`), none of which evaluates anything.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sys
from typing import Any

ANSWER_CHARACTERS = 300
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def main() -> None:
    """Read a question from standard input and print the answer as `{"x": ..., "y": ...}`.

    Errors are printed to standard error as a single sentence.
    """
    request = json.load(sys.stdin)
    # The package prints debug output.
    with contextlib.redirect_stdout(sys.stderr):
        point = locate(request)
    json.dump(point, sys.stdout)


def locate(request: dict[str, Any]) -> dict[str, int]:
    """Ask the model for a point. Return its position in screenshot pixels."""
    from gui_agents.s3.agents.grounding import OSWorldACI  # pyright: ignore[reportMissingImports]

    size = {"width": request["width"], "height": request["height"]}
    grid_width, grid_height = request["grid"] or (request["width"], request["height"])
    engine = {"engine_type": "openai", "model": request["model"], "base_url": request["base_url"]}
    grounding = {**engine, "grounding_width": grid_width, "grounding_height": grid_height}
    agent = OSWorldACI(None, sys.platform, engine, grounding, **size)
    agent.grounding_model.engine.generate = Once(request)
    x, y = agent.generate_coords(request["what"], {"screenshot": base64.b64decode(request["png"])})
    x, y = agent.resize_coordinates([x, y])
    return {"x": x, "y": y}


class Once:
    """Model client that sends a single request.

    It replaces the package's own client, which sends up to nine requests.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._asked, self._used = request, False

    def __call__(self, messages: list[dict[str, Any]], **_options: Any) -> str:
        """Send one request and return the response.

        Any error exits the process, because the package would otherwise retry.
        """
        from openai import OpenAI

        if self._used:
            raise SystemExit("the model returned an unusable answer, and the request will not be retried")
        self._used = True
        key = os.environ.get("AGENT_S_KEY") or "none"
        client = OpenAI(api_key=key, base_url=self._asked["base_url"], max_retries=0, timeout=self._asked["timeout_s"])
        try:
            answer = client.chat.completions.create(model=self._asked["model"], messages=messages, temperature=0.0)  # type: ignore[arg-type]
            text = answer.choices[0].message.content or ""
        except Exception as error:  # noqa: BLE001 - of many classes, and all of them end it
            raise SystemExit(f"the model did not respond: {type(error).__name__}: {error}") from None
        # The package takes the first two numbers of any text.
        numbers = _NUMBER.findall(text)
        if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
            raise SystemExit(f"the model answered {text[:ANSWER_CHARACTERS]!r} instead of a single point")
        return text


if __name__ == "__main__":
    main()
