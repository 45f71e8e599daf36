"""What requests and batches cost: learned from those before."""

from __future__ import annotations

import threading

#: Weight of the newest request: some ten requests after a change the average has followed it.
_NEWEST = 0.1
#: One pause of the machine must not shut the door for long: what took so many times as long counts as this.
_OUTLIER = 4.0
#: A request is guessed to cost so many times the average at most.
_LARGEST = 10.0
#: The same weight for batches, of which there are fewer.
_NEWEST_BATCH = 0.2
#: How much speaks for what was found before: as much as this variance of the rows, relative to their mean's square.
_DOUBT = 0.05
#: A row takes at least so much of what one takes on the average: no number of them is free.
_LEAST = 0.02


class _Average:
    """Moving averages of what requests took, and of their size."""

    __slots__ = ("known", "seconds", "size")

    def __init__(self) -> None:
        self.known = False
        self.seconds = 0.0
        self.size = 0.0

    def add(self, seconds: float, size: int) -> None:
        if not self.known:
            self.seconds, self.size, self.known = seconds, float(size), True
            return
        # Of a larger request more is expected.
        usual = self.seconds * max(1.0, size / self.size if self.size else 1.0)
        self.seconds += _NEWEST * (min(seconds, _OUTLIER * usual) - self.seconds)
        self.size += _NEWEST * (size - self.size)


class RequestCost:
    """Seconds of a worker thread that a request will take, guessed before it is decoded.

    Images and numbers take time by their bytes, and the bytes are all that is
    known of a request at the door: decoding it to count its rows would cost
    what refusing it is to save. The guess is the ratio of two averages and not
    the average of ratios, so that the sum over a queue is right even where
    small requests cost more per byte than large ones.
    """

    __slots__ = ("_sized", "_unsized")

    def __init__(self) -> None:
        self._sized = _Average()
        self._unsized = _Average()

    def of(self, size: int) -> float:
        """The guess; 0 until one request was answered.

        Args:
            size: Bytes of the body; 0 where the transport does not say.
        """
        sized = self._sized
        if size and sized.known:
            # Of what is much larger than all before, not all may grow with the bytes; and it must not be shut out for
            # ever by a guess that nobody checks.
            return sized.seconds * min(size / sized.size, _LARGEST)
        known = self._unsized if self._unsized.known else sized
        return known.seconds

    def learn(self, seconds: float, size: int) -> None:
        """Follows what requests cost.

        Args:
            seconds: What a worker thread was busy with a request, by the clock
                on the wall: those behind it waited as long.
            size: As for :meth:`of`.
        """
        (self._sized if size else self._unsized).add(seconds, size)


class BatchCost:
    """Seconds that a batch takes by the clock on the wall: so many whatever it holds, and so many for each row.

    Both come from a line through what the newest batches took (least squares
    with exponentially decaying weights). Without the first part, a queue of one
    large batch would be guessed to take as long as one of many small ones:
    with a model whose time hardly grows with the rows, nearly everybody would be
    refused who could have shared the next batch. While all batches are alike,
    which says nothing of a line, the share of the first part stays what it was:
    a server that was idle for a while must not forget what batches are good for.

    Args:
        fixed: The first part of what a batch of one row takes, as loading found it: 0 for none, 1 for all of it.

    Attributes:
        parts: Both parts; zeros until a batch was computed.
    """

    __slots__ = ("_covariance", "_fixed", "_lock", "_rows", "_seconds", "_variance", "parts")

    def __init__(self, fixed: float = 0.0) -> None:
        self.parts = (0.0, 0.0)
        self._fixed = fixed
        self._rows = self._seconds = 0.0
        self._variance = self._covariance = 0.0
        # Several threads compute batches, and half of an update would be a line to nowhere.
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether a batch was computed."""
        return self._rows > 0

    def learn(self, seconds: float, rows: int) -> None:
        """Follows what batches take.

        Args:
            seconds: What a batch took, by the clock on the wall.
            rows: Its rows; a batch without any says nothing.
        """
        if rows < 1:
            return
        with self._lock:
            if self._rows:
                seconds = min(seconds, _OUTLIER * (self.parts[0] + self.parts[1] * rows))
                more_rows, more_seconds = rows - self._rows, seconds - self._seconds
                self._rows += _NEWEST_BATCH * more_rows
                self._seconds += _NEWEST_BATCH * more_seconds
                kept = 1.0 - _NEWEST_BATCH
                self._variance = kept * (self._variance + _NEWEST_BATCH * more_rows * more_rows)
                self._covariance = kept * (self._covariance + _NEWEST_BATCH * more_rows * more_seconds)
            else:
                self._rows, self._seconds = float(rows), seconds
            before = self._seconds * (1 - self._fixed) / (self._fixed + (1 - self._fixed) * self._rows)
            doubt = _DOUBT * self._rows * self._rows
            each = (self._covariance + doubt * before) / (self._variance + doubt)
            mean = self._seconds / self._rows
            each = min(max(_LEAST * mean, each), mean)
            whole = max(0.0, self._seconds - each * self._rows)
            self._fixed = whole / (whole + each) if each else self._fixed
            self.parts = (whole, each)
