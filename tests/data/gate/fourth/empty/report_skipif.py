import sys

import pytest

from report.summary import totals


@pytest.mark.skipif(sys.version_info > (3, 0), reason="old Python only")
def test_totals():
    assert totals([{"a": "x", "b": "1"}], "a", "b") == {"x": 1.0}
