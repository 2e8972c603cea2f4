"""What the watch asks of an outcome: is its reason so, and was it this one's turn to go?"""

from collections.abc import Sequence

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.watch_books import NS_PER_MS, Books, Inside, Origin
from loadslice.spec.outcome import Outcome, Reason

HINT_NS_MIN = 50 * NS_PER_MS

AFTER_OVERFLOW = {Reason.HOPELESS, Reason.DEADLINE, Reason.DEGRADED}
"""Said of a request that is to be placed, once it is decided whether it is sent to the backup."""


class Ending(Books):
    """Promises about how requests end."""

    def _outcome(
        self, tag: int, outcome: Outcome, reason: Reason, detail: Sequence[int], following: Sequence[int]
    ) -> None:
        hint_ns, stage = detail
        if reason is Reason.DISPLACED:
            self._check_victim(self.inside[tag], following)
        request, origin = self._take_out(tag)
        self._move_on(request, origin, stage)
        del self.inside[tag]
        self._ended.add(tag)
        if origin == "waiting":
            self._told.dropped.add((request.engine, request.priority))
        # A victim may get a degraded reply, and then it is not said that it was one.
        self._told.displaced = request.engine if reason in {Reason.DISPLACED, Reason.DEGRADED} else -1
        diffused = self._diffused[request.stage]
        if diffused is not None and (reason in AFTER_OVERFLOW or reason is Reason.QUEUE_FULL):
            diffused.at_most += 1
            diffused.unseen += int(reason in AFTER_OVERFLOW)
        assert 0 <= hint_ns < c.FOREVER, "(14) a hint is finite and not negative"
        if outcome in {Outcome.REJECTED, Outcome.SHED}:
            assert hint_ns >= HINT_NS_MIN, "(14) a refusal says when to come back"
        self._check_outcome(request, origin, outcome, reason)

    def _check_outcome(self, request: Inside, origin: Origin, outcome: Outcome, reason: Reason) -> None:
        kind = self._told.kind
        if reason is Reason.DEGRADED:
            assert self._pipeline.stages[request.stage].degraded is not None, "only where a stage has such a reply"
        elif outcome is Outcome.COMPLETED:
            at_the_end = request.stage + 1 == len(self._pipeline.stages)
            assert origin == "left", "(5) only what ran completes"
            assert kind == events.BATCH_DONE, "(5) only what ran completes"
            assert at_the_end, "(5) completed after the last stage"
        if outcome is Outcome.CANCELLED:
            assert kind == events.CANCEL, "(23) only a cancel cancels"
            assert self._told.arguments[1] == request.tag, "(23) a cancel ends one request"
        before = max(len(waiting) + self._busy_slots(engine) for engine, waiting in enumerate(self._waiting))
        facts: dict[Reason, bool] = {
            Reason.DEADLINE: self._now_ns >= request.deadline_ns,
            Reason.STAGE_TIMEOUT: self._now_ns >= self._ends_ns(request),
            Reason.HOPELESS: self._now_ns + self._despair.at_most_ns(request.stage, before) > request.deadline_ns,
            Reason.TABLE_FULL: len(self.inside) == self._pipeline.max_requests,
            Reason.DRAINING: self._draining,
            Reason.ENGINE_FAILED: kind in {events.BATCH_FAILED, events.ENGINE_DOWN} and origin == "left",
            Reason.STAGE_FAILED: kind == events.BATCH_DONE and origin == "left",
            Reason.QUEUE_FULL: any(self._is_full_for(engine, request) for engine in self._engines_of(request.stage)),
        }
        if outcome is Outcome.REJECTED:
            assert origin == "door", "only who stands at the door is rejected"
        assert facts.get(reason, True), f"{outcome.name} {reason.name} at {self._now_ns} is not so"

    def _check_victim(self, victim: Inside, following: Sequence[int]) -> None:
        present = self._waiting[victim.engine]
        assert len(present) >= self._settings[victim.engine].queue.limit, "(8) only a full queue displaces"
        assert following, "(8) a victim makes room for somebody"
        assert following[0] == c.PLACED, "(8) a victim makes room for somebody"
        assert following[3] == victim.engine, "(8) a victim makes room for somebody"
        newcomer = self.inside[following[1]]
        if victim.priority == newcomer.priority and victim.tenant == newcomer.tenant:
            assert victim.stage < following[2], "(8) of its own a request displaces only who has done less"
            behind = [one for one in present if (one.priority, one.tenant) == (victim.priority, victim.tenant)]
            least = max(behind, key=lambda request: (-request.stage, request.sequence))
            assert victim is least, "(8) the newest of those that have done least is displaced"
            assert all(one.priority <= victim.priority for one in present), "(8) a lower class makes room first"
            return
        if victim.priority == newcomer.priority:
            present = [one for one in present if one.tenant == victim.tenant or one.priority > victim.priority]
        else:
            assert newcomer.priority < victim.priority, "(8) only for a higher class"
        lowest = max(present, key=lambda request: (request.priority, request.sequence))
        assert victim is lowest, "(8) the newest of the lowest class present is displaced"
