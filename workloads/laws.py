"""What the Twitter-like workload is drawn from: every number, with where it comes from, and laws fitted to them.

Kernels draw from closed-form inverses and tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.jit import inlined
from tagmatch.workloads.numbers import check_numbers, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import F64Array, I64Array


class PowerLaw(NamedTuple):
    """Numbers from 0 to `size`, with r about as frequent as (r + shift)^-exponent; see `power_law`."""

    low: float
    high: float
    inverse: float
    shift: float
    size: int


class Followed(NamedTuple):
    """How many publishers users follow: `values[i]` or fewer with probability `sums[i]`."""

    values: I64Array
    sums: F64Array


#: Users follow no publisher
NOBODY = Followed(np.zeros(1, np.int64), np.ones(1))


def power_law(size: int, exponent: float, shift: float) -> PowerLaw:
    """Return the law by which r, from 0 to `size`, has a share proportional to the integral of x^-exponent over
    [r + shift, r + shift + 1).

    With a shift of 1/2 that is Zipf's law for the ranks 1, 2, 3, ... but for 10 % of the first.
    """  # noqa: D205
    rest = 1.0 - exponent
    if abs(rest) < 1e-9:
        return PowerLaw(math.log(shift), math.log(size + shift), 0.0, shift, size)
    return PowerLaw(shift**rest, (size + shift) ** rest, 1.0 / rest, shift, size)


@inlined
def draw_power_law(law, u):
    """Return the number, int64, at `u` in [0, 1) of the law's cumulative distribution."""
    at = law.low + u * (law.high - law.low)
    x = np.exp(at) if law.inverse == 0.0 else at**law.inverse
    return min(max(np.int64(x - law.shift), 0), law.size - 1)


def followed_law(mean: float, exponent: float, most: int) -> Followed:
    """Return the discrete power law from 1 to `most`; its scale q is such that the mean is `mean`.

    P(K > k) is proportional to (1 + k / q)^-(exponent - 1) less its value at `most`.
    """
    if not 1 <= mean <= (most + 1) / 2:
        raise InvalidValueError(
            f"mean_followed must be from 1 to {(most + 1) / 2:g}, where users follow at most {most} publishers "
            f"(max_followed, or all there are), not {mean:g}"
        )
    up_to = np.arange(1, most + 1)

    def sums(log_q: float) -> F64Array:
        below: F64Array = -np.expm1((1 - exponent) * np.log1p(up_to * math.exp(-log_q)))
        below /= below[-1]
        return below

    log_q = _root(lambda log_q: most - sums(log_q)[:-1].sum(), mean, -40.0, 40.0)
    return Followed(up_to, sums(log_q))


def tweets_exponent(mean: float, most: int) -> float:
    """Return the exponent b with which min(T, most), P(T >= t) = t^-b for t = 1, 2, ..., has this mean."""
    log_t = np.log(np.arange(1, min(most, _SUMMED) + 1))

    def mean_of(b: float) -> float:
        total = float(np.exp(-b * log_t).sum())
        if most > _SUMMED:  # the rest by an integral
            low, high = math.log(_SUMMED + 0.5), math.log(most + 0.5)
            total += high - low if b == 1 else (math.exp((1 - b) * high) - math.exp((1 - b) * low)) / (1 - b)
        return total

    return -_root(lambda b: mean_of(-b), mean, -60.0, 0.0)


def geometric_ratio(mean: float, most: int) -> float:
    """Return the ratio r with which min(N, most), P(N > n) = r^n for n = 0, 1, ..., has this mean."""
    powers = np.arange(most)
    return _root(lambda r: float((r**powers).sum()), mean, 0.0, 1.0)


_SUMMED = 100_000


def _root(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return where a growing function reaches the target, by bisection."""
    for _ in range(64):
        middle = (low + high) / 2
        if function(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


Shares = tuple[tuple[str, float], ...]

#: Languages of tweets in percent (L. Hong, G. Convertino, E. H. Chi, "Language Matters in Twitter: A Large
#: Scale Study", ICWSM 2011; the paper's [6]); the ten named there are taken for the whole
LANGUAGES: Shares = (
    ("en", 51.1), ("ja", 19.1), ("pt", 9.6), ("id", 5.6), ("es", 4.7), ("nl", 1.4), ("ko", 1.3), ("fr", 1.3),
    ("de", 1.0), ("ms", 0.8),
)  # fmt: skip
#: Speakers of second languages in millions (Ethnologue 2019, as tabulated in Wikipedia's "List of languages by total
#: number of speakers"; the paper's footnote 9)
SECOND_LANGUAGES: Shares = (
    ("en", 898.4), ("hi", 295.3), ("ar", 274.0), ("fr", 199.3), ("zh", 198.7), ("id", 155.4), ("ru", 104.3),
    ("ur", 101.6), ("es", 74.9), ("de", 56.0), ("bn", 36.8), ("pt", 24.2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TwitterOptions:
    """What the workload is drawn from; each option's meaning and source is its `text`, from which its help is made.

    Kwak: H. Kwak, C. Lee, H. Park, S. Moon, "What is Twitter, a social network or a news media?", WWW 2010 (the
    paper's [8]). TREC: the Tweets2011 collection of the TREC microblog track, which the paper takes its tweets from.
    """

    seed: int = number(1, 0, 2**63 - 1, "Workloads with different seeds share their statistics only.")
    one_language: float = number(0.4, 0, 1, "Share of users with one language, the others have two (paper §4.2.1).")
    mean_followed: float = number(
        35.25, 1, 500_000, "Mean number of publishers that a user follows (Kwak: 1.47 G relations, 41.7 M users)."
    )
    followed_exponent: float = number(
        2.276, 1.01, 10, "Power-law exponent of the number of followed publishers (Kwak)."
    )
    max_followed: int = number(
        100_000, 1, 1_000_000, "Most publishers that a user follows (Kwak's fit holds so far), besides all there are."
    )
    publishers: int = number(
        5_300_000, 1, 2**32 - 1, "Users who write tweets (TREC: about 16 M tweets of 5.3 M users)."
    )
    popularity_exponent: float = number(
        0.0,
        0,
        3,
        "With 0, all publishers are as popular, and a user follows each at most once (paper §4.2.1). Otherwise the "
        "followers of the r-th are proportional to (r + shift)^-exponent; 0.784 is the rank-size law 1 / (2.276 - 1) "
        "of Kwak's followers.",
    )
    popularity_shift: float = number(
        5.4,
        0.5,
        2**32,
        "Shift of that law: of 5.3 M publishers, the first then has 0.2 % of all followers (Kwak: 2.9 M of 1.47 G); "
        "without meaning where the exponent is 0.",
    )
    mean_tweets: float = number(3.0, 1, 1_000_000, "Mean number of tweets of a publisher (TREC).")
    max_tweets: int = number(10_000, 1, 2**31 - 1, "Most tweets of a publisher (chosen).")
    frequent_writers: float = number(
        0.3, 0, 1, "Share of the publishers, by number of tweets, that are a tag in their interests (paper §4.2.1)."
    )
    hashtags: int = number(1 << 20, 1, 2**32 - 1, "Different hashtags, before translation (chosen).")
    hashtag_exponent: float = number(
        1.0, 0, 3, "Exponent of Zipf's law, which the frequency of hashtags follows (chosen)."
    )
    mean_tags: float = number(
        5.0, 1, 1001, "Mean number of tags of an interest, its publisher's included (paper §4.2.1)."
    )
    max_hashtags: int = number(10, 1, 1000, "Most hashtags of a tweet (chosen; 140 characters hold few more).")
    languages: Shares = LANGUAGES
    second_languages: Shares = SECOND_LANGUAGES

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("languages", "second_languages"):
            object.__setattr__(self, name, _checked_shares(name, getattr(self, name)))
        if self.one_language < 1 and len({code for code, _ in self.second_languages}) == 1:
            (only,) = (code for code, _ in self.second_languages)
            if any(code == only for code, _ in self.languages):
                raise InvalidValueError(f"second_languages must hold another language than {only!r}")
        if self.hashtags < 8 * self.max_hashtags:
            raise InvalidValueError(
                f"hashtags must be at least 8 times max_hashtags, {8 * self.max_hashtags}, not {self.hashtags}"
            )
        least, most = 1 + self.frequent_writers, self.max_hashtags + self.frequent_writers
        if not least <= self.mean_tags <= most:
            raise InvalidValueError(
                f"mean_tags must be from {least:g} (a hashtag and frequent_writers) to {most:g} (max_hashtags and "
                f"frequent_writers), not {self.mean_tags!r}"
            )
        if self.mean_tweets > self.max_tweets:
            raise InvalidValueError(
                f"mean_tweets must be at most max_tweets, {self.max_tweets}, not {self.mean_tweets}"
            )


def _checked_shares(name: str, shares: object) -> Shares:
    """Shares of languages as tuples, of which JSON makes lists."""
    try:
        pairs = tuple((code, weight) for code, weight in cast(Shares, shares))
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be pairs of a language and its share, not {shares!r}") from None
    codes = [code for code, _ in pairs]
    if not pairs or len(set(codes)) < len(codes):
        raise InvalidValueError(f"{name} must name at least one language, and none twice")
    for code, weight in pairs:
        if not isinstance(code, str) or not code or code[0] == "@":
            raise InvalidValueError(f"{name}: a language must be a string that does not begin with '@', not {code!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InvalidValueError(f"{name}: the share of {code!r} must be a number greater than 0, not {weight!r}")
    return pairs
