"""Drills of the server: engines killed, hung and lost, poison, clients that leave, that are slow, that flood."""

import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from loadslice.evaluate.drills.desk import AFTER_S, WARM_S, Desk, pause, wait_for
from loadslice.evaluate.drills.stage import NotApplicableError
from loadslice.evaluate.wire import Heard, Letter
from loadslice.spec.drill import DrillResult

DETECT_S = 1.0
PING_TIMEOUT_S = 2.0
"""Longest time a worker may take to answer before the server is not ready (`serve.limits`)."""
PROBE_S = 0.5
RETURN_S = 30.0
"""Loading and warming a model again."""
LEAVERS = 10_000
LOOK_EVERY = 500
CONNECT_S = 30.0
SPARE_FILES = 256
"""Of this process's limit on open files, that are left for everything else."""
SLOW_CLIENTS = 60
FLOOD_CHUNKS = 4096
MEMORY_MB = 64.0
"""How much a hundred hostile connections may cost."""
SWEEP_S = 2.0
POISON = "drill-poison"
"""Id of the request that ends processes."""
PATIENT = {"x-request-id": POISON, "x-loadslice-deadline-ms": "60000"}
KILLS_MAX = 3
SIGNALS_MAX = 20


def _in_process(desk: Desk) -> str:
    """The first engine that runs models in a process of its own."""
    engines = desk.engines()
    for stage in desk.pipeline.stages:
        for name in stage.engine_names:
            if stage.python is None and engines[name]["isolation"] == "process":
                return name
    raise NotApplicableError("no engine that runs models has a process of its own; add `isolation: process` to one")


def _lost(heards: list[Heard]) -> int:
    """Requests that never heard of their end."""
    return sum(heard.error is not None for heard in heards)


def engine_killed(desk: Desk) -> DrillResult:
    """SIGKILL of an engine's process under load."""
    engine = _in_process(desk)
    with desk.traffic() as heards:
        pause(WARM_S)
        before = _signalled(desk, engine, signal.SIGKILL)
        seen_s = wait_for(lambda: _is_another(desk, engine, before), 5.0)
        back_s = wait_for(lambda: desk.engines()[engine]["state"] == "up", RETURN_S)
        pause(AFTER_S)
    lost, failed = _lost(heards), sum(heard.status in (500, 502) for heard in heards)
    held = lost == 0 and seen_s is not None and seen_s <= DETECT_S and back_s is not None
    return desk.result(
        "engine-killed",
        f"{lost} of {len(heards)} requests lost, {failed} failed; seen after {_s(seen_s)}, back after {_s(back_s)}",
        held, lost=lost, failed=failed, requests=len(heards), seen_s=seen_s, back_s=back_s, engine=engine,
    )  # fmt: skip


def _signalled(desk: Desk, engine: str, number: signal.Signals) -> dict[str, Any]:
    """Send a signal to an engine's process; the engine as it was then.

    Raises:
        NotApplicableError: The server goes on replacing it by itself.
    """
    for _ in range(SIGNALS_MAX):
        before = desk.engines()[engine]
        try:
            os.kill(int(before["pid"]), number)
        except ProcessLookupError:
            pause(PROBE_S)  # a crowded machine's: it was too slow to answer, and the server has replaced it
            continue
        return before
    raise NotApplicableError(f"the process of '{engine}' ends by itself before it can be broken")


def _is_another(desk: Desk, engine: str, before: dict[str, object]) -> bool:
    now = desk.engines()[engine]
    return bool(now["pid"] != before["pid"] or now["state"] != "up" or now["restarts"] != before["restarts"])


def engine_hung(desk: Desk) -> DrillResult:
    """SIGSTOP of an engine's process; or a hang by order, where engines are threads."""
    stage = next((one for one in desk.pipeline.stages if one.python is None), desk.pipeline.stages[0])
    engine = stage.engine_names[0]
    stopped = desk.engines()[engine]["isolation"] == "process"
    timeouts = [one.timeout_ms for one in desk.pipeline.stages if engine in one.engine_names]
    longest_s = max((ms for ms in timeouts if ms is not None), default=0.0) / 1000
    limit_s = max(2 * PING_TIMEOUT_S, longest_s + 2 * PROBE_S) + PROBE_S
    with desk.traffic() as heards:
        pause(WARM_S)
        if stopped:
            before = _signalled(desk, engine, signal.SIGSTOP)
        else:
            before = desk.engines()[engine]
            desk.fault(engine, "hang", 4 * limit_s)
        try:
            gone_s = wait_for(lambda: _is_another(desk, engine, before), 3 * limit_s)
            knows_s = wait_for(lambda: not desk.ready() or stopped, limit_s)
        finally:
            if stopped:
                _go_on(int(before["pid"]))
            else:
                desk.clear()
        back_s = wait_for(lambda: desk.engines()[engine]["state"] == "up" and desk.ready(), RETURN_S)
        pause(AFTER_S)
    lost = _lost(heards)
    held = gone_s is not None and gone_s <= limit_s and back_s is not None and lost == 0
    held &= knows_s is not None
    return desk.result(
        "engine-hung",
        f"left after {_s(gone_s)} of {limit_s:.1f} s, readiness {'knew' if knows_s is not None else 'did not know'}; "
        f"back after {_s(back_s)}; {lost} of {len(heards)} requests lost",
        held, left_s=gone_s, limit_s=limit_s, back_s=back_s, lost=lost, requests=len(heards), engine=engine,
    )  # fmt: skip


def _go_on(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # the server has killed and replaced it, as it should


def device_lost(desk: Desk) -> DrillResult:
    """The preferred engine of a stage fails on everything."""
    for stage in desk.pipeline.stages:
        engine = stage.engine_names[0]
        serving = [one for one in desk.pipeline.stages if engine in one.engine_names]
        if all(len(one.engine_names) > 1 for one in serving):
            break
    else:
        raise NotApplicableError("every stage has one engine only; give one a second in `engines:`")
    desk.learn()
    with desk.traffic() as heards:
        pause(WARM_S)
        desk.fault(engine, "down", 3 * AFTER_S)
        began = time.perf_counter()
        pause(AFTER_S)
        until = time.perf_counter()
        desk.clear()
        pause(AFTER_S)
    dilate = desk.subject.dilate
    during = [heard for heard in heards if began / dilate + 1 / dilate <= heard.sent_s < until / dilate]
    done = [heard for heard in during if heard.completed]
    wrong, lost = desk.wrong(heards), _lost(heards)
    elsewhere = sum(engine not in heard.engines for heard in done)
    share = len(done) / len(during) if during else 0.0
    held = wrong == 0 and lost == 0 and elsewhere > 0 and share >= 0.95
    return desk.result(
        "device-lost",
        f"{share:.1%} of {len(during)} requests completed from 1 s after the loss of '{engine}' on, {elsewhere} on "
        f"other engines; {wrong} wrong, {lost} lost",
        held, completed_share=share, elsewhere=elsewhere, wrong=wrong, lost=lost, requests=len(heards), engine=engine,
    )  # fmt: skip


def poison(desk: Desk) -> DrillResult:
    """The process of an engine ends each time it runs one certain request."""
    engine = _in_process(desk)
    first = desk.engines()[engine]
    desk.fault(engine, "poison", 4 * RETURN_S, id=POISON)
    kills, answer = 0, Heard("")
    for letter in desk.subject.letters:
        with desk.subject.line() as line:
            answer = line.post(Letter(letter.input, letter.body, {**letter.headers, **PATIENT}))
        back_s = wait_for(lambda: desk.engines()[engine]["state"] == "up" and desk.ready(), RETURN_S)
        kills = int(desk.engines()[engine]["restarts"]) - int(first["restarts"])
        if kills:
            break
    else:
        raise NotApplicableError(f"no request was given to the process of '{engine}'; list it first in `engines:`")
    # The fault stands: whoever is not that request is not harmed by it.
    with desk.subject.line() as line:
        after = [line.post(letter) for letter in desk.subject.letters]
    desk.clear()
    good = sum(heard.completed for heard in after)
    # Another engine may have been given it, and stood it: then it is kept away from the first all the same.
    others = {name for one in desk.pipeline.stages if engine in one.engine_names for name in one.engine_names}
    elsewhere = answer.completed and bool((others - {engine}) & set(answer.engines))
    again = int(desk.engines()[engine]["restarts"]) - int(first["restarts"]) - kills
    held = (elsewhere or not answer.completed) and good == len(after) and kills <= KILLS_MAX and again == 0
    return desk.result(
        "poison",
        f"answered {answer.status}{' by another engine' if elsewhere else ''} after {kills} ends of '{engine}', back "
        f"after {_s(back_s)}; {good} of {len(after)} other requests answered afterwards, {again} further ends",
        held, kills=kills, status=answer.status, others=len(after), others_completed=good, further_ends=again,
        engine=engine,
    )  # fmt: skip


def clients_leave(desk: Desk) -> DrillResult:
    """Many clients send a request each and all hang up at once."""
    parts = urlsplit(desk.subject.url)
    letter = desk.subject.letters[0]
    head = [f"POST {parts.path} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(letter.body)}"]
    head += [f"{name}: {value}" for name, value in letter.headers.items()]
    request = "\r\n".join([*head, "", ""]).encode() + letter.body
    with desk.subject.line() as line:
        usual = line.post(letter)
    opened: list[socket.socket] = []
    sent, most = 0, 0.0
    try:
        while len(opened) < _leavers():
            connection = socket.create_connection((parts.hostname or "", parts.port or 80), CONNECT_S)
            opened.append(connection)
            sent += _sent(connection, request)
            if len(opened) % LOOK_EVERY == 0:
                most = max(most, desk.inside() or 0.0)
        most = max(most, desk.inside() or 0.0)
    finally:
        for connection in opened:
            connection.close()
    empty_s = wait_for(lambda: desk.inside() == 0, 20.0)
    with desk.subject.line() as line:
        after = line.post(letter)
    running_s = (usual.whole_ms or 0.0) * desk.subject.dilate / 1000
    limit_s = SWEEP_S * desk.subject.dilate + 2 * running_s
    held = empty_s is not None and empty_s <= limit_s and after.completed
    return desk.result(
        "clients-leave",
        f"{sent:,} clients left, at most {most:.0f} of their requests were inside at once; empty after {_s(empty_s)} "
        f"of {limit_s:.1f} s, the next "
        f"request {'was answered' if after.completed else 'was not answered'}",
        held, clients=sent, inside_most=most, empty_s=empty_s, limit_s=limit_s,
    )  # fmt: skip


def _leavers() -> int:
    """As many clients as this process may have; the limit is raised as far as that goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEAVERS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return LEAVERS if soft == resource.RLIM_INFINITY else min(LEAVERS, soft - SPARE_FILES)


def _sent(connection: socket.socket, raw: bytes) -> bool:
    try:
        connection.sendall(raw)
    except OSError:
        return False
    return True


def slow_clients(desk: Desk) -> DrillResult:
    """Heads that never end, bodies of one byte a time, floods of tiny chunks, resets; beside good traffic."""
    parts = urlsplit(desk.subject.url)
    place = (parts.hostname or "", parts.port or 80)
    memory = desk.subject.memory_bytes
    before = memory() if memory is not None else None
    opened: list[socket.socket] = []
    with desk.traffic(2) as heards:
        pause(WARM_S)
        post = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: image/png\r\n"
        hostile = (
            f"{post}x-never: ",
            f"{post}content-length: 1000000\r\n\r\nx",
            f"{post}transfer-encoding: chunked\r\n\r\n" + "1\r\nx\r\n" * FLOOD_CHUNKS,
            "\x16\x03\x01",
        )
        for number in range(SLOW_CLIENTS):
            connection = socket.create_connection(place, 10)
            _sent(connection, hostile[number % len(hostile)].encode())
            opened.append(connection)
        pause(AFTER_S)
        peak = memory() if memory is not None else None
        for connection in opened:
            # A reset and no farewell.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.close()
        pause(WARM_S)
    empty_s = wait_for(lambda: desk.inside() == 0, 10.0)
    lost = _lost(heards)
    grown_mb = (peak - before) / 1e6 if peak is not None and before is not None else None
    held = empty_s is not None and lost == 0 and (grown_mb is None or grown_mb <= MEMORY_MB)
    grown = "unknown" if grown_mb is None else f"{grown_mb:+.1f} MB of {MEMORY_MB:g}"
    return desk.result(
        "slow-clients",
        f"{SLOW_CLIENTS} hostile connections: memory {grown}, {lost} of {len(heards)} good requests lost, nothing left "
        f"inside after {_s(empty_s)}",
        held, memory_mb=grown_mb, lost=lost, requests=len(heards), empty_s=empty_s,
    )  # fmt: skip


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


LIVE: dict[str, Callable[[Desk], DrillResult]] = {
    "engine-killed": engine_killed,
    "engine-hung": engine_hung,
    "device-lost": device_lost,
    "poison": poison,
    "clients-leave": clients_leave,
    "slow-clients": slow_clients,
}
