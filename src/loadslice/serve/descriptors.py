"""File descriptors: as many as connections need, or no more connections than there are descriptors for.

Who has none left accepts nobody, not even who asks for health, starts no engine again and writes no journal.
"""

import dataclasses
import logging
import resource

from loadslice.serve.limits import Limits

log = logging.getLogger(__name__)

BESIDES = 1024
"""For models, engine processes, journals, handshakes, and connections that are on their way out."""


CONNECTIONS_MIN = 8
"""A port that takes fewer at once is none."""


def fitting(limits: Limits, ports: int) -> Limits:
    """Have the system allow as many as are needed, and where it does not, take fewer connections.

    Many systems allow 1024 to begin with, and a thousand times that to whoever asks.

    Args:
        limits: How many connections one port takes.
        ports: How many there are.

    Returns:
        The limits, with as many connections as half of the descriptors are for, where not all they say can be had.
    """
    needed = ports * (limits.connections_max + limits.connections_reserved) + BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return limits
    room = (allowed - min(BESIDES, allowed // 2)) // ports - limits.connections_reserved
    count = max(CONNECTIONS_MIN, min(limits.connections_max, room))
    log.warning(
        "the system allows %d open files, and %d connections on each of %d ports may need %d: %d are taken at once "
        "(`ulimit -Hn`, LimitNOFILE of systemd)",
        allowed,
        limits.connections_max,
        ports,
        needed,
        count,
    )
    return dataclasses.replace(limits, connections_max=count)
