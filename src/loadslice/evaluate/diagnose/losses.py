"""Requests that did not get their answer, by outcome and reason."""

from collections.abc import Iterable
from typing import NamedTuple

from loadslice.evaluate.diagnose.evidence import EndedSeen, Evidence, NotSeenError
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding

SHARE_MIN = 0.01
"""Of what ended; a failed request is told however rare: unlike a refusal, nobody decided it."""
REQUESTS_MIN = 5
"""Of one kind: a few tries of somebody who learns the interface are a hundredth of a hundred."""

LOST = ("failed", "expired", "shed", "rejected", "cancelled", "refused")


class Why(NamedTuple):
    """What a reason means, and what helps."""

    cause: str
    remedy: str
    confidence: Confidence = "medium"


_MORE = "bound what waits (`queue.wait_limit_ms`), and size the fleet for the peak: `loadslice plan`"
_LATE = Why(
    "their time ran out: they waited for, or ran on, engines that were too slow or too busy for their deadlines",
    "see queue-growth and low-utilisation for which engine; a faster variant (`loadslice squeeze`), more engines "
    "(`loadslice plan`), or deadlines that can be met",
)

REASONS: dict[str, Why] = {
    "engine_down": Why(
        "no engine that could serve them was up",
        "see engine-lost; a `failover` to an engine with a runtime or device of its own keeps the stage served",
        "high",
    ),
    "engine_failed": Why(
        "their batch failed on its engine, and no further attempt was possible or it failed too",
        "the server's log has the error of each batch; `failover`, and `retry` where another try may succeed",
        "high",
    ),
    "stage_failed": Why(
        "a Python stage raised an error",
        "the server's log has it, with the request's number; inputs that a stage cannot use belong refused before it",
        "high",
    ),
    "deadline": _LATE,
    "stage_timeout": Why(
        "a stage took longer than its `timeout_ms`",
        "compare `timeout_ms` with the profile's p99 of that stage; see queue-growth where its engine became slower",
    ),
    "queue_full": Why("more waited for an engine than `queue.limit` allows", _MORE),
    "table_full": Why("more were inside than `max_requests` allows", _MORE),
    "displaced": Why("requests of a higher class took their place in a full queue", _MORE),
    "hopeless": Why("they could not have met their deadline any more, so that no engine time was spent on them", _MORE),
    "ineligible": Why(
        "no engine of a stage accepts such requests (`accept`, `rules`)",
        "give that stage an engine that takes what they are, or refuse them earlier",
        "high",
    ),
    "retry_budget": Why(
        "clients repeated more attempts than the retry budget covers",
        "clients have to wait for `Retry-After` and back off; see what their first attempts ended as",
        "high",
    ),
    "client_gone": Why(
        "clients hung up before their answer",
        "compare the clients' timeout with the latency here; a deadline (`x-loadslice-deadline-ms`) tells the server",
    ),
    "draining": Why(
        "they were sent while the server was being stopped",
        "take it out of its balancer before it is stopped: its readiness says so",
        "high",
    ),
}
UNKNOWN = Why("it is not known: only the outcome was kept", "a journal has the reason (`--journal`)", "low")
AT_DOOR = Why(
    "they could not be understood, were too large, or their client may not send them: HTTP's status says which",
    "`loadslice replay` shows the server's own words; see what the clients send, and to which address",
)


def lost_share(evidence: Evidence) -> float:
    """Requests without an answer over all that ended; 0 where nothing is known."""
    known = evidence.ended or []
    lost = sum(one.requests for one in known if one.outcome in LOST)
    return lost / max(1, sum(one.requests for one in known))


def _look(evidence: Evidence) -> Iterable[Finding]:
    if evidence.ended is None:
        raise NotSeenError("nothing says how requests ended")
    total = sum(one.requests for one in evidence.ended)
    for one in sorted(_by_cause(evidence.ended), key=lambda one: -one.requests):
        rare = one.requests < max(REQUESTS_MIN, SHARE_MIN * total) and one.outcome != "failed"
        if one.outcome in LOST and one.requests and not rare:
            yield _finding(one, total, evidence)


def _by_cause(ended: list[EndedSeen]) -> list[EndedSeen]:
    """What was refused at the door as one, whatever HTTP's status: its cause and its remedy are the client's."""
    refused = sorted((one for one in ended if one.outcome == "refused"), key=lambda one: -one.requests)
    if len(refused) < 2:
        return ended
    reasons = ", ".join(f"{one.reason}: {one.requests}" for one in refused)
    firsts = [one.first_s for one in refused if one.first_s is not None]
    lasts = [one.last_s for one in refused if one.last_s is not None]
    together = EndedSeen(
        "refused",
        reasons,
        sum(one.requests for one in refused),
        min(firsts, default=None),
        max(lasts, default=None),
    )
    return [*(one for one in ended if one.outcome != "refused"), together]


def _finding(one: EndedSeen, total: int, evidence: Evidence) -> Finding:
    why = AT_DOOR if one.outcome == "refused" else REASONS.get(one.reason or "", UNKNOWN)
    name = one.outcome if one.reason in (None, "none") else f"{one.outcome} ({one.reason})"
    between = "" if one.first_s is None else f", between {one.first_s:.1f} and {one.last_s:.1f} s"
    return Finding(
        rule=RULE.name,
        symptom=f"{one.requests} of {total} requests {name}",
        evidence=f"{one.requests / total:.1%} of what ended {evidence.ended_over}{between}",
        cause=why.cause,
        remedy=why.remedy,
        confidence=why.confidence,
        basis=evidence.basis,
        figures={"outcome": one.outcome, "reason": one.reason, "requests": one.requests, "of": total,
                 "first_s": one.first_s, "last_s": one.last_s},
    )  # fmt: skip


RULE = Rule(
    name="requests-lost",
    formula=f"a request failed, or at least {REQUESTS_MIN} requests and {SHARE_MIN:.0%} of what ended were refused, "
    "expired or left for one reason",
    reason="a few refusals belong to a bounded queue; a failure is a fault each time",
    needs="a journal, a simulation, or a live server",
    look=_look,
    is_loss=True,
)
