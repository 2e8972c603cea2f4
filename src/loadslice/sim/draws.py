"""Numbers drawn by key: the same (seed, request, stage) gives the same number in whatever order events come.

So two plans simulated on the same traffic meet the same luck, and a changed decision changes nothing but its
consequences. Products stay below 2**63, which makes compiled and interpreted runs equal without unsigned types.
"""

import math

from loadslice.policy.kernel import entry

_MASK = 0xFFFFFFFF


@entry(inlined=True)
def mix(value: int) -> int:
    """A 32-bit finaliser: three rounds of xor-shift and odd multiplication, each bijective on 32 bits."""
    value = value & _MASK
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & _MASK
    value = ((value ^ (value >> 15)) * 0x045D9F3B) & _MASK
    value = ((value ^ (value >> 13)) * 0x297A2D39) & _MASK
    return value ^ (value >> 16)


@entry(inlined=True)
def uniform(seed: int, tag: int, purpose: int) -> float:
    """A number in (0, 1) for one purpose of one request."""
    key = mix(seed ^ mix(tag) ^ mix((tag >> 32) + 0x5BD1))
    return (mix(key + 0x61C88647 * (purpose + 1)) + 0.5) / 4294967296.0


@entry(inlined=True)
def normal(seed: int, tag: int, purpose: int) -> float:
    """A standard normal number (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(uniform(seed, tag, purpose)))
    return radius * math.cos(2.0 * math.pi * uniform(seed, tag, purpose + 1_000_003))
