"""A reference is the address of bytes."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tightloop.value import reference


@given(st.binary(max_size=200))
def test_reference_is_the_digest_and_the_size_of_the_bytes(content: bytes) -> None:
    ref = reference(content, name="plan", media_type="text/markdown")
    assert ref.sha256 == hashlib.sha256(content).hexdigest()
    assert (ref.size_bytes, ref.name, ref.media_type) == (len(content), "plan", "text/markdown")


def test_same_bytes_have_the_same_address_under_any_name() -> None:
    assert reference(b"x", name="a").sha256 == reference(b"x", name="b").sha256
