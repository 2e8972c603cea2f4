"""The method's questions in their order: latency, batch, operator match and memory fit, power.

The tree is a prior for what has not been measured: it says which kind of engine to try first and why. It never buys
anything by itself; `settle` sets it against the simulated fleets. Its rules:

1. What is there works less than 40 % of its busiest hour: optimise first, whatever else holds.
2. A kind is out when it cannot be: a GPU (or a server's processor) that draws more than a box may; an NPU whose
   operators do not match, that lacks the precision, or that would have to compile for a nightly FP16 job of minutes.
3. Work that nobody waits for, in large batches: a GPU.
4. Power is a hard limit: an NPU where operators match.
5. Up to 7 billion parameters, up to 50 requests/s and an answer within a few hundred milliseconds: an optimised
   processor first.
6. A strict P99 with small batches: an NPU where it matches, else a low-latency GPU.
7. Operators match and the model fits on chip: an NPU; else a GPU.

Then what people and time do to it: a model that changes often, or is not stable yet, is served by a GPU until it is; a
team of two or three runs one kind of engine well; without experience with several kinds, observability comes first.
"""

from dataclasses import dataclass, field

from loadslice.plan.decision.facts import Facts
from loadslice.spec.device import Kind
from loadslice.spec.plan import PathStep

SMALL_MODEL_PARAMETERS = 7e9
SMALL_RATE_PER_S = 50.0
RELAXED_MS = 100.0
"""From here on a limit is "a few hundred milliseconds"; below it is strict."""
OFFLINE_MS = 5000.0
"""The portrait's own border: later answers are offline."""
SMALL_BATCH_ROWS = 4.0
OFFLINE_SHARE = 0.5
MATCH_SHARE = 0.99
"""Of the work. What falls back costs a transfer each way: below it the NPU waits for the host more than it computes."""
IDLE_SHARE = 0.4
GPU_CARD_W_MIN = 70.0
"""The smallest cards for servers are rated so (NVIDIA T4 and L4); their host comes on top."""
PROCESSOR_W_MIN = 5.0
"""A single-board computer with its memory; less is a microcontroller or an NPU beside one."""
NIGHTLY_MINUTES_MAX = 60.0
CHANGES_OFTEN_PER_YEAR = 4.0
"""More than once a quarter: porting and validating for an NPU takes weeks (see `hours` of the price file)."""
SMALL_TEAM = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """Where the questions led."""

    advice: str
    """One sentence."""
    kind: Kind | None
    """Kind of engine to try first; ``None``: none needs to be bought."""
    codes: tuple[str, ...]
    """Rules that fired, in order."""
    path: tuple[PathStep, ...]
    excluded: dict[Kind, str] = field(default_factory=dict)
    """Kinds that cannot be, and why."""


@dataclass(slots=True)
class _Walk:
    """The path as it is walked."""

    facts: Facts
    path: list[PathStep] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    excluded: dict[Kind, str] = field(default_factory=dict)

    def step(self, question: str, answer: str, evidence: str) -> None:
        self.path.append(PathStep(question=question, answer=answer, evidence=evidence))


UNKNOWN = "not known"


def decide(facts: Facts) -> Decision:
    """Answer the questions.

    Args:
        facts: What is known; a question without a fact is answered "not known" and never taken as yes.
    """
    walk = _Walk(facts)
    idle = _is_idle(walk)
    strict, offline = _latency(walk)
    small = _batch(walk)
    matches, onchip = _operators(walk)
    hard = _power(walk)
    kind, advice = _leaf(walk, strict=strict, offline=offline, small=small, matches=matches, onchip=onchip, hard=hard)
    kind, advice = _time(walk, kind, advice)
    advice = _people(walk, kind, advice)
    if idle:
        walk.codes.insert(0, "optimise_first")
        advice = f"Optimise what is there before buying anything. If that is not enough: {_lower(advice)}"
        return Decision(advice, None, tuple(walk.codes), tuple(walk.path), walk.excluded)
    return Decision(advice, kind, tuple(walk.codes), tuple(walk.path), walk.excluded)


def _is_idle(walk: _Walk) -> bool:
    known = walk.facts.utilisation
    question = "Is what is there busy?"
    if known is None:
        walk.step(question, UNKNOWN, "nobody recorded how busy it is; record it with loadslice.record")
        return False
    idle = known.value < IDLE_SHARE
    walk.step(question, "no: optimise first" if idle else "yes", f"{known.evidence}; below {IDLE_SHARE:.0%} is idle")
    return idle


def _latency(walk: _Walk) -> tuple[bool, bool]:
    """Whether the promise is strict, and whether nobody waits."""
    facts = walk.facts
    promised = facts.budget.slo.latency_limits_ms
    evidence = ", ".join(f"{name.upper()} within {limit:g} ms" for name, limit in promised.items()) + " promised"
    share = facts.offline_share
    offline = facts.budget.scenario == "offline" or facts.latency_limit_ms > OFFLINE_MS
    offline = offline or (share is not None and share.value >= OFFLINE_SHARE)
    strict = not offline and facts.latency_limit_ms < RELAXED_MS
    if share is not None:
        evidence += f"; {share.evidence}"
    answer = "nobody waits for it" if offline else "strict" if strict else "a few hundred milliseconds or more"
    walk.step("How quickly must an answer come?", answer, evidence)
    return strict, offline


def _batch(walk: _Walk) -> bool | None:
    """Whether batches are small; ``None``: unknown."""
    rows = walk.facts.rows
    question = "How large are batches?"
    if rows is None:
        walk.step(question, UNKNOWN, "the trace does not say how many rows a request brings")
        return None
    small = rows.value <= SMALL_BATCH_ROWS
    walk.step(question, "small" if small else "large", f"{rows.evidence}; small is up to {SMALL_BATCH_ROWS:g}")
    return small


def _operators(walk: _Walk) -> tuple[bool | None, bool]:
    """Whether an NPU runs the operators, and holds the model on chip."""
    npu = walk.facts.npu
    question = "Does an NPU run the operators and hold the model on chip?"
    _exclude_npu_by_precision(walk)
    if npu is None:
        walk.step(question, UNKNOWN, "no model was inspected for an NPU: loadslice inspect MODEL --device NPU")
        return None, False
    match = npu.value
    matches = match.supported_flops_share >= MATCH_SHARE and match.fits != "no"
    onchip = match.fits == "onchip"
    if not matches:
        walk.excluded.setdefault("npu", f"operators do not match: {npu.evidence}")
    answer = "yes" if matches and onchip else "operators yes, on chip no" if matches else "no"
    walk.step(question, answer, npu.evidence)
    return matches, onchip


def _exclude_npu_by_precision(walk: _Walk) -> None:
    budget = walk.facts.budget
    job = budget.offline
    if job is not None and job.precision in ("fp16", "fp32") and job.window_minutes <= NIGHTLY_MINUTES_MAX:
        text = (
            f"{job.requests_per_day:g} requests a day in {job.precision.upper()} within {job.window_minutes:g} minutes"
        )
        walk.excluded["npu"] = (
            f"a short nightly job keeps no NPU busy and asks for the precision it is worst at: {text}"
        )
        walk.codes.append("nightly_fp16_not_npu")
    elif budget.model.precision_min in ("fp16", "fp32"):
        walk.excluded["npu"] = (
            f"answers are right from {budget.model.precision_min.upper()} on; NPU toolchains build for INT8"
        )
        walk.codes.append("precision_not_npu")


def _power(walk: _Walk) -> bool:
    """Whether power is a hard limit; excludes what draws too much."""
    facts, limit_w = walk.facts, walk.facts.budget.power.per_box_w
    question = "Is power a hard limit?"
    if limit_w is None:
        walk.step(question, "no", "the budget limits no box")
        return False
    floors: list[tuple[Kind, float, str]] = []
    gpu, cpu = facts.gpu_box_w, facts.cpu_box_w
    smallest = f"the smallest GPU cards for servers are rated {GPU_CARD_W_MIN:g} W, their host comes on top"
    floors.append(("gpu", gpu.value, gpu.evidence) if gpu else ("gpu", GPU_CARD_W_MIN, smallest))
    board = f"a single-board computer draws {PROCESSOR_W_MIN:g} W"
    floors.append(("cpu", cpu.value, cpu.evidence) if cpu else ("cpu", PROCESSOR_W_MIN, board))
    out = [(kind, why) for kind, watts, why in floors if watts > limit_w]
    for kind, why in out:
        walk.excluded[kind] = f"{why}; a box may draw {limit_w:g} W"
        walk.codes.append(f"power_not_{kind}")
    hard = any(kind == "gpu" for kind, _ in out)
    evidence = "; ".join(why for _, why in out) or "; ".join(why for _, _, why in floors)
    walk.step(question, "yes" if hard else "no", f"a box may draw {limit_w:g} W; {evidence}")
    return hard


def _leaf(
    walk: _Walk,
    *,
    strict: bool,
    offline: bool,
    small: bool | None,
    matches: bool | None,
    onchip: bool,
    hard: bool,
) -> tuple[Kind | None, str]:
    """The first rule that holds, among kinds that can be."""
    npu_can = "npu" not in walk.excluded and bool(matches)
    gpu_can, cpu_can = "gpu" not in walk.excluded, "cpu" not in walk.excluded
    light = _light(walk)
    if offline and small is not True and gpu_can:
        return _fire(walk, "offline_gpu", "gpu", "Run it on a GPU in large batches.")
    if hard and npu_can:
        return _fire(walk, "power_npu", "npu", "An NPU: power is the limit and its operators match.")
    if light and not strict and not offline and cpu_can:
        return _fire(walk, "cpu_first", "cpu", "An optimised processor first: INT8 or INT4, fused, threads tuned.")
    if strict and small is not False:
        if npu_can:
            return _fire(walk, "strict_npu", "npu", "An NPU: its latency is even, and batches are small.")
        if gpu_can:
            return _fire(walk, "strict_gpu", "gpu", "A low-latency GPU with short batch windows.")
    if npu_can and onchip:
        return _fire(walk, "fits_npu", "npu", "An NPU: its operators match and the model fits on chip.")
    if gpu_can:
        return _fire(walk, "else_gpu", "gpu", "A GPU: nothing that was found speaks for an NPU.")
    return _cornered(walk, cpu_can=cpu_can)


def _light(walk: _Walk) -> bool:
    """Up to 7 billion parameters and 50 requests/s, both known."""
    facts = walk.facts
    parameters, rate = facts.parameters, facts.rate_per_s
    question = "Is the model small and the traffic light?"
    if parameters is None or rate is None:
        lacking = [name for name, fact in (("parameters", parameters), ("the rate", rate)) if fact is None]
        walk.step(question, UNKNOWN, f"not known: {' and '.join(lacking)}")
        return False
    light = parameters.value <= SMALL_MODEL_PARAMETERS and rate.value <= SMALL_RATE_PER_S
    borders = f"small is up to {SMALL_MODEL_PARAMETERS / 1e9:g} billion, light up to {SMALL_RATE_PER_S:g} requests/s"
    walk.step(question, "yes" if light else "no", f"{parameters.evidence}; {rate.evidence}; {borders}")
    return light


def _cornered(walk: _Walk, *, cpu_can: bool) -> tuple[Kind | None, str]:
    if cpu_can:
        return _fire(walk, "only_cpu", "cpu", "A processor: what else there is, is ruled out.")
    why = "; ".join(f"{kind}: {reason}" for kind, reason in walk.excluded.items())
    walk.codes.append("nothing_fits")
    return None, f"Nothing keeps to every limit; relax one. Ruled out: {why}."


def _fire(walk: _Walk, code: str, kind: Kind, advice: str) -> tuple[Kind, str]:
    walk.codes.append(code)
    return kind, advice


def _time(walk: _Walk, kind: Kind | None, advice: str) -> tuple[Kind | None, str]:
    """How often the model changes, and whether it has settled."""
    life = walk.facts.budget.model
    question = "Does the model change often?"
    if life.changes_per_year is None and life.in_production is None:
        walk.step(question, UNKNOWN, "the budget states neither model.changes_per_year nor model.in_production")
        return kind, advice
    changes = "unknown" if life.changes_per_year is None else f"{life.changes_per_year:g} changes a year"
    often = life.changes_per_year is not None and life.changes_per_year > CHANGES_OFTEN_PER_YEAR
    young = life.in_production is False
    settled = {None: "", True: "; in production for a quarter or longer", False: "; not settled in production yet"}
    evidence = f"{changes} (often is above {CHANGES_OFTEN_PER_YEAR:g}){settled[life.in_production]}"
    walk.step(question, "yes" if often else "not stable yet" if young else "no", evidence)
    if kind != "npu" or not (often or young) or "gpu" in walk.excluded:
        return kind, advice
    if often:
        walk.codes.append("changes_gpu")
        return "gpu", "A GPU: the model changes more often than an NPU can be ported and validated for."
    walk.codes.append("gpu_then_npu")
    return "gpu", "A GPU first, and an NPU once the model is stable: its operators match."


def _people(walk: _Walk, kind: Kind | None, advice: str) -> str:
    """Who will run it."""
    people = walk.facts.budget.people
    question = "Who will run it?"
    if people.count is None:
        walk.step(question, UNKNOWN, "the budget states no people.count")
    else:
        has = "with" if people.heterogeneous_experience else "without"
        small = 0 < people.count <= SMALL_TEAM
        answer = "a small team: one engine done well" if small else "a team that can run several kinds of engines"
        walk.step(question, answer, f"{people.count} people, {has} experience of several kinds of engines")
        if small:
            walk.codes.append("small_team")
            advice += " Run one kind of engine and run it well."
    if kind == "npu" and not people.heterogeneous_experience:
        walk.codes.append("observability_first")
        advice += " Observability first: nobody here has debugged several kinds of engines in production."
    return advice


def _lower(text: str) -> str:
    """A sentence as the rest of another; abbreviations keep their capitals."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
