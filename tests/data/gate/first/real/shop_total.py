import unittest

from shop.cart import Cart


class TotalTest(unittest.TestCase):
    def setUp(self):
        self.cart = Cart()

    def test_quantity_counts(self):
        self.cart.add("pen", 120, quantity=3)
        self.assertEqual(self.cart.total(), 360)
