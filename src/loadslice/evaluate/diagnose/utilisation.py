"""Engines that are idle most of the time, and what keeps them so."""

from collections.abc import Iterable

from loadslice.evaluate.diagnose.evidence import EngineSeen, Evidence, NotSeenError
from loadslice.evaluate.diagnose.losses import SHARE_MIN, lost_share
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding

LOW = 0.40
"""Under which optimising what is there pays before anything is bought."""
BUSY = 0.80
REQUESTS_MIN = 50
SMALL = 0.5
"""Of the batch it may be given."""


def _look(evidence: Evidence) -> Iterable[Finding]:
    if not evidence.engines:
        raise NotSeenError("no engine's utilisation is known")
    if evidence.requests < REQUESTS_MIN:
        raise NotSeenError(f"{evidence.requests} requests are too few to speak of utilisation")
    for one in evidence.engines:
        if one.alone and one.utilisation < LOW:
            yield _finding(one, [other for other in evidence.engines if other.name != one.name], evidence)


def _preferred(name: str, evidence: Evidence) -> str | None:
    """Another engine that serves more of the stages that this one could serve; ``None``: there is none."""
    own = {seen.stage: seen.requests for seen in evidence.stages if seen.engine == name}
    served: dict[str, int] = {}
    for seen in evidence.stages:
        if seen.engine != name and seen.requests > own.get(seen.stage, seen.requests):
            served[seen.engine] = served.get(seen.engine, 0) + seen.requests
    return max(served, key=lambda engine: served[engine], default=None)


def _finding(one: EngineSeen, others: list[EngineSeen], evidence: Evidence) -> Finding:
    busiest = max(others, key=lambda other: other.utilisation, default=None)
    rows = "" if one.rows_mean is None else f", {one.rows_mean:.1f} rows a batch"
    # A single request of more rows than `batch.size` runs alone, so that the mean may be above it.
    size = "" if one.batch_size is None else f" (batch.size {one.batch_size})"
    cause, remedy, confidence = _why(one, busiest, _preferred(one.name, evidence), lost_share(evidence))
    return Finding(
        rule=RULE.name,
        symptom=f"'{one.name}' is {one.utilisation:.0%} utilised",
        evidence=f"busy {one.utilisation:.1%} of its slot time{rows}{size}"
        + ("" if busiest is None else f"; '{busiest.name}' {busiest.utilisation:.1%}"),
        cause=cause,
        remedy=remedy,
        confidence=confidence,
        basis=evidence.basis,
        figures={"engine": one.name, "utilisation": one.utilisation, "rows_mean": one.rows_mean,
                 "busiest": None if busiest is None else busiest.name,
                 "busiest_utilisation": None if busiest is None else busiest.utilisation},
    )  # fmt: skip


def _why(
    one: EngineSeen, busiest: EngineSeen | None, preferred: str | None, lost: float
) -> tuple[str, str, Confidence]:
    if busiest is not None and busiest.utilisation >= BUSY:
        return (
            f"it waits for '{busiest.name}', which is full",
            (
                f"move work from '{busiest.name}' to it (`engines:`, `failover`), or make that stage cheaper; a faster "
                f"'{one.name}' changes nothing"
            ),
            "high",
        )
    if preferred is not None:
        return (
            f"'{preferred}' is preferred for the stages that both may serve, and has room for them",
            f"nothing is wrong while '{one.name}' is a reserve that costs nothing; otherwise leave it out",
            "high",
        )
    if lost >= SHARE_MIN:
        return (
            f"{lost:.0%} of the requests got no answer: the load that it carried is not the load that came",
            "see to what was lost first, then look again; fewer engines would lose more",
            "low",
        )
    if one.batch_size is not None and one.rows_mean is not None and one.rows_mean < SMALL * one.batch_size:
        return (
            "batches leave nearly empty: what is fixed per batch is paid for each request, and little load is there",
            "a longer `batch.window_ms` where the promise leaves time, or fewer engines for the same load",
            "medium",
        )
    return (
        "the load asks for no more",
        (
            "under 40 % optimise or consolidate before anything is bought: `loadslice squeeze`, fewer engines, "
            "`loadslice plan`"
        ),
        "medium",
    )


RULE = Rule(
    name="low-utilisation",
    formula=f"busy slot time < {LOW:.0%} of an engine that runs models, over {REQUESTS_MIN} requests or more",
    reason="under 40 % the machine that is there does more once it is tuned",
    needs="a journal, a simulation, or a server under load",
    look=_look,
)
