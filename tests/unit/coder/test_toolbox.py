"""The tools as a model is told of them, and calls that cannot be made."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from activities.coder.calls import ToolExecutor
from activities.model.observed import ProposedCall
from tests.support.coder_tools import all_tools, bench
from tightloop.coder.model import CallHead
from tightloop.errors import SettingsError

NAMES = (
    "ask_person", "create_file", "delete_file", "edit_file", "finish", "list_files", "memory_search", "read_file",
    "remember", "report_impossible", "run_command", "run_tests", "search",
)  # fmt: skip
TOOLS = all_tools()


def test_every_module_of_the_folder_is_a_tool() -> None:
    assert tuple(tool.spec.name for tool in TOOLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_strict(name: str) -> None:
    (spec,) = ToolExecutor(TOOLS).specs([name])
    Draft202012Validator.check_schema(spec.parameters)
    assert spec.parameters["additionalProperties"] is False
    assert spec.parameters["required"] == list(spec.parameters["properties"])
    assert all(about.get("description") for about in spec.parameters["properties"].values())
    assert len(spec.description) < 200


def test_specs_come_in_the_order_of_the_names() -> None:
    assert [spec.name for spec in ToolExecutor(TOOLS).specs(["search", "edit_file"])] == ["search", "edit_file"]
    with pytest.raises(SettingsError, match=r"unknown tool 'serch'\. Did you mean 'search'"):
        ToolExecutor(TOOLS).specs(["serch"])


def test_heads_tell_what_reads_and_what_runs() -> None:
    names = ("read_file", "edit_file", "run_tests", "x" * 500)
    calls = [ProposedCall(id="", tool=name, arguments="") for name in names]
    assert ToolExecutor(TOOLS).heads(calls)[:3] == (
        CallHead(tool="read_file", reads=True),
        CallHead(tool="edit_file"),
        CallHead(tool="run_tests", runs=True),
    )
    unknown = ToolExecutor(TOOLS).heads(calls)[3]
    assert (unknown.reads, len(unknown.tool)) == (True, 64)


def test_a_tool_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "unknown tool 'edit_fil'. Did you mean 'edit_file'?" in bench(tmp_path).failed("edit_fil")


def test_wrong_arguments_are_a_failed_result_with_the_reason(tmp_path: Path) -> None:
    made = bench(tmp_path)
    result = made.use("read_file", '{"path": 3}')
    assert result.failed
    assert (
        made.text(result)
        == "invalid arguments at path: 3 is not of type 'string'. Fix the arguments and call the tool again"
    )
