"""What agents ask beside calls of a model: which models there are, how many tokens a prompt has."""

from collections.abc import Mapping
from typing import Any

MODELS = ("fake-model", "fake-model-small")
CONTEXT_TOKENS = 200_000


def listing(method: str, path: str, tokens: int, headers: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the answer; None: there is no such path."""
    bare = path.partition("?")[0].rstrip("/")
    if bare.endswith("/messages/count_tokens"):
        return {"input_tokens": tokens}
    if bare.endswith(":countTokens"):
        return {"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]}
    if method == "HEAD" or bare == "":
        return {}
    if bare.endswith("/v1beta/models"):
        return {"models": [_gemini(name) for name in MODELS]}
    if bare.endswith("/models"):
        return _anthropic() if "anthropic-version" in headers else _openai()
    return None


def _openai() -> dict[str, Any]:
    data = [{"id": name, "object": "model", "created": 1_760_000_000, "owned_by": "fake"} for name in MODELS]
    return {"object": "list", "data": data}


def _anthropic() -> dict[str, Any]:
    data = [
        {"type": "model", "id": name, "display_name": name, "created_at": "2025-10-09T08:53:20Z"} for name in MODELS
    ]
    return {"data": data, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}


def _gemini(name: str) -> dict[str, Any]:
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    limits = {"inputTokenLimit": CONTEXT_TOKENS, "outputTokenLimit": 8192}
    return {"name": f"models/{name}", "displayName": name, **limits, "supportedGenerationMethods": methods}
