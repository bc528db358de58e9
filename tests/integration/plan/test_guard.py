"""The policy of a plan at work: refused before the act, undone after it, and asked about in between."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.git_sample import make_repository, on_disk
from tests.support.plan.stage import Stage, stage
from tightloop.plan.child import StepResult, StepStatus
from tightloop.plan.failing import FailureClass
from tightloop.run.question import Answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"src/a.txt": "one\n", "docs/b.md": "two\n", ".env": "KEY=1\n"})


def opened(root: Path, *steps: dict[str, Any], **policy: Any) -> Stage:
    return stage(root, *steps, plan={"policy": policy})


def shell(run: str, **fields: Any) -> dict[str, Any]:
    return {"id": "one", "shell": {"run": run}, **fields}


def python(statement: str) -> str:
    return f'echo x > src/ok.txt; python3 -c "import os; {statement}"'


def edit(path: str, **fields: Any) -> dict[str, Any]:
    return {"id": "one", "edit": {"files": [{"path": path, "content": "new\n"}]}, **fields}


def refused(plan: Stage) -> str:
    result = plan.run("one")
    assert result.failure is not None, result
    assert result.failure.failure_class is FailureClass.POLICY
    return result.failure.reason


@pytest.mark.parametrize(
    ("step", "policy", "said"),
    [
        (
            edit("${inputs.at}", inputs={"at": "docs/c.md"}),
            {"write": ["src"]},
            "policy.write (src) does not cover docs/c.md",
        ),
        (edit("${inputs.at}", inputs={"at": "app/.ENV"}), {}, "policy.protect forbids changes to app/.ENV"),
        (shell("git push --force origin main"), {}, "rule rewrites_history rejects"),
        (shell("touch done; rm -rf ~"), {}, "rule destructive_command rejects"),
        (
            shell("make deploy"),
            {"commands": [{"match": "make deploy", "reason": "the pipeline does"}]},
            "policy.commands forbids 'make deploy' (rule 'make deploy'): the pipeline does",
        ),
        (
            {"id": "one", "inputs": {"at": "127.0.0.1:9"}, "http": {"url": "http://${inputs.at}/x"}},
            {"network": ["a.org"]},
            "Add '127.0.0.1:9' to allow it",
        ),
    ],
)
def test_act_that_a_rule_forbids_is_never_begun(
    root: Path, step: dict[str, Any], policy: dict[str, Any], said: str
) -> None:
    plan, files = opened(root, step, **policy), on_disk(root)
    assert said in refused(plan)
    assert on_disk(root) == files


@pytest.mark.parametrize(
    ("run", "policy", "said"),
    [
        # Programs whose text does not say what they write.
        (python("open('docs/c.md', 'w')"), {"write": ["src/**"]}, "does not cover docs/c.md"),
        (python("open('.env', 'a').write('x')"), {}, "policy.protect forbids changes to .env"),
        (python("os.remove('docs/b.md')"), {"protect": ["docs"]}, "policy.protect forbids changes to docs/b.md"),
        (python("os.rename('docs/b.md', 'src/b.md')"), {"write": ["src"]}, "does not cover docs/b.md"),
    ],
)
def test_change_outside_of_the_scope_is_undone_and_kept_as_evidence(
    root: Path, run: str, policy: dict[str, Any], said: str
) -> None:
    plan, files = opened(root, shell(run), **policy), on_disk(root)
    assert said in refused(plan)
    assert on_disk(root) == files
    assert plan.artifact(plan.record("one").artifacts["patch"])


def test_command_from_a_value_is_judged_as_the_shell_will_read_it(root: Path) -> None:
    values = {"script": "git push --force", "text": "a; git push --force"}
    plan = stage(root, shell('sh -c "${plan.script}"'), plan={"inputs": values})
    assert "rewrites_history" in refused(plan)
    harmless = stage(root, shell('echo "${plan.text}" ${plan.text}'), plan={"inputs": values}, run_id="run-2")
    harmless.check_done("one")


def test_rule_of_the_plan_allows_what_is_refused_by_default(root: Path) -> None:
    step = shell("git stash list; git stash clear")
    assert "rewrites_history" in refused(opened(root, step))
    stage(
        root, step, plan={"policy": {"commands": [{"match": "git stash **", "verdict": "allow"}]}}, run_id="run-2"
    ).check_done("one")


class TestApproval:
    def asked(self, plan: Stage) -> StepResult:
        result = plan.run("one")
        assert result.status is StepStatus.WAITING
        assert result.question is not None
        return result

    @pytest.mark.parametrize(
        ("step", "policy"),
        [
            (shell("echo out > src/out.txt", kind="deploy"), {}),
            (shell("echo out > src/out.txt", labels=["risky"]), {"approve": ["risky"]}),
            (shell("echo out > src/out.txt"), {"commands": [{"match": "echo **", "verdict": "ask"}]}),
        ],
    )
    def test_step_waits_before_it_acts_and_goes_on_after_a_yes(
        self, root: Path, step: dict[str, Any], policy: dict[str, Any]
    ) -> None:
        plan = opened(root, step, **policy)
        self.asked(plan)
        assert not (root / "src/out.txt").exists()
        plan.check_done("one", answers=(Answer(question="q1", by="ada", option="approve"),))
        assert (root / "src/out.txt").read_text() == "out\n"
        assert plan.record("one").answers[0].by == "ada"

    def test_no_is_a_refusal_with_the_persons_reason(self, root: Path) -> None:
        plan = opened(root, shell("npm publish"))
        assert "publishes" in self.asked(plan).summary
        no = Answer(question="q1", by="ada", option="reject", text="not today")
        result = plan.run("one", answers=(no,))
        assert result.failure is not None
        assert (result.failure.failure_class, result.failure.reason) == (
            FailureClass.POLICY,
            "ada rejected the step: not today",
        )

    def test_yes_does_not_reach_what_is_forbidden(self, root: Path) -> None:
        plan = opened(root, shell("rm -rf /", kind="deploy"))
        result = plan.run("one", answers=(Answer(question="q1", by="ada", option="approve"),))
        assert result.failure is not None
        assert "destructive_command" in result.failure.reason


class TestCompensation:
    @pytest.mark.parametrize(
        ("run", "said"),
        [("rm -rf ~", "destructive_command"), ("echo x > docs/b.md", "policy.write (src) does not cover docs/b.md")],
    )
    def test_command_that_takes_a_step_back_is_held_by_the_policy_too(self, root: Path, run: str, said: str) -> None:
        plan = opened(root, shell("echo x > src/x.txt", compensate={"run": run}), write=["src"])
        plan.check_done("one")
        files = on_disk(root)
        assert said in plan.undo("one").failure
        assert on_disk(root) == files
