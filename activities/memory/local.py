"""Embedder that runs a BERT model such as MiniLM from a local folder, using NumPy on one core."""

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightloop.errors import SettingsError
from tightloop.memory import MINILM

TOKENS_LIMIT = 256
"""Maximum number of tokens, the same as in the model's training. Longer texts are truncated."""
FILES = ("config.json", "model.safetensors", "tokenizer.json")
SHA_CHARACTERS = 12

Matrix = NDArray[np.float32]


class _Shape(NamedTuple):
    layers: int
    heads: int
    dimension: int
    epsilon: float


class LocalEmbedder:
    """Computes embeddings as the normalised mean of the last layer, like sentence-transformers."""

    profile = MINILM

    def __init__(self, folder: Path) -> None:
        """Load the model. For MiniLM, this takes 0.3 s and 0.2 GB of memory.

        Raises:
            SettingsError: a file is missing from the folder, or the required packages are not installed.
        """
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise SettingsError(
                f"memory.folder {str(folder)!r} does not contain {', '.join(missing)}. Set memory.folder to the "
                "folder of a model such as all-MiniLM-L6-v2, or set memory.embedder: hashing"
            )
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise SettingsError(
                f"memory.embedder is local, but the package {error.name} is not installed. Install the package for "
                "the worker: pip install tokenizers safetensors (or set memory.embedder: hashing)"
            ) from None
        self._weights: Mapping[str, Matrix] = load_file(str(folder / "model.safetensors"))
        self._tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokens.no_padding()
        self._tokens.enable_truncation(TOKENS_LIMIT)
        self._shape = _shape(json.loads((folder / "config.json").read_text("utf-8")))
        self.dimension = self._shape.dimension
        # The name includes a hash, because vectors of two models with the same name must not be compared.
        trained = self._weights[f"encoder.layer.{self._shape.layers - 1}.output.dense.weight"]
        self.name = f"{folder.resolve().name}-{hashlib.sha256(trained.tobytes()).hexdigest()[:SHA_CHARACTERS]}"

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Compute a float32 vector for each text. A short text takes 20 ms of CPU time."""
        return [self._vector(self._tokens.encode(text).ids) for text in texts]

    def _vector(self, ids: list[int]) -> "array[float]":
        w, shape = self._weights, self._shape
        token_vectors = w["embeddings.word_embeddings.weight"][ids]
        places = w["embeddings.position_embeddings.weight"][: len(ids)]
        state = self._normalise(token_vectors + places + w["embeddings.token_type_embeddings.weight"][0], "embeddings")
        for layer in range(shape.layers):
            name = f"encoder.layer.{layer}"
            attended = self._linear(self._attention(state, f"{name}.attention.self"), f"{name}.attention.output.dense")
            state = self._normalise(state + attended, f"{name}.attention.output")
            wide = _gelu(self._linear(state, f"{name}.intermediate.dense"))
            state = self._normalise(state + self._linear(wide, f"{name}.output.dense"), f"{name}.output")
        mean = state.mean(axis=0)
        return array("f", (mean / max(float(np.linalg.norm(mean)), 1e-12)).astype(np.float32).tobytes())

    def _attention(self, state: Matrix, name: str) -> Matrix:
        heads = self._shape.heads
        query, key, value = (
            self._linear(state, f"{name}.{part}").reshape(len(state), heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(query.shape[-1]))
        # Subtracting the maximum changes no weight, and keeps exp from overflowing.
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: Matrix = (weights @ value).transpose(1, 0, 2).reshape(len(state), -1)
        return mixed

    def _linear(self, state: Matrix, name: str) -> Matrix:
        output: Matrix = state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return output

    def _normalise(self, state: Matrix, name: str) -> Matrix:
        weight, bias = self._weights[f"{name}.LayerNorm.weight"], self._weights[f"{name}.LayerNorm.bias"]
        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(self._shape.epsilon))
        output: Matrix = centred / spread * weight + bias
        return output


def _shape(config: Mapping[str, Any]) -> _Shape:
    return _Shape(
        layers=int(config["num_hidden_layers"]),
        heads=int(config["num_attention_heads"]),
        dimension=int(config["hidden_size"]),
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
    )


def _gelu(value: Matrix) -> Matrix:
    """Compute the exact GELU function used to train BERT (Hendrycks and Gimpel 2016)."""
    return (value * np.float32(0.5) * (1 + _erf(value / np.sqrt(np.float32(2))))).astype(np.float32)


def _erf(value: Matrix) -> Matrix:
    """Compute the error function to within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26).

    NumPy does not provide this function.
    """
    size = np.abs(value)
    t = 1 / (1 + 0.3275911 * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result: Matrix = (np.sign(value) * (1 - series * np.exp(-size * size))).astype(np.float32)
    return result
