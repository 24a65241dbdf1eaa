"""What it takes to match so many messages together, learned from what it has taken: a + b·n seconds."""

from __future__ import annotations

#: How much of a sample's weight is left after the next: about the last hundred count
_KEPT = 0.99
#: A sample counts as at most so many times what was expected, so that one pause of the machine spoils no estimate
_MOST_TIMES = 4.0
#: The first samples are judged together: a message takes at most so many times what it takes in the median. That is
#: more than a task's own cost comes to, and far less than to compile a kernel
_FIRST = 8
_FIRST_TIMES = 32.0
#: How fast the spread follows
_SPREAD_STEP = 0.1
_MOST_SPREAD = 1.0
#: What is left of an estimate each time that it turns a message away
_DOUBTED = 0.9
#: Tasks differ in size if 1/n varies by this share of its mean square
_VARIES = 1e-9


class CostModel:
    """Seconds that a task of `n` messages takes, `once + each * n`, by least squares of the seconds for a message.

    What a message of a task takes, `once / n + each`, varies as much in tasks of all sizes; so no large task outweighs
    the small ones. Older samples count less. One thread at a time may call this.

    Attributes
    ----------
    once, each : float
        Seconds of a task, and of each message in it.
    spread : float
        How far tasks are from what is expected, as a share of that.
    largest : int
        Messages of the largest task that was measured.
    """

    def __init__(self) -> None:
        self.once = self.each = self.spread = 0.0
        self.largest = 0
        self._first: list[tuple[int, float]] = []
        # Weighted sums, of 1, x, x², y and x·y, where x = 1/n and y = seconds/n
        self._sums = [0.0] * 5

    def learn(self, count: int, seconds: float) -> None:
        """Take into account that a task of so many messages took so long."""
        self.largest = max(self.largest, count)
        expected = self.once + self.each * count
        if expected > 0:
            off = min(abs(seconds - expected) / expected, _MOST_SPREAD)
            self.spread += _SPREAD_STEP * (off - self.spread)
        if len(self._first) < _FIRST:
            self._first.append((count, seconds))
            by_message = sorted(seconds / count for count, seconds in self._first)
            most = _FIRST_TIMES * by_message[(len(by_message) - 1) // 2]
            self._sums = [0.0] * 5
            for count, seconds in self._first:
                self._add(count, min(seconds, most * count))
        else:
            self._add(count, min(seconds, _MOST_TIMES * expected) if expected > 0 else seconds)
        self._fit()

    def doubt(self) -> None:
        """Take something off, as this has turned a message away, of which nothing can be learned now.

        Without that, an estimate that is too high by far would stay so for ever.
        """
        self._first = [(count, seconds * _DOUBTED) for count, seconds in self._first]
        self._sums[3:] = [each * _DOUBTED for each in self._sums[3:]]
        self._fit()

    def seconds(self, count: int) -> float:
        """What a task of so many messages takes, rather too much than too little; 0 where nothing is known."""
        return (self.once + self.each * count) * (1 + self.spread)

    def backlog(self, count: int, most: int) -> float:
        """What it takes to match so many messages, `most` to a task."""
        return (self.once * -(-count // most) + self.each * count) * (1 + self.spread)

    def most(self, seconds: float, limit: int) -> int:
        """How many messages a task may have to take so long at most: 1 at least, `limit` at most.

        At most twice as many as a task had that was measured: further there is no telling.
        """
        limit = min(limit, max(1, 2 * self.largest))
        left = seconds / (1 + self.spread) - self.once
        if self.each * limit <= left:
            return limit
        return max(1, int(left / self.each)) if self.each > 0 else 1

    def _add(self, count: int, seconds: float) -> None:
        x, y = 1 / count, seconds / count
        self._sums = [_KEPT * old + new for old, new in zip(self._sums, (1.0, x, x * x, y, x * y), strict=True)]

    def _fit(self) -> None:
        ones, xs, xxs, ys, xys = self._sums
        if not ones:
            return
        varies = ones * xxs - xs * xs
        # Tasks of one size say nothing about another: then all is taken for the messages' own
        once = (ones * xys - xs * ys) / varies if varies > _VARIES * ones * xxs else 0.0
        each = (ys - once * xs) / ones
        if once < 0:
            once, each = 0.0, ys / ones
        elif each < 0:
            once, each = ys / xs, 0.0
        self.once, self.each = once, each
