"""The port of embedders, and the one that needs nothing."""

from array import array
from collections.abc import Sequence
from typing import Protocol

from tightloop.memory.hashing import NAME, hashed
from tightloop.memory.ranking import HASHING, Profile


class Embedder(Protocol):
    """Turns texts into vectors whose cosine says how alike they are."""

    @property
    def name(self) -> str:
        """The model, kept with each vector: those of two models are never compared."""
        ...

    @property
    def dimension(self) -> int:
        """Length of its vectors."""
        ...

    @property
    def profile(self) -> Profile:
        """How its cosines are to be read."""
        ...

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return a vector of length 1 for each text, float32; blocking.

        Raises:
            ServiceUnavailableError: there are none now.
        """
        ...


class HashingEmbedder:
    """Lexical: it compares character n-grams, so that alike words are near, not alike meanings."""

    name = NAME
    profile = HASHING

    def __init__(self, dimension: int = 384) -> None:
        """Take the length of the vectors."""
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return the hashed n-grams of each text."""
        return [hashed(text, self.dimension) for text in texts]
