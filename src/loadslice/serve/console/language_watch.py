"""Looks on as a language model's requests end and tokens come; see `loadslice.serve.language.observer.Observer`."""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from loadslice.serve.language.observer import Observer
from loadslice.serve.language.request import LanguageRequest
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.route import Route

KEPT_MAX = 256
GAPS_MAX = 65_536
"""Between two turns."""


class Kept(NamedTuple):
    """A request that has ended, without what it said."""

    tag: int
    outcome: Outcome
    reason: Reason
    priority: int
    prompt_tokens: int
    new_tokens: int
    hit_tokens: int
    route: Route
    prefill: int
    decode: int
    places: int
    handover_ns: int
    arrival_ns: int
    first_ns: int
    end_ns: int


class Second(NamedTuple):
    """What one second brought; nanoseconds."""

    first_ns: "array[int]"
    gaps_ns: "array[int]"
    whole_ns: "array[int]"


class LanguageWatch:
    """An observer that keeps times and the last requests.

    Args:
        observer: Who is told too.
    """

    def __init__(self, observer: Observer) -> None:
        self.routes = [0] * len(Route)
        """Prompts by route."""
        self.kept: deque[Kept] = deque(maxlen=KEPT_MAX)
        self._observer = observer
        self._second = Second(array("q"), array("q"), array("q"))

    def turn(self) -> Second:
        """Begin another second, and give the last one."""
        ended, self._second = self._second, Second(array("q"), array("q"), array("q"))
        return ended

    def event(self, kind: str, now_ns: int, arguments: tuple[int, ...]) -> None:
        """See `Observer.event`."""
        self._observer.event(kind, now_ns, arguments)

    def stepped(self, engine: int, compute_ns: int, sample_ns: int, gaps_ns: Sequence[int]) -> None:
        """See `Observer.stepped`."""
        self._observer.stepped(engine, compute_ns, sample_ns, gaps_ns)
        if len(self._second.gaps_ns) < GAPS_MAX:
            self._second.gaps_ns.extend(gaps_ns)

    def handed_over(self, tokens: int, payload_bytes: int, export_ns: int, import_ns: int) -> None:
        """See `Observer.handed_over`."""
        self._observer.handed_over(tokens, payload_bytes, export_ns, import_ns)

    def handover_failed(self, reason: str) -> None:
        """See `Observer.handover_failed`."""
        self._observer.handover_failed(reason)

    def preempted(self, engine: int) -> None:
        """See `Observer.preempted`."""
        self._observer.preempted(engine)

    def ended(self, request: LanguageRequest) -> None:
        """See `Observer.ended`."""
        self._observer.ended(request)
        if request.places:
            self.routes[request.route] += 1
        if request.outcome is Outcome.COMPLETED:
            self._second.first_ns.append(request.first_ns - request.arrival_ns)
            self._second.whole_ns.append(request.end_ns - request.arrival_ns)
        self.kept.append(
            Kept(
                request.tag,
                request.outcome,
                request.reason,
                request.priority,
                len(request.prompt),
                len(request.produced),
                request.hit,
                request.route,
                request.prefill,
                request.decode,
                request.places,
                request.handover_ns,
                request.arrival_ns,
                request.first_ns,
                request.end_ns,
            )
        )
