"""A plan that makes no sense is told so before anything is done: where, why, and what to write instead."""

import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plan.strategies import errors_of, plans
from tightloop.errors import Problem
from tightloop.plan.document import Plan
from tightloop.plan.text.reading import ReadPlan, read_plan
from tightloop.plan.text.writing import write_plan
from tightloop.plan.validation import validate
from tightloop.plan.validation.step import find_file_cycles, find_missing, find_unknown_inputs


def found(text: str, capabilities: frozenset[str] | None = None) -> tuple[Problem, ...]:
    return validate(read_plan(text, name="p"), capabilities=capabilities)


def told(steps: str, head: str = "") -> str:
    """Validate steps whose first line is line 3."""
    return "\n".join(str(problem) for problem in found(f"id: p\nsteps:\n{steps}\n{head}"))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_valid_plans_are_valid_in_every_form(plan: Plan) -> None:
    assert errors_of(plan) == []
    assert [one for one in validate(read_plan(write_plan(plan, "dsl"))) if one.is_error] == []


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            "- {id: a, needs: [c]}\n- {id: b, needs: [a]}\n- {id: c, needs: [b]}",
            "p:3:19: cycle: a -> b -> c -> a. Remove one of these edges so that a step can start first.",
        ),
        ("- {id: a, needs: [a]}", "p:3:19: 'a' depends on itself. Remove the step's own id."),
        (
            "- {id: a, needs: [b]}\n- {id: b}\n- {id: c, on_success: [d]}\n- {id: d, on_success: [c]}",
            "cycle: c -> d -> c.",
        ),
        (
            "- {id: a, shell: {run: x}, on_failure: b}\n- {id: b, shell: {run: x}, on_failure: a}",
            "p:4:40: cycle: a -> b -> a.",
        ),
        (
            "- {id: build}\n- {id: b, needs: [biuld]}",
            "p:4:19: 'b' needs 'biuld', which is not a step. Did you mean 'build'?",
        ),
        ("- {id: a, on_success: [x]}", "p:3:24: 'a' leads to 'x', which is not a step."),
        (
            "- {id: look-*, for_each: [1]}\n- {id: b, needs: [look-1]}",
            "p:4:19: 'b' needs 'look-1', which is not a step. Write 'look-*'",
        ),
        ("- {id: a}\n- {id: a}", "p:4:8: duplicate id 'a' (first on line 3). Rename one."),
        (
            "- {id: look-*, for_each: [1]}\n- {id: look-1}",
            "p:4:8: 'look-1' conflicts with an instance of template 'look-*'.",
        ),
        ("- {id: a}\n- {id: undo-a}", "p:4:8: 'undo-a' conflicts with the id reserved for undoing 'a'."),
        ("- {id: status}", "p:3:8: 'status' cannot be a step id"),
        ("- {id: a-*}", "p:3:8: 'a-*' is a template without items. Add `for_each: ${step.output}`, or remove the '*'."),
        ("- {id: a, for_each: [1]}", "p:3:8: 'a' has 'for_each' but is not a template. Write `id: a-*`."),
        (
            "- {id: a-*, for_each: some}",
            "p:3:23: 'for_each' in 'a-*' is 'some', which is neither a list nor a single reference.",
        ),
        (
            "- {id: a, shell: {run: x}, search: {query: y}}",
            "p:3:28: 'a' has more than one action: `shell` and `search`.",
        ),
        ("- {id: a, kind: decision}", "p:3:17: 'a' has kind decision but no `decision:`."),
        ("- {id: a, kind: model}", "p:3:17: warning: 'a' has kind model but no `model:`."),
        (
            "- {id: test, needs: [tests]}\n- {id: tent}",
            "'test' needs 'tests', which is not a step. Did you mean 'tent'?",
        ),
        (
            "- {id: a, gate: {approval: {options: [{name: x}, {name: y}, {name: x}]}}}",
            "duplicate option 'x' in 'a': nobody could choose the second one. Rename one.",
        ),
        (
            "- {id: a, edit: {files: [{path: a/.env, delete: true}]}}",
            "p:3:33: 'a': policy.protect forbids changes to a/.env",
        ),
        ("- {id: a, shell: {run: ' '}}", "p:3:25: 'a' runs an empty command."),
        ("- {id: a, timeout_s: inf}", "p:3:22: 'timeout_s' in 'a' must be at most 1e+09 s, got inf s."),
        ("- {id: a, edit: {}}", "p:3:11: 'a' must have either `files` or `diff`."),
        (
            "- {id: a, edit: {files: [{path: f, search: x, delete: true}]}}",
            "p:3:26: the edit of 'f' in 'a' must use exactly one of search/replace, content and delete.",
        ),
        ("- {id: a, git: {}}", "p:3:11: the `git` action in 'a' does nothing."),
        ("- {id: a, subplan: {}}", "p:3:11: 'a' must have either `steps` or `file`."),
        ("- {id: a, decision: {}}", "p:3:11: 'a' has no basis for its decision."),
        ("- {id: a, decision: {rules: [{when: 'true'}]}}", "p:3:11: 'a' makes a decision that leads to no step."),
        (
            "- {id: a, branch: {alternatives: [{name: x, steps: [{id: b}]}]}}",
            "p:3:11: 'a' has fewer than two alternatives.",
        ),
        (
            "- {id: a, compensate: {run: x, none: true}}",
            "p:3:11: `compensate` in 'a' must have only one of `run`, `step` and `none`.",
        ),
        ("- {id: a, gate: {}}", "p:3:11: gate 'a' has neither checks nor an approval."),
        ("- {id: a, gate: {checks: [{name: x}]}}", "p:3:27: check 1 of gate 'a' has no way to check."),
        (
            "- {id: a, gate: {checks: [{command: x, prose: y}]}}",
            "p:3:27: check 1 of gate 'a' has command and prose. Use exactly one of command, invariant",
        ),
        (
            "- {id: a, gate: {checks: [{prose: looks good}]}}",
            "p:3:11: warning: gate 'a' has a check that only a person can do",
        ),
        ("- {id: a, http: {url: 'http://x'}}", "p:3:11: 'a' uses the network, but the policy allows no host."),
        ("- {id: a, evidence: [{hypothesis: H1}]}", "p:3:35: 'a' has evidence for 'H1', which is not a hypothesis"),
        ("- {id: a, compensate: {step: b}}", "p:3:30: 'a' is undone by 'b', which is not a step."),
        (
            "- {id: a, compensate: {step: b}}\n- {id: b}",
            "p:3:30: 'a' is undone by 'b', whose kind is not compensation.",
        ),
        (
            "- {id: a, compensate: {step: b}}\n- {id: b, kind: compensation, needs: [a]}",
            "p:4:31: compensation step 'b' has needs, but it only runs to undo another step. Remove `needs`.",
        ),
        (
            "- {id: a, compensate: {step: b}, on_success: [b]}\n- {id: b, kind: compensation}",
            "p:3:47: 'a' is connected to compensation step 'b', which only starts to undo a step.",
        ),
        ("- {id: b, kind: compensation}", "p:3:8: warning: compensation step 'b' does not undo any step."),
        (
            "- {id: a, on_failure: b}\n- {id: b}",
            "p:4:8: 'b' can never start: it only starts after a failure of 'a', which cannot fail.",
        ),
        (
            "- {id: a, shell: {run: x}, on_failure: b}\n- {id: m, needs: [a]}\n- {id: b, needs: [m]}",
            "p:3:40: 'b' starts when 'a' fails, but it also needs 'a'. Remove 'a' from its needs.",
        ),
        (
            "- {id: a, shell: {run: x}, on_failure: {to: b, compensate: [c]}}\n- {id: b}\n- {id: c}",
            "p:3:61: 'a' undoes 'c', which may not have completed before 'a'. Add 'c' to the needs of 'a'.",
        ),
    ],
)
def test_what_makes_no_sense_is_told_with_its_place(steps: str, message: str) -> None:
    assert message in told(steps)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("network: ['https://a.org/x']", "p:3:21: 'https://a.org/x' is a URL, not a host. Write `a.org`."),
        ("network: ['http://a.org:8080/x']", "Write `a.org:8080`."),
        ("network: [a.org/x]", "'a.org/x' is not a valid host. Write a host such as `a.org` or `example.org:8443`."),
        ("network: ['host:port']", "Write a host such as `*.example.org` or `example.org:8443`."),
        ("network: ['*']", "'*' is not a valid host. Write a host such as `*.example.org`"),
        ("network: ['a.org:99999']", "'a.org:99999' has an invalid port. Use a port from 1 to 65535."),
        ("network: ['*.a.org:80']", "'*.a.org:80' matches no host"),
        (
            "write: [../x]",
            "p:3:18: the pattern '../x' points outside the tree. Write the pattern relative to the root of the tree",
        ),
        ("write: [/src/**]", "the pattern '/src/**' points outside the tree."),
        ("write: ['src/{a,b}/**']", "contains braces, which are not supported. Write `src/a/**`, `src/b/**`."),
        ("write: ['a//b']", "the pattern 'a//b' matches no path. Write `a/b`."),
        ("write: ['']", "the pattern '' matches no path. Write `**` for all files."),
        ("protect: ['!x']", "the pattern '!x' excludes nothing."),
        ("approve: [deplyo]", "nobody would be asked. Did you mean 'deploy'?"),
        ("approve: [riksy]", "nobody would be asked. Did you mean 'risky'?"),
        (
            "commands: [{match: 'git push | cat'}]",
            "matches no command because each command in a script is checked separately.",
        ),
        ("commands: [{match: ' '}]", "rule 1 matches no command."),
    ],
)
def test_a_policy_that_means_something_else_is_refused(policy: str, message: str) -> None:
    read = read_plan(f"id: p\nsteps: [{{id: a, run: x, labels: [risky]}}]\npolicy: {{{policy}}}\n", name="p")
    assert message in "\n".join(str(problem) for problem in validate(read))


def test_hosts_patterns_and_words_that_mean_something_are_accepted() -> None:
    head = """policy:
  network: [example.org, "*.example.org", "127.0.0.1:8080", localhost, "[::1]:80", my_host]
  write: ["**", "src/**/*.py", ./docs/, "app/[id].tsx"]
  approve: [deploy, shell, gate, risky]
  commands: [{match: "git push **"}, {match: "env PYTHONPATH=src", verdict: allow}]"""
    assert (
        told("- {id: a, run: x, labels: [risky]}\n- {id: b, needs: a, http: 'https://example.org/${a.stdout}'}", head)
        == ""
    )


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "http: {url: 'https://b.org/'}",
            "p:3:24: 'a': policy.network does not list b.org:443, which 'https://b.org/'",
        ),
        (
            "http: {urls: ['https://a.org', 'ftp://a.org']}",
            "p:3:43: 'a': 'ftp://a.org' is not an http or https URL.",
        ),
        ("http: {url: 'https://b.org/${seed}'}", "Add 'b.org' to allow it."),
        ("http: {method: GET}", "'a': `http` must have either `url` or `urls`."),
        (
            "http: {url: 'https://a.org', at_least: 2}",
            "'a': `at_least` is only valid with `urls`. Remove `at_least`, or use `urls:`.",
        ),
        ("http: {urls: 'https://a.org', method: POST}", "'a': `method` is only valid with `url`."),
        ("http: {url: 'https://a.org', method: GETT}", "'a': 'GETT' is not an HTTP method. Use one of GET, HEAD, POST"),
        (
            "http: {url: 'https://a.org', secret_headers: {Authorization: Bearer x}}",
            "must name a worker environment variable",
        ),
        (
            "edit: {files: [{path: /etc/x, content: y}]}",
            "'a': '/etc/x' is absolute, but steps can only access the tree.",
        ),
        ("edit: {files: [{path: .git/config, content: y}]}", "is in `.git`, which steps must not access."),
        ("shell: {run: x, folder: ../..}", "'a': '../..' is outside the tree."),
        ("shell: {run: x, environment: {A-B: x}}", "'a': 'A-B' is not a valid environment variable name"),
        ("run: x, outputs: {o: 'file:../x'}", "p:3:33: 'a': '../x' is outside the tree."),
        ("subplan: /tmp/x.yaml", "'a': '/tmp/x.yaml' is absolute"),
        ("search: {query: x, paths: [../x]}", "'a': the pattern '../x' points outside the tree."),
        ("search: {query: ' '}", "'a' has an empty search query."),
        ("episode: {goal: x, definition_of_done: [' ']}", "'a' has a check without a command."),
    ],
)
def test_literal_values_are_judged_before_anything_runs(step: str, message: str) -> None:
    assert message in told(f"- {{id: a, {step}}}", "policy: {network: [a.org]}")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.yaml": "./a.yaml"}, "the plan includes itself: a.yaml -> a.yaml."),
        ({"b.yaml": "c.yaml", "c.yaml": "a.yaml"}, "the plan includes itself: a.yaml -> b.yaml -> c.yaml -> a.yaml."),
        ({"b.yaml": "c.yaml", "c.yaml": "b.yaml"}, "the plan includes itself: b.yaml -> c.yaml -> b.yaml."),
        ({"b.yaml": "c.yaml", "c.yaml": "d.yaml"}, ""),
    ],
)
def test_a_plan_that_includes_itself_through_files_is_refused(files: dict[str, str], message: str) -> None:
    texts = {name: f"id: q\nsteps:\n- {{id: x, subplan: {{file: {file}}}}}\n" for name, file in files.items()}
    read = read_plan(f"id: p\nsteps:\n- {{id: one, subplan: {next(iter(files))}}}\n", name="p")
    said = "\n".join(str(one) for one in find_file_cycles(read, "a.yaml", texts.get))
    assert message in said
    assert bool(said) is bool(message)


def test_what_a_plan_names_has_to_be_there_or_to_be_made_by_it() -> None:
    tree = {"": ["src", "plans"], "plans": ["ship.yaml"], "src": ["app"]}
    text = """id: p
policy: {write: ["scr/**", "out/**", "src/app/*.py"]}
steps:
- {id: sub, subplan: {file: plans/shop.yaml}}
- {id: here, subplan: {file: plans/ship.yaml}}
- {id: build, shell: {run: make, folder: src/lib}}
- {id: later, needs: [build], shell: {run: make, folder: src/lib}}
- {id: look, shell: {run: ls}, access: reads}
- {id: seen, needs: [look], shell: {run: make, folder: lib}}
- {id: of-data, subplan: {file: "plans/${plan.x}.yaml"}}
"""
    said = [str(one) for one in find_missing(read_plan(text, name="p"), tree.get)]
    hint = "Write the path relative to the root of the tree."
    assert said == [
        "p:2:19: warning: policy.write covers 'scr', which does not exist yet. Did you mean 'src'?",
        "p:4:29: 'sub' runs the plan 'plans/shop.yaml', which does not exist. Did you mean 'ship.yaml'?",
        "p:6:42: 'build' runs in the folder 'src/lib', which does not exist. " + hint,
        "p:7:58: warning: 'later' runs in the folder 'src/lib', which does not exist yet. " + hint,
        "p:9:56: 'seen' runs in the folder 'lib', which does not exist. " + hint,
    ]


def test_inputs_for_a_plan_in_a_file_have_to_be_those_that_it_has() -> None:
    files = {
        "sub.yaml": "id: sub\ninputs: {word: none}\nsteps: [{id: a, run: 'echo ${plan.word}'}]\n",
        "half.yaml": "id: [",
    }
    text = """id: p
steps:
- {id: right, subplan: {file: sub.yaml, inputs: {word: a}}}
- {id: wrong, subplan: {file: ./sub.yaml, inputs: {wrod: a}}}
- {id: build, run: make}
- {id: later, needs: build, subplan: {file: sub.yaml, inputs: {worrd: a}}}
- {id: unread, subplan: {file: half.yaml, inputs: {x: a}}}
- {id: missing, subplan: {file: other.yaml, inputs: {x: a}}}
"""
    assert [str(one) for one in find_unknown_inputs(read_plan(text, name="p"), files.get)] == [
        "p:4:52: 'wrong' passes the input 'wrod', which sub.yaml does not declare. Did you mean 'word'?",
        "p:6:64: warning: 'later' passes the input 'worrd', which sub.yaml does not declare. Did you mean 'word'?",
    ]


def test_a_scope_that_contradicts_itself_is_refused() -> None:
    said = told("- {id: a}", "policy: {write: [docs], protect: [docs]}")
    assert "p:4:18: 'docs' is also in policy.protect, which takes precedence, so no step may change it." in said
    said = told("- {id: a, edit: {files: [{path: b.md, delete: true}]}}", "policy: {write: [docs]}")
    assert (
        "p:3:33: 'a': policy.write (docs) does not cover b.md. Change only paths that policy.write covers, or extend "
        "policy.write." in said
    )


CHOICE = """
- id: pick
  decision: {rules: [{when: "1 == 1", to: [left]}], otherwise: [right]}
- {id: left, needs: [pick]}
- {id: right, needs: [pick]}
- {id: after-left, needs: [left]}
"""


def test_a_join_of_exclusive_paths_is_refused_unless_any_of_them_is_enough() -> None:
    assert "p:9:13: 'end' needs 'after-left', 'right', which are on mutually exclusive paths of 'pick'" in told(
        CHOICE + "- {id: end, needs: [after-left, right]}"
    )
    assert told(CHOICE + "- {id: end, needs: [after-left, right], join: any}") == ""
    both = CHOICE.replace("to: [left]", "to: [left, right]").replace("otherwise: [right]", "otherwise: []")
    assert told(both + "- {id: end, needs: [after-left, right]}") == ""


def test_success_and_failure_of_one_step_are_exclusive_too() -> None:
    steps = "- {id: a, shell: {run: x}, on_success: [b], on_failure: c}\n- {id: b}\n- {id: c}\n- {id: d, needs: [b, c]}"
    assert "'d' needs 'b', 'c', which are on mutually exclusive paths of 'a'" in told(steps)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("- {id: a, when: '1 +'}", "p:3:20: expression '1 +' in 'a': "),
        (
            "- {id: a, shell: {run: 'echo ${HOME}'}}",
            "p:3:30: '${HOME}' is neither a step nor a value (in 'a'). Write $${HOME} for the shell variable.",
        ),
        ("- {id: a, shell: {run: 'echo ${b'}}", "p:3:30: text 'echo ${b' in 'a': '${b' is missing a closing brace."),
        (
            "- {id: a, shell: {run: x}}\n- {id: b, shell: {run: 'y ${a.stdout}'}}",
            "p:4:27: 'b' uses '${a.stdout}' but does not need 'a'. Add 'a' to its `needs`.",
        ),
        (
            "- {id: a, shell: {run: x}}\n- {id: b, shell: {run: 'y ${a.stdotu}'}}",
            "p:4:27: 'a' has no output 'stdotu' (in 'b'). Did you mean 'stdout'?",
        ),
        (
            "- {id: a, shell: {run: x}}\n- {id: b, needs: [a], when: '${a.stduot} == 1'}",
            "p:4:30: 'a' has no output 'stduot' (in 'b'). Did you mean 'stdout'?",
        ),
        (
            "- {id: a, shell: {run: x}}\n- {id: b, needs: [a], inputs: {v: '${a}'}}",
            "p:4:36: '${a}' refers to a step, not to one of its outputs (in 'b'). Write `${a.",
        ),
        (
            "- {id: collect, shell: {run: x}}\n- {id: b, needs: [collect], inputs: {v: '${colect.stdout}'}}",
            "'${colect.stdout}' is neither a step nor a value (in 'b'). Did you mean 'collect'?",
        ),
        ("- {id: a, shell: {run: x}, expect: ['${outputs.x} == 1']}", "p:3:38: 'a' has no output 'x'."),
        (
            "- {id: a, shell: {run: x}, outputs: {o: stdotu}}",
            "p:3:41: output 'o' of 'a' comes from 'stdotu', which the step does not provide. Did you mean 'stdout'?",
        ),
        ("- {id: a, inputs: {v: '${a.stdout}'}}", "p:3:24: '${a.stdout}' refers to the step itself (in 'a')."),
        ("- {id: a, inputs: {v: '${item}'}}", "p:3:24: '${item}' is only available in templates (in 'a')."),
        ("- {id: a, shell: {run: 'echo ${status}'}}", "p:3:30: '${status}' is the step's own result"),
        ("- {id: a, shell: {run: 'echo ${inputs.x}'}}", "p:3:30: 'a' has no input 'x'. Declare it."),
        ("- {id: a, shell: {run: 'echo ${plan.x}'}}", "p:3:30: the plan has no input 'x' (in 'a'). Declare it."),
        (
            "- {id: a, failure_modes: [{name: m, detect: it is slow}]}",
            "p:3:45: expression 'it is slow' in 'a': 'is' is not allowed: write == or !=. Write an expression such as",
        ),
        (
            "- {id: a, shell: {run: x}, expect: [exit code is 0]}",
            "p:3:42: expression 'exit code is 0' in 'a': this is not a valid expression. Write an expression such as",
        ),
        ("- {id: a, shell: {run: x}, expect: ['$exit_code = 0']}", "Write an expression such as `${exit_code} == 0`"),
        (
            "- {id: a, shell: {run: x}, preconditions: [\"os.path.exists('x')\"]}",
            "Expressions cannot access files: test for the file in a command (`test -e x`)",
        ),
        (
            "- {id: a, shell: {run: x}, expect: [\"'exit code is 0'\"]}",
            "p:3:38: ''exit code is 0'' in 'a' contains no reference, so its result is always the same. Write",
        ),
        ("- {id: a, gate: {checks: [make test]}}", "For a command, write `command: ...`. Write an expression such as"),
        ("- {id: a, shell: {run: x}, outputs: {n: josn}}", "p:3:41: output 'n' of 'a' comes from 'josn'"),
        ("- {id: a, shell: {run: x}, outputs: {n: josn}}", "Did you mean 'json'?"),
        ("- {id: a, edit: {files: [{path: x, content: y}]}, outputs: {n: json}}", "which the step does not provide."),
        ("- {id: a, needs: [d]}\n- {id: d-*, for_each: [1], run: x}", "Did you mean 'd-*'?"),
        ("- {id: a, gate: {checks: [looks good]}}", "p:3:33: expression 'looks good' in 'a'"),
        (
            "- {id: a, search: {query: x}, expect: ['${exit_code} == 0']}",
            "p:3:41: 'a' has no exit code because it is not a `shell` step. Use `${status}`",
        ),
        (
            "- {id: a, shell: {run: '${b c} ${d}}'}}",
            "p:3:25: text '${b c} ${d}}' in 'a': '${b c}' is not a valid reference",
        ),
        ("- {id: a, shell: {run: '${b c} ${d}}'}}", "p:3:32: '${d}' is neither a step nor a value"),
        ("- id: a\n  run: |\n    make\n    echo ${b c} ${d e}", "p:6:10: text"),
        ("- id: a\n  run: |\n    make\n    echo ${b c} ${d e}", "p:6:17: text"),
        (
            "- {id: a, gate: {checks: [{invariant: '${b.stdout} == 1'}]}}\n- {id: b, shell: {run: x}}",
            "p:3:40: 'a' uses '${b.stdout}' but does not need 'b'.",
        ),
    ],
)
def test_references_that_cannot_be_resolved_are_told_with_their_column(steps: str, message: str) -> None:
    assert message in told(steps)


def test_references_to_everything_that_is_there_in_time_are_fine() -> None:
    text = """
id: p
inputs: {target: x}
hypotheses: [H1]
steps:
- {id: a.1, run: "echo $${HOME} ${plan.target} ${seed}", outputs: {rows: json}, compensate: {step: undo}}
- {id: undo, kind: compensation, run: "rm ${a.1.stdout}"}
- {id: look-*, needs: a.1, for_each: "${a.1.rows}", run: "cat ${item.path}", outputs: {answer: stdout}}
- {id: join, needs: look-*, inputs: {all: "${look-*.answer}"}, run: "echo ${inputs.all}", expect: ["${exit_code} == 0"]}
- {id: commit, needs: join, git: {commit: "feat(${plan}): ${title}"}}
- {id: fix, inputs: {first: "${a.1.rows}"}}
- {id: risky, needs: a.1, run: x, on_failure: fix}
- {id: pick, needs: join, decision: {rules: [{when: "${hypotheses.H1} > 0.5", to: [last]}]}}
- {id: last, inputs: {why: "${pick.reason}"}}
- {id: nested, needs: a.1, subplan: {inputs: {rows: "${a.1.rows}"}, steps: [{id: b, run: "echo ${plan.rows}"}]}}
"""
    assert [str(problem) for problem in found(text)] == []


def test_steps_within_subplans_and_alternatives_are_checked_where_they_stand() -> None:
    steps = """
- id: outer
  subplan:
    steps:
    - {id: a, needs: [b]}
- id: try
  branch:
    alternatives:
    - {name: x, steps: [{id: a, needs: [a]}]}
    - {name: y, steps: [{id: a, shell: {run: '${outer.stdout}'}}]}
"""
    said = told(steps)
    assert "p:7:23: 'a' needs 'b', which is not a step." in said
    assert "p:11:41: 'a' depends on itself." in said
    assert "p:12:47: '${outer.stdout}' is neither a step nor a value" in said


def test_plans_within_plans_are_as_deep_as_the_budget_allows() -> None:
    text = "budget: {max_depth: 2}\nid: p\nsteps:\n- {id: a, subplan: {steps: [{id: b, subplan: {steps: [{id: c}]}}]}}"
    assert "p:4:47: plans are nested 3 levels deep, but budget.max_depth is 2." in str(found(text)[0])


def test_capabilities_that_this_worker_lacks_are_told() -> None:
    text = "id: p\nsteps:\n- {id: a, search: {query: x}}\n- {id: b}\n"
    (problem,) = found(text, frozenset({"shell", "git"}))
    assert (
        str(problem)
        == "p:3:11: 'a' requires the capability 'search', which is not available here. Available: git, shell."
    )
    assert found(text, frozenset({"search"})) == ()


def test_budgets_must_fit_into_the_plans() -> None:
    head = "budget: {max_cost_usd: 2, max_tokens: 10, max_wall_s: 50, max_fan_out: 1}"
    assert "p:3:37: 'a' may spend max_cost_usd 3, but the whole plan may spend only 2." in told(
        "- {id: a, budget: {max_cost_usd:    3}}", head
    )
    assert "'a' may take 60 s, but the whole plan may take only 50 s." in told("- {id: a, timebox_s: 60}", head)
    assert "'a-*' expands to 2 steps, but budget.max_fan_out is 1." in told("- {id: a-*, for_each: [1, 2]}", head)
    rest = "budget: {max_tokens: 6}, estimate_s: 30"
    two = f"- {{id: a, {rest}}}\n- {{id: b, needs: a, {rest}}}"
    said = told(two, head)
    assert "p:5:39: warning: the steps' budgets add up to max_tokens 12, but the plan's budget is 10" in said
    assert "warning: the critical path a -> b is estimated at 60 s, but budget.max_wall_s is 50 s." in said


def test_the_plan_itself_is_checked() -> None:
    text = """
id: p-*
steps: []
artifacts: [{name: x, from: nowhere}]
hypotheses: [H1, H1]
definition_of_done: [' ']
"""
    said = "\n".join(str(problem) for problem in found(text))
    assert "p:2:5: 'p-*' is not a valid plan id." in said
    assert "plan 'p-*' has no steps." in said
    assert "p:4:29: artifact 'x' comes from 'nowhere', which is not a step." in said
    assert "p:5:18: duplicate hypothesis 'H1'." in said
    assert "p:6:23: check 1 of the definition of done has no command." in said


def test_a_deployment_that_nobody_approves_is_told() -> None:
    steps = "- {id: go, kind: deploy, shell: {run: x}}"
    assert told(steps) == ""
    assert "p:3:18: warning: 'go' deploys, but no gate names a role" in told(steps, "policy: {approve: []}")


def test_a_plan_made_by_a_program_is_checked_without_places() -> None:
    plan = Plan.model_validate({"id": "p", "steps": [{"id": "a", "needs": ["b"], "when": "${c.x} == 1"}]})
    assert [str(one).split(".")[0] for one in validate(ReadPlan.of(plan))] == [
        "'a' needs 'b', which is not a step",
        "'${c",
    ]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_cycle_is_found_exactly_where_there_is_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=10))
    steps = [{"id": f"s{n}", "needs": sorted({f"s{a}" for a, b in pairs if b == n})} for n in range(count)]
    problems = validate(ReadPlan.of(Plan.model_validate({"id": "p", "steps": steps})))
    reach = {n: {a for a, b in pairs if b == n} for n in range(count)}
    for _ in range(count):
        reach = {n: seen | {far for near in seen for far in reach[near]} for n, seen in reach.items()}
    shown = [one.message.removeprefix("cycle: ").split(" -> ") for one in problems if one.code == "cycle"]
    assert bool(shown) is any(n in seen for n, seen in reach.items())
    for path in shown:
        assert path[0] == path[-1]
        assert all((int(a[1:]), int(b[1:])) in pairs for a, b in pairwise(path))


def test_thousands_of_misspelt_ids_are_told_at_once_and_in_part() -> None:
    steps = [{"id": f"s{n}", "needs": [f"typo{n}"]} for n in range(3_000)]
    problems = validate(ReadPlan.of(Plan.model_validate({"id": "p", "steps": steps})))
    assert (len(problems), problems[-1].message) == (101, "2900 more")


def test_ten_thousand_steps_take_time_in_proportion() -> None:
    def seconds(count: int) -> float:
        steps = [
            {"id": f"s{n}", "needs": [f"s{m}" for m in (n - 1, n - 7) if m >= 0], "shell": {"run": f"echo {n}"}}
            for n in range(count)
        ]
        read = ReadPlan.of(Plan.model_validate({"id": "p", "steps": steps}))
        start = time.process_time()
        assert validate(read) == ()
        return time.process_time() - start

    small, large = min(seconds(1_000) for _ in range(3)), seconds(10_000)
    assert large < 40 * small + 0.5


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("- {id: a, run: 'rm -rf /'}", "p:3:17: warning: 'a': rule destructive_command rejects 'rm -rf /'."),
        (
            "- {id: a, run: 'echo ${plan.who} && rm -rf /'}",
            "p:3:17: warning: 'a': rule destructive_command rejects 'echo ${...} && rm -rf /'.",
        ),
        (
            "- {id: a, run: 'echo A=${plan.who} > .env'}",
            "p:3:17: warning: 'a': policy.protect forbids changes to .env. Leave",
        ),
        (
            "- {id: a, run: make, compensate: {run: 'rm -rf ~'}}",
            "p:3:41: warning: 'a': rule destructive_command rejects",
        ),
        (
            "- {id: a, gate: {checks: [{command: 'rm -rf /'}]}}",
            "p:3:38: warning: 'a': rule destructive_command rejects",
        ),
        (
            "- {id: a, run: make, compensate: {run: 'git checkout -- b.txt || rm -f b.txt'}}",
            "p:3:41: warning: 'a' runs `git checkout`, but `.git` is read-only for commands. Use the `git`",
        ),
        (
            "- {id: a, episode: {goal: x, definition_of_done: ['rm -rf /']}}",
            "'a': rule destructive_command rejects 'rm -rf /'.",
        ),
        (
            "- id: a\n  run: |\n    cat > out <<'END'\n    Dear ${plan.who}\n    END",
            "p:6:10: 'a': the shell does not expand references in a here-document with the quoted delimiter",
        ),
        (
            "- {id: a, inputs: {n: many}, run: 'echo $(( ${inputs.n} + 1 ))'}",
            "p:3:45: 'a': '${inputs.n}' is 'many', but shell arithmetic requires a whole number. Use a whole number",
        ),
        (
            "- {id: a, run: 'echo $(( ${plan.who} + 1 ))'}",
            "p:3:17: warning: 'a': '${plan.who}' is 'Ada', but shell arithmetic requires a whole number.",
        ),
    ],
)
def test_command_that_is_known_to_fail_is_found_before_the_plan_runs(steps: str, message: str) -> None:
    assert message in told(steps, "inputs: {who: Ada}")


@pytest.mark.parametrize(
    "steps",
    [
        "- {id: a, run: 'rm -rf ${plan.who}/'}",
        "- {id: a, run: 'echo $(( ${plan.n} + 1 ))'}",
        "- {id: a, run: 'echo hello > ${plan.who}'}",
        "- {id: a, run: 'make ${plan.who}'}",
    ],
)
def test_command_that_depends_on_a_value_is_judged_when_it_runs(steps: str) -> None:
    rules = "policy: {write: [src/**], commands: [{match: make Ada, verdict: allow}, {match: make *, verdict: deny}]}"
    assert told(steps, f"inputs: {{who: src/ada, n: 3}}\n{rules}") == ""
