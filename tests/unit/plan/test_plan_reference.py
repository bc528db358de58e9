"""Plans that the documentation shows: every shape has an example with all of its fields, and every plan may run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from deploy.plan_examples import EXAMPLES, INTERNAL, MERGED
from deploy.reference import plan_page
from tests.support.pages.blocks import blocks_of
from tightloop.plan.document import Plan
from tightloop.plan.text.reading import read_plan
from tightloop.plan.validation import check_text

ROOT = Path(__file__).parents[3]
PLANS = sorted(
    path for ending in ("yaml", "json", "plan") for path in (ROOT / "examples" / "plans").rglob(f"*.{ending}")
)
IS_PLAN = re.compile(r"^(steps|nodes):|^task ", re.MULTILINE)
BLOCKS = [block for block in blocks_of(ROOT / "docs" / "plans.md") if IS_PLAN.search(block.text)]


def whole(example: str) -> str:
    """Return a part of a plan with what every plan needs."""
    text = example if example.startswith("id:") else f"id: example\n{example}"
    return text if re.search(r"^steps:", text, re.MULTILINE) else f'{text}\nsteps: [{{id: a, run: "true"}}]'


def shapes(annotation: Any, found: list[type[BaseModel]]) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
        found.append(annotation)
        for field in annotation.model_fields.values():
            shapes(field.annotation, found)
    for part in get_args(annotation):
        shapes(part, found)
    return found


def written(value: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the fields that a text gave to a model and to those within it."""
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield type(value), name
            yield from written(getattr(value, name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from written(one)


@pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: model.__name__)
def test_every_example_of_the_reference_may_run(model: type[BaseModel]) -> None:
    assert [str(problem) for problem in check_text(whole(EXAMPLES[model]))[1]] == []


def test_every_shape_has_an_example_with_all_of_its_fields_and_says_what_they_mean() -> None:
    assert set(shapes(Plan, [])) == set(EXAMPLES)
    for model, example in EXAMPLES.items():
        shown = {name for owner, name in written(read_plan(whole(example)).plan) if owner is model}
        # Texts and lists of texts without an effect need no example.
        every = set(model.model_fields) - INTERNAL - {name for names in MERGED.get(model, ()) for name in names}
        # What a plan holds has an example of its own.
        nested = {name for name in every if model is Plan or model.__name__ == "Step" if has_own(model, name)}
        assert every - shown - nested == set(), model.__name__
    assert [line for line in plan_page().splitlines() if line.endswith("|  |")] == []


def has_own(model: type[BaseModel], name: str) -> bool:
    return any(one in EXAMPLES for one in shapes(model.model_fields[name].annotation, []))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_every_plan_among_the_examples_may_run(path: Path) -> None:
    read, problems = check_text(path.read_text(encoding="utf-8"), name=path.name)
    assert read is not None
    assert [str(problem) for problem in problems] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_every_plan_in_the_guide_may_run(block: Any) -> None:
    assert [str(problem) for problem in check_text(block.text, name=block.place)[1]] == []
