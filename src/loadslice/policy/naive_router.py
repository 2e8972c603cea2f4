"""Where the twin sends a request: who may serve it, who is preferred, overflow, hopelessness, room."""

import msgspec

from loadslice.policy.estimate import ServiceCurve
from loadslice.policy.naive_books import PLACED, NaiveBooks
from loadslice.policy.naive_breaker import FOREVER, MS, PPM
from loadslice.policy.naive_engine import Request
from loadslice.policy.naive_fit import accepts, holds, reach, takes_bucket
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import CLASSES

TRIAL_NS = 1000 * MS


class NaiveRouter(NaiveBooks):
    """The five questions, in the order in which a request meets them."""

    def _preferred(self, now_ns: int, request: Request) -> tuple[int, Reason]:
        stage = self.stages[request.stage]
        able = [e for e in self.order[request.stage] if self._available(request, e)]
        if not able:
            return -1, Reason.NONE
        # min() keeps the first of equals, which is the order of the file.
        fastest = min(able, key=lambda e: self._completion_ns(now_ns, request, e))
        if stage.prefer == "fastest":
            return fastest, Reason.FASTEST
        if stage.prefer == "cheapest":
            latest_ns = request.deadline_ns - now_ns - self._ahead_ns(now_ns, request)
            timely = [e for e in able if self._completion_ns(now_ns, request, e) <= latest_ns]
            asks = {e: (self._price(request, e), self._completion_ns(now_ns, request, e)) for e in timely}
            return min(timely, key=asks.__getitem__, default=fastest), Reason.CHEAPEST
        if stage.prefer == "rules":
            rule = next((rule for rule in stage.rules if holds(rule, request, self.sources)), None)
            named = [e for e in able if rule is not None and self.engines[e].name == rule.to]
            if named:
                return named[0], Reason.RULE
        return able[0], Reason.PREFERRED

    def _completion_ns(self, now_ns: int, request: Request, e: int) -> int:
        engine = self.engines[e]
        return engine.expected_wait_ns(now_ns, request) + self._service_ns(request, e) + engine.load_ns(request.stage)

    def _price(self, request: Request, e: int) -> int:
        """Of one row in a full batch: nJ, or 1e-12 of the currency."""
        engine = self.engines[e]
        curve = engine.curves.get(request.lane, ServiceCurve(0, 0))
        row_share_ns = curve.base_ns / engine.stages[request.stage].batch.size + curve.row_ns
        if self.pipeline.cheapest == "energy":
            return round(row_share_ns * (engine.settings.active_w or 0.0))
        return round(row_share_ns / 3_600_000_000_000 * (engine.settings.cost_per_hour or 0.0) * 1e12)

    def _service_ns(self, request: Request, e: int) -> int:
        return self.engines[e].service_ns(request.lane, request.items)

    def _ahead_ns(self, now_ns: int, request: Request, *, waits: bool = True, at_best: bool = False) -> int:
        """What later stages take, each on the engine where the request would be placed now."""
        service, longest_wait = 0, 0
        for later in range(request.stage + 1, len(self.stages)):
            found = []
            for e in self._might_go(request, later):
                wait_ns = self.engines[e].expected_wait_ns(now_ns, request) if waits else 0
                takes_ns = self._quickest_ns(later, e, at_best=at_best)
                if takes_ns is not None:
                    found.append((wait_ns + takes_ns, wait_ns))
            if found:
                ends_ns, wait_ns = min(found, key=lambda pair: pair[0])
                service += ends_ns - wait_ns
                longest_wait = max(longest_wait, wait_ns)
        return service + longest_wait

    def _might_go(self, request: Request, later: int) -> list[int]:
        """Engines that a later stage might choose for a request whose rows and shape there are not known."""
        stage = self.stages[later]
        able = [
            e
            for e in self.order[later]
            if self.engines[e].up
            and self.breakers[later][e].admits()
            and reach(stage, self.engines[e])[0] >= request.precision
        ]
        if stage.prefer == "static":
            return able[:1]
        if stage.prefer != "rules":
            return able
        named = set()
        for rule in stage.rules:
            when = msgspec.structs.replace(rule.when, items=None, bucket=None)
            if not holds(msgspec.structs.replace(rule, when=when), request, self.sources):
                continue
            named.add(rule.to)
            to = self._engine_index(rule.to)
            if when == rule.when and self.engines[to].up and self.breakers[later][to].admits():
                return [e for e in able if self.engines[e].name in named]
        return [e for e in able if self.engines[e].name in named or e == able[0]]

    def _quickest_ns(self, s: int, e: int, *, at_best: bool) -> int | None:
        """What a stage takes on an engine for nobody in particular; None: it takes no lane there."""
        engine, stage = self.engines[e], self.stages[s]
        if not at_best and engine.learned_ns.get(s):
            return engine.learned_ns[s]
        buckets = len(stage.buckets) + 1
        lanes = range(buckets * (1 if stage.canary is None else 2))
        takes = [
            engine.service_ns((s, lane), 1, at_best=at_best)
            for lane in lanes
            if takes_bucket(stage, engine, lane % buckets)
        ]
        return min(takes, default=None)

    def _has_spare(self, now_ns: int, request: Request, e: int) -> bool:
        engine = self.engines[e]
        return self._available(request, e) and engine.has_room() and not engine.is_overflow(now_ns, request)

    def _may_fail_over(self, request: Request) -> bool:
        failover = self.stages[request.stage].failover
        if failover is None:
            return False
        return failover.classes is None or CLASSES[request.priority] in failover.classes

    def _takes_overflow(self, now_ns: int, request: Request, e: int) -> bool:
        """Whether this piece of overflow of an engine goes to the backup; counts it if it could."""
        s = request.stage
        failover = self.stages[s].failover
        if failover is None or self.backup_of[s] == e or not self._may_fail_over(request):
            return False
        if not self._has_spare(now_ns, request, self.backup_of[s]):
            return False
        if self._is_late(now_ns, request, self.backup_of[s]):
            is_lost = self._is_late(now_ns, request, e)
            if not is_lost or not self._may_be_tried(now_ns, request, self.backup_of[s], waits=True):
                return False
        self.overflows[s] += 1
        self.credit_ppm[s] += round(failover.share * PPM)
        if self.credit_ppm[s] < PPM:
            return False
        self.credit_ppm[s] -= PPM
        self.sent[s] += 1
        return True

    def _needed_ns(self, request: Request, e: int, *, at_best: bool = False) -> int:
        engine = self.engines[e]
        return engine.service_ns(request.lane, request.items, at_best=at_best) + engine.load_ns(request.stage)

    def _is_late(self, now_ns: int, request: Request, e: int, *, waits: bool = True) -> bool:
        """Whether it would miss its deadline on an engine, placed there now; or without waits, started there now."""
        if request.deadline_ns == FOREVER:
            return False
        wait_ns = self.engines[e].expected_wait_ns(now_ns, request) if waits else 0
        ends_ns = now_ns + wait_ns + self._needed_ns(request, e) + self._ahead_ns(now_ns, request, waits=waits)
        return ends_ns > request.deadline_ns or request.deadline_ns <= now_ns

    def _may_be_tried(self, now_ns: int, request: Request, e: int, *, waits: bool) -> bool:
        """Whether it may show what an idle engine is worth: late, unless all were as quick as they have been."""
        engine = self.engines[e]
        spell_ns = min(self._needed_ns(request, e) + self._ahead_ns(now_ns, request, waits=False), TRIAL_NS)
        idle_ns = now_ns - engine.done_ns
        if not engine.is_idle() or idle_ns < spell_ns:
            return False
        ahead_ns = self._ahead_ns(now_ns, request, waits=waits, at_best=True)
        in_time = now_ns + self._needed_ns(request, e, at_best=True) + ahead_ns <= request.deadline_ns
        return in_time or idle_ns >= 10 * spell_ns

    def _dropped(self, now_ns: int, request: Request, e: int, *, waits: bool) -> bool:
        if not self._is_late(now_ns, request, e, waits=waits):
            return False
        if request.deadline_ns <= now_ns:
            self._finish(request, Outcome.EXPIRED, Reason.DEADLINE)
            return True
        if self._may_be_tried(now_ns, request, e, waits=waits):
            request.trial = True
            return False
        self._refuse(request, Outcome.SHED, Reason.HOPELESS, self.engines[e].hint_ns(now_ns))
        return True

    def _place(self, now_ns: int, request: Request, *, admitted: bool) -> None:
        e, reason = self._preferred(now_ns, request)
        if e < 0:
            stage = self.stages[request.stage]
            able = any(accepts(stage, self.engines[e], request) for e in self.order[request.stage])
            self._refuse(request, Outcome.FAILED, Reason.ENGINE_DOWN if able else Reason.INELIGIBLE)
            return
        if self.engines[e].is_overflow(now_ns, request) and self._takes_overflow(now_ns, request, e):
            e, reason = self.backup_of[request.stage], Reason.FAILOVER
        engine = self.engines[e]
        if self._dropped(now_ns, request, e, waits=True):
            return
        if not engine.has_room():
            hint_ns = engine.hint_ns(now_ns)
            victim = engine.victim(request)
            if victim is None:
                self._refuse(request, Outcome.SHED if admitted else Outcome.REJECTED, Reason.QUEUE_FULL, hint_ns)
                return
            self._leave_queue(victim)
            self._refuse(victim, Outcome.SHED, Reason.DISPLACED, hint_ns)
        self._settle(now_ns, request, e, reason)

    def _settle(self, now_ns: int, request: Request, e: int, reason: Reason) -> None:
        request.work_ns = self.engines[e].work_ns(request.lane, request.items)
        request.latest_ns = request.deadline_ns
        if request.deadline_ns < FOREVER:
            request.latest_ns -= self._ahead_ns(now_ns, request, waits=False)
        request.call = self.breakers[request.stage][e].enter(now_ns)
        request.engine = e
        request.enqueued_ns = now_ns
        self.sequence += 1
        request.sequence = self.sequence
        self.engines[e].join(request)
        self.effects.append((PLACED, request.tag, request.stage, e, reason, request.row))
        self._touch(e)
