import msgspec
import pytest

from loadslice.app.commands.study import exit_code
from loadslice.evaluate.report.specimen import specimen
from loadslice.spec.report import Step

DONE = Step(name="portrait", seconds=1.0, state="done", detail="")
FAILED = Step(name="replay hybrid", seconds=1.0, state="failed", detail="the server ended with code 1")


@pytest.mark.parametrize(
    ("recommended", "steps", "code"),
    [("hybrid", [DONE], 0), (None, [DONE], 3), ("hybrid", [DONE, FAILED], 4), (None, [FAILED], 4)],
)
def test_a_promise_that_is_not_kept_and_a_step_that_failed_end_with_codes_of_their_own(
    recommended: str | None, steps: list[Step], code: int
) -> None:
    made = specimen()
    report = msgspec.structs.replace(
        made,
        verdict=msgspec.structs.replace(made.verdict, recommended=recommended),
        provenance=msgspec.structs.replace(made.provenance, steps=steps),
    )
    assert exit_code(report) == code
