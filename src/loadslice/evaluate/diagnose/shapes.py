"""Latency that jumps when the shape of a batch is another than the one before: recompilation, cold plans."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Finding

RATIO_MIN = 1.5
BATCHES_MIN = 10
SHARE_MIN = 0.75
"""Of the batches after a change that must be slower than three quarters of the others, which a quarter is by chance."""


def _look(evidence: Evidence) -> Iterable[Finding]:
    batches = evidence.batches
    if batches is None:
        raise NotSeenError("no times of single batches are known")
    if batches.height < 2 * BATCHES_MIN:
        raise NotSeenError(f"{batches.height} batches are too few")
    for (stage, engine), part in batches.group_by(["stage", "engine"], maintain_order=True):
        found = _of(str(stage), str(engine), part, evidence)
        if found is not None:
            yield found


def _of(stage: str, engine: str, part: pl.DataFrame, evidence: Evidence) -> Finding | None:
    marked = part.sort("start_ns").with_columns(
        kind=pl.concat_str(pl.col("bucket"), pl.lit("/"), pl.col("rows"), ignore_nulls=True)
    )
    marked = marked.with_columns(changed=pl.col("kind") != pl.col("kind").shift(1)).drop_nulls("changed")
    same = marked.filter(~pl.col("changed"))
    typical = same.group_by("kind").agg(typical=pl.col("service_ms").median())
    judged = marked.join(typical, on="kind", how="inner").filter(pl.col("typical") > 0)
    judged = judged.with_columns(ratio=pl.col("service_ms") / pl.col("typical"))
    after = judged.filter(pl.col("changed"))
    others = judged.filter(~pl.col("changed"))
    if min(after.height, others.height) < BATCHES_MIN:
        return None
    ratios = after["ratio"].to_numpy()
    limit = float(np.quantile(others["ratio"].to_numpy(), 0.75))
    slower = float((ratios > limit).mean())
    ratio = float(np.median(ratios))
    if ratio < RATIO_MIN or slower < SHARE_MIN:
        return None
    kinds = judged["kind"].n_unique()
    extra_ms = float(np.median((after["service_ms"] - after["typical"]).to_numpy()))
    return Finding(
        rule=RULE.name,
        symptom=f"stage '{stage}' on '{engine}' is slow whenever the shape of its batch changes",
        evidence=f"{after.height} batches of another shape than the one before took {ratio:.1f} times what the same "
        "shape "
        f"takes in a row ({extra_ms:.3g} ms more, median); {others.height} batches without a change did not; {kinds} "
        "shapes (bucket and rows)",
        cause="the runtime prepares each new shape anew: it compiles, plans memory or searches for kernels",
        remedy="fix the shapes: `buckets:` for the stage and `batch: {size, pad_to}` for its engine (`loadslice "
        "inspect "
        "--traffic` finds few that fit the traffic), so that everything is prepared before the first request",
        confidence="medium",
        basis=evidence.basis,
        figures={"ratio": ratio, "changes": after.height, "shapes": kinds, "extra_ms": extra_ms, "stage": stage,
                 "engine": engine},
    )  # fmt: skip


RULE = Rule(
    name="shape-change",
    formula=f"median time after a change >= {RATIO_MIN:g} x the same shape's in a row, and {SHARE_MIN:.0%} of the "
    "changes "
    "above three quarters of the others",
    reason="caches gone cold cost a tenth; preparing a shape costs a multiple",
    needs="a journal (`serve --journal`): metrics do not tell shapes apart",
    look=_look,
)
