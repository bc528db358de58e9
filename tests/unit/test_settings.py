"""Settings: safe by default, later layers win, and every mistake is named with its fix."""

from datetime import timedelta

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from tests.support.extent import part
from tightloop.episode.budget import Budget
from tightloop.errors import SettingsError
from tightloop.settings import AgentSettings, Settings, combined_settings, parse_settings


def refusal(text: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as refused:
        parse_settings(text, environ)
    return refused.value.message


def test_nothing_given_means_the_defaults() -> None:
    assert parse_settings("", {}) == Settings()
    assert parse_settings("temporal:\n", {"TIGHTLOOP_HOME": "/x", "PATH": "/bin"}) == Settings()


def test_environment_wins_over_the_document() -> None:
    document = "temporal: {address: 'a:1', namespace: shop}"
    settings = parse_settings(document, {"TIGHTLOOP_TEMPORAL__ADDRESS": "b:2"})
    assert (settings.temporal.address, settings.temporal.namespace) == ("b:2", "shop")


def test_later_document_wins_field_by_field() -> None:
    settings = combined_settings(
        [("user", "planner: {kind: openai, corrections: 1}"), ("project", "planner: {corrections: 0}")], {}
    )
    assert (settings.planner.kind, settings.planner.corrections) == ("openai", 0)


def test_variables_are_read_by_the_type_of_their_setting() -> None:
    settings = parse_settings(
        "budget: {max_iterations: 3}",
        {
            "TIGHTLOOP_TEMPORAL__NAMESPACE": "123",
            "TIGHTLOOP_TEMPORAL__TLS": "true",
            "TIGHTLOOP_WORKER__STICKY_TIMEOUT_S": "1.5",
            "TIGHTLOOP_PLANNER__MODELS": "a, b",
            "TIGHTLOOP_EXECUTOR__ARGV": '["agent", "--plan", "a,b"]',
            "TIGHTLOOP_EXECUTOR__AGENTS": "{codex: {model: m, login: true}}",
            "TIGHTLOOP_EXECUTOR__FALLBACK": "claude, person",
            "TIGHTLOOP_BUDGET__MAX_ITERATIONS": "",
            "TIGHTLOOP_BUDGET__MAX_TOKENS": "1000",
        },
    )
    assert settings.temporal.namespace == "123"
    assert settings.temporal.tls is True
    assert settings.worker.sticky_timeout_s == 1.5
    assert settings.planner.models == ("a", "b")
    assert settings.executor.argv == ("agent", "--plan", "a,b")
    assert settings.executor.agents["codex"] == AgentSettings(model="m", login=True)
    assert settings.executor.fallback == ("claude", "person")
    assert settings.budget.max_iterations is None
    assert settings.budget.max_tokens == 1000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "temporal: {adress: x}",
            "unknown setting 'adress' (temporal.adress). Did you mean temporal.address?",
        ),
        ("temprl: {}", "unknown setting 'temprl' (temprl). Did you mean temporal?"),
        ("adress: x", "unknown setting 'adress' (adress). Did you mean temporal.address?"),
        (
            "tracking: {zzz: 1}",
            "unknown setting 'zzz' (tracking.zzz). Known settings: drafts, pause_after, review, ",
        ),
        ("temporal: {1: 2}", "unknown setting '1' (temporal.1)"),
        ("queues: here", "queues must be a section with workspace, llm, executor"),
        ("worker: {sticky_timeout_s: 11}", "worker.sticky_timeout_s must be a number from 1 to 10"),
        ("worker: {heartbeat_interval_s: .nan}", "worker.heartbeat_interval_s must be a number from 1 to"),
        ("planner: {kind: gpt}", "planner.kind must be one of auto, openai, heuristic"),
        ("planner: {timeout_s: 0}", "planner.timeout_s must be a number, above 0"),
        ("planner: {models: gpt}", "planner.models must be a list of strings, not empty"),
        ("planner: {models: [a, 1]}", "planner.models[1] must be a string"),
        ("planner: {context_characters: 5}", "planner.context_characters must be a whole number, at least"),
        ("temporal: {namespace: 1}", "temporal.namespace must be a string, not empty"),
        ("temporal: {tls: perhaps}", "temporal.tls must be true or false"),
        ("temporal: {address: here}", "temporal.address must be like 127.0.0.1:7233"),
        ("budget: {max_wall_hours: 0}", "budget.max_wall_hours must be a number, above 0, at most 8760, or"),
        ("executor: {agents: 5}", "executor.agents must be a section with one section per name"),
        ("executor: {agents: {codex: 5}}", "executor.agents.codex must be a section with program, arguments"),
        ("executor: {agents: {1: {}}}", "names in executor.agents must be strings, got 1"),
        (
            "executor: {agents: {codex: {modl: x}}}",
            "unknown setting 'modl' (executor.agents.codex.modl). Did you mean executor.agents.codex.model?",
        ),
        (
            "executor: {agents: {codex: {login: perhaps}}}",
            "executor.agents.codex.login must be true or false",
        ),
        ("executor: {agents: {codex: {arguments: x}}}", "executor.agents.codex.arguments must be a list"),
        ("executor: {agents: {codex: {arguments: [1]}}}", "executor.agents.codex.arguments[0] must be a string"),
        ("- a", "the settings must consist of sections, for example:"),
        ("temporal: {", "the settings: not valid YAML: line 1: "),
        ("a: 2024-13-45", "the settings: not valid YAML: "),
    ],
)
def test_mistake_is_named_with_its_fix(text: str, sentence: str) -> None:
    assert refusal(text).startswith(sentence)


def test_every_mistake_is_named_at_once() -> None:
    message = refusal("temporal: {adress: x, tls: perhaps}\nserver: {http_port: -1}")
    assert sorted(message.split("\n")) == [
        "server.http_port must be a whole number from 0 to 65535, got -1",
        "temporal.tls must be true or false, or null, got 'perhaps'",
        "unknown setting 'adress' (temporal.adress). Did you mean temporal.address?",
    ]


def test_mistake_in_the_environment_names_the_variable() -> None:
    assert refusal("", TIGHTLOOP_SERVER__HTTP_PORT="x") == (
        "environment variable TIGHTLOOP_SERVER__HTTP_PORT: server.http_port must be a whole number "
        "from 0 to 65535, got 'x'"
    )
    assert "Did you mean temporal.address?" in refusal("", TIGHTLOOP_TEMPORAL__ADRESS="x")
    assert "Did you mean temporal?" in refusal("", TIGHTLOOP_TEMPORL__ADDRESS="x")
    assert "a list of strings" in refusal("", TIGHTLOOP_EXECUTOR__ARGV="[a")


def test_mistake_in_a_document_names_the_document() -> None:
    with pytest.raises(
        SettingsError, match=r"^project: planner\.kind must be one of auto, openai, heuristic, got 'gpt'"
    ):
        combined_settings([("user", "planner: {kind: openai}"), ("project", "planner: {kind: gpt}")], {})


def test_secret_is_never_shown() -> None:
    settings = parse_settings("", {"TIGHTLOOP_TEMPORAL__API_KEY": "hush"})
    assert settings.temporal.api_key.get_secret_value() == "hush"
    assert "hush" not in repr(settings) + str(settings.temporal) + settings.as_yaml()
    assert "4711" not in refusal("temporal: {api_key: 4711}")
    assert "hush" not in refusal("temporal: {api_key: hush, [}")


def test_password_in_an_address_is_masked_where_settings_are_shown() -> None:
    settings = parse_settings("planner: {base_url: 'https://me:hush@models.example/v1'}", {})
    assert "base_url: https://**********@models.example/v1" in settings.as_yaml()


def test_shown_settings_are_a_document_that_gives_the_same_settings() -> None:
    settings = parse_settings("planner: {models: [ü, b]}\nbudget: {max_cost_usd: 2.5, max_wall_hours: null}", {})
    assert parse_settings(settings.as_yaml(), {}) == settings


def test_budget_of_the_settings_is_the_budget_of_an_episode() -> None:
    assert Settings().budget.as_budget() == Budget()
    settings = parse_settings("budget: {max_iterations: null, max_wall_hours: 0.5, max_tokens: 7}", {})
    assert settings.budget.as_budget() == Budget(max_iterations=None, max_wall_time=timedelta(minutes=30), max_tokens=7)


def test_plans_may_not_run_what_runs_anything_else() -> None:
    unsafe = {"python", "python3", "pytest", "sh", "bash", "node", "npm", "cargo", "go", "make", "env", "git"}
    assert unsafe.isdisjoint(Settings().executor.programs)


keys = st.one_of(
    st.sampled_from([*Settings.model_fields, "address", "models", "agents", "login"]),
    st.text(max_size=5),
    st.integers(),
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.dates())
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3))


@limits(deadline=None, max_examples=part(25, of=100))
@given(st.dictionaries(keys, st.one_of(values, st.dictionaries(keys, values, max_size=3)), max_size=3))
def test_any_document_gives_settings_or_a_sentence(document: dict[object, object]) -> None:
    text = yaml.safe_dump(document, allow_unicode=True)
    try:
        settings = parse_settings(text, {})
    except SettingsError:
        assert refusal(text).strip()
    else:
        assert parse_settings(settings.as_yaml().replace("*" * 10, ""), {}).budget == settings.budget


def test_disk_is_as_full_as_its_nearer_bound_says() -> None:
    retention = parse_settings("retention: {every_h: 24, max_gb: 10, min_free_gb: 20}", {}).retention
    disk = 100 * 10**9
    assert retention.used_share(held_bytes=5 * 10**9, free_bytes=90 * 10**9, disk_bytes=disk) == 0.5
    assert retention.used_share(held_bytes=5 * 10**9, free_bytes=20 * 10**9, disk_bytes=disk) == 1
    assert Settings().retention.used_share(held_bytes=disk, free_bytes=0, disk_bytes=disk) == 0


def test_bound_of_the_disk_without_collections_is_refused() -> None:
    assert "Set every_h" in refusal("retention: {max_gb: 10}")
