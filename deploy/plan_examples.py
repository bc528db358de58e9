"""Examples of all plan models, shown in `docs/reference/plan.md` and validated by a test."""

from pydantic import BaseModel

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.plan import action, document, step

EXAMPLES: dict[type[BaseModel], str] = {
    document.Plan: """\
id: release
title: Release the client
description: Builds, checks and tags.
owner: ada
created_at: 2026-01-31
labels: [client]
inputs: {version: "1.0.1"}
assumptions: [nobody else releases today]
risks: [the mirror may be slow]
memory: [last-release]
max_parallel: 4
on_failure: compensate
seed: 7
steps:
  - {id: build, run: "make VERSION=${plan.version}"}
definition_of_done: [make test]""",
    step.Step: """\
steps:
  - {id: lint, run: make lint, access: reads}
  - id: build
    title: Build it
    description: For all three systems.
    owner: ada
    labels: [slow]
    kind: implement
    priority: 5
    needs: [lint]
    join: all
    when: "${lint.exit_code} == 0"
    inputs: {target: all}
    run: make ${inputs.target}
    outputs: {log: stdout}
    preconditions: ["len(${inputs.target}) > 0"]
    expect: ["${exit_code} == 0", {prose: the build is as fast as before}]
    effects: [dist/ has the packages]
    assumptions: [the compiler is installed]
    risks: [a full disk]
    access: writes
    timeout_s: 10m
    timebox_s: 30m
    estimate_s: 5m
    cache: false
    on_success: [publish]
  - {id: publish, run: make publish}
  - {id: check-*, needs: [build], for_each: [small, large], run: "make check SIZE=${item}"}""",
    step.ProjectAction: """\
steps:
  - {id: look, project: {stage: inspect, given: {goal: "Add rate limits", gates: []}}}""",
    step.Prose: "steps: [{id: a, run: make, expect: [{prose: The text reads well}]}]",
    step.Retry: "steps: [{id: a, run: make, retry: {attempts: 5, initial_s: 2, factor: 2, maximum_s: 1m}}]",
    step.Watchdog: "steps: [{id: a, run: make, watchdog: {after_s: 5m, escalate: pause}}]",
    step.FailureMode: """\
steps:
  - id: a
    run: make
    failure_modes:
      - {name: busy, detect: "${exit_code} == 75", failure_class: transient, recover: retry, advice: wait}""",
    step.OnFailure: """\
steps:
  - {id: a, run: make, on_failure: {to: b, recovers: true, compensate: [a]}}
  - {id: b, run: make slowly}""",
    step.Compensation: """\
steps:
  - {id: a, run: make install, compensate: {run: make uninstall}}
  - {id: b, run: make publish, compensate: {step: withdraw}}
  - {id: c, run: make report, compensate: {none: true}}
  - {id: withdraw, kind: compensation, run: make withdraw}""",
    step.EvidenceRule: """\
hypotheses: [{id: H1, statement: The cache is stale, prior: 0.4}]
steps:
  - id: a
    run: make probe
    evidence: [{hypothesis: H1, when: "'stale' in ${outputs.stdout}", verdict: supports, strength: strong, note: x}]""",
    step.StepBudget: "steps: [{id: a, model: Say why, budget: {max_cost_usd: 0.5, max_tokens: 20000}}]",
    action.ShellAction: "steps: [{id: a, shell: {run: make, environment: {MODE: fast}, folder: src}}]",
    action.EditAction: """\
steps:
  - {id: a, edit: {files: [{path: a.py, search: old, replace: new}]}}
  - id: b
    edit:
      diff: |
        --- a/b.txt
        +++ b/b.txt
        @@ -1 +1 @@
        -old
        +new""",
    action.FileEdit: """\
steps:
  - id: a
    edit:
      files:
        - {path: a.py, search: old, replace: new}
        - {path: b.txt, content: "the whole file"}
        - {path: c.txt, delete: true}""",
    action.GitAction: """\
steps:
  - {id: a, git: {branch: fix/add, commit: "fix: ${title}", paths: [src], pull_request: Fix add}}""",
    action.HttpAction: """\
policy: {network: [api.example.org, docs.example.org]}
steps:
  - id: ask
    http:
      url: https://api.example.org/issues
      method: POST
      headers: {Accept: application/json}
      secret_headers: {Authorization: TRACKER_TOKEN}
      body: {title: Broken}
      expect_status: [201]
  - {id: read, http: {urls: [https://docs.example.org/a], max_age_s: 1d, at_least: 1}}""",
    action.SearchAction: "steps: [{id: a, search: {query: retries, where: project, paths: [docs/**], limit: 5}}]",
    action.ModelAction: """\
steps:
  - id: a
    model:
      prompt: Which methods may be repeated?
      schema: {type: object, properties: {methods: {type: array}}}
      model: gpt-5-mini
      max_output_tokens: 500""",
    action.GateAction: """\
steps:
  - {id: build, run: make}
  - id: a
    kind: gate
    needs: [build]
    gate: {checks: ["${build.exit_code} == 0"], approval: maintainer, window: night, evidence: ["${build.stdout}"]}""",
    action.GateCheck: """\
steps:
  - {id: facts, run: cat facts.json, outputs: {claims: json}}
  - id: a
    kind: gate
    needs: [facts]
    gate:
      checks:
        - {name: tests, command: make test}
        - {invariant: "len(${facts.claims}) > 0"}
        - {artifact: "${facts.claims}", schema: {type: array}}
        - {artifact: "${facts.claims}", confirmations: 2}
        - {diff: {max_lines: 200}}
        - {prose: the names are good}
      approval: maintainer""",
    action.DiffReview: """\
steps:
  - {id: build, run: make}
  - id: a
    kind: gate
    needs: [build]
    gate: {checks: [{diff: {since: build, max_files: 10, max_lines: 200, only: [src/**], never: ["**/*.lock"]}}]}""",
    action.Approval: """\
steps:
  - id: a
    kind: gate
    gate: {approval: {role: maintainer, count: 2, question: Which way?, options: [{name: fast}, {name: safe}]}}""",
    action.Option: """\
steps:
  - id: a
    kind: gate
    gate:
      approval:
        role: maintainer
        options:
          - {name: fast, pros: [done today], cons: [no tests], cost: 1 hour, to: [quick]}
          - {name: safe, to: [slow]}
  - {id: quick, run: make quick}
  - {id: slow, run: make slow}""",
    action.DecisionAction: """\
hypotheses: [H1, H2]
steps:
  - {id: look, run: wc -l < log, outputs: {lines: json}}
  - id: by-rules
    kind: decision
    needs: [look]
    decision: {rules: [{when: "${look.lines} > 100", to: [split]}], otherwise: [keep]}
  - id: by-hypotheses
    kind: decision
    decision: {hypotheses: {H1: [fix-cache], H2: [fix-lock]}, min_confidence: 0.8}
  - id: by-model
    kind: decision
    decision: {question: Is it urgent?, options: [{name: "yes", to: [alert]}, {name: "no"}]}
  - {id: split, run: make split}
  - {id: keep, run: make keep}
  - {id: fix-cache, run: make cache}
  - {id: fix-lock, run: make lock}
  - {id: alert, run: make alert}""",
    action.Rule: """\
steps:
  - id: a
    kind: decision
    decision: {rules: [{when: "${seed} > 0", to: [b], note: seeded}], otherwise: [c]}
  - {id: b, run: make b}
  - {id: c, run: make c}""",
    action.CheckpointAction: "steps: [{id: a, kind: checkpoint, checkpoint: {name: before-the-change}}]",
    action.EpisodeAction: """\
steps:
  - id: a
    kind: episode
    episode:
      goal: Make the tests pass
      definition_of_done: [make test]
      executor: codex
      planner: heuristic
      budget: {max_iterations: 10}
      worktree: true
      merge: {base: 4b825dc642cb6eb9a060e54bf8d69288fbee4904, tree: 496d6428b9cf92981dc9495211e6e1120fb6f2ba}""",
    action.MergeStart: """\
steps:
  - id: a
    kind: episode
    episode:
      goal: Resolve the conflict between a and b
      worktree: true
      definition_of_done: ["! grep -qE '^(<{7}|>{7})' app.py"]
      merge:
        base: 4b825dc642cb6eb9a060e54bf8d69288fbee4904
        tree: 496d6428b9cf92981dc9495211e6e1120fb6f2ba""",
    Budget: """\
steps:
  - id: a
    kind: episode
    episode:
      goal: Make the tests pass
      budget:
        {max_iterations: 10, warn_at_iteration: 8, max_executor_failures: 3, max_infrastructure_retries: 50,
         max_tokens: 1000000, max_cost_usd: 5, max_wall_time: 2h}""",
    Check: "definition_of_done: [{run: make test, name: tests, timeout_s: 300}]",
    step.SubplanAction: """\
steps:
  - id: a
    subplan:
      inputs: {size: large}
      max_parallel: 2
      steps: [{id: one, run: "make SIZE=${plan.size}"}]
  - {id: b, subplan: {file: plans/report.yaml}}""",
    step.BranchAction: """\
steps:
  - id: a
    branch:
      alternatives:
        - {name: cache, steps: [{id: one, run: make cache}]}
        - {name: index, steps: [{id: one, run: make index}]}
      checks: [make test]
      score: ./measure.sh
      max_cost_usd: 2""",
    step.Alternative: """\
steps:
  - id: a
    branch:
      alternatives:
        - {name: cache, note: less work, steps: [{id: one, run: make cache}]}
        - {name: index, note: faster, steps: [{id: one, run: make index}]}""",
    document.PlanBudget: """\
budget:
  {max_wall_s: 2h, max_cost_usd: 5, max_tokens: 1000000, max_api_calls: 200, max_attempts: 100, max_depth: 2,
   max_fan_out: 20, max_revisions: 3}""",
    document.Policy: """\
policy:
  write: [src/**, tests/**]
  protect: ["**/.env", "**/*.pem"]
  commands: [{match: git push **, verdict: ask}]
  network: [api.example.org, "*.example.com", "127.0.0.1:8080"]
  shell_network: false
  approve: [deploy]
  deletions: {files: 10}""",
    document.CommandRule: "policy: {commands: [{match: git push **, verdict: deny, reason: people publish}]}",
    document.Deletions: "policy: {deletions: {files: 10, lines: 200, share: 0.3}}",
    document.Hypothesis: "hypotheses: [{id: H1, statement: The cache is stale, prior: 0.4}]",
    document.ArtifactDeclaration: """\
artifacts: [{name: report, from_step: a, output: text, type: markdown}]
steps: [{id: a, run: cat report.md, outputs: {text: stdout}}]""",
}
"""Plan or part of one for each model, with all of its fields."""
INTERNAL = frozenset({"within"})
"""Fields set by programs, not by people."""
TITLES: dict[type[BaseModel], str] = {
    document.Plan: "Plan", step.Step: "Step", step.Prose: "`prose`", step.Retry: "`retry`", step.Watchdog: "`watchdog`",
    step.FailureMode: "`failure_modes`", step.OnFailure: "`on_failure`", step.Compensation: "`compensate`",
    step.EvidenceRule: "`evidence`", step.StepBudget: "`budget` of a step", action.ShellAction: "`shell`",
    action.EditAction: "`edit`", action.FileEdit: "`edit.files`", action.GitAction: "`git`",
    action.HttpAction: "`http`",
    action.SearchAction: "`search`", action.ModelAction: "`model`", action.GateAction: "`gate`",
    action.GateCheck: "`gate.checks`", action.DiffReview: "`gate.checks.diff`", action.Approval: "`gate.approval`",
    action.Option: "`options`", action.DecisionAction: "`decision`", action.Rule: "`decision.rules`",
    action.CheckpointAction: "`checkpoint`", action.EpisodeAction: "`episode`",
    action.MergeStart: "`episode.merge`", Budget: "`episode.budget`",
    Check: "`definition_of_done`, `checks`",
    step.SubplanAction: "`subplan`", step.BranchAction: "`branch`", step.Alternative: "`branch.alternatives`",
    step.ProjectAction: "`project`",
    document.PlanBudget: "`budget` of a plan", document.Policy: "`policy`", document.CommandRule: "`policy.commands`",
    document.Deletions: "`policy.deletions`", document.Hypothesis: "`hypotheses`",
    document.ArtifactDeclaration: "`artifacts`",
}  # fmt: skip
