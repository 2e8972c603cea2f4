"""What the watch asks of a placement: why there, why again, and was it overflow?"""

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.watch_books import Books, Inside, Origin
from loadslice.spec.outcome import Reason
from loadslice.spec.pipeline import CLASSES

AS_PREFERRED = {Reason.PREFERRED, Reason.RULE, Reason.FASTEST, Reason.CHEAPEST}


class Placing(Books):
    """Promises about where requests are sent."""

    def _placed(self, tag: int, stage: int, engine: int, reason: int, row: int) -> None:
        request, origin = self._take_out(tag)
        previous = request.engine
        assert origin != "left" or self._told.kind != events.BATCH_DONE or stage > request.stage, (
            "(5) a batch done is over"
        )
        self._move_on(request, origin, stage)
        is_repeated = self._is_repeated(request, origin)
        if is_repeated:
            request.attempts += 1
            request.clock_ns = self._now_ns
            assert request.attempts <= self._pipeline.retry.attempts, "(16) attempts within their cap"
            assert self._now_ns < request.deadline_ns, "(16) no attempt starts past a deadline"
            self._spend()
        self._check_reason(request, previous, engine, Reason(reason), is_repeated=is_repeated)
        if not is_repeated:
            self._count_overflow(request, engine, is_sent=reason == Reason.FAILOVER)
        assert self._up[engine], "(27) nobody is sent to a lost engine"
        waiting = self._waiting[engine]
        limit = self._settings[engine].queue.limit
        has_room = len(waiting) < limit or (not waiting and self._has_free_slot(engine))
        assert has_room, "(11) queue length within its limit at every instant"
        if self._told.kind == events.ROLLOUT:
            request.version = 0
            self._set_lane(request)
        self._sequence += 1
        request.row, request.engine = row, engine
        request.enqueued_ns, request.sequence = self._now_ns, self._sequence
        waiting.append(request)
        self._told.touched.add(engine)

    def _is_repeated(self, request: Inside, origin: Origin) -> bool:
        """Whether this placement is a further attempt, and not the first or a move of what only waited."""
        if origin == "waiting":
            return self._told.kind == events.TIMER and self._now_ns >= self._ends_ns(request)
        return origin == "running" or (origin == "left" and self._told.kind != events.BATCH_DONE)

    def _check_reason(self, request: Inside, previous: int, engine: int, reason: Reason, *, is_repeated: bool) -> None:
        stage = self._pipeline.stages[request.stage]
        assert self._names[engine] in stage.engine_names, "an engine of the stage"
        if reason is Reason.RETRY:
            assert is_repeated, "(14) only a failure is retried"
            assert engine == previous, "a retry stays where it was"
        elif reason is Reason.FAILOVER and is_repeated:
            assert engine != previous, "a failover goes elsewhere"
        elif reason is Reason.FAILOVER:
            failover = stage.failover
            assert failover is not None, "(13) overflow goes to the backup only"
            assert failover.to == self._names[engine], "(13) overflow goes to the backup only"
            allowed = failover.classes is None or CLASSES[request.priority] in failover.classes
            assert allowed, "(13) only classes that may fail over do"
        else:
            assert reason in AS_PREFERRED, f"placed for the reason {reason.name}"
            assert not is_repeated, "a further attempt says so"

    def _count_overflow(self, request: Inside, engine: int, *, is_sent: bool) -> None:
        """(13): whether a request that is placed was overflow, as far as queue lengths show."""
        stage = self._pipeline.stages[request.stage]
        diffused, failover = self._diffused[request.stage], stage.failover
        displaced, self._told.displaced = self._told.displaced, -1
        if diffused is None or failover is None:
            return
        if is_sent:
            full = [e for e in self._may_prefer(request) if self._names[e] != failover.to and self._is_overflow(e, 0)]
            assert full, "(13) only overflow goes to the backup"
            diffused.at_most += 1
            diffused.sent += 1
        elif (
            self._names[engine] != failover.to
            and (failover.classes is None or CLASSES[request.priority] in failover.classes)
            and self._is_overflow(engine, int(displaced == engine))
            and self._has_spare(self._names.index(failover.to))
        ):
            backup = self._settings[self._names.index(failover.to)]
            queue = self._settings[engine].queue
            is_sure = queue.overflow_at is not None and len(self._waiting[engine]) >= queue.overflow_at
            takes_all = stage.breaker is None and failover.to not in stage.accept and request.precision == 0
            is_sure &= takes_all and backup.queue.wait_limit_ms is None and request.deadline_ns == c.FOREVER
            diffused.at_most += 1
            diffused.at_least += int(is_sure)
        diffused.check()

    def _may_prefer(self, request: Inside) -> list[int]:
        """Engines that may have been preferred for a request; with a static order that nothing hides, the first."""
        stage = self._pipeline.stages[request.stage]
        up = [engine for engine in self._engines_of(request.stage) if self._up[engine]]
        is_plain = stage.breaker is None and not stage.accept and request.precision == 0
        return up[:1] if stage.prefer == "static" and is_plain else up

    def _is_overflow(self, engine: int, more: int) -> bool:
        """Whether a request may have been overflow on an engine where so many more waited than do now."""
        queue = self._settings[engine].queue
        is_long = queue.overflow_at is not None and len(self._waiting[engine]) + more >= queue.overflow_at
        return is_long or queue.wait_limit_ms is not None

    def _has_spare(self, engine: int) -> bool:
        """Whether an engine may have taken overflow of another."""
        waiting, queue = len(self._waiting[engine]), self._settings[engine].queue
        has_room = waiting < queue.limit or (waiting == 0 and self._has_free_slot(engine))
        return self._up[engine] and has_room and (queue.overflow_at is None or waiting < queue.overflow_at)
