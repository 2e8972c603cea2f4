"""Engines that were lost: their process ended, hung, or their runtime failed."""

from collections.abc import Iterable

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError, OutageSeen
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Finding


def _look(evidence: Evidence) -> Iterable[Finding]:
    if evidence.outages is None:
        raise NotSeenError("nothing says whether an engine was lost")
    lost = [one for one in evidence.outages if one.downs or one.is_down]
    for one in sorted(lost, key=lambda one: (not one.is_down, -one.downs)):
        yield _finding(one, evidence)


def _finding(one: OutageSeen, evidence: Evidence) -> Finding:
    times = f"{one.downs} time{'' if one.downs == 1 else 's'}"
    down = "" if one.down_s is None else f", {one.down_s:.1f} s absent together"
    alone = "".join(
        f"; stage '{stage}' had no engine at all for {seconds:.1f} s"
        for stage, seconds in evidence.without_engine_s.items()
    )
    ended = sum(known.requests for known in evidence.ended or () if known.reason in ("engine_down", "engine_failed"))
    what = "its process" if one.has_process else "the process or runtime that it has"
    return Finding(
        rule=RULE.name,
        symptom=f"engine '{one.engine}' is down" if one.is_down else f"engine '{one.engine}' was lost and came back",
        evidence=f"lost {times}{down}{alone}"
        + (f"; {ended} requests ended as engine_down or engine_failed {evidence.ended_over}" if ended else ""),
        cause=f"{what} ended, hung or failed. Which of these, the server's log says at that moment "
        f"(`engine {one.engine}: its process has ended`); a killed process is one that the system, or somebody, ended",
        remedy="look for its end in the server's log and the system's (out of memory: `memory_limit_mb`, less "
        "`max_inflight`); give each of its stages a second engine with a runtime or device of its own (`engines:`, "
        "`failover`), and `retry.attempts`, so that its absence costs time and no requests. "
        "`loadslice drill engine-killed --pipeline P` shows whether it holds then",
        confidence="medium",
        basis=evidence.basis,
        figures={"engine": one.engine, "downs": one.downs, "is_down": int(one.is_down), "down_s": one.down_s},
    )


RULE = Rule(
    name="engine-lost",
    formula="an engine was lost once or more, or is down",
    reason="a process that ends is a fault whatever it cost this time",
    needs="a journal, or a live server",
    look=_look,
    is_loss=True,
)
