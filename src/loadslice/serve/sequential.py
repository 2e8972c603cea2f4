"""Sequential tests: looked at as often as one likes, wrong as seldom as they say. Pure numbers, no clock.

A test here is an *e-process*: evidence that starts at 1 and, while its null hypothesis holds, is not expected to grow.
By Ville's inequality it then ever reaches 1/alpha with probability at most alpha, whenever and however often it is
looked at. Each is a mixture of likelihood ratios over a few alternatives, so it has power without knowing which is
true.

`RiskTest` compares two versions that serve *at the same time*. In one window canary and stable served n_c and n_s
requests, K of all of them were hits (failed, or were among the slowest). If the versions are equal, which of the
requests were the hits is exchangeable, so the canary's hits are hypergeometric; the likelihood ratio of a binomial is
convex in them, and a convex function of draws without replacement has no larger mean than of draws with replacement
(Hoeffding 1963, theorem 4). So each factor has mean at most 1 given K, n_c and n_s, whatever the rate is and however it
changes from window to window: load, input mix and share may drift freely. That is why the baseline must be concurrent.

References:
    Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58 (1963), theorem 4.
    Robbins, Statistical methods related to the law of the iterated logarithm, Ann. Math. Statist. 41 (1970).
    Johari, Koomen, Pekelis, Walsh, Always valid inference, Operations Research 70 (2022).
    Ramdas, Gruenwald, Vovk, Shafer, Game-theoretic statistics and safe anytime-valid inference, Stat. Sci. 38 (2023).
"""

import math
from collections.abc import Sequence

import msgspec

WORSE = (1.25, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0)
"""Relative risks that a test for harm looks for."""

EVIDENCE_MAX = 1e300
LOG_MAX = math.log(EVIDENCE_MAX)
"""More evidence than anybody needs, and still a number."""

BETTER = (0.8, 0.65, 0.5, 0.25, 0.1)
"""Those that a test for the absence of harm looks for, once the canary has been granted its margin."""


class RiskTest(msgspec.Struct, kw_only=True):
    """Evidence that the canary is hit more often (or less often) than the stable version, given equal exposure."""

    risks: tuple[float, ...] = WORSE
    logs: list[float] = []
    """Natural logarithm of the likelihood ratio, by relative risk."""
    peak: float = 1.0
    """The most that the evidence ever was."""

    def add(self, canary_hits: int, canary: int, stable_hits: int, stable: int) -> None:
        """Take in one window.

        Args:
            canary_hits: Of the canary's requests.
            canary: Requests of the canary, above 0.
            stable_hits: Of the stable version's requests.
            stable: Requests of the stable version, above 0.
        """
        assert canary > 0
        assert stable > 0
        if not self.logs:
            self.logs = [0.0] * len(self.risks)
        share = canary / (canary + stable)
        for index, risk in enumerate(self.risks):
            other = risk * canary / (risk * canary + stable)
            self.logs[index] += canary_hits * math.log(other / share)
            self.logs[index] += stable_hits * math.log((1 - other) / (1 - share))
        self.peak = max(self.peak, self.evidence)

    @property
    def evidence(self) -> float:
        """The e-value now: mean of the likelihood ratios."""
        return _mean_exp(self.logs)


class ShareTest(msgspec.Struct, kw_only=True):
    """Evidence that something happens more often than it may: successes whose chance should be at most ``limit``."""

    limit: float
    logs: list[float] = []
    peak: float = 1.0

    def _alternatives(self) -> list[float]:
        return [self.limit + (1 - self.limit) * part for part in (0.01, 0.05, 0.2, 0.5, 0.9)]

    def add(self, happened: bool) -> None:
        """Take in one trial."""
        alternatives = self._alternatives()
        if not self.logs:
            self.logs = [0.0] * len(alternatives)
        for index, chance in enumerate(alternatives):
            self.logs[index] += math.log(chance / self.limit if happened else (1 - chance) / (1 - self.limit))
        self.peak = max(self.peak, self.evidence)

    @property
    def evidence(self) -> float:
        """The e-value now."""
        return _mean_exp(self.logs)


def _mean_exp(logs: Sequence[float]) -> float:
    """Mean of exponentials, without overflow; 1 of none."""
    if not logs:
        return 1.0
    top = max(logs)
    if top > LOG_MAX:
        return EVIDENCE_MAX
    return math.fsum(math.exp(one) for one in logs) / len(logs)


def upper_bound(hits: int, trials: int, miss: float) -> float:
    """Confidence bound from above on a chance, valid at all times at once (Robbins' mixture with a uniform prior).

    Args:
        hits: Of the trials.
        trials: Independent, of one chance.
        miss: Chance that the bound is ever below it.

    Returns:
        The largest chance that cannot be excluded; 1 without trials.
    """
    if trials == 0 or hits >= trials:
        return 1.0
    return _edge(hits, trials, miss, hits / trials, 1.0)


def lower_bound(hits: int, trials: int, miss: float) -> float:
    """The same from below; 0 without trials."""
    if trials == 0 or hits <= 0:
        return 0.0
    return _edge(hits, trials, miss, hits / trials, 0.0)


def _edge(hits: int, trials: int, miss: float, inside: float, outside: float) -> float:
    """Where, between a chance that fits and one that does not, the mixture excludes it; to 2**-50."""
    mixture = math.lgamma(hits + 1) + math.lgamma(trials - hits + 1) - math.lgamma(trials + 2)

    def excluded(chance: float) -> bool:
        if chance <= 0 or chance >= 1:
            return True
        likelihood = hits * math.log(chance) + (trials - hits) * math.log1p(-chance)
        return mixture - likelihood >= -math.log(miss)

    for _ in range(50):
        middle = (inside + outside) / 2
        if excluded(middle):
            outside = middle
        else:
            inside = middle
    return outside


def slowest(canary: Sequence[float], stable: Sequence[float], *, doubt_for_canary: bool) -> int:
    """How many of the slowest quarter of all are the canary's, whose times have had its margin taken off before.

    Under "the canary is no slower than its margin allows" its times without the margin are no slower than exchangeable
    ones, and this count only falls as they do: a test for harm on it keeps its promise. The same the other way round.

    Args:
        canary: Times, of at least one.
        stable: Times, of at least one.
        doubt_for_canary: Whether equal times count as if the canary's were the quicker ones.

    Returns:
        The canary's part of `quarter` of all.
    """
    mark = 0 if doubt_for_canary else 2
    marked = [(time, mark) for time in canary] + [(time, 1) for time in stable]
    marked.sort(reverse=True)
    return sum(1 for _, whose in marked[: quarter(len(marked))] if whose == mark)


def quarter(count: int) -> int:
    """The slowest quarter, at least one."""
    return max(1, count // 4)
