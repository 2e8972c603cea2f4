"""The console of a language model's server: its paths on the front, and what it looks at."""

from typing import TYPE_CHECKING

from loadslice.serve.clock import Clock
from loadslice.serve.console.desk import PATHS, ConsoleDesk
from loadslice.serve.console.language_view import LanguageView
from loadslice.serve.console.language_watch import LanguageWatch
from loadslice.serve.language.front import LanguageFront
from loadslice.serve.language.observer import Observer

if TYPE_CHECKING:
    from loadslice.serve.language.server import LanguageServer


class LanguageConsole:
    """Shows one server.

    Args:
        front: Not started yet; gets the paths.
    """

    def __init__(self, front: LanguageFront) -> None:
        self.desk = ConsoleDesk(front.access)
        self._watch: LanguageWatch | None = None
        for path in PATHS:
            front.looks[path] = self.desk.answer

    def observed(self, observer: Observer) -> Observer:
        """Look on beside an observer."""
        self._watch = LanguageWatch(observer)
        return self._watch

    def start(self, server: "LanguageServer", clock: Clock) -> None:
        """Look at it from now on, once per second; on the loop, after `observed`."""
        assert self._watch is not None
        self.desk.start(LanguageView(server, clock, self._watch))

    def stop(self) -> None:
        """Look no more."""
        self.desk.stop()
