import pytest
from config import ConfigError, load


def test_a_port_is_read():
    assert load('{"port": "80"}') == {"port": 80}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"port": "x"}', '{"port": null}'])
def test_whatever_is_wrong_is_one_error(text):
    with pytest.raises(ConfigError) as raised:
        load(text)
    assert raised.value.__cause__ is not None
