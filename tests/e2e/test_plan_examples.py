"""Every example plan, run to its end by the workers a user starts, with the approvals a person would give."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import WorkflowHistory

from activities.plan.records import open_file_records
from tests.support.episodes import Git, eventually
from tests.support.model_server import ModelServer, says
from tests.support.stack.stack import ROOT, Stack, shared_state, wait_for_port
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult
from tightloop.plan.text.reading import read_plan
from tightloop.plan.validation import validate

EXAMPLES = ROOT / "examples" / "plans"
PLANS = sorted(
    path for path in EXAMPLES.rglob("*") if path.suffix in (".yaml", ".plan", ".json") and "sample" not in path.parts
)
SITE_PORT = "8765"
"""The port that the examples name; the tests' own server takes a free one."""
PLAN_SECONDS = 150.0


class QuietPages(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


ADVICE = {"methods": ["GET", "PUT", "DELETE"], "reason": "they are idempotent"}
DECISION = {"reason": "the methods are clear", "option": "build", "confidence": 0.9}


AGENT = """import pathlib
file = pathlib.Path("relay/duration.py")
one, all_ = "int(part[1]) * UNITS[part[2]]", "sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))"
file.write_text(file.read_text().replace(one, all_))
"""
"""What stands in for a coding agent: it fixes the one line."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server and a worker process, as `tightloop up` starts them; a service on loopback answers for the model."""
    with (
        ModelServer(says(ADVICE), says(DECISION)) as models,
        Stack(
            tmp_path_factory.mktemp("stack"),
            {
                **shared_state(),
                "OPENAI_API_KEY": "test",
                "TIGHTLOOP_PLANNER__BASE_URL": models.url,
                "TIGHTLOOP_EXECUTOR__ARGV": json.dumps([sys.executable, "-c", AGENT, "{plan_file}"]),
            },
        ) as running,
    ):
        running.start_server()
        wait_for_port(running.settings.temporal.address)
        running.start_worker()
        yield running
        running.stop_worker()


@pytest.fixture(scope="module")
async def people(stack: Stack) -> TightloopClient:
    return await TightloopClient.connect(settings=stack.settings)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The pages of the research examples; returns the port."""
    pages = partial(QuietPages, directory=str(EXAMPLES / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield str(server.server_port)
        server.shutdown()
        thread.join()


@dataclass
class Ran:
    """A plan that was run on the sample project."""

    project: Path
    plan_id: str
    result: PlanResult
    steps: dict[str, str]

    def text(self, path: str) -> str:
        return (self.project / path).read_text()

    def outputs(self, step: str) -> dict[str, Any]:
        record = open_file_records(self.project).latest(self.plan_id, step)
        assert record is not None
        return record.outputs

    def tests_pass(self) -> bool:
        command = (sys.executable, "-B", "-m", "unittest", "-q")
        return subprocess.run(command, cwd=self.project, capture_output=True, timeout=60).returncode == 0

    def seconds(self, duration: str) -> str:
        """What the sample project makes of a duration."""
        code = f"from relay.duration import seconds; print(seconds({duration!r}))"
        done = subprocess.run((sys.executable, "-B", "-c", code), cwd=self.project, capture_output=True, timeout=60)
        return done.stdout.decode().strip()


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The sample project with its history."""
    folder = tmp_path / "relay"
    subprocess.run((sys.executable, EXAMPLES / "sample/create.py", folder), check=True, capture_output=True, timeout=60)
    return folder


@dataclass
class Person:
    """Starts plans and answers what they ask."""

    client: TightloopClient
    project: Path
    plan_id: str = ""

    async def start(self, source: str, **changes: Any) -> None:
        request = PlanRequest(workspace=str(self.project), source=source, **changes)
        self.plan_id = await self.client.start(request)

    async def waits_for(self, step: str) -> str:
        """Wait until a step waits for a person; return what it asks."""

        async def question() -> str:
            status = await self.client.status(self.plan_id)
            assert status.outcome is None, status.reason
            return next(("\n".join((one.title, *one.evidence)) for one in status.questions if one.step == step), "")

        return str(await eventually(question, seconds=PLAN_SECONDS))

    async def finish(self) -> Ran:
        """Wait for the end; a plan that asks instead fails the test with what it asks."""
        plans = self.client
        async with asyncio.timeout(PLAN_SECONDS):
            async for status in plans.watch(self.plan_id, poll=timedelta(milliseconds=100)):
                if status.status == "paused":
                    told = await plans.timeline(self.plan_id)
                    lines = "\n".join(f"  {one.kind} {one.text}" for one in told[-15:])
                    pytest.fail(f"{self.plan_id} waits: {status.questions[0].title}\n{lines}")
        result = await plans.result(self.plan_id)
        steps = {line.id: line.status.value for line in await plans.steps(self.plan_id)}
        return Ran(self.project, self.plan_id, result, steps)


@pytest.fixture
def person(people: TightloopClient, sample: Path) -> Person:
    return Person(people, sample)


def text_of(name: str, port: str = SITE_PORT) -> str:
    return (EXAMPLES / name).read_text().replace(SITE_PORT, port)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_example_is_valid_and_says_how_to_run_it(path: Path) -> None:
    read = read_plan(path.read_text(), name=path.name)
    wrong = [str(problem) for problem in validate(read) if problem.is_error]
    head = path.read_text()[:1_500]
    assert not wrong
    assert "tightloop plan" in head
    assert path.name in (EXAMPLES / "README.md").read_text()


async def test_research_then_build_answers_its_questions_before_it_builds(person: Person, git: Git) -> None:
    await person.start(text_of("research-then-build.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert (ran.steps["research-1"], ran.steps["known-enough"], ran.steps["replan"]) == (
        "completed",
        "skipped",
        "skipped",
    )
    knowledge = ran.text("kb/retries.md")
    assert "GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent" in knowledge
    assert re.search(r"Source: docs/notes/methods\.md:\d+", knowledge)
    assert re.search(r"Source: docs/notes/waiting\.md:\d+", knowledge)
    assert ran.tests_pass()
    assert git(ran.project, "log", "-1", "--format=%s") == "feat(plan): Retry what is idempotent"
    assert git(ran.project, "branch", "--show-current") == "plan/retries"


async def test_hasty_build_is_replanned_by_a_person(person: Person) -> None:
    source = text_of("research-then-build.yaml")
    await person.start(source, inputs={"build": "hasty"})
    assert "No test covers the retries" in await person.waits_for("replan")
    more = source.replace(
        "  - id: archive\n",
        "  - id: add-tests\n    needs: [replan]\n    edit:\n      files:\n"
        '        - {path: tests/test_retry.py, content: "import unittest\\n\\nfrom relay.client import Client\\n'
        "from relay.message import Request, Response\\n\\n\\nclass RetryTest(unittest.TestCase):\\n"
        "    def test_it(self):\\n        sent = Client(lambda request: Response(200)).send(Request('GET', '/'))\\n"
        '        self.assertEqual(sent.status, 200)\\n"}\n  - id: archive\n',
    )
    await person.client.replan(person.plan_id, more, rationale="tests are missing", by="maria")
    await person.client.answer(person.plan_id, "approve", "added", question="replan", by="maria")
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert ran.result.revision == 2
    assert ran.steps["add-tests"] == "completed"
    assert "RetryTest" in ran.text("tests/test_retry.py")


async def test_debug_branching_takes_only_the_path_of_the_right_hypothesis(person: Person) -> None:
    await person.start(text_of("debug-branching.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    done = {step for step, status in ran.steps.items() if status == "completed"}
    assert {"test-h1", "test-h2", "fix-parts", "verify"} <= done
    assert not {"fix-units", "test-h3", "escalate"} & done
    assert ran.seconds("1h30m") == "5400"
    status = await person.client.status(person.plan_id)
    sure = {belief.hypothesis: belief.confidence for belief in status.beliefs}
    assert sure["H1"] < 0.1 < 0.8 < sure["H2"]


async def test_http3_research_digs_into_each_gap_until_two_hosts_confirm_every_claim(person: Person, site: str) -> None:
    await person.start(text_of("http3-research.yaml", site))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert {step for step in ran.steps if step.startswith("gaps-deep-dive-")} == {
        "gaps-deep-dive-1",
        "gaps-deep-dive-2",
    }
    claims = {claim["id"]: claim for claim in json.loads(ran.text("kb/http3.json"))}
    assert claims.keys() == {"layer", "window", "loss", "newreno", "cubic"}
    for claim in claims.values():
        assert {url.split("/")[2].split(":")[0] for url in claim["sources"]} == {"127.0.0.1", "localhost"}
    assert claims["cubic"]["claim"].endswith("multiplies the window by 0.7")


async def test_feature_x_builds_the_option_that_a_person_chose(person: Person) -> None:
    await person.start(text_of("feature-x.yaml"))
    assert (await person.waits_for("gate-approval")).startswith("How should retries be built?")
    plans = person.client
    await plans.answer(person.plan_id, "A", "configurable", question="gate-approval", by="maria")
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert (ran.steps["implement-A"], ran.steps["implement-B"]) == ("completed", "skipped")
    assert "| A | a middleware around the transport |" in ran.text("docs/design/retries.md")
    rates = ran.outputs("validate")["rates"]
    assert rates["after"] < rates["before"] / 4
    assert ran.outputs("gate-approval")["approved_by"] == ["maria"]


@dataclass(frozen=True)
class Starts:
    """Which workflow tasks started children: those that may run side by side wait for nothing but themselves.

    How long they really overlap is up to the machine.
    """

    prepared: list[int]
    """The tasks that had the preparations done, one for each child; a task is named by its last event."""
    ready: list[int]
    """The first tasks that knew that a preparation is done."""
    started: list[int]
    """The tasks that started the children."""

    @classmethod
    def of(cls, history: WorkflowHistory, children: list[str]) -> "Starts":
        """Read it from the history of the plan around them, which prepares nothing else."""
        prepared: dict[int, int] = {}
        ready: list[int] = []
        waiting: list[int] = []
        started: list[int] = []
        for event in history.events:
            if event.HasField("activity_task_scheduled_event_attributes"):
                scheduled = event.activity_task_scheduled_event_attributes
                if scheduled.activity_type.name == "prepare_children":
                    prepared[event.event_id] = scheduled.workflow_task_completed_event_id
            elif event.HasField("activity_task_completed_event_attributes"):
                if event.activity_task_completed_event_attributes.scheduled_event_id in prepared:
                    waiting.append(event.event_id)
            elif event.HasField("workflow_task_completed_event_attributes"):
                begun = event.workflow_task_completed_event_attributes.started_event_id
                ready += [event.event_id for done in waiting if done < begun]
                waiting = [done for done in waiting if done > begun]
            elif event.HasField("start_child_workflow_execution_initiated_event_attributes"):
                child = event.start_child_workflow_execution_initiated_event_attributes
                if child.workflow_id in children:
                    started.append(child.workflow_task_completed_event_id)
        return cls(list(prepared.values()), ready, started)


async def test_debug_500_fixes_what_the_evidence_of_three_subplans_supports(person: Person) -> None:
    await person.start(text_of("debug-500.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert (ran.steps["fix-timeout"], ran.steps["fix-pool"], ran.steps["fix-race"]) == (
        "completed",
        "skipped",
        "skipped",
    )
    assert "Root cause: H3" in ran.text("docs/postmortem-500.md")
    history = WorkflowHistory.from_json(ran.plan_id, await person.client.history(ran.plan_id))
    checks = Starts.of(history, [f"{ran.plan_id}.{check}.1" for check in ("check-db", "check-race", "check-timeout")])
    assert len(checks.prepared) == 3
    assert len(set(checks.prepared)) == 1, "the checks were let go one after the other"
    assert sorted(checks.started) == sorted(checks.ready), "a check waited for another one"
    assert ran.tests_pass()
    command = (sys.executable, "-B", "-m", "tools.load", "--load", "heavy", "--burst", "on")
    seen = json.loads(subprocess.run(command, cwd=ran.project, capture_output=True, check=True, timeout=60).stdout)
    assert seen["errors"] == 0 < seen["upstream_timeouts"]


async def test_three_ways_keeps_the_shortest_that_passes_and_leaves_no_worktree(person: Person, git: Git) -> None:
    await person.start(text_of("three-ways.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert "_PART.findall(text)" in ran.text("relay/duration.py")
    assert ran.seconds("1h30m") == "5400"
    assert ran.outputs("try-ways")["winner"] == "all-parts"
    assert len(git(ran.project, "worktree", "list").splitlines()) == 1
    assert git(ran.project, "log", "-1", "--format=%s") == "fix(plan): Durations with several parts"


async def test_refactor_goes_back_byte_for_byte_and_converges_on_the_careful_way(person: Person, git: Git) -> None:
    await person.start(text_of("refactor.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert ran.steps["test"] == "recovered"
    assert (ran.steps["rename-definition"], ran.steps["rename-uses"]) == ("compensated", "compensated")
    records = open_file_records(ran.project)
    careful = records.find_attempt(ran.plan_id, "careful-rename", 1)
    first = records.find_attempt(ran.plan_id, "rename-definition", 1)
    assert careful is not None
    assert first is not None
    assert careful.tree_before == first.tree_before != careful.tree_after
    assert "fmt" not in ran.text("relay/notice.py")
    assert ran.tests_pass()
    assert git(ran.project, "log", "-1", "--format=%s") == "chore(plan): rename fmt to as_text"


async def test_refactor_that_no_way_saves_leaves_the_project_as_it_was(person: Person, git: Git) -> None:
    broken = text_of("refactor.yaml").replace('"as_text", path', '"as text", path')
    await person.start(broken)
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPENSATED, ran.result.reason
    assert git(ran.project, "status", "--porcelain") == ""
    assert git(ran.project, "log", "-1", "--format=%s") == "Introduce the project"


async def test_tidy_in_the_text_form_repairs_what_its_lint_finds(person: Person) -> None:
    odd = person.project / "relay/tally.py"
    odd.write_text(odd.read_text().replace("import threading\n", "import threading   \n"))
    await person.start(text_of("tidy.plan"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert (ran.steps["lint"], ran.steps["strip"]) == ("recovered", "completed")
    assert "import threading\n" in ran.text("relay/tally.py")
    assert ran.text("CHANGES.md").startswith("# What is new\n\n- Begin with durations\n")


async def test_json_plan_waits_with_its_deployment_for_a_person(person: Person) -> None:
    await person.start(text_of("plan-build-search.json"))
    assert "policy.approve" in await person.waits_for("deploy-01")
    assert not (person.project / "dist").exists()
    await person.client.answer(person.plan_id, "approve", "tested", question="deploy-01", by="maria")
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert (ran.project / "dist/search.pyz").stat().st_size > 0
    assert ran.text("intake.md").startswith("# Intake")
    assert ran.outputs("research-01").keys() >= {"kb-q1-json", "kb-q1-md"}


async def test_research_template_leaves_a_knowledge_base_with_citations(person: Person, site: str) -> None:
    await person.start(text_of("templates/research.yaml", site))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    known = {claim["id"]: claim for claim in yaml.safe_load(ran.text("kb/loss/kb.yaml"))["claims"]}
    assert known["threshold"]["claim"] == "3 later packets"
    assert known["threshold"]["confidence"] == "medium"
    assert len(known["threshold"]["citations"]) == 2
    assert "A packet counts as lost once 3 later packets are acknowledged." in ran.text("kb/loss/kb.md")
    assert f"http://localhost:{site}/guide/loss.html" in ran.text("reports/loss.md")
    cached = [
        json.loads(path.read_text()) for path in state_folder(ran.project).rglob("*.json") if "cache" in path.parts
    ]
    assert ran.steps["sign-off"] == "skipped"
    assert any(one.get("sha256") and one.get("fetched_at") for one in cached)


async def test_debugging_template_bisects_to_the_commit_that_broke_it(person: Person, git: Git) -> None:
    await person.start(text_of("templates/debugging.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    culprit = ran.outputs("bisect")["culprit"]
    assert git(ran.project, "log", "-1", "--format=%s", culprit["commit"]) == "Read durations with one pattern"
    assert 0 < culprit["steps"] < 6
    assert ran.seconds("1h30m") == "5400"
    assert ran.tests_pass()
    story = ran.text("docs/postmortem.md")
    assert f"Root cause: commit {culprit['short']}" in story
    assert "fails 5 of 5 times" in story
    assert git(ran.project, "branch", "--list").split() == ["*", "main"]


async def test_model_advises_and_decides_within_its_schema(person: Person) -> None:
    await person.start(text_of("optional/ask-a-model.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert (ran.steps["write"], ran.steps["research-more"]) == ("completed", "skipped")
    assert ran.text("docs/advice.md").startswith('# May be sent again: ["GET", "PUT", "DELETE"]')
    assert ran.result.spent.tokens > 0


async def test_agent_works_in_an_episode_until_the_checks_are_green(person: Person, git: Git) -> None:
    await person.start(text_of("optional/hand-to-an-agent.yaml"))
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert ran.outputs("fix")["outcome"] == "SUCCEEDED"
    assert ran.seconds("1h30m") == "5400"
    assert git(ran.project, "log", "-1", "--format=%s") == "fix(plan): Durations with several parts"


def test_example_runs_from_the_shell_as_the_readme_says(stack: Stack, sample: Path) -> None:
    def tightloop(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "tightloop.cli.main", *arguments)
        return subprocess.run(
            command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=PLAN_SECONDS
        )

    ran = tightloop("plan", "run", "examples/plans/tidy.plan", "--workspace", str(sample), "--id", "tidy-1")
    # Its checks pass from the start.
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert "completed" in ran.stdout
    assert (sample / "CHANGES.md").read_text().endswith("- Introduce the project\n")
    assert "strip" in tightloop("status", "tidy-1", "--steps").stdout
    again = tightloop("plan", "run", "--again", "tidy-1")
    assert again.returncode == 4, again.stdout + again.stderr
    assert again.stdout.count("(reused)") == 4
    assert (sample / "CHANGES.md").read_text().endswith("- Introduce the project\n")


async def test_debugging_template_lets_a_person_fix_what_never_worked(person: Person) -> None:
    await person.start(text_of("templates/debugging.yaml"), inputs={"last_known_good": "HEAD~1"})
    assert "fix it by hand" in await person.waits_for("design")
    plans, code = person.client, person.project / "relay/duration.py"
    await plans.pause(person.plan_id, "I fix it", by="maria")
    code.write_text((EXAMPLES / "sample/history/duration.py").read_text())
    await plans.resume(person.plan_id, by="maria")
    await plans.answer(person.plan_id, "approve", "fixed", question="design", by="maria")
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    assert ran.steps["bisect"] == "skipped"
    assert ran.seconds("1h30m") == "5400"
    assert "fixed by hand" in ran.text("docs/postmortem.md")
    assert "Supported best: H2" in ran.text("docs/postmortem.md")


async def test_research_template_asks_a_person_about_a_claim_with_one_source(person: Person, site: str) -> None:
    only = [f"http://127.0.0.1:{site}/spec/recovery.html", f"http://localhost:{site}/guide/loss.html"]
    await person.start(text_of("templates/research.yaml", site), inputs={"sources": only})
    assert "lack a second source" in await person.waits_for("sign-off")
    await person.client.answer(person.plan_id, "approve", "a standard says so", question="sign-off", by="maria")
    ran = await person.finish()
    assert ran.result.outcome is PlanOutcome.COMPLETED, ran.result.reason
    known = {claim["id"]: claim["confidence"] for claim in yaml.safe_load(ran.text("kb/loss/kb.yaml"))["claims"]}
    assert known == {"threshold": "medium", "newreno": "low", "window": "low"}
