"""Proofs as files: their form, compared with the specification, and whatever else somebody may hand us as one."""

import base64
import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import example, given
from hypothesis import strategies as st
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.v1 import statement, statement_pb2

from tests.support.proofs import BASE, BEGINNING, proof_of, run_of
from tightloop.cli.proof import proof_lines
from tightloop.client.proof.envelope import MOST_BYTES, PAYLOAD_TYPE, read_envelope, seal, signed_bytes, to_json
from tightloop.client.proof.statement import Result, Statement, read_statement, statement_of
from tightloop.episode.check import CheckStatus, ProofRule
from tightloop.episode.proof import Proof, ProofFinding, ProofVerdict
from tightloop.errors import ProofError

TREE = "a" * 40
PROOF = proof_of(TREE, configuration={"pyproject.toml": "c" * 64})
CONTENT = statement_of(PROOF).content
FILE = to_json(seal(CONTENT)).encode()
DOUBT = ProofFinding(rule=ProofRule.TESTS_CHANGED, text="a test is gone")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(content: bytes) -> Statement:
    """Read as `verify` does."""
    return read_statement(read_envelope(content).content)


def changed(**fields: Any) -> bytes:
    """Return the statement with other fields in its predicate."""
    document = json.loads(CONTENT)
    document["predicate"] |= fields
    return json.dumps(document).encode()


def test_statement_is_an_in_toto_test_result() -> None:
    """The package of in-toto reads it, finds nothing missing, and has the same content."""
    document = json.loads(CONTENT)
    parsed = json_format.ParseDict(document, statement_pb2.Statement())
    statement.Statement.copy_from_pb(parsed).validate()
    assert json_format.MessageToDict(parsed) == document
    own = {name: value for name, value in document["predicate"].items() if name != "tightloop"}
    json_format.ParseDict(own, test_result_pb2.TestResult())


def test_statement_says_what_ran_and_keeps_output_and_goal_to_itself() -> None:
    document = json.loads(CONTENT)
    predicate = document["predicate"]
    assert document["subject"] == [{"name": "tree", "digest": {"gitTree": TREE}}]
    assert (predicate["result"], predicate["failedTests"], predicate["warnedTests"]) == ("PASSED", [], [])
    assert "pytest -q" in predicate["passedTests"]
    named = {each["name"]: each["digest"] for each in predicate["configuration"]}
    assert named["pyproject.toml"] == {"sha256": "c" * 64}
    assert {"gitTree": BASE} in named.values()
    [delivered, beginning] = predicate["tightloop"]["runs"]
    assert (delivered["tests"], beginning["tests"]) == ("delivered", "beginning")
    assert delivered["checks"][0]["exitCode"] == 0
    assert delivered["checks"][0]["reports"][0]["total"] == 3
    assert b"secret" not in CONTENT
    assert b"a goal that stays here" not in CONTENT
    assert statement_of(PROOF).content == CONTENT


@pytest.mark.parametrize(
    ("proof", "result"),
    [
        (PROOF, Result.PASSED),
        (PROOF.evolve(findings=(DOUBT.evolve(announced=True),)), Result.WARNED),
        (PROOF.evolve(verdict=ProofVerdict.ACCEPTED, findings=(DOUBT,), accepted_by="eva"), Result.WARNED),
        (PROOF.evolve(verdict=ProofVerdict.DOUBTED, findings=(DOUBT,)), Result.FAILED),
        (PROOF.evolve(runs=(run_of("pytest -q", status=CheckStatus.FAILED),)), Result.FAILED),
        (PROOF.evolve(runs=()), Result.FAILED),
    ],
)
def test_result_passes_only_where_nothing_speaks_against_it(proof: Proof, result: Result) -> None:
    assert json.loads(statement_of(proof).content)["predicate"]["result"] == result


def test_no_change_of_tests_is_only_claimed_where_the_opened_files_are_known() -> None:
    claim = "no test, test data or checker configuration changed"
    assert claim in proof_lines(read_statement(statement_of(PROOF).content))
    [run, *others] = PROOF.runs
    unknown = run.evolve(checks=tuple(check.evolve(watched=False) for check in run.checks))
    proof = PROOF.evolve(runs=(unknown, *others))
    assert claim not in proof_lines(read_statement(statement_of(proof).content))


def test_old_tests_that_fail_as_announced_are_warnings() -> None:
    old = run_of("pytest -q", tests=BEGINNING, status=CheckStatus.FAILED)
    proof = PROOF.evolve(runs=(PROOF.runs[0], old), findings=(DOUBT.evolve(announced=True),))
    predicate = read_statement(statement_of(proof).content).predicate
    assert predicate.warned_tests == ("pytest -q (with the original tests)",)


FAILED_SCENARIO = {"sha256": "a" * 64, "total": 2, "passed": 1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"result": "FINE"}, "not a valid tightloop test result"),
        ({"failedTests": ["pytest -q"]}, "tests failed"),
        ({"warnedTests": ["pytest -q"]}, "despite warnings, findings or failures"),
        (
            {"tightloop": json.loads(CONTENT)["predicate"]["tightloop"] | {"verdict": "doubted"}},
            "its verdict is doubted",
        ),
        ({"tightloop": json.loads(CONTENT)["predicate"]["tightloop"] | {"runs": []}}, "no run of the definition"),
        (
            {"tightloop": json.loads(CONTENT)["predicate"]["tightloop"] | {"scenarios": FAILED_SCENARIO}},
            "hidden scenarios failed",
        ),
        ({"configuration": []}, "the digest of the definition of done"),
        ({"configuration": [{"name": "x"}] * 501}, "at most 500"),
        ({"tightloop": None}, "not a valid tightloop test result"),
    ],
)
def test_statement_that_contradicts_itself_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ProofError, match=said):
        read_statement(changed(**fields))


@pytest.mark.parametrize(
    "subject",
    [
        [],
        [{"digest": {"gitTree": "A" * 40}}],
        [{"digest": {"gitTree": TREE + "\n"}}],
        [{"digest": {"sha256": "a" * 64}}],
        [{"digest": {"gitTree": TREE}}, {"digest": {"gitTree": TREE}}],
    ],
)
def test_subject_is_exactly_one_tree(subject: list[Any]) -> None:
    document = json.loads(CONTENT) | {"subject": subject}
    with pytest.raises(ProofError, match="not a valid tightloop test result"):
        read_statement(json.dumps(document).encode())


def test_signed_bytes_are_those_of_the_specification() -> None:
    """The example of DSSE's protocol.md."""
    assert signed_bytes("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b" " * (MOST_BYTES + 1), "larger than 4 MiB"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"payload": "\xff"}', "not UTF-8"),
        (b'{"payload": 1, "payload": 2}', "twice"),
        (b'{"payload": NaN}', "NaN"),
        (b'{"payload": ' + b"9" * 5_000 + b"}", "5000 digits"),
        (b'{"payload": "\\ud800"}', "an incomplete character"),
        (b"", "not valid JSON"),
        (b"[]", "not a valid DSSE envelope"),
        (b'{"payload": "aGk=", "payloadType": "text/plain"}', "not an in-toto statement"),
        (b'{"payload": "aGl=", "payloadType": "%s"}' % PAYLOAD_TYPE.encode(), "not valid base64"),
        (b'{"payload": "aG k=", "payloadType": "%s"}' % PAYLOAD_TYPE.encode(), "not valid base64"),
        (json.dumps({"payload": "aGk=", "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": ""}] * 17}).encode(), "16"),
    ],
)
def test_hostile_file_is_refused_with_a_sentence(content: bytes, said: str) -> None:
    with pytest.raises(ProofError, match=said):
        read(content)


def test_many_names_of_one_field_are_refused_at_once() -> None:
    names = b",".join(b'"%d":0' % number for number in range(300_000))
    with pytest.raises(ProofError, match="'7' twice"):
        read(b"{%s,%s}" % (names, b'"7":0'))


@given(st.integers(0, len(FILE) - 1))
def test_truncated_file_is_refused(length: int) -> None:
    if FILE[length:].strip():
        with pytest.raises(ProofError):
            read(FILE[:length])


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode) | anything.map(lambda v: json.dumps(v).encode()))
@example(b"{}")
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for reader in (read_envelope, read_statement):
        with pytest.raises(ProofError):
            reader(content)


def places(document: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [above, *(place for key, value in items for place in places(value, (*above, key)))]


@given(st.sampled_from(places(json.loads(CONTENT))[1:]), anything)
def test_statement_with_any_other_value_is_read_or_refused(place: tuple[Any, ...], value: Any) -> None:
    document = json.loads(CONTENT)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    wrapped = to_json(seal(json.dumps(document).encode())).encode()
    try:
        found = read(wrapped)
    except ProofError:
        return
    assert found.predicate.result is Result.PASSED or place[:2] == ("predicate", "result")


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused_or_says_nothing_else(at: int, by: int) -> None:
    """What stays readable has the same payload, or another one, which no signature fits."""
    altered = FILE[:at] + bytes([FILE[at] ^ by]) + FILE[at + 1 :]
    try:
        envelope = read_envelope(altered)
        content = envelope.content
    except ProofError:
        return
    assert (content == CONTENT) == (envelope.payload == base64.b64encode(CONTENT).decode())
