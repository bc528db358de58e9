import pytest
from durations import parse


@pytest.mark.parametrize("text", ["", "h", "5", "1h 30m", "-2m"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse(text)
