"""The scrubber: what it finds, what it leaves alone, and what it costs."""

import base64
import hashlib
import random
import string
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.model.failure import translate_error
from tests.support.runs import BareRun
from tightloop.episode.decisions import make_question
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.executor.asking import report_on_work
from tightloop.executor.limit import LimitSignal, detect
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.ledger.alert import AlertKind, alert_of, notice_of
from tightloop.run.question import Answer, QuestionKind, evidence_of
from tightloop.value import Value
from tightloop.value.scrub import Scrubber, iban, luhn, scrub

ROOT = Path(__file__).parents[3]
DIGITS_LETTERS = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
HEX = hashlib.sha256(b"planted").hexdigest()

# Written in two parts, so that no scanner of this repository takes them for real ones.
SECRETS = {
    "openai-key": ("sk-", "proj-" + DIGITS_LETTERS),
    "anthropic-key": ("sk-ant-", "api03-" + DIGITS_LETTERS),
    "openrouter-key": ("sk-or-", "v1-" + HEX),
    "github-token": ("ghp_", DIGITS_LETTERS[:36]),
    "gitlab-token": ("glpat-", DIGITS_LETTERS[:20]),
    "aws-key-id": ("AKIA", "Z7Q2MN4KTR6WXY2A"),
    "google-key": ("AIza", DIGITS_LETTERS[:35]),
    "google-oauth": ("GOCSPX-", DIGITS_LETTERS[:28]),
    "slack-token": ("xoxb-", "123456789012-" + DIGITS_LETTERS[:24]),
    "stripe-key": ("sk_live_", DIGITS_LETTERS[:24]),
    "stripe-webhook": ("whsec_", DIGITS_LETTERS[:32]),
    "npm-token": ("npm_", DIGITS_LETTERS[:36]),
    "pypi-token": ("pypi-AgE", DIGITS_LETTERS * 2),
    "docker-token": ("dckr_pat_", DIGITS_LETTERS[:27]),
    "huggingface-token": ("hf_", DIGITS_LETTERS[:34]),
    "sendgrid-key": ("SG.", DIGITS_LETTERS[:22] + "." + DIGITS_LETTERS[:43]),
    "mailgun-key": ("key-", HEX[:32]),
    "twilio-key": ("SK", HEX[:32]),
    "digitalocean-token": ("dop_v1_", HEX),
    "vault-token": ("hvs.", DIGITS_LETTERS[:24]),
    "terraform-token": ("a1B2c3D4e5F6g7.atlasv1.", DIGITS_LETTERS + DIGITS_LETTERS[:15]),
    "databricks-token": ("dapi", HEX[:32]),
    "shopify-token": ("shpat_", HEX[:32]),
    "linear-key": ("lin_api_", DIGITS_LETTERS[:40]),
    "notion-key": ("ntn_", DIGITS_LETTERS[:46]),
    "atlassian-token": ("ATATT3", DIGITS_LETTERS),
    "postman-key": ("PMAK-", HEX[:24] + "-" + HEX[:34]),
    "grafana-token": ("glsa_", DIGITS_LETTERS[:32] + "_" + HEX[:8]),
    "newrelic-key": ("NRAK-", "A1B2C3D4E5F6G7H8I9J0K1L2M3N"),
    "groq-key": ("gsk_", DIGITS_LETTERS),
    "xai-key": ("xai-", DIGITS_LETTERS),
    "perplexity-key": ("pplx-", DIGITS_LETTERS[:48]),
    "replicate-token": ("r8_", DIGITS_LETTERS[:37]),
    "fireworks-key": ("fw_", DIGITS_LETTERS[:24]),
    "cerebras-key": ("csk-", DIGITS_LETTERS[:48]),
    "langsmith-key": ("lsv2_pt_", HEX[:32] + "_" + HEX[:10]),
    "telegram-token": ("123456789", ":AA" + DIGITS_LETTERS[:33]),
    "age-key": ("AGE-SECRET-KEY-1", "Q" * 29 + "Z" * 29),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + DIGITS_LETTERS),
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", 'key = "{}"\n', "+{}\n", "curl -H 'x: {}' host", '{{"a": "{}"}}', "({}),", "see {}."]
)
def test_a_key_of_every_provider_is_found_wherever_it_stands(name: str, around: str) -> None:
    secret = "".join(SECRETS[name])
    clean = scrub(around.format(secret))
    assert secret not in clean
    assert f"[secret:{name}]" in clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgres://app:p4ss@db:5432/x", "postgres://app:[secret:url-password]@db:5432/x"),
        ("Authorization: Bearer abc123.def456-ghi789", "Authorization: Bearer [secret:bearer-token]"),
        ('PASSWORD = "c0rrect-h0rse"', 'PASSWORD = "[secret:assigned]"'),
        ("client_secret: Zx81-Qp77-Lm20", "client_secret: [secret:assigned]"),
        ('{\\"api_key\\": \\"q9w8e7r6t5y4\\"}', '{\\"api_key\\": \\"[secret:assigned]\\"}'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtn9FEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY=[secret:assigned]"),
        ("a@b.example\n@decorator.name", "[pii:email]\n@decorator.name"),
        ("mail Jane <jane.doe+x@mail.example.org>, please", "mail Jane <[pii:email]>, please"),
        ("call +49 30 901820 or (212) 555-0187", "call [pii:phone] or [pii:phone]"),
        ("card 4111 1111 1111 1111.", "card [pii:card]."),
        ("card 5500005555555559", "card [pii:card]"),
        ("DE89 3704 0044 0532 0130 00", "[pii:iban]"),
        ("GB82WEST12345698765432!", "[pii:iban]!"),
        ("ssn 078-05-1120", "ssn [pii:ssn]"),
        ("from 203.0.113.77:443", "from [pii:ipv4]:443"),
    ],
)
def test_secrets_and_personal_data_are_replaced_by_what_they_are(text: str, clean: str) -> None:
    assert scrub(text) == clean
    assert scrub(clean) == clean


def test_a_private_key_is_taken_out_whole_and_also_when_its_end_is_cut_off() -> None:
    body = "\n".join(base64.b64encode(random.Random(n).randbytes(48)).decode() for n in range(20))
    head, tail = "-----BEGIN RSA " + "PRIVATE KEY-----", "-----END RSA " + "PRIVATE KEY-----"
    assert scrub(f"a\n{head}\n{body}\n{tail}\nb") == "a\n[secret:private-key]\nb"
    assert scrub(f"a\n{head}\n{body[:300]}") == "a\n[secret:private-key]"


@pytest.mark.parametrize(
    "text",
    [
        "card 4111 1111 1111 1112", "DE89 3704 0044 0532 0130 01", "ssn 000-12-3456", "127.0.0.1 10.1.2.3 192.168.0.1",
        "temporalio==1.35.0.1", "2026-11-21 04:05:09,123", "1732161909123", "0.30000000000000004", "git@github.com:a/b",
        'token = get_token()', "password: ${PASSWORD}", "api_key = settings.api_key", "secret = os.environ['X']",
        "token: str | None = None", "tokens=1200", "tokenizer = AutoTokenizer2", "password=changeme", "https://host/a:b@c",
        "sk-learn sk-ip this-task-is-risk-free", "max_output_tokens: 4000", "sha512-" + "ab12" * 20, "author = someone",
        "refs/tightloop/episode-1/3 ckpt-12", "secret_name=my-secret-name", "@pytest.mark.parametrize",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert scrub(text) == text


@given(st.uuids(), st.binary(min_size=20, max_size=20), st.binary(min_size=32, max_size=32), st.integers(0, 10**6))
def test_ids_and_digests_are_never_touched(one: uuid.UUID, sha1: bytes, sha256: bytes, number: int) -> None:
    text = f"{one} {sha1.hex()} {sha256.hex()} {one}/{number}/1 ckpt-{number} sha256:{sha256.hex()} {one.hex}"
    assert scrub(text) == text


@given(st.text(max_size=400))
def test_any_text_is_taken_and_nothing_but_findings_changes(text: str) -> None:
    clean = scrub(text)
    assert clean == text or "[secret:" in clean or "[pii:" in clean


def _luhn_digit(digits: str) -> str:
    return next(d for d in string.digits if luhn(digits + d))


@given(st.text("0123456789", min_size=14, max_size=14))
def test_only_a_card_with_the_right_last_digit_is_a_card(middle: str) -> None:
    right = _luhn_digit("4" + middle)
    wrong = str((int(right) + 1) % 10)
    distinct = len(set("4" + middle + right)) > 1
    assert (scrub(f"x 4{middle}{right} y") == "x [pii:card] y") == distinct
    assert "[pii:card]" not in scrub(f"x 4{middle}{wrong} y")


@given(st.text("0123456789", min_size=18, max_size=18))
def test_only_an_iban_with_the_right_check_digits_is_an_iban(account: str) -> None:
    check = next(f"{n:02}" for n in range(2, 99) if iban(f"DE{n:02}{account}"))
    other = f"{(int(check) + 1) % 100:02}"
    assert scrub(f"DE{check}{account}") == "[pii:iban]"
    assert "[pii:iban]" not in scrub(f"DE{other}{account}")


@pytest.mark.parametrize("left", [60, 50, 30])
def test_a_key_that_lost_its_beginning_when_its_text_was_cut_is_taken_out(left: int) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha384(b"a key").digest()).decode()
    key = f"sk-proj-{digest}"
    shown = scrub(f"[...] {key[-left:]}\nFound 4 errors.")  # as programs cut that do not look for keys
    assert shown == "[...] [secret:cut]\nFound 4 errors."


@pytest.mark.parametrize(
    "text",
    [
        "[...] 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 ok",
        "[...] tests/unit/test_Orders2.py::test_total FAILED",
        "[...] assertEqualWithin2Places(total, 3)",
        "see [...] AbC9x8Kq2LmN4pQr7StUvWxYz",
    ],
)
def test_a_cut_text_that_begins_with_something_else_stays(text: str) -> None:
    assert scrub(text) == text


def test_known_secrets_go_in_any_form_they_have() -> None:
    clean = Scrubber(["hunter two!", 'quo"ted-secret', "abc"])
    assert clean('hunter two! "quo\\"ted-secret" abc') == '[secret:known] "[secret:known]" abc'


def test_a_model_is_scrubbed_in_depth_and_its_ids_stay() -> None:
    class Inner(Value):
        text: str
        path: str = ""

    class Outer(Value):
        inner: tuple[Inner, ...]
        more: dict[str, str]
        number: int = 1

    value = Outer(inner=(Inner(text="a@b.example", path="/home/a@b.example"),), more={"x": "c@d.example"})
    clean = scrub.model(value, frozenset({"path"}))
    assert clean == Outer(inner=(Inner(text="[pii:email]", path="/home/a@b.example"),), more={"x": "[pii:email]"})
    untouched = Outer(inner=(Inner(text="fine"),), more={})
    assert scrub.model(untouched) is untouched


def test_nothing_is_found_in_the_code_of_this_repository_and_its_lock_file() -> None:
    folders = ("tightloop", "activities", "workflows", "worker", "gateway")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): line
        for path in [*files, ROOT / "constraints.txt", ROOT / "pyproject.toml"]
        for line in path.read_text().splitlines()
        if scrub(line) != line
    }
    assert len(files) > 100
    assert found == {}


def test_nothing_is_found_in_base64_and_in_the_hashes_of_lock_files() -> None:
    chance = random.Random(7)
    plain = "\n".join(base64.b64encode(chance.randbytes(57)).decode() for _ in range(5000))
    url_safe = "\n".join(base64.urlsafe_b64encode(chance.randbytes(57)).decode() for _ in range(5000))
    integrity = "\n".join(
        f'"integrity": "sha512-{base64.b64encode(chance.randbytes(64)).decode()}",' for _ in range(3000)
    )
    hashes = "\n".join(f"    --hash=sha256:{chance.randbytes(32).hex()}" for _ in range(3000))
    for text in (plain, url_safe, integrity, hashes):
        assert scrub(text) == text


def test_a_megabyte_of_code_and_of_logs_stays_as_it_is_and_what_it_costs_is_printed() -> None:
    code = "".join(path.read_text() for path in sorted((ROOT / "tightloop").rglob("*.py")))
    code = (code * (1_000_000 // len(code) + 1))[:1_000_000]
    log = "".join(
        f"2026-11-21 04:05:{n % 60:02} INFO tightloop: {n:032x} token count={n} http://h:80/{n} @x 10.0.0.{n % 255}\n"
        for n in range(12_000)
    )[:1_000_000]
    for name, text in (("code", code), ("log", log)):
        before = time.process_time()
        scrubbed = scrub(text)
        print(f"\nscrub: {name} {(time.process_time() - before) * 1000:.0f} ms of CPU a MB")
        assert len(text) == 1_000_000
        assert scrubbed == text


@pytest.mark.parametrize(
    "piece",
    ["@", "-eyJ", "token=a", "sk-", "://a:", "AA00 ", "1", "1.", "a@a.", "4111 ", "-----BEGIN PRIVATE " + "KEY-----"],
)
def test_no_hostile_text_takes_more_than_linear_time(piece: str) -> None:
    def cost(size: int) -> float:
        text = piece * (size // len(piece))
        before = time.process_time()
        scrub(text)
        return time.process_time() - before

    assert cost(200_000) < 40 * cost(20_000) + 0.2


def _alert(text: str) -> Iterator[str]:
    request = EpisodeRequest(goal=text, workspace="/w")
    alert = alert_of(
        request,
        EpisodeState(budget=request.budget),
        AlertKind.FATAL,
        episode_id="episode-1",
        happened=(datetime.now(UTC), text),
    )
    notice = notice_of(alert, full=True)
    yield from (notice.reason, notice.goal, notice.text)


def _limit(text: str) -> Iterator[str]:
    found = detect(LimitSignal(status_code=429, body={"error": {"message": text}}), now=datetime.now(UTC))
    assert found is not None
    yield found.evidence


def _failure(text: str) -> Iterator[str]:
    broken = openai.APIConnectionError(message=text, request=httpx2.Request("POST", "http://127.0.0.1"))
    yield str(translate_error(broken, "a-model"))


def _pause(text: str) -> Iterator[str]:
    question = make_question(QuestionKind.FATAL, text, evidence=evidence_of(text)).bounded
    yield question.title
    yield from question.evidence
    run = BareRun(now=lambda: datetime.now(UTC))
    run.log("paused", text)
    yield run.core.timeline[-1].text


def _answer(text: str) -> Iterator[str]:
    report = ExecutorReport(key="k", status=ExecutorStatus.NEEDS_PERSON, new_tree="t")
    yield report_on_work(report, Answer(question="q1", option="done", text=text, by="me"), tree="t").summary


@pytest.mark.parametrize("leaves", [_alert, _limit, _failure, _pause, _answer])
def test_no_bounded_text_shows_a_part_of_a_key_wherever_its_bound_falls(
    leaves: Callable[[str], Iterator[str]],
) -> None:
    key = "sk-" + "proj-9f3Kq2Lx71Zb84Tn56Vw"
    pieces = {key[at : at + 8] for at in range(len(key) - 7)}
    shown = [
        scrub(text)
        for before in range(0, 640, 3)
        for text in leaves(f"{'word ' * 200}"[:before] + f" {key} " + "more " * 60)
    ]
    assert [text for text in shown if any(piece in text for piece in pieces)] == []
    assert any("[secret:openai-key]" in text for text in shown)
