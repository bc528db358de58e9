"""Sections of `docs/reference/plan.md`: the models of a plan, each with an example that a test validates."""

from typing import NamedTuple

from pydantic import BaseModel

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.plan import action, document, step
from tightloop.settings import AgentSSettings


class Section(NamedTuple):
    """Table and example of some models."""

    title: str
    models: dict[str, type[BaseModel]]
    """Models by the path of their fields from the plan or the step, such as `gate.checks`."""
    example: str
    """Plan or part of one that shows all fields of these models."""


SECTIONS = [
    Section(
        "Plan",
        {
            "": document.Plan,
            "artifacts": document.ArtifactDeclaration,
            "hypotheses": document.Hypothesis,
            "definition_of_done": Check,
        },
        """\
id: release
inputs: {version: "1.0.1"}
memory: [last-release]
hypotheses: [{id: H1, statement: The cache is stale, prior: 0.4}]
artifacts: [{name: report, from_step: build, output: text, type: markdown}]
max_parallel: 4
on_failure: compensate
seed: 7
steps:
  - {id: build, run: "make VERSION=${plan.version}", outputs: {text: stdout}}
definition_of_done:
  - make lint
  - {run: make test, name: tests, timeout_s: 300, known_failures: ["tests/test_net.py::test_dns"]}""",
    ),
    Section(
        "`budget` and `policy` of a plan",
        {
            "budget": document.PlanBudget,
            "policy": document.Policy,
            "policy.commands": document.CommandRule,
            "policy.deletions": document.Deletions,
        },
        """\
budget:
  {max_wall_s: 2h, max_cost_usd: 5, max_tokens: 1000000, max_api_calls: 200, max_attempts: 100, max_depth: 2,
   max_fan_out: 20, max_revisions: 3}
policy:
  write: [src/**, tests/**]
  protect: ["**/.env", "**/*.pem"]
  commands: [{match: git push **, verdict: deny, reason: people publish}]
  network: [api.example.org, "*.example.com", "127.0.0.1:8080"]
  shell_network: false
  approve: [deploy]
  deletions: {files: 10, lines: 200, share: 0.3}""",
    ),
    Section(
        "Step",
        {"": step.Step, "expect": step.Prose},
        """\
steps:
  - {id: lint, run: make lint, access: reads}
  - {id: build, kind: implement, owner: ada, labels: [slow], priority: 5, needs: [lint], join: all,
     when: "${lint.exit_code} == 0", preconditions: ["len(${inputs.target}) > 0"],
     inputs: {target: all}, run: "make ${inputs.target}", outputs: {log: stdout}, access: writes,
     expect: ["${exit_code} == 0", {prose: the build is as fast as before}], on_success: [publish],
     timeout_s: 10m, timebox_s: 30m, estimate_s: 5m, cache: false}
  - {id: publish, run: make publish}
  - {id: check-*, needs: [build], for_each: [small, large], run: "make check SIZE=${item}"}""",
    ),
    Section(
        "Failures, budget and evidence of a step",
        {
            "retry": step.Retry,
            "watchdog": step.Watchdog,
            "failure_modes": step.FailureMode,
            "on_failure": step.OnFailure,
            "compensate": step.Compensation,
            "budget": step.StepBudget,
            "evidence": step.EvidenceRule,
        },
        """\
hypotheses: [H1]
steps:
  - id: install
    run: make install
    retry: {attempts: 5, initial_s: 2, factor: 2, maximum_s: 1m}
    watchdog: {after_s: 5m, escalate: pause}
    failure_modes:
      - {name: busy, detect: "${exit_code} == 75", failure_class: transient, recover: retry, advice: wait}
    on_failure: {to: slowly, recovers: true, compensate: [install]}
    compensate: {run: make uninstall}
    budget: {max_cost_usd: 0.5, max_tokens: 20000}
    evidence: [{hypothesis: H1, when: "'stale' in ${outputs.stdout}", verdict: supports, strength: strong, note: x}]
  - {id: slowly, run: make slowly, compensate: {none: true}}
  - {id: publish, run: make publish, compensate: {step: withdraw}}
  - {id: withdraw, kind: compensation, run: make withdraw}""",
    ),
    Section(
        "`shell`, `edit`, `git`, `http`, `search`, `model`, `checkpoint`, `project`",
        {
            "shell": action.ShellAction,
            "edit": action.EditAction,
            "edit.files": action.FileEdit,
            "git": action.GitAction,
            "http": action.HttpAction,
            "search": action.SearchAction,
            "model": action.ModelAction,
            "checkpoint": action.CheckpointAction,
            "project": step.ProjectAction,
        },
        """\
policy: {network: [api.example.org, docs.example.org]}
steps:
  - {id: a, shell: {run: make, environment: {MODE: fast}, folder: src}}
  - {id: b, git: {branch: fix/add, commit: "fix: ${title}", paths: [src], pull_request: Fix add}}
  - {id: c, search: {query: retries, where: project, paths: [docs/**], limit: 5}}
  - id: d
    model: {prompt: Which methods may be repeated?, model: gpt-5-mini, max_output_tokens: 500,
            schema: {type: object, properties: {methods: {type: array}}}}
  - {id: e, kind: checkpoint, checkpoint: {name: before-the-change}}
  - {id: f, project: {stage: inspect, given: {goal: "Add rate limits", gates: []}}}
  - id: g
    edit: {files: [{path: a, search: old, replace: new}, {path: b, content: "all of it"}, {path: c, delete: true}]}
  - id: h
    edit:
      diff: |
        --- a/b.txt
        +++ b/b.txt
        @@ -1 +1 @@
        -old
        +new
  - id: ask
    http: {url: https://api.example.org/issues, method: POST, body: {title: Broken}, expect_status: [201],
           headers: {Accept: application/json}, secret_headers: {Authorization: TRACKER_TOKEN}}
  - {id: read, http: {urls: [https://docs.example.org/a], max_age_s: 1d, at_least: 1}}""",
    ),
    Section(
        "`gate`",
        {
            "gate": action.GateAction,
            "gate.checks": action.GateCheck,
            "gate.checks.diff": action.DiffReview,
            "gate.approval": action.Approval,
            "gate.approval.options": action.Option,
        },
        """\
steps:
  - {id: facts, run: cat facts.json, outputs: {claims: json}}
  - id: a
    needs: [facts]
    gate:
      checks:
        - "${facts.exit_code} == 0"
        - {name: tests, command: make test}
        - {invariant: "len(${facts.claims}) > 0"}
        - {artifact: "${facts.claims}", schema: {type: array}}
        - {artifact: "${facts.claims}", confirmations: 2}
        - {diff: {since: facts, max_files: 10, max_lines: 200, only: [src/**], never: ["**/*.lock"]}}
        - {prose: the names are good}
      approval:
        {role: maintainer, count: 2, question: Which way?,
         options: [{name: fast, pros: [done today], cons: [no tests], cost: 1 hour, to: [b]}, {name: safe, to: [c]}]}
      evidence: ["${facts.claims}"]
  - {id: b, kind: gate, gate: {approval: maintainer, window: night}}
  - {id: c, run: make slow}""",
    ),
    Section(
        "`decision`",
        {"decision": action.DecisionAction, "decision.rules": action.Rule},
        """\
hypotheses: [H1, H2]
steps:
  - {id: look, run: wc -l < log, outputs: {lines: json}}
  - id: by-rules
    needs: [look]
    decision: {rules: [{when: "${look.lines} > 100", to: [split], note: too long}], otherwise: [keep]}
  - {id: by-hypotheses, decision: {hypotheses: {H1: [fix-cache], H2: [fix-lock]}, min_confidence: 0.8}}
  - id: by-model
    decision: {question: Is it urgent?, options: [{name: "yes", to: [alert]}, {name: "no"}]}
  - {id: split, run: make split}
  - {id: keep, run: make keep}
  - {id: fix-cache, run: make cache}
  - {id: fix-lock, run: make lock}
  - {id: alert, run: make alert}""",
    ),
    Section(
        "`episode`",
        {"episode": action.EpisodeAction, "episode.merge": action.MergeStart, "episode.budget": Budget},
        """\
steps:
  - id: a
    episode:
      {goal: Make the tests pass, definition_of_done: [make test], folder: services/api, executor: codex,
       planner: heuristic, worktree: true,
       budget: {max_iterations: 10, warn_at_iteration: 8, max_executor_failures: 3, max_infrastructure_retries: 50,
                max_tokens: 1000000, max_cost_usd: 5, max_wall_time: 2h, until: "2030-01-01T07:00+01:00"},
       merge: {base: 4b825dc642cb6eb9a060e54bf8d69288fbee4904, tree: 496d6428b9cf92981dc9495211e6e1120fb6f2ba}}""",
    ),
    Section(
        "`subplan`, `branch`",
        {"subplan": step.SubplanAction, "branch": step.BranchAction, "branch.alternatives": step.Alternative},
        """\
steps:
  - id: a
    subplan: {inputs: {size: large}, max_parallel: 2, steps: [{id: one, run: "make SIZE=${plan.size}"}]}
  - {id: b, subplan: {file: plans/report.yaml}}
  - id: c
    branch:
      alternatives:
        - {name: cache, note: less work, steps: [{id: one, run: make cache}]}
        - {name: index, note: faster, steps: [{id: one, run: make index}]}
      checks: [make test]
      score: ./measure.sh
      max_cost_usd: 2""",
    ),
]
EXAMPLES = {model: section.example for section in SECTIONS for model in section.models.values()}
INTERNAL = frozenset({"within"})
"""Fields set by programs, not by people."""
EXPLAINED = frozenset(
    {action.FileEdit, action.GateCheck, AgentSSettings, Budget, Check, document.Deletions, step.Prose}
)
"""Inner models whose own meaning follows that of the field that holds them."""
MERGED: dict[type[BaseModel], dict[tuple[str, ...], str]] = {
    document.Plan: {
        ("title", "description", "owner", "created_at"): "For information only.",
        ("labels", "assumptions", "risks"): "For information only.",
    },
    step.Step: {
        ("title", "description"): "For information only and for the models that do the work.",
        ("effects", "assumptions", "risks"): "Prose. For information only.",
    },
    action.Option: {("pros", "cons"): "Arguments for and against the option. For information only."},
}
"""Fields of one type and default that share a row, with its meaning."""
