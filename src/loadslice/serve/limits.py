"""Every limit the front enforces, in one place."""

from dataclasses import dataclass

from loadslice.serve.patience import STEP_S

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client, and all clients together, may ask; and how long things may take."""

    body_bytes_max: int = 16 * MEBIBYTE
    held_bytes_max: int = 1024 * MEBIBYTE
    """Bodies of all requests inside and replies being sent, together; the next body is told to come back."""
    connections_max: int = 1024
    """At this many, the one that has been idle longest makes room for the next; where none is idle, that is refused."""
    idle_s: float = 1.0
    """A connection is not called idle before this long after it was opened, or the client was last heard of."""
    connections_reserved: int = 16
    """Connections beyond that, for health and metrics only."""
    body_timeout_s: float = 30.0
    """Longest time a whole body may take to arrive."""
    reply_timeout_s: float = 30.0
    """Longest time the operating system may take to accept a whole reply; then the connection is cut. A client that
    does not read would hold its reply in memory for ever."""
    keepalive_timeout_s: float = 75.0
    """Longest time a connection may take to bring a whole request head, or stay idle."""
    load_timeout_s: float = STEP_S
    """Longest time that loading a model, or warming it up on one engine, may take; then what is being loaded is given
    up."""
    round_trip_timeout_s: float = 2.0
    """Longest time every engine's workers may take to answer before the server is not ready."""
    probe_interval_s: float = 0.5
    """How often engines that something speaks against are looked at. One that hangs is told to the core as down at most
    twice this long after its stage's timeout."""
    degraded_timeout_s: float = 0.5
    """Longest time a stage's degraded reply may take; then its request is refused after all."""
    degraded_waiting_max: int = 64
    """Requests that may wait for a degraded reply; the next is refused."""
    json_elements_max: int = 4_000_000
    """Tensor elements given as JSON, or as typed contents of gRPC. Many are decoded piece by piece, 80 ns each, while
    others are served."""
    text_elements_max: int = 100_000
    """Elements of one BYTES tensor, in either form; each becomes a Python object, one by one."""
    head_bytes_max: int = 32 << 10
    """Of a request's head, all its headers together."""
    headers_max: int = 128
    """Headers of one request."""
    rank_max: int = 16
    inputs_max: int = 256
    text_max: int = 256
    """Characters of an id, a source or an input name."""
