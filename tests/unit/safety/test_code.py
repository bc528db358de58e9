"""The rules about code: what names mean, what is new in a change, and what a person's answer leads to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.safety.code import CodeScanner, apply_grants, changed_files, project_facts, question_of
from tightloop.episode.model import EpisodeState
from tightloop.episode.state_changes import with_answer
from tightloop.run.question import QuestionKind, match_answers, parse_answer
from tightloop.safety.code.dependencies import distance, looks_like, requirements_in, review_code, review_dependencies
from tightloop.safety.code.rules import (
    MESSAGE_CHARACTERS,
    CodeFile,
    CodeReview,
    CodeRule,
    Layer,
    ProjectFacts,
    default_rules,
)
from tightloop.safety.rubric import Finding, Verdict
from tightloop.settings import parse_settings

RULES = default_rules()
SCANNER = CodeScanner()
NOTHING = ProjectFacts()


def rules_of(after: str, before: str | None = None, *, path: str = "a.py", own: tuple[str, ...] = ()) -> list[str]:
    return [one.rule for one in review_code([CodeFile(path, before, after)], RULES, own_modules=frozenset(own))]


def packages_of(files: dict[str, tuple[str | None, str]], facts: ProjectFacts = NOTHING) -> list[tuple[str, str]]:
    found = review_dependencies([CodeFile(path, *sides) for path, sides in files.items()], facts, RULES)
    return [(one.rule, one.where) for one in found]


# what names mean


@pytest.mark.parametrize(
    "code",
    [
        "import os as o\no.system('x')",
        "from os import system\nsystem('x')",
        "from os import *\nsystem('x')",
        "import posix\nposix.system('x')",
        "import logging\nlogging.os.system('x')",
        "import os\nf = os.system\nf('x')",
        "import os\n(os if 1 else None).system('x')",
        "import os\ngetattr(os, 'sys' + 'tem')('x')",
        "import os\nvars(os)['system']('x')",
        "import os\nos.__dict__.get('system')('x')",
        "import os\nos.__getattribute__('system')('x')",
        "import sys\nsys.modules['os'].system('x')",
        "import collections\ncollections.sys.modules.get('os').system('x')",
        "__import__('so'[::-1]).system('x')",
        "__import__(''.join(map(chr, [111, 115]))).system('x')",
        "import base64, importlib\nimportlib.import_module(base64.b64decode('b3M=').decode()).system('x')",
        "name = f'{chr(111)}s'\n__import__(name).system('x')",
    ],
)
def test_os_system_is_seen_under_any_name(code: str) -> None:
    assert "subsystem" in rules_of(code)


@pytest.mark.parametrize(
    "code",
    [
        "print.__self__.eval('1')",
        "list(map(eval, ['1']))",
        "class A:\n    f = exec",
        "\uff45\uff56\uff41\uff4c('1')",
        "def f(exec=1):\n    pass\nexec('1')",
        "exec('1')\ndef exec(text):\n    pass",
        "if 0:\n    def eval(text): pass\neval('1')",
        "[eval for eval in ()]\neval('1')",
    ],
)
def test_built_ins_that_run_text_are_seen(code: str) -> None:
    assert "runs_text" in rules_of(code)


@pytest.mark.parametrize(
    "code",
    [
        "def compile(x):\n    return x\ncompile('1')",
        "def f(eval):\n    return eval('1')",
        "from re import compile\ncompile('x')",
        "model.eval()\ndb.exec('x')\nself.os.system('x')",
        "import types\nisinstance(f, types.FunctionType)",
        "import sys\nme = sys.modules[__name__]",
        "class A: pass\nA.__subclasses__()",
        "import os\nhasattr(os, 'fork') and os.getpid()",
        "'eval(1)'\nx = '__import__'",
        "import urllib.parse, http, asyncio\nhttp.HTTPStatus.OK",
    ],
)
def test_names_that_only_look_alike_pass(code: str) -> None:
    assert rules_of(code) == []


def test_own_modules_are_not_taken_for_packages() -> None:
    assert rules_of("from redis import cache\ncache.get('x')", own=("redis",)) == []
    assert rules_of("from redis import cache\ncache.get('x')") == ["network"]


# what is new


def test_use_that_was_there_is_not_new_wherever_it_moves() -> None:
    before = "import subprocess\n\n\ndef f():\n    return subprocess.run(['ls'])\n"
    assert rules_of("'''Doc.'''\n\n\n" + before + "\n\ndef g():\n    return subprocess.run(['pwd'])\n", before) == []
    moved = [CodeFile("a.py", before, ""), CodeFile("b.py", None, before)]
    assert review_code(moved, RULES) == ()


def test_second_eval_is_new_beside_the_first() -> None:
    before = "def f(x):\n    return eval(x)\n"
    assert rules_of(before + "\n\ndef g(x):\n    return eval(x + '1')\n", before) == ["runs_text"]


def test_copy_of_a_use_in_another_file_is_new() -> None:
    code = "import subprocess\n"
    assert len(review_code([CodeFile("a.py", code, code + "x = 1\n"), CodeFile("b.py", None, code)], RULES)) == 1


def test_old_findings_of_bandit_pass_and_new_ones_do_not() -> None:
    old = "import yaml\n\n\ndef f(text):\n    return yaml.load(text, Loader=yaml.Loader)\n"
    known = ProjectFacts(distributions=frozenset({"PyYAML"}))
    assert SCANNER.scan([CodeFile("a.py", old, "import re\n\n" + old)], known).verdict is Verdict.ALLOW
    more = old + "\n\ndef g(text):\n    return yaml.load(text.strip(), Loader=yaml.Loader)  # nosec\n"
    review = SCANNER.scan([CodeFile("a.py", old, more)], known)
    assert [(one.layer, one.rule, one.where) for one in review.findings] == [("bandit", "B506", "a.py:9")]


def test_syntax_error_is_sent_back_and_test_data_is_asked_about() -> None:
    broken = "def f(:\n"
    review = SCANNER.scan([CodeFile("a.py", "x = 1\n", broken)], NOTHING)
    assert (review.verdict, review.findings[0].where) == (Verdict.DENY, "a.py:1")
    assert SCANNER.scan([CodeFile("tests/fixtures/a.py", None, broken)], NOTHING).verdict is Verdict.ASK
    assert SCANNER.scan([CodeFile("a.py", broken, broken + "\n")], NOTHING).verdict is Verdict.ASK


@pytest.mark.parametrize("code", ["x = " + "-" * 5_000 + "1", "# " + "x" * 500_001])
def test_what_cannot_be_read_is_asked_about(code: str) -> None:
    review = SCANNER.scan([CodeFile("a.py", None, code)], NOTHING)
    assert [one.rule for one in review.findings] == ["change_not_read"]


def test_commands_in_code_meet_the_rules_about_commands() -> None:
    before = "import subprocess\n"
    after = before + "subprocess.run([\n    'git',\n    'push',\n    '--force',\n])\n"
    review = SCANNER.scan([CodeFile("a.py", before, after)], NOTHING)
    assert [(one.layer, one.rule) for one in review.findings] == [("commands", "rewrites_history")]


# packages


def test_packages_of_the_project_pass_under_the_names_of_their_modules() -> None:
    known = ProjectFacts(distributions=frozenset({"PyYAML", "opencv-python-headless"}), imports=frozenset({"boto3"}))
    code = "import yaml, cv2, boto3, pytest, json, a\nfrom . import b\nfrom .c import d\n"
    assert packages_of({"a.py": (None, code)}, known) == []
    assert packages_of({"x.py": (None, "import yaml\n")}) == [("new_dependency", "x.py:1")]


def test_module_is_named_by_what_installs_it() -> None:
    known = ProjectFacts(distributions=frozenset({"python-odd-name"}), installed={"odd": ("Python_Odd.Name",)})
    assert packages_of({"x.py": (None, "import odd\n")}, known) == []


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import ujson as json\nexcept ImportError:\n    import json\n",
        "try:\n    import tomllib\nexcept ModuleNotFoundError:\n    import tomli as tomllib\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n",
        "import sys\nif sys.version_info < (3, 11):\n    import tomli\n",
    ],
)
def test_import_that_the_code_does_without_passes(code: str) -> None:
    assert packages_of({"x.py": (None, code)}) == []


def test_import_that_looks_like_another_is_asked_about_even_then() -> None:
    code = "try:\n    import reqeusts\nexcept ImportError:\n    pass\n"
    assert packages_of({"x.py": (None, code)}) == [("lookalike_dependency", "x.py:2")]


def test_one_new_package_is_asked_about_once() -> None:
    files = {
        "requirements.txt": ("", "polars==1.0\n"),
        "a.py": (None, "import polars\n"),
        "b.py": (None, "import polars\n"),
    }
    assert packages_of(files) == [("new_dependency", "requirements.txt:1")]


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("requirements.txt", "# x\nA_b.c[d]>=1 ; python_version>'3' # y\n-r o.txt\n--hash=sha256:0\n-e .\n", ["a-b-c"]),
        ("requirements/dev.txt", "pytest\n", ["pytest"]),
        ("pyproject.toml", "[project]\nname='x'\ndependencies=['a>1','b @ https://e.org/b.whl']\n", ["a", "b"]),
        ("pyproject.toml", "[dependency-groups]\ndev=['a', {include-group='x'}]\n[tool.ruff]\nselect=['E']\n", ["a"]),
        ("pyproject.toml", "[tool.poetry.dependencies]\npython='^3'\na='*'\nb={git='https://e.org/b'}\n", ["a", "b"]),
        ("setup.py", "import setuptools as s\ns.setup(install_requires=['a'], extras_require={'k':['b']})", ["a", "b"]),
        ("setup.cfg", "[options]\ninstall_requires =\n    a>=1\n    b\n", ["a", "b"]),
        ("package.json", '{"name": "x", "version": "1.0", "dependencies": {"@a/b": "^1"}}', ["@a/b"]),
        ("Cargo.toml", "[package]\nname='x'\n[dependencies]\nserde='1'\n", ["serde"]),
        ("constraints.txt", "a==1\n", []),
        ("pyproject.toml", "not toml", []),
    ],
)  # fmt: skip
def test_manifests_name_packages(path: str, text: str, names: list[str]) -> None:
    assert [one.name for one in requirements_in(path, text, RULES.manifests)] == names


@pytest.mark.parametrize(
    "text", ["x @ git+https://e.org/x", "git+ssh://e.org/x", "-e git+https://e.org/x", "--extra-index-url http://e.org"]
)
def test_package_from_elsewhere_is_asked_about(text: str) -> None:
    known = ProjectFacts(distributions=frozenset({"x"}))
    assert packages_of({"requirements.txt": ("x\n", f"{text}\n")}, known) == [
        ("dependency_source", "requirements.txt:1")
    ]


@pytest.mark.parametrize(
    ("name", "other"),
    [("reqeusts", "requests"), ("requets", "requests"), ("python-requests", "requests"), ("nunpy", "numpy"),
     ("pandas2", "pandas"), ("requests", ""), ("polars", ""), ("ab", "")],
)  # fmt: skip
def test_names_that_imitate_others_are_known(name: str, other: str) -> None:
    assert looks_like(name, {"requests", "numpy", "pandas", "abc"}) == other


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_distance_is_the_same_in_both_directions(one: str, other: str) -> None:
    assert distance(one, other, 8) == distance(other, one, 8)
    assert (distance(one, other, 8) == 0) == (one == other)


# a person's answer


WISHES = [
    CodeFile("requirements.txt", "", "polars==1.0\n"),
    CodeFile("load.py", None, "import socket\n\nimport polars\n\nsocket.create_connection(('example.org', 80))\n"),
]


def answer_to(review: CodeReview, option: str) -> ProjectFacts:
    """Answer the question of a review as an episode does, and return what is known then."""
    question = question_of(review).evolve(id="q1")
    [(asked, answer)] = match_answers(parse_answer({"question": "q1", "option": option}), (question,))
    state = with_answer(EpisodeState(), asked, answer, first=EpisodeState().budget)
    return apply_grants(NOTHING, state.grants)


def test_new_dependency_and_network_reach_a_person_and_go_on_after_the_answer() -> None:
    review = SCANNER.scan(WISHES, NOTHING)
    assert (review.verdict, set(review.layers)) == (Verdict.ASK, {"dependencies", "access"})
    question = question_of(review)
    assert question.kind is QuestionKind.PERMISSION
    assert question.blocks == "the episode"
    assert "polars" in question.title + str(question.evidence)
    assert "socket" in question.title + str(question.evidence)
    assert SCANNER.scan(WISHES, answer_to(review, "allow")) == CodeReview()


def test_allowed_findings_are_not_asked_about_again_beside_a_new_one() -> None:
    known = answer_to(SCANNER.scan(WISHES, NOTHING), "allow")
    more = [*WISHES, CodeFile("run.py", None, "import subprocess\n")]
    assert [one.rule for one in SCANNER.scan(more, known).findings] == ["subsystem"]


def test_refused_findings_are_forbidden_from_then_on() -> None:
    review = SCANNER.scan(WISHES, answer_to(SCANNER.scan(WISHES, NOTHING), "deny"))
    assert review.verdict is Verdict.DENY
    assert all(one.refused for one in review.findings)
    assert "rejected by a person" in review.message


def test_forbidden_findings_are_no_part_of_the_question() -> None:
    review = SCANNER.scan([*WISHES, CodeFile("x.py", None, "__builtins__['eval']('1')\n")], NOTHING)
    assert review.verdict is Verdict.DENY
    assert review.findings[0].rule == "hidden_names"
    assert "hidden_names" not in str(question_of(review))


def test_message_says_what_to_change_and_is_bounded() -> None:
    review = SCANNER.scan([CodeFile("x.py", None, "import os\nos.system('rm -rf /')\n")], NOTHING)
    assert "x.py:2: subsystem (access), needs a person's permission" in review.message
    assert "instead: use a Python function" in review.message
    long = Finding(rule="x" * 300, topic=review.findings[0].topic, verdict=Verdict.DENY, evidence="y" * 200)
    assert len(CodeReview(Verdict.DENY, (long,) * 60).message) <= MESSAGE_CHARACTERS


# settings and the project


def test_rules_are_changed_added_and_turned_off_in_settings() -> None:
    text = """alignment:
      allow: [subsystem]
      dependencies: [Polars]
      code:
        network: {verdict: allow}
        our_table: {uses: [shop.db.drop], verdict: deny, suggestion: a migration}
        B506: {verdict: allow}
    """
    rules = parse_settings(text, {}).alignment.code_rules()
    code = "import socket, subprocess, yaml, polars\nfrom shop import db\ndb.drop()\nyaml.load('', yaml.Loader)\n"
    known = ProjectFacts(distributions=frozenset({"pyyaml"}), modules=frozenset({"shop"}))
    review = CodeScanner(rules).scan([CodeFile("x.py", None, code)], known)
    assert [(one.rule, one.verdict, one.suggestion) for one in review.findings] == [
        ("our_table", Verdict.DENY, "a migration")
    ]
    off = parse_settings("alignment: {enabled: false}", {}).alignment.code_rules()
    assert CodeScanner(off).scan([CodeFile("x.py", None, "eval('1')\n")], known) == CodeReview()


def test_rule_that_looks_for_nothing_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"'netwrk' is not a known rule.*Did you mean 'network'"):
        RULES.with_changes({"netwrk": CodeRule(verdict=Verdict.ALLOW)})


def test_every_delivered_rule_looks_for_something_or_belongs_to_a_layer() -> None:
    alone = {name for name, rule in RULES.rules.items() if not rule.is_complete}
    assert alone == {"unreadable_code", "new_dependency", "lookalike_dependency", "dependency_source", "bandit"}
    assert all(rule.suggestion for rule in RULES.rules.values())
    assert {rule.layer for rule in RULES.rules.values()} == set(Layer) - {Layer.COMMANDS}


def test_facts_come_from_the_trees() -> None:
    blobs = {
        "1": b"[project]\nname = 'shop'\ndependencies = ['click']\n",
        "2": b"import click\nimport odd_one\n",
        "3": b"import click\nimport json\n",
        "4": b"\0\1",
    }
    before = {b"pyproject.toml": "1", b"shop/cli.py": "2", b"gone.txt": "3"}
    after = {b"pyproject.toml": "1", b"shop/cli.py": "3", b"tests/support/fake.py": "3", b"data.bin": "4"}
    facts = project_facts(before, after, blobs.__getitem__, RULES)
    assert {"shop", "cli", "support", "fake"} <= facts.modules
    assert facts.distributions == {"shop", "click"}
    assert facts.imports == {"click", "odd_one"}
    changed = changed_files(before, after, blobs.__getitem__)
    assert [(file.path, file.before is None, bool(file.after)) for file in changed] == [
        ("data.bin", True, False),
        ("gone.txt", False, False),
        ("shop/cli.py", False, True),
        ("tests/support/fake.py", True, True),
    ]
    assert SCANNER.scan(changed, facts).verdict is Verdict.ALLOW
