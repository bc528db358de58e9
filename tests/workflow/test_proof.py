"""Success is proven apart from the working tree; what speaks against it is one question."""

import asyncio
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from activities.artifacts.port import get_model
from activities.artifacts.stores import open_local_store
from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Working, eventually, scripted
from tests.support.episodes import asked as asked_anew
from tests.support.proofs import make_key
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.check import ProofRule
from tightloop.episode.model import EpisodeOutcome, EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.run.question import QuestionKind

CHECK = "test -f done.txt && sh check.sh"
CHEAT = {"write": [{"path": "done.txt", "text": "1"}, {"path": "check.sh", "text": "exit 0\n"}]}
HONEST = {"write": [{"path": "check.sh", "text": "grep -q right app.py\n"}, {"path": "app.py", "text": "right = 1\n"}]}


@pytest.fixture
def project(workspace: Path, git) -> Path:
    (workspace / "check.sh").write_text("grep -q right app.py\n")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "check")
    return workspace


async def asked(client: TightloopClient, episode_id: str) -> EpisodeStatus:
    async def is_asked() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.questions or status.status not in ("running", "paused") else None

    found: EpisodeStatus = await eventually(is_asked, seconds=60)
    assert found.questions, f"{found.status}: {found.reason}"
    return found


def proof_of(project: Path, ref) -> Proof:
    assert ref is not None
    return get_model(open_local_store(project), ref, Proof)


async def test_a_changed_check_is_one_question_and_a_person_may_accept_it(
    client: TightloopClient, working: Working, request_for, project: Path
) -> None:
    async with working():
        episode_id = await client.start(request_for(definition_of_done=[CHECK], executor=scripted(CHEAT)))
        status = await asked(client, episode_id)
        doubted = proof_of(project, status.proof)
        await client.answer(episode_id, "accept", by="ada")
        result = await client.result(episode_id)
    [question] = status.questions
    assert question.kind is QuestionKind.PROOF
    assert question.names == ("work", "asked", "accept", "cancel")
    assert any("check.sh" in line for line in question.evidence)
    assert [finding.rule for finding in doubted.findings] == [ProofRule.CONFIGURATION_CHANGED]
    assert [run.green for run in doubted.runs] == [True, False]
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    accepted = proof_of(project, result.proof)
    assert (accepted.verdict, accepted.accepted_by) == (ProofVerdict.ACCEPTED, "ada")
    assert accepted.delivered_tree == result.tree


UGLY = "import os, unittest\nclass T( unittest.TestCase ):\n  def test_it(self): self.assertEqual({0}, 2)\n"
FORMATTED = """import unittest


class T(unittest.TestCase):
    def test_it(self) -> None:
        self.assertEqual({0}, 2)
"""


@pytest.mark.parametrize(("delivered", "outcome"), [("1 + 1", "succeeded"), ("2", "paused")])
async def test_formatting_a_test_is_no_question_unless_it_changes_what_is_tested(
    client: TightloopClient, working: Working, request_for, workspace: Path, git, delivered: str, outcome: str
) -> None:
    (workspace / "tests").mkdir()
    (workspace / "tests" / "test_it.py").write_text(UGLY.format("1 + 1"))
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "a test")
    change = {"write": {"path": "tests/test_it.py", "text": FORMATTED.format(delivered)}}
    ruff = f"{sys.executable} -m ruff"
    checks = [f"{ruff} check --isolated tests", f"{ruff} format --isolated --check tests"]
    async with working():
        checks.append(f"{sys.executable} -m unittest discover -q -s tests")
        episode_id = await client.start(request_for(definition_of_done=checks, executor=scripted(change)))

        async def is_over() -> EpisodeStatus | None:
            status = await client.status(episode_id)
            return status if status.questions or status.status not in ("running", "paused") else None

        status: EpisodeStatus = await eventually(is_over, seconds=60)
    assert status.status == outcome
    proof = proof_of(workspace, status.proof)
    assert {finding.rule for finding in proof.findings} == ({ProofRule.TESTS_CHANGED} if outcome == "paused" else set())


async def test_work_goes_on_with_the_reason_and_an_unchanged_tree_is_asked_about_again(
    client: TightloopClient, working: Working, request_for, project: Path
) -> None:
    def answer(briefing: Briefing) -> PlannerAnswer:
        return planned("make it green", final=True)

    planner = ScriptedPlanner(answer)
    async with working(planner):
        steps = scripted(CHEAT, {}, HONEST, repeat=False)
        episode_id = await client.start(request_for(definition_of_done=[CHECK], executor=steps))
        first = await asked(client, episode_id)
        await client.resume(episode_id)
        await asked_anew(client, episode_id, since=first)
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 3, "an iteration that changed nothing does not succeed with what was refused"
    assert "Success was not accepted" in "\n".join(planner.briefings[1].notes)
    proof = proof_of(project, result.proof)
    assert proof.verdict is ProofVerdict.PROVEN
    assert len(proof.runs) == 1, "nothing that decides what checks say is changed any more"


async def test_what_was_allowed_beforehand_is_not_asked(
    client: TightloopClient, working: Working, request_for, project: Path
) -> None:
    async with working():
        request = request_for(
            definition_of_done=[CHECK], executor=scripted(CHEAT), allow=[ProofRule.CONFIGURATION_CHANGED]
        )
        result = await client.result(await client.start(request))
    proof = proof_of(project, result.proof)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert proof.verdict is ProofVerdict.PROVEN
    assert [finding.announced for finding in proof.findings] == [True]


async def test_a_fork_is_held_to_the_tests_of_the_first_episode(
    client: TightloopClient, working: Working, request_for, project: Path
) -> None:
    """What an episode did to the tests is not the beginning of the episode that is forked from it."""
    async with working():
        first = await client.start(request_for(definition_of_done=[CHECK], executor=scripted(CHEAT)))
        await asked(client, first)
        await client.answer(first, "cancel")
        await eventually(lambda: has_ended(client, first))
        forked = await client.fork(first, "ckpt-1")
        status = await asked(client, forked)
        await client.answer(forked, "cancel")
    assert status.questions[0].kind is QuestionKind.PROOF


async def has_ended(client: TightloopClient, episode_id: str) -> bool:
    return (await client.status(episode_id)).status == "cancelled"


@pytest.mark.timeout(400)
async def test_proof_of_an_episode_is_written_signed_and_verified_and_its_commands_run_again(
    client: TightloopClient, working: Working, request_for, settings, project: Path, tmp_path: Path, monkeypatch, git
) -> None:
    key, file = make_key(tmp_path), tmp_path / "proof.json"
    (tmp_path / "gitconfig").write_text(f"[gpg]\nformat = ssh\n[user]\nsigningkey = {key}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    fix = scripted({"write": [{"path": "app.py", "text": "right = 1\n"}, {"path": "crlf.txt", "text": "a\r\n"}]})

    def command(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["--address", settings.temporal.address, *map(str, words)])
        return done.exit_code, done.output

    async with working():
        episode_id = await client.start(request_for(definition_of_done=["sh check.sh"], executor=fix))
        await client.result(episode_id)
        code, out = await asyncio.to_thread(command, "proof", episode_id, "--output", file, "--attach")
    assert code == 0, out
    [attached, _, name] = git(project, "for-each-ref", "refs/tightloop-proofs").split()
    assert f"git push origin BRANCH {name}" in out
    assert git(project, "cat-file", "blob", f"{attached}:proof.json").strip() == file.read_text().strip()
    assert "app.py" in git(project, "ls-tree", "-r", "--name-only", f"{attached}:base").split()
    assert f"{episode_id}: PROVEN" in out
    code, out = await asyncio.to_thread(command, "verify", file, "--repo", project, "--run")
    assert code == 0, out
    assert "signed by your-own-key" in out
    assert "the files in" in out
    assert "reproduced in bubblewrap: sh check.sh passed" in out
    (project / "app.py").write_text("right = 2\n")
    assert (await asyncio.to_thread(command, "verify", file, "--repo", project))[0] == 1


TESTS = """import unittest


class T(unittest.TestCase):
    def test_kept(self) -> None:
        self.assertEqual(0, 0)

    def test_stable(self) -> None:
        self.assertEqual(1, 1)

{skip}    def test_clock(self) -> None:
        self.assertEqual(2, 2)
"""
SKIP = '    @unittest.skip("flaky")\n'
DONE_AND_TESTED = ("test -f done.txt", f"{sys.executable} -m unittest discover -q -s tests")


def skips(**more: object) -> dict[str, object]:
    tests = {"path": "tests/test_it.py", "text": TESTS.format(skip=SKIP)}
    return {"write": [{"path": "done.txt", "text": "1"}, tests], **more}


@pytest.fixture
def tested(workspace: Path, git) -> Path:
    (workspace / "tests").mkdir()
    (workspace / "tests" / "test_it.py").write_text(TESTS.format(skip=""))
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "tests")
    return workspace


@pytest.mark.parametrize("option", ["allow", "asked"])
async def test_a_skipped_test_is_one_question_and_the_proof_knows_the_answer(
    client: TightloopClient, working: Working, request_for, tested: Path, settings, option: str
) -> None:
    async with working():
        episode_id = await client.start(request_for(definition_of_done=DONE_AND_TESTED, executor=scripted(skips())))
        status = await asked(client, episode_id)
        await client.answer(episode_id, option, by="ada")
        result = await client.result(episode_id)
        told = await client.timeline(episode_id)
        shown = await asyncio.to_thread(CliRunner().invoke, app, command_for(settings, "proof", episode_id))
    [question] = status.questions
    assert question.kind is QuestionKind.ALIGNMENT
    assert question.title.startswith("tests_skipped")
    assert question.names == ("refuse", "asked", "allow", "cancel")
    assert question.change is not None
    assert '+    @unittest.skip("flaky")' in question.change.lines
    proof = proof_of(tested, result.proof)
    [finding] = proof.findings
    assert finding.rule is ProofRule.TESTS_CHANGED
    assert finding.answered is not None
    assert (finding.answered.by, finding.answered.asked) == ("ada", option == "asked")
    assert any(line.kind == "answered" and f"ada chose {option} for" in line.text for line in told)
    sentence = f"ada asked for the change to tests/test_it.py at {finding.answered.at:%Y-%m-%d %H:%M} UTC"
    if option == "asked":
        assert proof.verdict is ProofVerdict.PROVEN
        assert result.headline.startswith(f"SUCCEEDED: PROVEN; {sentence}; all checks pass")
        assert told[-1].text.startswith(f"SUCCEEDED: PROVEN; {sentence}")
        assert f"{episode_id}: PROVEN by visible checks; {sentence}" in shown.output
    else:
        assert proof.verdict is ProofVerdict.ACCEPTED
        assert result.qualifier.startswith("not proven: ada accepted the result despite this finding")


async def test_another_change_of_the_same_test_is_asked_about_again(
    client: TightloopClient, working: Working, request_for, tested: Path
) -> None:
    """The same line in the same file is another change if it skips another test."""
    both = TESTS.format(skip=SKIP).replace("    def test_stable", f"{SKIP}    def test_stable")
    later = {"write": [{"path": "tests/test_it.py", "text": both}, {"path": "more.txt", "text": "1"}]}
    async with working():
        request = request_for(
            definition_of_done=[*DONE_AND_TESTED, "test -f more.txt"], executor=scripted(skips(), later, repeat=False)
        )
        episode_id = await client.start(request)
        first = await asked(client, episode_id)
        await client.answer(episode_id, "asked", by="ada")

        async def is_asked_again() -> EpisodeStatus | None:
            status = await client.status(episode_id)
            return status if [each.id for each in status.questions] not in ([], [first.questions[0].id]) else None

        second: EpisodeStatus = await eventually(is_asked_again, seconds=60)
        await client.answer(episode_id, "asked", by="bob")
        result = await client.result(episode_id)
    assert second.questions[0].kind is QuestionKind.ALIGNMENT
    assert result.qualifier == ""
    assert [approval.by for approval in result.approvals] == ["ada", "bob"]


async def test_a_person_asked_for_what_the_proof_has_found(
    client: TightloopClient, working: Working, request_for, project: Path, settings, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    async with working():
        episode_id = await client.start(request_for(definition_of_done=[CHECK], executor=scripted(CHEAT)))
        status = await asked(client, episode_id)
        await client.answer(episode_id, "asked", by="ada")
        result = await client.result(episode_id)
        export = command_for(settings, "proof", episode_id, "--unsigned", "--output", file)
        exported = await asyncio.to_thread(CliRunner().invoke, app, export)
    [question] = status.questions
    assert question.names == ("work", "asked", "accept", "cancel")
    assert "configuration_changed" in question.title
    assert question.change is not None
    assert {"-grep -q right app.py", "+exit 0"} <= set(question.change.lines)
    assert [version.path for version in question.change.files] == ["check.sh"]
    assert result.qualifier == ""
    assert result.reason.startswith("PROVEN; ada asked for the change to check.sh at ")
    assert proof_of(project, result.proof).verdict is ProofVerdict.PROVEN
    assert exported.exit_code == 0

    def verified(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["verify", str(file), "--alone", "--unsigned", *options])
        return done.exit_code, done.output

    assert verified()[0] == 0
    code, out = verified("--strict")
    assert code == 1
    assert "only after the change was made, which --strict does not accept" in out
    assert verified("--strict", "--accepted")[0] == 2


def command_for(settings, *words: object) -> list[str]:
    return ["--address", settings.temporal.address, *map(str, words)]
