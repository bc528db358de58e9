"""Which tests count: those that have proved that they can fail. Pure rules; `activities/testing` runs the tests."""

from tightloop.testing.model import AcceptedTest, ChangedCoverage, GateReport, RefusedTest

__all__ = ["AcceptedTest", "ChangedCoverage", "GateReport", "RefusedTest"]
