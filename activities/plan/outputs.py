"""An attempt's outputs, and references to the outputs of other steps."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.artifacts.port import ArtifactStore
from activities.plan.files import read_text
from activities.plan.records import FileRecords, LoadedPlan
from activities.plan.requests import PlanScope, RunStepRequest
from tightloop.errors import InvalidRequestError, ReferenceMissingError
from tightloop.plan.reference import find_references, follow, resolve, split_reference
from tightloop.plan.step import Step
from tightloop.value import ArtifactRef, format_count

DEPTH_LIMIT = 100
"""Maximum nesting depth of lists and mappings in an output, the same as in a plan."""


def collect_outputs(step: Step, results: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Merge the results of an action with the outputs that the step declares.

    Declared outputs take precedence.

    Raises:
        InvalidRequestError: an output is missing or malformed. The message names it.
    """
    declared = {name: _output(name, source, results, root) for name, source in step.outputs.items()}
    if why := find_unfit(declared):
        raise InvalidRequestError(why)
    return {**results, **declared}


def count_items(outputs: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(value) for name, value in outputs.items() if isinstance(value, list | tuple)}


def find_unfit(outputs: Mapping[str, Any]) -> str:
    """Return the reason why the outputs cannot be stored as UTF-8 JSON, or "" if they can."""
    for name, value in outputs.items():
        if why := _unfit(name) or _unfit(value):
            return f"output {name!r}: {why}"
    return ""


def _unfit(value: Any) -> str:
    # Iterative, because the nesting depth is what it checks.
    waiting = [(value, 0)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, str):
            # UTF-8 cannot encode surrogates, so neither the record nor Temporal's JSON could hold the text.
            if any("\ud800" <= letter <= "\udfff" for letter in part):
                return "the text is not valid Unicode: it contains half of a surrogate pair"
        # Python writes NaN and Infinity, which are not JSON (RFC 8259, section 6).
        elif isinstance(part, float) and not math.isfinite(part):
            return f"{part} is not a JSON number"
        elif isinstance(part, Mapping | list | tuple):
            if depth == DEPTH_LIMIT:
                return f"nested deeper than {DEPTH_LIMIT} levels"
            inner = (*part, *part.values()) if isinstance(part, Mapping) else part
            waiting.extend((child, depth + 1) for child in inner)
    return ""


def _output(name: str, source: str, results: Mapping[str, Any], root: Path) -> Any:
    kind, colon, path = source.partition(":")
    if colon and kind in ("file", "json"):
        text = read_text(root, path.strip())
        if text is None:
            raise InvalidRequestError(f"output {name!r}: the step did not produce the file {path.strip()!r}")
        return text if kind == "file" else _json(name, text, path.strip())
    parts = source.split(".")
    if parts[0] == "json" and "stdout" in results:
        # Parsed only on request: the output of most steps is no JSON.
        results = {**results, "json": _json(name, str(results["stdout"]), "its standard output")}
    try:
        return follow(results, parts, name=source)
    except ReferenceMissingError:
        names = ", ".join(sorted(results)) or "none"
        raise InvalidRequestError(
            f"output {name!r}: the step has no result {source!r}. Available results: {names}. "
            "You can also use `json`, `file:<path>` or `json:<path>`"
        ) from None


def _json(name: str, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    # The parser recurses, and its RecursionError is no ValueError.
    except RecursionError:
        raise InvalidRequestError(f"output {name!r}: {where} is nested deeper than {DEPTH_LIMIT} levels") from None
    except ValueError as error:
        raise InvalidRequestError(f"output {name!r}: {where} is not JSON: {error}") from error


ALTERNATES = 20
"""Maximum length of a chain of alternate steps to follow."""
VALUE_BYTES = 64_000
"""Maximum size of a value that is stored inline in a record."""


@dataclass(kw_only=True)
class References:
    """Resolves references for one step attempt. Each record is read only once."""

    loaded: LoadedPlan
    step: Step
    request: RunStepRequest
    store: ArtifactStore
    records: FileRecords
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The step's resolved inputs. Empty until they are known."""
    results: Mapping[str, Any] = field(default_factory=dict)
    """The step's own results. Empty until the step has run."""
    status: str = ""
    _cache: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)

    def __call__(self, name: str) -> Any:
        """Return the value of a reference. The name is given without `${` and `}`.

        Raises:
            ReferenceMissingError: the reference has no value. The message gives the reason.
        """
        head, path = split_reference(name, self._fitting(name))
        if head == self.step.id:
            return follow(self.results, path, name=name)
        if head in self.loaded.steps or self._template_of(head):
            return follow(self._outputs_of(head, name), path, name=name)
        return follow(self._read_reserved_name(head, name), path, name=name)

    def used(self, value: Any) -> dict[str, Any]:
        """Return the values of all references in a text, list or mapping. Missing values are None."""
        values: dict[str, Any] = {}
        for name in find_references(value):
            try:
                values[name] = self(name)
            except ReferenceMissingError:
                # The step's own results do not exist before it has run.
                values[name] = None
        return values

    def _read_reserved_name(self, head: str, name: str) -> Any:
        if head == "item":
            return self._item()
        values: dict[str, Any] = {
            "inputs": self.inputs,
            "plan": self.loaded.stored.inputs,
            "outputs": self.results,
            "hypotheses": {belief.hypothesis: belief.confidence for belief in self.request.beliefs},
            "seed": self.loaded.plan.seed,
            "exit_code": self.results.get("exit_code"),
            "status": self.status or None,
        }
        if values[head] is None:
            raise ReferenceMissingError(f"${{{name}}} has no value: the step has not ended, or has no {head}")
        return values[head]

    def _fitting(self, name: str) -> list[str]:
        """Return the step ids that the reference may start with. This does not search all steps."""
        parts = name.split(".")
        # Step ids may contain dots, so every prefix of the reference may be an id.
        heads = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
        return [head for head in heads if head in self.loaded.steps or self._template_of(head) or head == self.step.id]

    def _template_of(self, step: str) -> str:
        stem = step.rstrip("0123456789")
        return f"{stem}*" if stem != step and f"{stem}*" in self.loaded.steps else ""

    def _item(self) -> Any:
        template, index = self.loaded.steps.get(self.request.template), self.request.item
        if template is None or index is None:
            raise ReferenceMissingError("${item} has no value: the step was not created from a template (`name-*`)")
        items = self._items(template)
        if not 0 <= index < len(items):
            raise ReferenceMissingError(
                f"${{item}} has no value: the list has {format_count(len(items), 'item')}, but this is item {index + 1}"
            )
        return resolve(items[index], self) if isinstance(template.for_each, tuple) else items[index]

    def _items(self, template: Step) -> list[Any] | tuple[Any, ...]:
        """Return the items of a template. Items written in the plan may still contain references."""
        items = resolve(template.for_each, self) if isinstance(template.for_each, str) else template.for_each
        if not isinstance(items, list | tuple):
            raise ReferenceMissingError(f"for_each of {template.id} must be a list, not {type(items).__name__}")
        return items

    def _outputs_of(self, step: str, name: str) -> Any:
        if step.endswith("*"):
            count = len(self._items(self.loaded.steps[step]))
            candidates = (self._find_outputs(f"{step[:-1]}{number}") for number in range(1, count + 1))
            # Skipped and failed instances have no outputs, so the list may be shorter than the items.
            return [outputs for outputs in candidates if outputs is not None]
        outputs = self._find_outputs(step)
        if outputs is None:
            raise ReferenceMissingError(
                f"${{{name}}} has no value yet: step {step!r} has not run, was skipped, or was undone"
            )
        return outputs

    def _find_outputs(self, step: str) -> Mapping[str, Any] | None:
        """Return the outputs of a step, or of the alternate step that replaced it."""
        if step in self._cache:
            return self._cache[step]
        name: str | None = step
        outputs = None
        # Bounded: steps may name each other as alternates.
        for _ in range(ALTERNATES):
            if name is None or outputs is not None:
                break
            # The step's own record comes before its alternate's: the alternate only runs if the step failed.
            outputs = self._read(name)
            written = self.loaded.steps.get(name) or self.loaded.steps.get(self._template_of(name))
            name = written.on_failure.to if written is not None and written.on_failure is not None else None
        self._cache[step] = outputs
        return outputs

    def _read(self, step: str) -> Mapping[str, Any] | None:
        record = self.records.latest(self.request.scope.episode_id, step)
        if record is None:
            return None
        # The step's own outputs win, in case it declares one with the name `status` or `tree`.
        more = {"status": record.result.status.value, "tree": record.result.tree}
        return {**more, **{name: unpack(value, self.store) for name, value in record.outputs.items()}}


def find_base_tree(scope: PlanScope, since: str, records: FileRecords) -> str:
    """Return the tree after step `since`. If `since` is empty, return the plan's initial tree.

    Return "" if the tree is unknown.
    """
    if not since:
        return scope.base_tree
    record = records.latest(scope.episode_id, since)
    return record.tree_after if record is not None else ""


def pack(outputs: Mapping[str, Any], store: ArtifactStore) -> dict[str, Any]:
    """Convert outputs to the form that is stored in records.

    Large values are replaced with `{"artifact": {...}}`. Values that already have this form are treated in
    the same way.
    """
    packed = dict(outputs)
    for name, value in outputs.items():
        # Inputs are packed too, and those may hold names of files that are not valid UTF-8.
        content = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(content) > VALUE_BYTES or _is_reference(value):
            packed[name] = {"artifact": store.put(content, name=name).model_dump(mode="json")}
    return packed


def unpack(value: Any, store: ArtifactStore) -> Any:
    """Return an output. If `pack` has moved it to the store, load it from there.

    Raises:
        ArtifactMissingError: the store does not contain it.
    """
    if _is_reference(value):
        content = store.get(ArtifactRef.model_validate(value["artifact"]))
        return json.loads(content.decode("utf-8", "surrogatepass"))
    return value


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"artifact"}
