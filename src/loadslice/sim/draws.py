"""Numbers drawn by key: the same (seed, request, stage) gives the same number in whatever order events come.

So two plans simulated on the same traffic meet the same luck, and a changed decision changes nothing but its
consequences. Products stay below 2**63, which makes compiled and interpreted runs equal without unsigned types.
"""

import math

from loadslice.policy.kernel import entry

_MASK = 0xFFFFFFFF


# Two-sided 95 % points of Student's t by degrees of freedom; beyond the last the normal value is within 2 %.
_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
NORMAL_95 = 1.96


def t_95(freedom: int) -> float:
    """How many standard deviations hold 95 % when the deviation was found from ``freedom + 1`` values."""
    return _T_95[freedom - 1] if freedom <= len(_T_95) else NORMAL_95 * (1 + 1 / freedom)


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
