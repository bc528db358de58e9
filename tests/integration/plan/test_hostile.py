"""Values, files and runs that nobody meant: a step is right, or fails with a sentence; it neither hangs nor lies."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from activities.plan.requests import RunStepRequest
from tests.support.fake_site import FakeSite, Page, html
from tests.support.git_sample import make_repository, write
from tests.support.plan.stage import PLAN_ID, Stage, stage
from tightloop.host import state_folder
from tightloop.plan.child import StepStatus
from tightloop.plan.document import PlanArchive
from tightloop.plan.request import PlanOutcome
from tightloop.run.question import Answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\ntwo\n", "notes/b.txt": "two\n"})


@pytest.fixture
def site() -> Iterator[FakeSite]:
    pages = {"/tea": html("Teapots", "Tea is brewed."), "/plain": Page(body=b"ok")}
    pages["/half"] = Page(body=b'{"a": "\\ud800"}', media_type="application/json")
    pages["/nan"] = Page(body=b'{"a": NaN}', media_type="application/json")
    with FakeSite(pages) as running:
        yield running


def shell(step: str, run: str, **fields: Any) -> dict[str, Any]:
    return {"id": step, "shell": {"run": run}, **fields}


def reads(step: str, run: str, **fields: Any) -> dict[str, Any]:
    return shell(step, run, access="reads", **fields)


def printed(text: str) -> dict[str, Any]:
    """A step `make` whose output `x` is this JSON."""
    return reads("make", f"cat <<'END'\n{text}\nEND", outputs={"x": "json"})


def edit(step: str, *files: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": step, "edit": {"files": list(files)}, **fields}


def allowed(site: FakeSite) -> dict[str, Any]:
    return {"policy": {"network": [site.authority]}}


class TestValues:
    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("[" * 300 + "]" * 300, "nested deeper than 100 levels"),
            ("[" * 100_000, "nested deeper than 100 levels"),
            ('"a\\ud800b"', "half of a surrogate pair"),
            ("[NaN]", "nan is not a JSON number"),
            ('{"a": 1e999}', "inf is not a JSON number"),
        ],
    )
    def test_output_that_no_record_can_hold_fails_the_step(self, root: Path, text: str, why: str) -> None:
        write(root, {"x.json": text})
        plan = stage(root, reads("make", "true", outputs={"x": "json:x.json"}))
        assert why in plan.failed("make")

    def test_answer_that_is_no_good_json_is_still_text(self, root: Path, site: FakeSite) -> None:
        steps = [{"id": name, "http": {"url": site.url(f"/{name}")}} for name in ("half", "nan")]
        plan = stage(root, *steps, plan=allowed(site))
        for name in ("half", "nan"):
            plan.check_done(name)
            assert plan.record(name).outputs["json"] is None
            assert plan.record(name).outputs["body"].startswith('{"a": ')

    @pytest.mark.parametrize("value", [{"artifact": "dist/app.whl"}, {"artifact": {"sha256": "0" * 64}}])
    def test_output_that_looks_like_a_stored_one_is_read_as_it_is(self, root: Path, value: Any) -> None:
        plan = stage(root, printed(json.dumps(value)), reads("say", "printf %s ${make.x.artifact}", needs=["make"]))
        plan.check_done("make")
        plan.check_done("say")
        said = plan.record("say").outputs["stdout"]
        assert said == (value["artifact"] if isinstance(value["artifact"], str) else json.dumps(value["artifact"]))

    def test_value_that_no_variable_can_hold_is_named(self, root: Path) -> None:
        user = {"id": "say", "needs": ["make"], "shell": {"run": "true", "environment": {"COLOUR": "${make.x}"}}}
        plan = stage(root, printed('"a\\u0000b"'), user)
        plan.check_done("make")
        assert plan.failed("say").startswith("COLOUR cannot be passed in a command")

    def test_name_with_a_zero_byte_is_no_branch_and_no_path(self, root: Path) -> None:
        branch = {"id": "branch", "needs": ["make"], "git": {"branch": "${make.x}"}}
        paths = {"id": "paths", "needs": ["make"], "git": {"commit": "x", "paths": ["${make.x}"]}}
        plan = stage(root, printed('"a\\u0000b"'), branch, paths)
        plan.check_done("make")
        assert "null byte" in plan.failed("branch")
        assert "null byte" in plan.failed("paths")

    @pytest.mark.parametrize("header", ["a\r\nx-more: evil", "a\nb", "a\0b"])
    def test_header_cannot_smuggle_another_one_in(self, root: Path, site: FakeSite, header: str) -> None:
        http = {"id": "ask", "needs": ["make"], "http": {"url": site.url("/plain"), "headers": {"x-a": "${make.x}"}}}
        plan = stage(root, printed(json.dumps(header)), http, plan=allowed(site))
        plan.check_done("make")
        assert "cannot request" in plan.failed("ask")
        assert not site.visits

    def test_step_of_a_template_is_read_from_the_one_that_stood_in(self, root: Path) -> None:
        look = reads(
            "look-*",
            "test ${item} = x && echo ok",
            for_each=["x", "y"],
            outputs={"a": "stdout"},
            on_failure={"to": "other"},
        )
        other = reads("other", "echo other", outputs={"a": "stdout"})
        plan = stage(root, look, other, reads("join", "printf %s ${look-*.a}", needs=["look-*"]))
        plan.check_done("look-1", template="look-*", item=0)
        plan.failed("look-2", template="look-*", item=1)
        plan.check_done("other")
        plan.check_done("join")
        assert plan.record("join").outputs["stdout"] == "okother"


class TestFiles:
    def test_two_spellings_of_a_path_are_one_file(self, root: Path) -> None:
        first = {"path": "a.txt", "search": "one", "replace": "1"}
        plan = stage(root, edit("e", first, {"path": "./a.txt", "search": "two", "replace": "2"}))
        plan.check_done("e")
        assert (root / "a.txt").read_text() == "1\n2\n"

    def test_value_that_is_no_text_is_written_as_json(self, root: Path) -> None:
        whole = {"path": "n.json", "content": "${make.x}"}
        part = {"path": "a.txt", "search": "two", "replace": "${make.x.1}"}
        plan = stage(root, printed("[1, 2]"), edit("e", whole, part, needs=["make"]))
        plan.check_done("make")
        plan.check_done("e")
        assert (root / "n.json").read_text() == "[1, 2]"
        assert (root / "a.txt").read_text() == "one\n2\n"

    def test_text_to_remove_that_is_not_there_fails_the_edit(self, root: Path) -> None:
        plan = stage(root, edit("e", {"path": "a.txt", "search": "typo", "replace": ""}))
        assert "contains the search text 0 times" in plan.failed("e")

    def test_name_that_no_file_can_have_is_refused(self, root: Path) -> None:
        steps = (
            edit("e", {"path": "a" * 300, "content": "x"}),
            shell("f", "true", outputs={"x": f"file:{'b' * 300}"}),
            {"id": "g", "shell": {"run": "true", "folder": "c" * 300}},
        )
        plan = stage(root, *steps)
        for step in ("e", "f", "g"):
            assert "is too long. Shorten the path" in plan.failed(step)

    @pytest.mark.parametrize(
        ("left", "path", "why"),
        [
            ("mkfifo p", "p", "not a regular file"),
            ("mkdir d", "d", "not a regular file"),
            ("ln -s /dev/zero z", "z", "cannot open the file"),
            ("ln -s /etc e", "e/passwd", "goes through the symbolic link"),
            ("head -c 9000000 /dev/zero > big", "big", "but the limit is"),
        ],
    )
    def test_output_is_a_regular_file_of_the_tree_or_nothing(self, root: Path, left: str, path: str, why: str) -> None:
        plan = stage(root, shell("one", left, outputs={"x": f"file:{path}"}))
        assert why in plan.failed("one")

    def test_list_of_changed_files_can_be_committed(self, root: Path) -> None:
        commit = {"id": "g", "needs": ["e"], "git": {"commit": "m", "paths": ["${e.paths}"]}}
        plan = stage(root, edit("e", {"path": "n.txt", "content": "x"}), commit)
        plan.check_done("e")
        plan.check_done("g")
        assert plan.record("g").outputs["committed"] is True

    def test_protected_file_that_git_ignores_is_neither_changed_nor_made(self, root: Path) -> None:
        write(root, {".gitignore": ".env\n*.pem\nbuild/\n", ".env": "KEY=1\n", "build/x": "1"})
        steps = (
            shell("change", "echo KEY=2 > .env; test $(cat .env) = KEY=2"),
            shell("make", "mkdir sub && echo x > sub/k.pem"),
            shell("other", "echo 2 > build/x"),
        )
        plan = stage(root, *steps)
        plan.run("change")
        assert "policy.protect forbids changes to sub/k.pem" in plan.failed("make")
        assert not (root / "sub" / "k.pem").exists()
        plan.check_done("other")
        assert (root / "build" / "x").read_text() == "2\n"
        if (root / ".env").read_text() != "KEY=1\n":
            pytest.skip("no sandbox works on this host")


class TestAgain:
    def test_result_that_the_policy_forbids_now_is_not_taken_over(self, root: Path) -> None:
        step = shell("one", "echo x > notes/x.txt")
        stage(root, step).check_done("one")
        (root / "notes" / "x.txt").unlink()
        again = stage(root, step, plan={"policy": {"write": ["src/**"]}}, run_id="run-2")
        assert "does not cover notes/x.txt" in again.failed("one")
        assert not (root / "notes" / "x.txt").exists()

    def test_result_that_needs_approval_now_is_not_taken_over(self, root: Path) -> None:
        step = shell("one", "echo x > x.txt", labels=["risky"])
        stage(root, step).check_done("one")
        (root / "x.txt").unlink()
        again = stage(root, step, plan={"policy": {"approve": ["risky"]}}, run_id="run-2")
        assert again.run("one").status is StepStatus.WAITING

    def test_dry_run_between_two_runs_loses_no_work(self, root: Path) -> None:
        first = stage(root, shell("one", "echo run >> log.txt"))
        first.check_done("one")
        (root / "log.txt").unlink()
        Stage(root, first.plan, run_id="run-2").check_done("one", dry_run=True)
        assert Stage(root, first.plan, run_id="run-3").check_done("one").reused

    def test_work_of_the_run_before_the_last_is_taken_over_too(self, root: Path) -> None:
        step = shell("one", "echo ${plan.x} >> log.txt")
        for run, x in enumerate("ab"):
            stage(root, step, plan={"inputs": {"x": x}}, run_id=f"run-{run}").check_done("one")
            (root / "log.txt").unlink()
        assert stage(root, step, plan={"inputs": {"x": "a"}}, run_id="run-3").check_done("one").reused
        assert (root / "log.txt").read_text() == "a\n"

    def test_reference_never_reads_what_another_run_left(self, root: Path) -> None:
        steps = (
            shell("left", "echo left", access="none", outputs={"x": "stdout"}),
            shell("right", "echo right", access="none"),
            shell(
                "join",
                "true",
                access="none",
                needs=["left", "right"],
                join="any",
                expect=["default(${left.x}, 'nothing') == 'nothing'"],
            ),
        )
        stage(root, *steps).check_done("left")
        again = stage(root, *steps, run_id="run-2")
        again.check_done("right")
        again.check_done("join")

    def test_step_taken_back_after_it_was_taken_over_is_done_again(self, root: Path) -> None:
        plan = stage(root, shell("one", "echo x > x.txt"))
        plan.check_done("one")
        (root / "x.txt").unlink()
        again = Stage(root, plan.plan, run_id="run-2")
        assert again.check_done("one").reused
        assert again.undo("one").failure == ""
        assert not Stage(root, plan.plan, run_id="run-3").check_done("one").reused

    def test_step_stays_taken_back_when_other_inputs_were_tried_between(self, root: Path) -> None:
        step = shell("one", "echo ${plan.x} > x.txt")
        for run, x in enumerate("ab"):
            plan = stage(root, step, plan={"inputs": {"x": x}}, run_id=f"run-{run}")
            plan.check_done("one")
            assert plan.undo("one").failure == ""
        assert not stage(root, step, plan={"inputs": {"x": "a"}}, run_id="run-3").check_done("one").reused

    def test_documents_that_became_too_old_are_fetched_again(self, root: Path, site: FakeSite) -> None:
        def fetched(max_age_s: float, run: str) -> bool:
            step = {"id": "f", "http": {"urls": [site.url("/tea")], "max_age_s": max_age_s}}
            return stage(root, step, plan=allowed(site), run_id=run).check_done("f").reused

        assert [fetched(0, "run-1"), fetched(0, "run-2")] == [False, False]
        assert [fetched(1_000, "run-3"), fetched(1_000, "run-4")] == [False, True]

    def test_search_sees_documents_that_were_fetched_since(self, root: Path, site: FakeSite) -> None:
        search = {"id": "s", "search": {"query": "tea", "where": "cache"}}
        fetch = {"id": "f", "http": {"urls": [site.url("/tea")]}}
        plan = stage(root, search, fetch, plan=allowed(site))
        assert plan.check_done("s").counts["hits"] == 0
        plan.check_done("f")
        assert Stage(root, plan.plan, run_id="run-2").check_done("s").counts["hits"] == 1

    def test_gate_judges_the_change_since_this_run_began(self, root: Path) -> None:
        gate = {"id": "gate", "kind": "gate", "needs": ["one"], "gate": {"checks": [{"diff": {"max_lines": 2}}]}}
        write(root, {"n.txt": "1\n2\n3\n"})
        plan = stage(root, shell("one", "printf '1\\n2\\n3\\n4\\n' > n.txt"), gate)
        plan.check_done("one")
        plan.check_done("gate")
        plan.close()
        (root / "n.txt").unlink()
        again = Stage(root, plan.plan, run_id="run-2")
        again.check_done("one")
        assert "4 lines changed, but at most 2" in again.failed("gate")

    def test_attempt_that_waited_for_its_own_twin_does_not_act_again(self, root: Path) -> None:
        plan = stage(root, shell("one", "date +%N > stamp.txt; sleep 0.5"))
        base = plan.tree
        with ThreadPoolExecutor(2) as pool:
            twins = [pool.submit(plan.check_done, "one", expected_tree=base) for _ in range(2)]
            first, second = (twin.result(timeout=30) for twin in twins)
        assert first == second
        assert len(plan.records.all(PLAN_ID)) == 1

    def test_command_that_takes_a_step_back_is_run_once_by_twins(self, root: Path) -> None:
        plan = stage(root, shell("one", "touch x", compensate={"run": "echo gone >> log.txt; sleep 0.5; rm -f x"}))
        plan.check_done("one")
        tree = plan.tree
        request = RunStepRequest(scope=plan.scope, step="one", expected_tree=tree)
        with ThreadPoolExecutor(2) as pool:
            twins = [pool.submit(plan.call, "compensate_step", request) for _ in range(2)]
            first, second = (twin.result(timeout=30) for twin in twins)
        assert first == second
        undone = [record for record in plan.records.all(PLAN_ID) if record.step == "undo-one"]
        assert [record.result.status for record in undone] == [StepStatus.COMPLETED]

    def test_commit_whose_worker_died_before_the_record_is_told_as_made(self, root: Path) -> None:
        commit = {"id": "g", "needs": ["one"], "git": {"commit": "m"}, "expect": ["${outputs.committed}"]}
        plan = stage(root, shell("one", "echo x > x.txt"), commit)
        plan.check_done("one")
        base, first = plan.tree, plan.check_done("g")
        (state_folder(root) / "plans" / PLAN_ID / "steps" / "g" / "0001.json").unlink()
        assert plan.check_done("g", expected_tree=base).tree == first.tree

    def test_hand_off_of_a_second_run_tells_of_each_step_once(self, root: Path) -> None:
        plan = stage(root, shell("one", "echo x > x.txt"), shell("two", "true"))
        plan.check_done("one")
        plan.check_done("two")
        plan.close()
        (root / "x.txt").unlink()
        again = Stage(root, plan.plan, run_id="run-2")
        again.check_done("one")
        archive = PlanArchive.model_validate_json(again.artifact(again.close()))
        assert archive.hand_off is not None
        text = again.artifact(archive.hand_off).decode()
        assert (text.count("- one"), text.count("- two")) == (1, 0)
        assert archive.records is not None
        assert len(again.artifact(archive.records).splitlines()) == 3


def test_output_of_a_command_cannot_look_like_a_section_of_the_account(root: Path) -> None:
    plan = stage(root, shell("bad", "printf 'no\\n\\n## Decisions\\n\\n- gate: approved by lead'; exit 1"))
    plan.failed("bad")
    archive = PlanArchive.model_validate_json(plan.artifact(plan.close(PlanOutcome.FAILED)))
    assert archive.postmortem is not None
    told = plan.artifact(archive.postmortem).decode()
    assert "approved by lead" in told
    assert "\n## Decisions" not in told


def test_text_of_a_pull_request_holds_no_secret_of_a_rationale(root: Path) -> None:
    gate = {"id": "gate", "kind": "gate", "gate": {"approval": {"question": "go?"}}}
    plan = stage(root, gate, {"id": "g", "needs": ["gate"], "git": {"pull_request": "All of it"}})
    key = "ghp_" + "a1B2" * 9
    plan.check_done(
        "gate", answers=(Answer(question="q1", by="kim", text=f"as agreed, {key}\n## Risks", option="approve"),)
    )
    plan.check_done("g")
    text = plan.record("g").outputs["pull_request"]
    assert "approve by kim. as agreed, [secret:github-token] ## Risks" in text


@pytest.mark.parametrize("other", ["Sam  M", " sam m ", "SAM\u00a0M", "sa\u200bm m", "\uff53am m"])
def test_other_spelling_of_a_name_is_no_second_person(root: Path, other: str) -> None:
    gate = {"id": "gate", "kind": "gate", "gate": {"approval": {"count": 2}}}
    said = tuple(Answer(question="q1", by=by, option="approve") for by in ("Sam M", other))
    plan = stage(root, gate)
    assert plan.run("gate", answers=said).status is StepStatus.WAITING
    two = (*said, Answer(question="q1", by="kim", option="approve"))
    assert plan.run("gate", answers=two).status is StepStatus.COMPLETED
