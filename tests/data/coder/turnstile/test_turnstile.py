import pytest
from turnstile import Turnstile


def run(*events):
    machine = Turnstile()
    for event in events:
        machine.handle(event)
    return machine.state, machine.coins, machine.passed


def test_a_coin_lets_one_person_pass():
    assert run("coin", "push", "push") == ("locked", 1, 1)


def test_a_second_coin_is_lost_and_does_not_lock():
    assert run("coin", "coin") == ("unlocked", 2, 0)


def test_what_is_kicked_breaks_and_is_locked_after_its_repair():
    assert run("coin", "kick") == ("broken", 1, 0)
    assert run("kick", "repair") == ("locked", 0, 0)


def test_a_broken_one_takes_no_coin():
    machine = Turnstile()
    machine.handle("kick")
    with pytest.raises(ValueError, match="coin"):
        machine.handle("coin")
    assert (machine.state, machine.coins) == ("broken", 0)
