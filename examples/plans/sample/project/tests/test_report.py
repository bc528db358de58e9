import unittest

from relay.notice import notice
from relay.report import report


class ReportTest(unittest.TestCase):
    def test_one_line_for_each_status(self):
        self.assertEqual(report({404: 1, 200: 3}), "200: 3\n404: 1")

    def test_nothing_to_report(self):
        self.assertEqual(report({}), "none")

    def test_notices_name_the_detail(self):
        self.assertEqual(notice("upstream"), "upstream: none")
