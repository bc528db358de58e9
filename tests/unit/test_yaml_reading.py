"""Texts that stand for more than they hold: refused by every reader before anything is made of them."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tightloop.cli.start import read_request_file
from tightloop.coder.model import read_role
from tightloop.errors import InvalidRequestError, PlanError, SettingsError
from tightloop.plan.text.reading import read_plan
from tightloop.settings.layers import sections_of
from tightloop.value.documents import ALIASED_LIMIT, load_yaml


def bomb(levels: int = 9, of: int = 9) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * of)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * of)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def chain(length: int) -> str:
    """Each line names one level more than the line before."""
    return "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, length))


def merges(levels: int = 9, of: int = 9) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * of)}]}}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


TEXTS = {
    "bomb": (bomb(), f"aliases expand to more than {ALIASED_LIMIT} values"),
    "merges": (merges(), f"aliases expand to more than {ALIASED_LIMIT} values"),
    "chain": (chain(150), "nested deeper than 100 levels"),
    "deep": ("a: " + "[" * 20_000, "nested deeper than 100 levels"),
    "deep in blocks": ("- " * 5_000, "nested deeper than 100 levels"),
    "endless list": ("a: &a [*a]\n", "is used before its anchor is complete"),
    "endless merge": ("a: &a {<<: *a}\n", "is used before its anchor is complete"),
    "endless under a name used before": (
        "b: &a [x]\na: &a [*a]\n",
        "is used before its anchor is complete|second occurrence",
    ),
}


def plan(text: str, _: Path) -> None:
    with pytest.raises(PlanError) as refused:
        read_plan(text)
    raise ValueError(refused.value.message)


def settings(text: str, _: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        sections_of("settings.yaml", text)
    raise ValueError(refused.value.message)


def role(text: str, _: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        read_role("mine", f"---\n{text}\n---\nThe prompt.\n")
    raise ValueError(refused.value.message)


def request_file(text: str, folder: Path) -> None:
    (folder / "request.yaml").write_text(text)
    with pytest.raises(InvalidRequestError) as refused:
        read_request_file(folder / "request.yaml")
    raise ValueError(refused.value.message)


@pytest.mark.parametrize("reader", [plan, settings, role, request_file])
@pytest.mark.parametrize("name", TEXTS)
def test_every_reader_refuses_what_is_too_much(name: str, reader: Callable[[str, Path], None], tmp_path: Path) -> None:
    text, why = TEXTS[name]
    with pytest.raises(ValueError, match=why):
        reader(text, tmp_path)


def test_blocks_of_the_text_form_share_one_bound() -> None:
    fields = "  " + bomb(4).replace("\n", "\n  ")
    text = "".join(f"task t{number}\n{fields}\n" for number in range(30))
    assert len(text) < 10_000
    with pytest.raises(PlanError, match=f"aliases expand to more than {ALIASED_LIMIT} values"):
        read_plan(text)


def test_a_refused_text_costs_no_more_than_one_of_its_length() -> None:
    text = bomb()
    honest = "id: p\nsteps:\n" + "- {id: a, needs: [b, c]}\n" * (len(text) // 26)

    def cost_of(given: str) -> float:
        began = time.process_time()
        for _ in range(20):
            with suppress(PlanError):
                read_plan(given)
        return time.process_time() - began

    cost_of(honest)
    assert cost_of(text) < 5 * cost_of(honest)


def test_aliases_within_the_bound_are_expanded() -> None:
    text = f"base: &base [{', '.join(['x'] * 199)}]\nmore: [{', '.join(['*base'] * 100)}]\n"
    assert sum(len(each) for each in load_yaml(text)["more"]) == 19_900
    assert load_yaml("a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize("text", ["a: " + "9" * 100_000, "a: 2001-13-45", "a: !!python/object:os.system {}"])
def test_values_that_python_cannot_make_are_yaml_errors(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


def test_a_variable_that_is_a_bomb_is_a_wrong_value() -> None:
    from tightloop.settings.layers import _from_text

    schema: dict[str, Any] = {"type": "object"}
    text = "{" + ", ".join(line.replace(": &", ": &", 1) for line in bomb().strip().split("\n")) + "}"
    assert _from_text(schema, text) == text
