"""Forms of the page, before anything is sent."""

from typing import Any, cast

import pytest

from gateway.web.acting import ACTIONS, ActionContext
from tightloop.errors import InvalidRequestError

NOBODY: Any = None
"""Neither a ledger nor a connection: a form that is refused needs none."""


@pytest.mark.parametrize(
    ("path", "form", "field"),
    [
        ("answer", {"question": "q1", "option": "a" * 5_000}, "option"),
        ("answer", {"question": "q1", "option": "allow", "text": "a" * 5_000}, "text"),
        ("pause", {"reason": "a\x00b"}, "reason"),
    ],
)
async def test_forms_keep_the_bounds_of_the_operation(path: str, form: dict[str, str], field: str) -> None:
    actor = ActionContext(scope=NOBODY, target="nightly", form=form)
    with pytest.raises(InvalidRequestError, match=f"^{field}: "):
        await cast(Any, ACTIONS[f"/workflows/{{id}}/{path}"].run(actor))
