"""Who counts and keeps what happens to a language model's requests; called on the loop's thread."""

from collections.abc import Sequence
from typing import Protocol

from loadslice.serve.language.request import LanguageRequest


class Observer(Protocol):
    """Told of everything by the owner of the token desk."""

    def event(self, kind: str, now_ns: int, arguments: tuple[int, ...]) -> None:
        """A call into the desk, before its effects are carried out."""

    def stepped(self, engine: int, compute_ns: int, sample_ns: int, gaps_ns: Sequence[int]) -> None:
        """A step is done; the times between two tokens of one answer that it closed."""

    def handed_over(self, tokens: int, payload_bytes: int, export_ns: int, import_ns: int) -> None:
        """KV has been moved."""

    def handover_failed(self, reason: str) -> None:
        """KV could not be moved."""

    def preempted(self, engine: int) -> None:
        """A sequence has lost its place to another."""

    def ended(self, request: LanguageRequest) -> None:
        """A request has its outcome."""
