"""What live drills share: a server that was started for drills, its administration, and traffic beside a fault."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from loadslice.evaluate import answers
from loadslice.evaluate.closed_loop import drive
from loadslice.evaluate.drills.stage import NotApplicableError
from loadslice.evaluate.layers.soak import gauge
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Heard, Letter, Line
from loadslice.spec.drill import BY_NAME, DrillResult
from loadslice.spec.pipeline import Pipeline

CLIENTS = 4
WARM_S, AFTER_S = 1.0, 3.0
POLL_S = 0.01
ASK_S = 180.0
"""Starting a rollout loads and warms a second version of everything."""
TRAFFIC_S_MAX = 60.0


@dataclass(slots=True)
class Desk:
    """A server under drill."""

    subject: Subject
    pipeline: Pipeline
    secret: str
    emulated: bool
    known: dict[str, dict[str, answers.Values]] = field(default_factory=dict)
    """Input -> outputs, from before anything was broken."""

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """One request to the administration.

        Raises:
            NotApplicableError: It is refused; says how.
        """
        base = urlsplit(self.subject.url)
        body = b"" if document is None else json.dumps(document).encode()
        headers = {"authorization": f"Bearer {self.secret}", "content-type": "application/json"}
        with Line(f"{base.scheme}://{base.netloc}", ASK_S) as line:
            letter = Letter("", body, headers)
            heard = line.get(path, headers) if method == "GET" else line.post(letter, path)
        if not heard.completed:
            said = heard.error or heard.body.decode("utf-8", "replace")[:120]
            raise NotApplicableError(f"the server's administration refused {path}: {heard.status} {said}")
        return json.loads(heard.body)

    def engines(self) -> dict[str, dict[str, Any]]:
        """Every engine as the server sees it, by name."""
        return {one["name"]: one for one in self.ask("GET", "/admin/drills")["engines"]}

    def fault(self, engine: str, kind: str, for_s: float, **more: float | str) -> None:
        """Order a fault."""
        self.ask("POST", "/admin/drills/fault", {"engine": engine, "kind": kind, "for_s": for_s, **more})

    def clear(self) -> None:
        """End every fault."""
        self.ask("POST", "/admin/drills/clear")

    def _replaced(self, broken: object) -> str:
        """Engines whose processes the server has replaced, but for the one that was broken on purpose."""
        return ", ".join(name for name, one in self.engines().items() if one["restarts"] and name != broken)

    def ready(self) -> bool:
        """Whether the server says it can serve."""
        with self.subject.line() as line:
            return line.get("/v2/health/ready").status == 200

    def inside(self) -> float | None:
        """Requests the server holds."""
        with self.subject.line() as line:
            return gauge(line.get("/metrics").body, "loadslice_requests_inside")

    def learn(self) -> None:
        """Ask for every input once, to know the right answers."""
        with self.subject.line() as line:
            for letter in self.subject.letters:
                heard = line.post(letter)
                outputs = answers.outputs_of(heard) if heard.completed else None
                if outputs:
                    self.known[letter.input] = outputs

    def wrong(self, heards: list[Heard]) -> int:
        """Completed answers that are clearly not what they were before."""
        seen: dict[tuple[str, bytes], bool] = {}
        for heard in heards:
            key = (heard.input, heard.body)
            if heard.completed and heard.input in self.known and key not in seen:
                difference = answers.compare(self.known[heard.input], answers.outputs_of(heard) or {})
                seen[key] = answers.alike([difference], "bf16") == "clearly"
        return sum(seen.get((heard.input, heard.body), False) for heard in heards if heard.completed)

    @contextlib.contextmanager
    def traffic(self, clients: int = CLIENTS) -> Iterator[list[Heard]]:
        """Send good requests meanwhile; the list is whole when the block has ended."""
        stop, heards = threading.Event(), list[Heard]()

        def send() -> None:
            heards.extend(drive(self.subject.line, self.subject.letters, clients, for_s=TRAFFIC_S_MAX, stop=stop))

        thread = threading.Thread(target=send, name="traffic")
        thread.start()
        try:
            yield heards
        finally:
            stop.set()
            thread.join()

    def result(self, name: str, figure: str, held: bool | None, **figures: float | str | None) -> DrillResult:
        """What came of a live drill.

        A promise that was not kept on a machine so crowded that the server had to replace engines nobody broke says
        nothing of the promise: it is not judged.
        """
        if held is False and (replaced := self._replaced(figures.get("engine"))):
            held = None
            figure = (
                f"not judged, this machine is too crowded: {replaced} did not answer in time and was replaced; {figure}"
            )
        return DrillResult(
            name=name,
            promise=BY_NAME[name].promise,
            figure=figure,
            held=held,
            basis="emulated" if self.emulated else "measured",
            figures=figures,
        )


def wait_for(true: Callable[[], bool], limit_s: float, *, every_s: float = POLL_S) -> float | None:
    """Seconds until something is true, or ``None`` when it is not within the limit.

    Args:
        true: Asked again and again.
        limit_s: How long.
        every_s: Between two questions; what costs the server something should not be asked as often as can be.
    """
    began = time.monotonic()
    pause = threading.Event()
    while (passed_s := time.monotonic() - began) < limit_s:
        if true():
            return time.monotonic() - began
        pause.wait(min(every_s, limit_s - passed_s))
    return None


def pause(seconds: float) -> None:
    """Let traffic run for a while."""
    threading.Event().wait(seconds)
