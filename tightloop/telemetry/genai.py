"""Names of OpenTelemetry's conventions for generative AI.

Names of our own, because the conventions moved and the constants of OpenTelemetry's package are deprecated since.
Source: https://github.com/open-telemetry/semantic-conventions-genai (0.1.0, in development).
"""

CHAT, INVOKE_AGENT, EXECUTE_TOOL = "chat", "invoke_agent", "execute_tool"
"""Operations; the name of a span is its operation and the name of the model, the agent or the tool."""
OPERATIONS = (CHAT, INVOKE_AGENT, EXECUTE_TOOL)

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""With those that came from a cache."""
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CONVERSATION = "gen_ai.conversation.id"
AGENT = "gen_ai.agent.name"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
KIND = "gen_ai.token.type"
ERROR = "error.type"

TEXTS = frozenset(
    {OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, RESPONSE_ID, CONVERSATION, AGENT, TOOL, TOOL_CALL}
)
COUNTS = frozenset({INPUT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS})
LABELS = frozenset({OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, ERROR})
"""What metrics carry, too: names that the settings and the services give, and classes of errors."""

DURATION = "gen_ai.client.operation.duration"
USAGE = "gen_ai.client.token.usage"
METRICS = {
    DURATION: "Time of a call of a model, in seconds",
    USAGE: "Tokens of a call of a model",
}
BUCKETS = {
    DURATION: (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    USAGE: tuple(float(4**power) for power in range(14)),
}
"""Those of the conventions."""
