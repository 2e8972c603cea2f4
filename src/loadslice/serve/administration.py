"""What one server's administration answers: the handlers behind `admin`'s paths, and the ports they are reached on."""

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadslice.serve.access import Access
from loadslice.serve.admin import Admin, decode
from loadslice.serve.faults import FaultOrder, Switches
from loadslice.serve.front import Call, Front
from loadslice.serve.operated import Operated
from loadslice.serve.reply import Reply, json_reply
from loadslice.serve.rollout import Rollout
from loadslice.serve.rollout_admin import administer
from loadslice.serve.tls import Tls
from loadslice.spec import access as tokens
from loadslice.spec.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may reach a server, and how."""

    access: Access
    tokens_file: Path | None = None
    tls: Tls | None = None
    admin_port: int | None = None
    """Where administration is reached, on this machine only; ``None``: on the server's own port."""
    drills: bool = False
    """Whether faults may be ordered and process ids are told."""

    async def reload(self) -> dict[str, str | None]:
        """Read tokens and certificates again, beside the loop: thousands of tokens take half a second.

        Returns:
            Of each that there is, why it could not be; what cannot be read leaves the old in force.
        """
        report: dict[str, str | None] = {}
        if self.tokens_file is not None:
            try:
                self.access.replace(await asyncio.to_thread(tokens.load, self.tokens_file))
                report["tokens"] = None
            except InputError as error:
                report["tokens"] = str(error)
        if self.tls is not None:
            try:
                await asyncio.to_thread(self.tls.reload)
                report["certificates"] = None
            except InputError as error:
                report["certificates"] = str(error)
        return report


class Administration:
    """Handlers of one server.

    Args:
        server: Is asked and told.
        guard: Its guard.
        switches: Fault switches, where drills are allowed.
        rollout: Where rollouts are.
    """

    def __init__(
        self, server: Operated, guard: Guard, switches: Switches | None, rollout: Rollout | None = None
    ) -> None:
        self._server = server
        self._guard = guard
        self._switches = switches
        self._orders: set[asyncio.Future[Reply]] = set()
        """Being carried out."""
        self.admin = Admin()
        self.admin.add("GET", "/admin/server", self._describe)
        self.admin.add("GET", "/admin/engines", self._engines)
        self.admin.add("POST", "/admin/reload", self._reload)
        if rollout is not None:
            administer(self.admin, rollout)
        if switches is not None:
            self.admin.add("GET", "/admin/drills", self._drills)
            self.admin.add("POST", "/admin/drills/fault", self._fault)
            self.admin.add("POST", "/admin/drills/clear", self._clear)

    def route(self, front: Front) -> None:
        """Have a front answer these paths."""
        for path, methods in self.admin.routes.items():
            front.routes[path] = {method: partial(self._answer, method) for method in methods}

    async def _answer(self, method: str, call: Call) -> Reply:
        order = asyncio.ensure_future(self._carry_out(method, call))
        self._orders.add(order)
        order.add_done_callback(self._orders.discard)
        # To its end, though whoever gave it hangs up: half a reload would leave models loaded that nobody serves.
        return await asyncio.shield(order)

    async def _carry_out(self, method: str, call: Call) -> Reply:
        asked = call.head.query.encode() if method == "GET" else call.body
        status, document = await self.admin.answer(method, call.head.path, asked)
        if method == "POST":
            log.warning("%s by token %s: %d", call.head.path, call.caller.token, status)
        return json_reply(document, status)

    async def _describe(self, _body: bytes) -> dict[str, Any]:
        """What serves, and how it went so far."""
        server = self._server
        generation = server.generation
        return {
            "pipeline": generation.pipeline.pipeline,
            "generation": generation.number,
            "version": generation.serving.version,
            "ready": generation.shell is not None,
            "inside": generation.inside,
            "draining_generations": int(server.is_retiring),
            "outcomes": {outcome.name.lower(): count for outcome, count in server.outcomes.items()},
        }

    async def _engines(self, _body: bytes) -> dict[str, Any]:
        """Every engine: where it runs and how it is."""
        engines = self._server.generation.engines
        if engines is None:
            raise InputError("models are being loaded.")
        return {"engines": engines.describe()}

    async def _reload(self, _body: bytes) -> dict[str, Any]:
        """Read everything again: tokens, certificates, and what is served."""
        report = await self._guard.reload()
        wrong = {name: why for name, why in report.items() if why is not None}
        if wrong:
            raise InputError("; ".join(wrong.values()))
        generation = await self._server.reload()
        return {"generation": generation.number, "version": generation.serving.version}

    async def _drills(self, _body: bytes) -> dict[str, Any]:
        assert self._switches is not None
        engines = self._server.generation.engines
        return {
            "pid": os.getpid(),
            "engines": [] if engines is None else engines.describe(),
            "faults": self._switches.describe(),
        }

    async def _fault(self, body: bytes) -> dict[str, Any]:
        assert self._switches is not None
        self._switches.set(decode(body, FaultOrder))
        return {"faults": self._switches.describe()}

    async def _clear(self, _body: bytes) -> dict[str, Any]:
        assert self._switches is not None
        self._switches.clear()
        return {"faults": []}
