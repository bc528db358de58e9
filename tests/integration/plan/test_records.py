"""Records of attempts, and the account of a plan that has ended."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.plan.records import FileRecords, record_digest
from activities.plan.requests import RevisePlanRequest, VerifyPlanRequest
from tests.support.git_sample import make_repository, write
from tests.support.plan.stage import PLAN_ID, stage
from tightloop.episode.check import CheckReport
from tightloop.errors import ArtifactCorruptError, WorkspaceBusyError
from tightloop.host import state_folder
from tightloop.plan.child import StepRecord, StepResult, StepStatus
from tightloop.plan.document import PlanArchive, StoredPlan, file_name
from tightloop.plan.request import PlanOutcome
from tightloop.run.question import Answer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n"})


def record(step: str = "one", attempt: int = 1, **fields: Any) -> StepRecord:
    status = fields.pop("status", StepStatus.COMPLETED)
    given = {"inputs_sha256": "x", "ended": NOW + timedelta(seconds=attempt), "result": StepResult(status=status)}
    return StepRecord(plan_id="p", revision=1, step=step, attempt=attempt, **{**given, **fields})


class TestRecords:
    def test_newest_completed_attempt_is_what_references_read(self, tmp_path: Path) -> None:
        records = FileRecords(tmp_path)
        records.put(record(attempt=1, status=StepStatus.FAILED))
        records.put(record(attempt=2))
        records.put(record(attempt=3, status=StepStatus.FAILED))
        found = records.latest("p", "one")
        assert found is not None
        assert found.attempt == 2

    def test_attempt_that_was_taken_back_is_not_read_any_more(self, tmp_path: Path) -> None:
        records = FileRecords(tmp_path)
        records.put(record(attempt=1))
        records.put(record(attempt=2))
        records.mark_undone("p", "one", 2)
        records.mark_undone("p", "one", 2)
        found = records.latest("p", "one")
        assert found is not None
        assert found.attempt == 1

    def test_record_that_another_run_replaces_is_kept(self, tmp_path: Path) -> None:
        records = FileRecords(tmp_path)
        old, new = record(command="old"), record(command="new", ended=NOW + timedelta(hours=1))
        records.put(old)
        records.mark_undone("p", "one", 1)
        records.put(new)
        assert records.find_attempt("p", "one", 1) == new
        assert [one.command for one in records.all("p")] == ["old", "new"]

    def test_equal_record_is_harmless_and_has_the_same_hash(self, tmp_path: Path) -> None:
        records = FileRecords(tmp_path)
        assert records.put(record()) == records.put(record()) == record_digest(record())
        assert len(records.all("p")) == 1

    def test_many_threads_write_at_once(self, tmp_path: Path) -> None:
        records = FileRecords(tmp_path)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: records.put(record(f"s{number % 10}", number // 10 + 1)), range(100)))
        assert len(records.all("p")) == 100

    def test_damaged_record_is_told(self, tmp_path: Path) -> None:
        records = FileRecords(tmp_path)
        records.put(record())
        (path,) = tmp_path.rglob("0001.json")
        path.write_bytes(b"{")
        with pytest.raises(ArtifactCorruptError, match="is not a valid step record"):
            records.find_attempt("p", "one", 1)

    def test_different_ids_have_different_files(self) -> None:
        ids = ["a", "A", "a.b", "a..b", "a.lock", "a.lock-", "../a", "a/b", "a-b", "x" * 300, "x" * 301, "."]
        names = [file_name(one).casefold() for one in ids]
        assert len(set(names)) == len(ids)
        assert not any("/" in name or ".." in name or len(name) > 200 for name in names)


class TestAccount:
    def test_account_holds_revisions_records_decisions_and_texts(self, root: Path) -> None:
        plan = stage(
            root,
            {"id": "good", "title": "Do good", "shell": {"run": "echo fine > out.txt; echo fine"}},
            {"id": "bad", "shell": {"run": "echo no such luck >&2; exit 1"}},
            {"id": "ship", "kind": "deploy", "shell": {"run": "true"}},
            plan={
                "title": "Sample",
                "artifacts": [{"name": "said", "from_step": "good", "output": "stdout"}],
                "definition_of_done": ["test -f out.txt"],
            },
        )
        plan.check_done("good")
        plan.run("bad")
        yes = Answer(question="q1", by="sam", text="looks right", option="approve")
        plan.check_done("ship", answers=(yes,))
        checked = plan.call("verify_plan", VerifyPlanRequest(scope=plan.scope, expected_tree=plan.tree))
        assert (checked.passed, checked.total) == (True, 1)
        ref = plan.close(
            PlanOutcome.FAILED, reason="bad luck", statuses={"bad": "failed", "no": "skipped"}, counts={"completed": 2}
        )

        archive = PlanArchive.model_validate_json(plan.artifact(ref))
        assert archive.outcome is PlanOutcome.FAILED
        assert archive.answers == {"ship": (yes,)}
        assert archive.artifacts == {"said": "fine"}
        assert archive.records is not None
        lines = plan.artifact(archive.records).splitlines()
        assert [StepRecord.model_validate_json(line).step for line in lines] == ["good", "bad", "ship"]
        (revision,) = archive.revisions
        assert StoredPlan.model_validate_json(plan.artifact(revision)).plan == plan.plan
        assert archive.checks is not None
        assert CheckReport.model_validate_json(plan.artifact(archive.checks)).green
        note = (state_folder(root) / "plans" / PLAN_ID / "hand-off.md").read_text()
        assert "# Sample: failed" in note
        assert "Do good (good)" in note
        assert "## Open\n\n- bad (bad): failed\n\n" in note
        assert "- no (no): skipped" in note
        assert "ship: approve by sam. looks right" in note
        assert archive.postmortem is not None
        assert "no such luck" in plan.artifact(archive.postmortem).decode()

    def test_secret_in_an_output_is_in_no_text_for_people(self, root: Path) -> None:
        key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
        plan = stage(root, {"id": "one", "shell": {"run": f"echo {key[:20]}''{key[20:]} >&2; exit 1"}})
        result = plan.run("one")
        assert key not in result.model_dump_json()
        assert key.encode() not in plan.artifact(plan.record("one").artifacts["log"])
        archive = PlanArchive.model_validate_json(plan.artifact(plan.close(PlanOutcome.FAILED)))
        assert archive.postmortem is not None
        assert key.encode() not in plan.artifact(archive.postmortem)

    def test_closing_leaves_edits_of_others_and_gives_the_claim_back(self, root: Path) -> None:
        plan = stage(root, {"id": "one", "shell": {"run": "echo x > x.txt"}})
        plan.check_done("one")
        write(root, {"x.txt": "tampered", "stray.txt": "s"})
        with pytest.raises(WorkspaceBusyError):
            stage(root, {"id": "one"}, plan_id="plan-other")
        plan.close()
        assert (root / "x.txt").read_text() == "tampered"
        assert (root / "stray.txt").exists()
        stage(root, {"id": "one"}, plan_id="plan-other")

    def test_failing_definition_of_done_is_told(self, root: Path) -> None:
        plan = stage(root, {"id": "one"}, plan={"definition_of_done": ["true", "echo why >&2; false"]})
        checked = plan.call("verify_plan", VerifyPlanRequest(scope=plan.scope, expected_tree=plan.tree))
        assert (checked.passed, checked.total) == (False, 2)
        assert checked.failed == ("echo why >&2; false: failed: why",)


class TestRevision:
    def test_new_revision_is_stored_with_its_difference(self, root: Path) -> None:
        plan = stage(root, {"id": "one", "shell": {"run": "true"}})
        source = '{"id": "p", "steps": [{"id": "one", "shell": {"run": "true"}}, {"id": "two", "needs": ["one"]}]}'
        request = RevisePlanRequest(scope=plan.scope, source=source, rationale="more", by="sam", fixed=("one",))
        revised = plan.call("revise_plan", request)
        assert (revised.problem, revised.changed, revised.diff) == ("", ("two",), "added: two")
        stored = StoredPlan.model_validate_json(plan.artifact(revised.plan))
        assert (stored.revision, stored.rationale, stored.by, stored.previous) == (2, "more", "sam", plan.scope.plan)

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ('{"id": "p", "steps": [{"id": "one", "shell": {"run": "false"}}]}', "completed and cannot be changed"),
            ('{"id": "p", "steps": [{"id": "one", "needs": ["x"]}]}', "x"),
            ('{"id": "p", "steps": [{"id": "one", "shell": {"run": "true"}}]}', "is identical to"),
            ("", "agent_planning"),
        ],
    )
    def test_revision_that_cannot_be_is_refused_with_the_reason(self, root: Path, source: str, why: str) -> None:
        plan = stage(root, {"id": "one", "shell": {"run": "true"}})
        revised = plan.call("revise_plan", RevisePlanRequest(scope=plan.scope, source=source, fixed=("one",)))
        assert revised.plan is None
        assert why in revised.problem
