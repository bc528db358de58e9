import unittest

from relay.message import Request, Response
from relay.pool import Pool
from relay.service import Service
from relay.tally import Tally

PAGES = {"/a": "A"}


class ServiceTest(unittest.TestCase):
    def test_answers_are_passed_on_and_counted(self):
        tally = Tally()
        service = Service(PAGES.__getitem__, Pool(2), tally)
        self.assertEqual(service.handle(Request("GET", "/a")), Response(200, "A"))
        self.assertEqual(service.handle(Request("GET", "/b")).status, 404)
        self.assertEqual(tally.counts(), {200: 1, 404: 1})
