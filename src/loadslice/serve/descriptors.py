"""File descriptors: as many as connections need. Who has none left accepts nobody, not even who asks for health."""

import logging
import resource

from loadslice.serve.limits import Limits

log = logging.getLogger(__name__)

BESIDES = 1024
"""For models, engine processes, journals, handshakes, and connections that are on their way out."""


def raise_limit(limits: Limits, ports: int) -> None:
    """Have the system allow as many as are needed, where it does.

    Many systems allow 1024 to begin with, and a thousand times that to whoever asks.

    Args:
        limits: How many connections one port takes.
        ports: How many there are.
    """
    needed = ports * (limits.connections_max + limits.connections_reserved) + BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning(
            "the system allows %d open files, and %d connections may need %d: with many clients, some are not taken "
            "(`ulimit -Hn`, LimitNOFILE of systemd)",
            allowed,
            ports * limits.connections_max,
            needed,
        )
