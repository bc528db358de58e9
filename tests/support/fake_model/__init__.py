"""A fake model service on loopback: four wire formats, driven by a script, with faults.

`with FakeModel(shell("echo hi > a.txt"), say("done")) as model:` and point a client at `model.base_url(Wire.CHAT)`.
It keeps no conversation: the step is the number of tool results since the last user message of a request, so retries
and resumed sessions get the right answer. After the last step it says "done".
"""

from tests.support.fake_model.fault import Fault
from tests.support.fake_model.script import Step, say, shell, use, write
from tests.support.fake_model.server import FakeModel, Seen
from tests.support.fake_model.turns import FakeCoderModel

__all__ = ["FakeCoderModel", "FakeModel", "Fault", "Seen", "Step", "say", "shell", "use", "write"]
