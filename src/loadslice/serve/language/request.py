"""One request of a language model, as the owner of the token desk knows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadslice.backends.language.messages import Drawn, Sampling
from loadslice.policy.tokens.columns import FOREVER
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.route import Route


@dataclass(slots=True, eq=False)
class LanguageRequest:
    """A prompt on its way to an answer.

    ``take`` is called with every token before the next step is decided, and says whether the token ends the answer;
    ``told`` after it, when the engine computes again: what is slow belongs there. ``ended`` is called once.
    """

    prompt: Sequence[int]
    new_max: int
    sampling: Sampling
    take: Callable[[Drawn], bool]
    told: Callable[[], None]
    ended: Callable[["LanguageRequest"], None]
    priority: int = 1
    first_by_ns: int = FOREVER
    deadline_ns: int = FOREVER
    tag: int = -1
    row: int = -1
    number: int = -1
    """Of its present place; another one when it is placed again."""
    begun: dict[int, int] = field(default_factory=dict)
    """Engines that know it, each with the number it knows it by."""
    names: list[bytes] = field(default_factory=list)
    """Of its prompt's blocks."""
    produced: list[int] = field(default_factory=list)
    route: Route = Route.NONE
    """Of its first placement."""
    prefill: int = -1
    decode: int = -1
    places: int = 0
    hit: int = 0
    """Tokens found in a prefix cache at its first placement."""
    arrival_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    end_ns: int = 0
    handover_ns: int = 0
    """Export and import of its KV, in the engines."""
    outcome: Outcome = Outcome.NONE
    reason: Reason = Reason.NONE
    hint_ns: int = 0
    failure: str = ""
    """What an engine said when it could not go on with it."""
