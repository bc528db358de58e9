"""Values in commands: whatever they are, a real shell takes them as text."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.plan.files import VALUE_BYTES, shell_command
from tightloop.errors import InvalidRequestError

NASTY = st.text(st.sampled_from("a '\"\\$`(){}[]*?~!#&|;<>\n\té"), max_size=30)
FORMS = ["${v}", '"${v}"', "'${v}'", "a'b'${v}\"c\"", '"a${v}b"', "'a\"'${v}", '"it\'s ${v}"', "\\'${v}", '"\\"${v}"']


def printed(template: str, value: object) -> str:
    command = shell_command(f"printf %s {template}", lambda _: value)
    done = subprocess.run(
        ("/bin/sh", "-c", command.text), env=command.variables, capture_output=True, check=True, timeout=20
    )
    return done.stdout.decode()


@settings(max_examples=150, deadline=None)
@given(form=st.sampled_from(FORMS), value=NASTY)
def test_value_is_one_word_in_every_kind_of_quotes(form: str, value: str) -> None:
    plain = printed(form, "MARK")
    assert printed(form, value) == plain.replace("MARK", value)
    shown = shell_command(f"printf %s {form}", lambda _: value).inlined_text
    done = subprocess.run(("/bin/sh", "-c", shown), env={}, capture_output=True, check=True, timeout=20)
    assert done.stdout.decode() == plain.replace("MARK", value)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(NASTY, min_size=1, max_size=5))
def test_list_is_one_word_for_each_item(values: list[str]) -> None:
    command = shell_command("for word in ${v}; do printf '%s\\0' \"$word\"; done", lambda _: values)
    done = subprocess.run(("/bin/sh", "-c", command.text), env=command.variables, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == values


@pytest.mark.parametrize(
    "script",
    [
        "# don't stop here\nprintf %s ${v}",
        "true # it's fine\nprintf %s ${v}",
        "cat <<EOF >/dev/null\nit's \"here\nEOF\nprintf %s ${v}",
        "cat <<'END' >/dev/null; cat <<-EOF >/dev/null\nisn't\nEND\n\t\"\n\tEOF\nprintf %s ${v}",
        'printf %s "$(cat <<EOF\n${v}\nEOF\n)"',
        "echo '#' \"#\" a#b >/dev/null; printf %s ${v}",
    ],
)
@pytest.mark.parametrize("value", ['$(echo no) it\'s "a" `b`', "EOF"])
def test_comments_and_here_documents_confuse_nothing(script: str, value: str) -> None:
    command = shell_command(script, lambda _: value)
    done = subprocess.run(
        ("/bin/sh", "-c", command.text),
        env={"PATH": "/usr/bin:/bin", **command.variables},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == value


def test_reference_in_a_literal_here_document_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="quoted delimiter 'EOF'"):
        shell_command("cat <<'EOF'\n${v}\nEOF\n", lambda _: "x")


def test_variables_of_the_shell_stay_its_own() -> None:
    assert printed('"$${HOME:-none}"', "x") == "none"


@pytest.mark.parametrize("value", ["x" * (VALUE_BYTES + 1), "a\0b"])
def test_value_that_no_command_can_take_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be passed in a command"):
        shell_command("echo ${v}", lambda _: value)


ARITHMETIC = [
    "echo $(( ${v} + 1 ))",
    "echo $((${v}+1))",
    'echo "$((${v} + 1))"',
    "x=$((1+${v})); echo $x",
    "cat <<EOF\n$((${v} + 1))\nEOF\n",
    "cat <<EOF\n$(( (${v}) + 1 ))\nEOF\n",
    "test $((2*(${v}))) -gt -99 && echo $(( $(echo ${v}) + 1 ))",
]


@pytest.mark.parametrize("value", [3, "3", " 3\n", -3, "0"])
@pytest.mark.parametrize("script", ARITHMETIC)
def test_number_is_written_out_where_the_shell_calculates(script: str, value: object) -> None:
    command = shell_command(script, lambda _: value)
    assert printed_by(command.text, command.variables) == f"{int(str(value)) + 1}\n"
    # What is shown to people and recorded is what ran.
    assert printed_by(command.inlined_text, {}) == f"{int(str(value)) + 1}\n"


@pytest.mark.parametrize("value", ["three", "a[$(touch made)]", "010", 3.5, True, None, [1], "", 2**63])
@pytest.mark.parametrize("script", [*ARITHMETIC, "for ((i=0; i<${v}; i++)); do :; done", "[[ ${v} -eq 1 ]]"])
def test_shell_calculates_with_whole_numbers_only(script: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match="but shell arithmetic requires a whole number"):
        shell_command(script, lambda _: value)


def printed_by(text: str, variables: dict[str, str]) -> str:
    done = subprocess.run(
        ("/bin/sh", "-c", text),
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        check=True,
        timeout=20,
    )
    return done.stdout.decode()
