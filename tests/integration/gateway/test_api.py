"""Episodes and plans over HTTP, with real workers: what services and people do."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest

from tests.support.episodes import APPEND, Working, eventually
from tests.support.gateway import Gateway, gateway
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.ledger.model import ProjectLine, WorkflowSnapshot
from tightloop.safety.seal import Role
from tightloop.settings import Settings

GATED = """
id: ship
title: Ship it
steps:
- {id: build, shell: {run: "true"}, access: none}
- {id: ship, needs: [build], gate: {approval: {question: "Ship?", count: 2}}}
"""


def episode_at(workspace: Path, **changes: Any) -> dict[str, Any]:
    return {
        "goal": "write three lines",
        "workspace": str(workspace),
        "definitionOfDone": [{"run": "test $(cat log.txt | wc -l) -ge 3"}],
        "executor": {"name": "scripted", "options": {"steps": [APPEND], "repeat": True}},
        **changes,
    }


def operator(served: Gateway) -> httpx2.AsyncClient:
    return served.http(served.token("anna", Role.OPERATOR))


async def status_of(http: httpx2.AsyncClient, path: str) -> str:
    return str((await http.get(f"{path}?fresh=true")).json()["status"])


async def until(http: httpx2.AsyncClient, path: str, status: str) -> None:
    async def is_it() -> bool:
        return await status_of(http, path) == status

    await eventually(is_it, seconds=90)


async def test_an_episode_is_started_once_watched_and_forked(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    async with (
        gateway(tmp_path, client, settings) as served,
        working(),
        served.http(served.token("anna", Role.OPERATOR)) as http,
    ):
        key = {"Idempotency-Key": "nightly"}
        first, again = [await http.post("/api/episodes", json=episode_at(workspace), headers=key) for _ in range(2)]
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.json() == again.json()
        assert again.headers["idempotency-replayed"] == "true"
        other = await http.post("/api/episodes", json=episode_at(workspace, goal="another"), headers=key)
        assert (other.status_code, other.json()["type"]) == (409, "urn:tightloop:problem:key-in-use")
        path = first.headers["location"]
        await until(http, path, "succeeded")
        shown = (await http.get(f"{path}?fresh=true")).json()
        assert shown["details"]["outcome"] == "SUCCEEDED"
        assert shown["details"]["spent"]["iterations"] == 3
        timeline = (await http.get(f"{path}/timeline")).json()
        assert timeline["items"][-1]["cursor"] == timeline["cursor"]
        assert (await http.get(f"{path}/timeline?after={timeline['cursor']}")).json()["items"] == []
        refused = await http.post(f"{path}/pause", json={})
        assert refused.status_code == 409
        assert refused.json()["state"] == "succeeded"
        assert refused.json()["possible"] == ["restore", "fork"]
        forked = await http.post(
            f"{path}/fork", json={"checkpointId": "ckpt-1"}, headers=key | {"Idempotency-Key": "f"}
        )
        assert forked.status_code == 201, forked.text
        await until(http, forked.json()["href"], "succeeded")
        unknown = await http.post(f"{path}/restore", json={"checkpointId": "ckpt-77"})
        assert unknown.status_code == 422
        assert "ckpt-3" in unknown.json()["detail"]


async def test_a_fresh_list_has_what_no_worker_has_opened_yet(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, operator(served) as http:
        started = (await http.post("/api/episodes", json=episode_at(workspace))).json()["id"]

        async def rows(query: str) -> dict[str, str]:
            return {row["id"]: row["status"] for row in (await http.get(f"/api/episodes?{query}")).json()["items"]}

        async def is_listed() -> bool:
            return (await rows("fresh=true&limit=500")).get(started) == "running"

        await eventually(is_listed)
        assert started not in await rows("limit=500")
        assert started in await rows("fresh=true&status=running&limit=500")
        assert started not in await rows("fresh=true&status=paused&limit=500")
        assert started not in await rows("fresh=true&text=elsewhere&limit=500")
        refused = await http.get("/api/episodes?fresh=true&cursor=x")
        assert (refused.status_code, "one page" in refused.json()["detail"]) == (422, True)
        await client.cancel(started)


async def test_files_and_artifacts_of_checkpoints_are_read(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    async with (
        gateway(tmp_path, client, settings) as served,
        working(),
        served.http(served.token("anna", Role.OPERATOR)) as http,
    ):
        path = (await http.post("/api/episodes", json=episode_at(workspace))).json()["href"]
        await until(http, path, "succeeded")
        episode_id = path.rpartition("/")[2]
        project, records = record(served, workspace, episode_id), await client.checkpoints(episode_id)
        for one in records:
            served.ledger.of(project).record_checkpoint(episode_id, one.id, one)
        assert [one["id"] for one in (await http.get(f"{path}/checkpoints")).json()["items"]] == [
            one.id for one in records
        ]
        diff = (await http.get(f"{path}/diff?before=ckpt-0&after=2")).json()
        assert diff["files"] == [{"path": "log.txt", "added": 2, "removed": 0}]
        assert "+2\n" in diff["patch"]
        found = (await http.get(f"{path}/artifacts")).json()["items"]
        assert {"sha256", "sizeBytes"} <= found[0].keys()
        stored = await http.get(f"{path}/artifacts/{found[0]['sha256']}")
        assert len(stored.content) == found[0]["sizeBytes"]
        assert stored.headers["content-disposition"].startswith("attachment")
        assert (await http.get(f"{path}/artifacts/{'0' * 64}")).status_code == 404
        page = (await http.get("/api/episodes?limit=1")).json()
        assert [one["id"] for one in page["items"]] == [episode_id]


def record(served: Gateway, workspace: Path, episode_id: str) -> str:
    """Write what an activity of a worker records."""
    project = state_folder(workspace).name
    of = served.ledger.select_project(ProjectLine(id=project, name="project", workspace=str(workspace)))
    of.record(WorkflowSnapshot(id=episode_id, kind="episode", status="succeeded", at=datetime.now(UTC)))
    return project


async def test_two_different_people_means_two_tokens(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    async with gateway(tmp_path, client, settings) as served, working():
        roles = {"anna": Role.APPROVER, "boris": Role.APPROVER, "olga": Role.OPERATOR}
        people = {name: served.http(served.token(name, role)) for name, role in roles.items()}
        sent = {"workspace": str(workspace), "source": GATED}
        started = await people["olga"].post("/api/plans", json=sent)
        assert started.status_code == 201, started.text
        path = started.json()["href"]

        async def asks() -> bool:
            return bool((await people["olga"].get(f"{path}?fresh=true")).json()["questions"])

        await eventually(asks, seconds=90)
        approve = f"{path}/gates/ship/approve"
        refused = await people["olga"].post(approve, json={})
        assert (refused.status_code, "approver" in refused.json()["detail"]) == (403, True)
        refused = await people["olga"].post(f"{path}/answer", json={"option": "approve"})
        assert refused.status_code == 403
        forged = await people["anna"].post(approve, json={"by": "boris"})
        assert forged.status_code == 422, "nobody says who they are"
        assert (await people["anna"].post(approve, json={"text": "fine"})).status_code == 200
        twice = await people["anna"].post(approve, json={})
        assert twice.status_code == 422
        assert "anna has already answered" in twice.json()["detail"]
        assert (await people["boris"].post(approve, json={})).status_code == 200
        await until(people["olga"], path, "completed")
        told = (await people["olga"].get(f"{path}/timeline")).text
        assert "anna" in told
        assert "boris" in told
        for person in people.values():
            await person.aclose()


async def test_a_question_is_answered_in_the_name_of_the_token(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    async with (
        gateway(tmp_path, client, settings) as served,
        working(),
        served.http(served.token("anna", Role.OPERATOR)) as http,
    ):
        never = episode_at(workspace, definitionOfDone=[{"run": "false"}], budget={"maxIterations": 2})
        path = (await http.post("/api/episodes", json=never)).json()["href"]
        await until(http, path, "paused")
        nonsense = await http.post(f"{path}/answer", json={"option": "nonsense"})
        assert (nonsense.status_code, "Options:" in nonsense.json()["detail"]) == (422, True)
        key = {"Idempotency-Key": "one-more"}
        topped, again = [await http.post(f"{path}/top-up", json={"iterations": 1}, headers=key) for _ in range(2)]
        assert (topped.status_code, again.status_code) == (200, 200), topped.text
        assert again.headers["idempotency-replayed"] == "true"
        budget = (await http.get(f"{path}?fresh=true")).json()["details"]["budget"]
        assert budget["maxIterations"] == 3, "the second one was answered, and added nothing"
        assert (await http.post(f"{path}/respond", json={"text": "try the other way"})).status_code == 200
        assert (await http.post(f"{path}/cancel", json={"reason": "enough"})).status_code == 202
        await until(http, path, "cancelled")
        assert "anna" in (await http.get(f"{path}/timeline")).text


async def test_what_cannot_work_is_refused_with_what_to_do(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, operator(served) as http:
        wrong: list[tuple[str, dict[str, Any], int, str]] = [
            ("/api/episodes", episode_at(workspace, goal=""), 422, "body.goal"),
            ("/api/episodes", episode_at(workspace, gaol="x"), 422, "body.gaol"),
            ("/api/episodes", episode_at(workspace, budget={"maxCost": 1}), 422, "maxCost"),
            ("/api/episodes", episode_at(workspace, executor={"name": "codx"}), 422, "codex"),
            ("/api/episodes", {**episode_at(workspace), "within": "plan-1"}, 422, "within"),
            ("/api/plans", {"workspace": str(workspace), "source": "title: x\nsteps: [{id: a, rnu: x}]"}, 422, "run"),
            ("/api/plans", {"workspace": str(workspace)}, 422, "exactly one of source, file and goal"),
            ("/api/projects/no-1/episodes", {"goal": "x", "definitionOfDone": [{"run": "x"}]}, 404, "no such project"),
            ("/api/episodes/nothing/pause", {}, 404, "no such episode: 'nothing'"),
        ]
        for path, body, status, words in wrong:
            answer = await http.post(path, json=body)
            assert answer.status_code == status, f"{path} {body}: {answer.status_code} {answer.text}"
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json().keys() >= {"type", "title", "status", "detail"}
            assert words in answer.json()["detail"], answer.text
        method = await http.delete("/api/episodes")
        assert (method.status_code, "POST" in method.headers["allow"]) == (405, True)
        assert (method.json()["type"], method.json()["status"]) == ("urn:tightloop:problem:method-not-allowed", 405)
        text = await http.post("/api/episodes", content="goal: x", headers={"Content-Type": "application/yaml"})
        assert (text.status_code, text.json()["type"]) == (415, "urn:tightloop:problem:unsupported-media-type")
        broken = await http.post("/api/episodes", content='{"goal": }', headers={"Content-Type": "application/json"})
        assert broken.json()["detail"].startswith("body: not valid JSON at character 9: ")
        nowhere = await http.get("/api/episode")
        assert (nowhere.status_code, nowhere.json()["type"]) == (404, "urn:tightloop:problem:not-found")


async def test_a_misspelt_query_parameter_is_refused_with_the_names_that_exist(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, operator(served) as http:
        for path, names in (
            ("/api/episodes?staus=paused", "project, status, text, parent, cursor, limit"),
            ("/api/inbox?projekt=x", "project"),
            ("/api/projects?limit=1", "This path accepts no query parameters"),
            ("/api/events?after=1", "lastEventId"),
            ("/api/episodes?status=pausd", "query.status: must be one of running, paused"),
        ):
            answer = await http.get(path)
            assert (answer.status_code, names in answer.json()["detail"]) == (422, True), answer.text
        started = await http.post("/api/episodes?name=nightly", json=episode_at(workspace))
        assert (started.status_code, "id, replace" in started.json()["detail"]) == (422, True)


async def test_schemas_describe_what_workflows_take(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, served.http(served.token("eve", Role.VIEWER)) as http:
        listed = (await http.get("/api/schemas")).json()["items"]
        assert set(listed) == {"EpisodeWorkflow", "PlanWorkflow", "LoopWorkflow"}
        for path in listed.values():
            schema = (await http.get(path)).json()
            jsonschema.Draft202012Validator.check_schema(schema)
        right = {"goal": "x", "workspace": "/w", "definition_of_done": [{"run": "true"}]}
        schema = (await http.get(listed["EpisodeWorkflow"])).json()
        jsonschema.validate(right, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**right, "iterations_per_run": "many"}, schema)
        assert (await http.get("/api/schemas/Nothing")).status_code == 404


async def test_what_the_client_can_do_can_be_done_over_http(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    async with (
        gateway(tmp_path, client, settings) as served,
        working(),
        served.http(served.token("ann", Role.APPROVER)) as http,
    ):
        started = await http.post("/api/episodes?id=one", json=episode_at(workspace, definitionOfDone=[{"run": "no"}]))
        path = started.json()["href"]
        early = await http.get(f"{path}/proof")
        assert (early.status_code, early.json()["type"]) == (409, "urn:tightloop:problem:no-proof")
        nothing = await http.post(f"{path}/amend", json={})
        assert (nothing.status_code, "the request does not change anything" in nothing.json()["detail"]) == (422, True)
        check = {"run": "test $(cat log.txt | wc -l) -ge 3"}
        changed = await http.post(f"{path}/amend", json={"goal": "three lines", "definitionOfDone": [check]})
        assert changed.status_code == 200, changed.text
        await until(http, path, "succeeded")
        asked = (await http.get(f"{path}/request")).json()
        assert (asked["kind"], asked["request"]["goal"]) == ("episode", "three lines")
        proof = (await http.get(f"{path}/proof")).json()
        assert proof["_type"] == "https://in-toto.io/Statement/v1"
        (run,) = (await http.get(f"{path}/runs")).json()["items"]
        history = (await http.get(f"{path}/runs/{run['runId']}/history")).json()
        assert history["events"][0]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED"
        body = episode_at(workspace)
        assert (await http.post("/api/episodes?id=one", json=body)).status_code == 409
        assert (await http.post("/api/episodes?replace=true", json=body)).status_code == 422
        wrong = (await http.post("/api/plans/validate", json={"source": "steps: [{id: a, kind: shel}]"})).json()
        assert (wrong["ok"], wrong["problems"][0]["line"]) == (False, 1)
        plan = (await http.post("/api/plans", json={"workspace": str(workspace), "source": GATED})).json()["href"]
        await waiting_gate(http, plan)
        same = await http.post(f"{plan}/replan", json={"source": GATED.replace("Ship?", "Ship it?")})
        assert same.status_code == 200, same.text
        await waiting_gate(http, plan)
        no = await http.post(f"{plan}/gates/ship/reject", json={"text": "not today"})
        assert no.status_code == 200, no.text
        assert (await http.post(f"{plan}/cancel", json={})).status_code == 202
        seen = (await http.get("/api/workers")).json()
        assert (seen["missing"], len(seen["items"]) > 0) == ([], True)
        async with served.http(served.token("eve", Role.ADMIN, ["other-0000000000000000"])) as other:
            for hidden in (f"{path}/request", f"{path}/runs", f"{path}/proof"):
                assert (await other.get(hidden)).status_code == 404
            assert (await other.get("/api/workers")).status_code == 403
        assert (await http.post("/api/episodes?id=one&replace=true", json=body)).status_code == 201
        await http.post(f"{path}/cancel", json={})


async def waiting_gate(http: httpx2.AsyncClient, plan: str) -> None:
    async def asks() -> bool:
        return bool((await http.get(f"{plan}?fresh=true")).json()["details"]["questions"])

    await eventually(asks, seconds=60)
