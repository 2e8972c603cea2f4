"""What a language server is doing before it is ready: for whoever asks, and aloud."""

import asyncio
import math
from collections.abc import Callable, Sequence

from loadslice.backends.language import messages as m

SILENT_S = 300.0
"""An engine that loads and says nothing for so long does not load."""
TELL_S = 5.0
"""How often it is told, at most, how far an engine's measuring is."""


class Starting:
    """One start.

    Args:
        names: Of the engines, in the order in which they load.
        tell: Is told what is being done.
    """

    def __init__(self, names: Sequence[str], tell: Callable[[str], None]) -> None:
        self.text = "starting"
        self._names, self._tell, self._told_s = names, tell, -math.inf
        self._silent: asyncio.Timeout | None = None

    def say(self, text: str, *, at_least_s: float = 0.0) -> None:
        """What is being done now; told aloud unless something was told so shortly before."""
        self.text = text
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s >= at_least_s:
            self._told_s = now_s
            self._tell(text)

    def loading(self, index: int) -> asyncio.Timeout:
        """An engine loads; the time that it has to."""
        self.say(f"{self._which(index)}: loading")
        self._silent = asyncio.timeout(SILENT_S)
        return self._silent

    def measuring(self, index: int, message: m.Measuring) -> None:
        """An engine measures itself: one that gets on has its time anew."""
        text = f"{self._which(index)}: measuring its steps, {message.done} of {message.of} kinds done"
        self.say(text, at_least_s=TELL_S)
        if self._silent is not None and not self._silent.expired():
            self._silent.reschedule(asyncio.get_running_loop().time() + SILENT_S)

    def _which(self, index: int) -> str:
        return f"engine {self._names[index]} ({index + 1} of {len(self._names)})"
