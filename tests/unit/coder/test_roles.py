"""Roles of the coder: their files, their prompts, and what settings change."""

import jinja2
import pytest

from activities.coder.turns import system_prompt
from tightloop.coder.model import FINISH, known_roles, read_role
from tightloop.errors import SettingsError
from tightloop.settings import parse_settings

READ_ONLY = {"list_files", "read_file", "search", "memory_search", FINISH}


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as refused:
        parse_settings(text, {})
    return refused.value.message


def test_four_roles_are_there_and_each_can_finish() -> None:
    assert set(known_roles()) == {"planner", "coder", "tester", "reflector"}
    assert all(FINISH in role.tools for role in known_roles().values())


@pytest.mark.parametrize("name", ["planner", "reflector"])
def test_roles_that_think_change_nothing(name: str) -> None:
    assert set(known_roles()[name].tools) <= READ_ONLY


@pytest.mark.parametrize("name", list(known_roles()))
def test_prompt_says_how_to_end_and_is_the_same_every_time(name: str) -> None:
    role = known_roles()[name]
    prompt = system_prompt(role)
    assert prompt == system_prompt(role)
    assert FINISH in prompt
    assert f"{role.max_turns} answers" in prompt
    assert ", ".join(role.answer) in prompt
    assert "{{" not in prompt


@pytest.mark.parametrize("name", list(known_roles()))
def test_prompt_names_only_tools_that_the_role_has(name: str) -> None:
    tools = {tool for role in known_roles().values() for tool in role.tools}
    named = {tool for tool in tools if f"`{tool}`" in known_roles()[name].prompt}
    assert named <= set(known_roles()[name].tools)


def test_misspelt_name_in_a_prompt_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="max_turn"):
        system_prompt(read_role("r", "---\ntools: [read_file]\n---\nYou have {{ max_turn }} answers."))


def test_role_without_finish_gets_it() -> None:
    assert read_role("r", "---\ntools: [read_file]\n---\nRead.").tools == ("read_file", FINISH)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Read.", "role r is malformed: write `---`, then fields such as `tools: [read_file]`, then `---`, then"),
        ("---\ntools: [a]\n---\n", "role r is malformed: write `---`"),
        ("---\ntools: [\n---\nRead.", "role r is not valid YAML"),
        ("---\n- a\n---\nRead.", "role r has no fields"),
        ("---\ntemperature: 1\n---\nRead.", "role r: tools is missing"),
        (
            "---\ntools: [a]\ntemprature: 1\n---\nRead.",
            "role r: unknown field 'temprature'. Did you mean 'temperature'",
        ),
        ("---\ntools: [a]\ntop_p: 3\n---\nRead.", "role r: top_p"),
    ],
)
def test_wrong_file_is_refused_with_what_is_right(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_role("r", text)
    assert refused.value.message.startswith(sentence)


def test_settings_change_a_role_field_by_field() -> None:
    settings = parse_settings(
        "coder: {models: [big], roles: {coder: {temperature: 0.0, tools: [read_file]}, tester: {models: [small]}}}", {}
    ).coder
    file, coder, tester = known_roles()["coder"], settings.role("coder"), settings.role("tester")
    assert (coder.temperature, coder.tools, coder.models) == (0.0, ("read_file", FINISH), ("big",))
    assert (coder.prompt, coder.max_output_tokens) == (file.prompt, file.max_output_tokens)
    assert tester.models == ("small",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("coder: {roles: {codr: {}}}", "coder: unknown role 'codr' (coder.roles.codr). Did you mean 'coder'?"),
        (
            "coder: {roles: {coder: {tools: [raed_file]}}}",
            "coder: unknown tool 'raed_file' (coder.roles.coder.tools). Did you mean 'read_file'?",
        ),
        (
            "coder: {roles: {coder: {temprature: 1}}}",
            "unknown setting 'temprature' (coder.roles.coder.temprature). Did you mean coder.roles.coder.temperature?",
        ),
        ("coder: {roles: {coder: {temperature: 5}}}", "coder.roles.coder.temperature must be a number from 0"),
        ("coder: {roles: {coder: {models: [1]}}}", "coder.roles.coder.models[0] must be a string"),
        ("coder: {keep_tokens: 30000}", "coder: keep_tokens must be at most half of context_tokens (40000), got 30000"),
        ("coder: {basurl: x}", "unknown setting 'basurl' (coder.basurl). Did you mean coder.base_url?"),
        ("coder: {rounds: -1}", "coder.rounds must be a whole number from 0 to 20"),
    ],
)
def test_wrong_setting_is_refused_with_the_nearest_name(text: str, sentence: str) -> None:
    assert refusal(text).startswith(sentence)
