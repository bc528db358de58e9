"""A check for schemathesis: what a 2xx answer to a change names exists. It lists them in `confirmed.txt`."""

from pathlib import Path

import requests
import schemathesis
from schemathesis import Case, CheckContext, Response

LIST = "confirmed.txt"
"""Of what was asked for and was there, in the folder that schemathesis runs in."""


@schemathesis.check
def named_things_exist(_: CheckContext, response: Response, case: Case) -> None:
    """Ask for everything that a confirmed change names."""
    if case.method in ("GET", "HEAD", "OPTIONS") or not 200 <= response.status_code < 300:
        return
    answer = response.json()
    collection = case.path.removeprefix("/api/").partition("/")[0]
    named = {answer["href"]} if "href" in answer else set()
    named |= {f"/api/{collection}/{answer[key]}" for key in ("id", "planId") if key in answer and not named}
    named |= {f"/api/episodes/{run['runId']}" for run in answer.get("runs", ()) if run.get("runId")}
    base = str(response.request.url).partition("/api/")[0]
    for name in sorted(named):
        found = requests.get(
            base + name, headers={"Authorization": response.request.headers["Authorization"]}, timeout=30
        )
        assert found.status_code == 200, f"{case.method} {case.path} confirmed {name}: {found.text[:500]}"
        with Path(LIST).open("a") as confirmed:
            confirmed.write(f"{case.method} {case.path} {name}\n")
