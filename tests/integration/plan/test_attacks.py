"""Plans that a model or a stranger wrote, run as they were in an attack trial: each is refused or asked about."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.plan.runners.http import HttpRunner
from tests.support.fake_site import FakeSite, html
from tests.support.git_sample import make_repository, on_disk
from tests.support.plan.stage import Stage, activities_for
from tightloop.errors import PlanError
from tightloop.plan.child import StepResult, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.failing import FailureClass
from tightloop.plan.guard import confine_plan
from tightloop.plan.step import Capability
from tightloop.run.question import Answer
from tightloop.settings import PlanSettings

KEY = "wJalrXUtnFEMI-of-the-worker"
RUN_BY_GIT = '#!/bin/sh\necho ran > "$(git rev-parse --show-toplevel)/ran"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = make_repository(tmp_path / "repo", {"a.txt": "one\n", "x.sh": RUN_BY_GIT, "src/b.py": "b = 1\n" * 40})
    (root / "x.sh").chmod(0o755)
    subprocess.run(["git", "-C", str(root), "commit", "-qam", "x"], check=True, timeout=30)
    return root


@pytest.fixture
def site() -> Iterator[FakeSite]:
    with FakeSite({"/": html("Here", "words")}) as running:
        yield running


def by_model(root: Path, *steps: dict[str, Any], run_id: str = "run-1", **settings: Any) -> Stage:
    """Open a plan as a model's is opened: within the bounds of the settings."""
    plan = Plan.model_validate({"id": "p", "steps": steps})
    return Stage(root, confine_plan(plan, PlanSettings(**settings).caution(("ruff",))), run_id=run_id)


def shell(run: str, **fields: Any) -> dict[str, Any]:
    environment = fields.pop("environment", {})
    return {"id": "one", "shell": {"run": run, "environment": environment}, **fields}


def check_waits(result: StepResult) -> str:
    assert result.status is StepStatus.WAITING, result
    return result.summary


def refused(result: StepResult) -> str:
    assert result.failure is not None, result
    assert result.failure.failure_class is FailureClass.POLICY
    return result.failure.reason


class TestSecrets:
    def staged(self, root: Path, site: FakeSite, secrets: dict[str, tuple[str, ...]], variable: str) -> Stage:
        http = {"url": site.url("/"), "secret_headers": {"X": variable}}
        plan = Plan.model_validate(
            {"id": "p", "policy": {"network": [site.authority]}, "steps": [{"id": "one", "http": http}]}
        )
        runner = HttpRunner(secrets, {"AWS_SECRET_ACCESS_KEY": KEY, "TRACKER": KEY})
        return Stage(root, plan, activities=activities_for({Capability.HTTP: runner}), run_id=variable)

    def test_no_variable_of_the_worker_leaves_it_unless_the_settings_say_so(self, root: Path, site: FakeSite) -> None:
        said = refused(self.staged(root, site, {"TRACKER": (site.authority,)}, "AWS_SECRET_ACCESS_KEY").run("one"))
        assert f"plans: {{secrets: {{AWS_SECRET_ACCESS_KEY: ['{site.authority}']}}}}" in said
        assert site.visits == []

    def test_secret_of_one_host_is_not_sent_to_another(self, root: Path, site: FakeSite) -> None:
        plan = self.staged(root, site, {"TRACKER": ("tracker.example.org", "*.example.org")}, "TRACKER")
        assert site.authority in refused(plan.run("one"))
        assert site.visits == []

    def test_variable_that_is_not_there_is_not_told_from_one_that_is(self, root: Path, site: FakeSite) -> None:
        told = [
            refused(self.staged(root, site, {}, name).run("one")) for name in ("AWS_SECRET_ACCESS_KEY", "NOT_SET_X")
        ]
        assert told[0].replace("AWS_SECRET_ACCESS_KEY", "NOT_SET_X") == told[1]

    def test_listed_secret_is_sent(self, root: Path, site: FakeSite) -> None:
        self.staged(root, site, {"TRACKER": (site.authority,)}, "TRACKER").check_done("one")
        assert site.visits[0].headers["x"] == KEY


class TestEnvironment:
    @pytest.mark.parametrize(
        ("run", "environment"),
        [
            ("git diff", {"GIT_EXTERNAL_DIFF": "./x.sh"}),
            ("GIT_EXTERNAL_DIFF=./x.sh git diff", {}),
            ("export GIT_EXTERNAL_DIFF=./x.sh; git diff", {}),
            ("env GIT_EXTERNAL_DIFF=./x.sh git diff", {}),
            ("echo $(GIT_EXTERNAL_DIFF=./x.sh git diff)", {}),
            (
                "git diff",
                {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "diff.external", "GIT_CONFIG_VALUE_0": "./x.sh"},
            ),
            ("git diff | cat", {"PATH": "."}),
            ("PATH=.:$PATH; git diff", {}),
            ("for PATH in .; do git diff; done", {}),
            ("mkdir 1; ((PATH=1)); git diff", {}),
            ("cat a.txt", {"LD_PRELOAD": "./x.so"}),
            ("cat a.txt", {"BASH_ENV": "x.sh", "ENV": "x.sh"}),
            ("ruff check .", {"PYTHONSTARTUP": "x.py"}),
            ("ruff check .", {"NODE_OPTIONS": "--require ./x.js"}),
            ("ruff check .", {"ANY_OTHER": "1"}),
            ("env -S './x.sh a' git diff", {}),
            ("echo --ext-diff | xargs git -c diff.external=./x.sh diff", {}),
            ("git diff --ext-diff", {}),
        ],
    )
    def test_program_that_may_run_runs_nothing_else_by_a_variable(
        self, root: Path, run: str, environment: dict[str, str]
    ) -> None:
        edit = {"id": "zero", "edit": {"files": [{"path": "a.txt", "content": "two\n"}]}}
        plan = by_model(root, edit, shell(run, environment=environment, needs=["zero"]))
        plan.check_done("zero")
        files = on_disk(root)
        check_waits(plan.run("one"))
        assert on_disk(root) == files

    def test_harmless_variables_need_nobody(self, root: Path) -> None:
        plan = by_model(root, shell("LANG=C ls; x=1; echo $x", environment={"CI": "1", "NO_COLOR": "1"}))
        plan.check_done("one")

    def test_person_may_say_yes_or_allow_it_by_a_rule(self, root: Path) -> None:
        plan = by_model(root, shell("cat a.txt", environment={"PYTHONPATH": "src"}))
        check_waits(plan.run("one"))
        plan.check_done("one", answers=(Answer(question="q1", by="ada", option="approve"),))
        rules = ("cat **", "env PYTHONPATH=src")
        allowed = by_model(
            root, shell("cat a.txt", environment={"PYTHONPATH": "src"}, cache=False), allow=rules, run_id="run-2"
        )
        allowed.check_done("one")

    def test_rule_of_a_persons_plan_is_about_variables_too(self, root: Path) -> None:
        forbid = {"commands": [{"match": "env PATH=*"}]}
        plan = Plan.model_validate({"id": "p", "policy": forbid, "steps": [shell("ls", environment={"PATH": "."})]})
        assert "policy.commands forbids 'env PATH=.'" in refused(Stage(root, plan).run("one"))
        usual = Plan.model_validate({"id": "p", "steps": [shell("ls", environment={"PYTHONPATH": "src"})]})
        Stage(root, usual, run_id="run-2").check_done("one")


class TestWrites:
    @pytest.mark.parametrize(
        "run",
        [
            "git diff --output=.git/hooks/pre-commit",
            "git diff --output src/../.env",
            "git log -1 --output=app/key.pem",
            "echo x > .git/config",
            "echo x >>.env",
            "cat a.txt >| .env",
            "ls &> .env",
            "cd src && echo x > ../.git/config",
            "{ echo x; } > .env",
            "echo x | tee .env",
            "dd if=a.txt of=.env",
            "sort a.txt -o .env",
            "sort --outp=.env a.txt",
            "find . -fprint .env",
            "sed -i s/a/b/ .env",
            "cp a.txt .env",
            "curl -o .env https://example.org",
            "ln -s /etc/passwd .env",
            "touch .ENV",
        ],
    )
    def test_protected_file_is_not_written_by_an_option_or_a_redirection(self, root: Path, run: str) -> None:
        files = on_disk(root)
        assert "policy.protect forbids changes to" in refused(by_model(root, shell(run)).run("one"))
        assert on_disk(root) == files

    @pytest.mark.parametrize(
        "run",
        ["git diff --output=a.txt", "echo x > a.txt", "> a.txt", "echo $(ls > out/x)", "rm a.txt", "mv src/b.py c"],
    )
    def test_scope_holds_for_what_a_command_writes_before_it_runs(self, root: Path, run: str) -> None:
        files = on_disk(root)
        assert "does not cover" in refused(by_model(root, shell(run), write=("src/**",)).run("one"))
        assert on_disk(root) == files

    def test_ignored_file_outside_of_the_scope_is_not_written(self, root: Path) -> None:
        """What git ignores is not in any snapshot, so that nothing could undo it."""
        (root / ".gitignore").write_text("out/\n")
        (root / "out").mkdir()
        plan = Plan.model_validate({"id": "p", "policy": {"write": ["src"]}, "steps": [shell("echo x > out/tool")]})
        assert "does not cover out/tool" in refused(Stage(root, plan).run("one"))
        assert not (root / "out" / "tool").exists()

    @pytest.mark.parametrize(
        "run", ['echo x > "$HOME/y"', "git diff --output=/etc/x", "echo x > ~/y", 'echo > "$(ls)"']
    )
    def test_write_to_a_place_that_cannot_be_read_waits_for_a_person(self, root: Path, run: str) -> None:
        check_waits(by_model(root, shell(run)).run("one"))

    def test_writes_within_the_scope_and_to_nowhere_need_nobody(self, root: Path) -> None:
        plan = by_model(
            root, shell("git diff --output=src/diff.txt; echo x >src/y 2>/dev/null; ls >&2"), write=("src/**",)
        )
        plan.check_done("one")
        assert (root / "src" / "y").read_text() == "x\n"


MANY_STARS = ("**/*a" * 40, "*a" * 400, "/".join(["**"] * 300))


class TestPatterns:
    @pytest.mark.parametrize("pattern", MANY_STARS)
    def test_pattern_with_many_stars_takes_no_time(self, root: Path, pattern: str) -> None:
        name = "a" * 200
        policy = {"write": [pattern, "src"], "protect": [pattern + "c"]}
        search = {"id": "two", "search": {"query": "words", "where": "project", "paths": [pattern]}}
        plan = Plan.model_validate({"id": "p", "policy": policy, "steps": [shell(f"ls > src/{name}"), search]})
        started = time.thread_time()
        staged = Stage(root, plan)
        staged.check_done("one")
        staged.check_done("two")
        assert time.thread_time() - started < 20

    def test_command_pattern_with_many_stars_takes_no_time(self, root: Path) -> None:
        rules = [{"match": "git " + "** " * 40 + "x"}, {"match": "git " + "*a" * 40 + "x"}]
        words = " ".join(["a" * 60] * 60)
        plan = Plan.model_validate(
            {"id": "p", "policy": {"commands": rules}, "steps": [shell(f"echo; git {words} || :")]}
        )
        started = time.thread_time()
        Stage(root, plan).check_done("one")
        assert time.thread_time() - started < 20

    @pytest.mark.parametrize(
        ("policy", "said"),
        [
            ({"write": ["a" * 2_000]}, "has 2000 characters, but the maximum is 1000"),
            ({"protect": [f"{number}*" for number in range(600)]}, "a list must have at most 200 patterns, got 600"),
            ({"commands": [{"match": "git " + "** " * 1_000}]}, "the maximum is 1000"),
        ],
    )
    def test_patterns_that_would_take_long_are_refused_when_the_plan_is_opened(
        self, root: Path, policy: dict[str, Any], said: str
    ) -> None:
        plan = Plan.model_validate({"id": "p", "policy": policy, "steps": [shell("true")]})
        with pytest.raises(PlanError, match=said):
            Stage(root, plan)

    def test_plan_that_was_stored_with_such_patterns_is_not_stuck(self, root: Path) -> None:
        """A version without these bounds opened it: its next step fails with the reason, and the plan goes on."""
        staged = Stage(root, Plan.model_validate({"id": "p", "steps": [shell("true")]}))
        policy = staged.plan.policy.evolve(write=("a" * 100_000,))
        assert staged.scope.plan is not None
        stored = staged.activities._ports.plans.load(staged.scope).stored
        ref, _ = staged.activities._ports.plans.put(str(root), stored.evolve(plan=staged.plan.evolve(policy=policy)))
        staged.scope = staged.scope.evolve(plan=ref)
        assert "has 100000 characters" in refused(staged.run("one"))


class TestDeletions:
    """What a model's plan removes is asked about by the bounds that hold for episodes, however it removes it."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        files = {f"src/{number}.py": "x = 1\n" * 40 for number in range(30)}
        return make_repository(tmp_path / "repo", {**files, "keep.txt": "1\n"})

    def edits(self, paths: list[str]) -> dict[str, Any]:
        return {"edit": {"files": [{"path": path, "delete": True} for path in paths]}}

    def test_edit_that_deletes_many_files_is_undone_until_a_person_says_keep(self, root: Path) -> None:
        plan = by_model(root, {"id": "one", **self.edits([f"src/{number}.py" for number in range(26)])})
        files = on_disk(root)
        assert "policy.deletions: 26 files" in check_waits(plan.run("one"))
        assert on_disk(root) == files
        # An approval of the step itself is not one of what it removes.
        check_waits(plan.run("one", answers=(Answer(question="q1", by="ada", option="approve"),)))
        assert on_disk(root) == files
        plan.check_done("one", answers=(Answer(question="q2", by="ada", option="keep"),))
        assert len(list((root / "src").iterdir())) == 4

    def test_no_from_a_person_is_a_refusal(self, root: Path) -> None:
        plan = by_model(root, {"id": "one", **self.edits([f"src/{number}.py" for number in range(26)])})
        no = Answer(question="q1", by="ada", option="reject", text="too much")
        assert refused(plan.run("one", answers=(no,))) == "ada rejected the step: too much"

    def test_deletions_of_many_steps_are_added_up(self, root: Path) -> None:
        steps = [{"id": f"s{part}", **self.edits([f"src/{part * 7 + n}.py" for n in range(7)])} for part in range(3)]
        plan = by_model(root, *steps)
        plan.check_done("s0")
        plan.check_done("s1")
        assert "21 files and 840 lines (70%)" in check_waits(plan.run("s2"))

    @pytest.mark.parametrize("content", ["", "junk\n" * 2_000])
    def test_emptied_files_count_whatever_is_added_elsewhere(self, root: Path, content: str) -> None:
        files = [{"path": f"src/{number}.py", "content": ""} for number in range(20)]
        plan = by_model(root, {"id": "one", "edit": {"files": [*files, {"path": "junk.txt", "content": content}]}})
        assert "800 lines (67%) have been deleted" in check_waits(plan.run("one"))

    def test_diff_and_allowed_commands_are_bounded_too(self, root: Path) -> None:
        patch = subprocess.run(
            ["git", "-C", str(root), "diff", "-R", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "HEAD", "--", "src"],
            check=True, capture_output=True, text=True, timeout=30,
        ).stdout  # fmt: skip
        check_waits(by_model(root, {"id": "one", "edit": {"diff": patch}}).run("one"))
        command = by_model(root, shell("rm -r src"), allow=("rm **",), run_id="run-2")
        check_waits(command.run("one"))
        assert len(list((root / "src").iterdir())) == 30

    def test_few_deletions_moves_and_plans_of_people_need_nobody(self, root: Path) -> None:
        few = by_model(
            root, {"id": "one", **self.edits(["src/0.py", "src/1.py"])}, shell("mv src lib", id="two"), allow=("mv **",)
        )
        few.check_done("one")
        few.check_done("two")
        few.close()
        own = Plan.model_validate(
            {"id": "p", "steps": [{"id": "one", **self.edits([f"lib/{n}.py" for n in range(2, 30)])}]}
        )
        Stage(root, own, run_id="run-2").check_done("one")
