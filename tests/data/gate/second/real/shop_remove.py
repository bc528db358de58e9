import pytest

from shop.cart import Cart


class TestRemove:
    @pytest.fixture(autouse=True)
    def setup_cart(self):
        self.cart = Cart()
        self.cart.add("pen", 100)
        self.cart.add("ink", 250)

    def test_remove_keeps_the_others(self):
        self.cart.remove("pen")
        assert [line.name for line in self.cart.lines] == ["ink"]
        assert not self.cart.is_empty()

    def test_remove_everything(self):
        self.cart.remove("pen")
        self.cart.remove("ink")
        assert self.cart.is_empty()
