"""What it costs to answer a request as a whole, from the body to the answer: learned from those before."""

from __future__ import annotations

#: Weight of the newest request: some ten requests after a change the average has followed it.
_NEWEST = 0.1
#: One pause of the machine must not shut the door for long: what took so many times as long counts as this.
_OUTLIER = 4.0
#: A request is guessed to cost so many times the average at most.
_LARGEST = 10.0


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
