"""How public APIs count: token buckets, windows, logs and permits, each with its own clock reading.

Written from the documents of the APIs and from what their users measured, not from Tollway's code:
this is the side that judges.

Every limit answers four questions about a moment: would one more call be served (`has_room`), how
many would be (`left`), when is everything back (`full_in`), and when is one call back (`next_in`).
Only `take` changes anything, and it is called only if every limit of a call has room.
"""

import math
from collections import deque


class TokenBucket:
    """Refills continuously: `size` tokens come back evenly over `period` seconds."""

    def __init__(self, size, period):
        self.size, self.rate = size, size / period
        self.level, self.seen = float(size), None

    def refill(self, now):
        if self.seen is not None:
            self.level = min(self.size, self.level + (now - self.seen) * self.rate)
        self.seen = now

    def has_room(self, now, cost=1):
        self.refill(now)
        # Sums of floating point: a billionth of a token is not worth a refusal.
        return self.level + 1e-9 >= cost

    def take(self, now, cost=1):
        self.refill(now)
        self.level -= cost

    def left(self, now):
        self.refill(now)
        return max(0, math.floor(self.level + 1e-9))

    def full_in(self, now):
        self.refill(now)
        return (self.size - self.level) / self.rate

    def next_in(self, now, cost=1):
        self.refill(now)
        return max(0.0, (cost - self.level) / self.rate)


class FixedWindow:
    """Counts `size` calls, all back at once: `period` after the first, or on a whole second."""

    def __init__(self, size, period, whole_seconds=False):
        self.size, self.period, self.whole_seconds = size, period, whole_seconds
        self.used, self.ends = 0, 0.0

    def has_room(self, now, cost=1):
        return now >= self.ends or self.used + cost <= self.size

    def take(self, now, cost=1):
        if now >= self.ends:
            end = now + self.period
            self.used, self.ends = 0, math.ceil(end) if self.whole_seconds else end
        self.used += cost

    def left(self, now):
        return self.size if now >= self.ends else max(0, self.size - self.used)

    def full_in(self, now):
        return max(0.0, self.ends - now)

    def next_in(self, now, cost=1):
        return 0.0 if self.has_room(now, cost) else self.full_in(now)


class AnySpan:
    """No span of `period` seconds, wherever it begins, holds more than `size` calls."""

    def __init__(self, size, period):
        self.size, self.period, self.calls = size, period, deque()

    def forget(self, now):
        while self.calls and self.calls[0] + self.period <= now:
            self.calls.popleft()

    def has_room(self, now, cost=1):
        self.forget(now)
        return len(self.calls) + cost <= self.size

    def take(self, now, cost=1):
        self.calls.extend([now] * cost)

    def left(self, now):
        self.forget(now)
        return max(0, self.size - len(self.calls))

    def full_in(self, now):
        self.forget(now)
        return self.calls[-1] + self.period - now if self.calls else 0.0

    def next_in(self, now, cost=1):
        return 0.0 if self.has_room(now, cost) else self.calls[0] + self.period - now


class Permits:
    """At most `size` calls at work at once; `give_back` when one is answered."""

    def __init__(self, size):
        self.size, self.used = size, 0

    def has_room(self, _now, cost=1):
        return self.used + cost <= self.size

    def take(self, _now, cost=1):
        self.used += cost

    def give_back(self):
        self.used -= 1
