"""TensorFlow's hashes of strings, made of integer arithmetic.

ONNX cannot reach the bytes of a string. But onnxruntime's MurmurHash3 of one character can be inverted, which gives its
bytes, and regular expressions tell how many it has in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from modelyard.export.text._nodes import BOOL, INT32, INT64, OWN_DOMAIN, UINT32, UINT64, Nodes, text_of

if TYPE_CHECKING:
    from tf2onnx.graph import Graph, Node

#: Characters of more than one, two and three bytes.
_LONGER = (r"[\x{80}-\x{10ffff}]", r"[\x{800}-\x{10ffff}]", r"[\x{10000}-\x{10ffff}]")
_MASK = 0xFFFFFFFF
#: Of FarmHash.
_K0, _K1, _K2, FACTOR, _SEED = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC6A4A7935BD1E995, 81
_BLOCK = 64
State: TypeAlias = "tuple[Word, ...]"


class Word:
    """Unsigned numbers of 64 bits in a graph; arithmetic wraps."""

    def __init__(self, graph: Nodes, tensor: str) -> None:
        self.graph, self.tensor = graph, tensor

    def _with(self, op: str, other: Word | int, **attributes: Any) -> Word:
        value = other.tensor if isinstance(other, Word) else np.array(other % (1 << 64), np.uint64)
        return Word(self.graph, self.graph.make(op, [self.tensor, value], UINT64, **attributes))

    def __add__(self, other: Word | int) -> Word:
        return self._with("Add", other)

    def __sub__(self, other: Word | int) -> Word:
        return self._with("Sub", other)

    def __mul__(self, other: Word | int) -> Word:
        return self._with("Mul", other)

    def __mod__(self, other: int) -> Word:
        return self._with("Mod", other)

    def __xor__(self, other: Word | int) -> Word:
        return self._with("BitwiseXor", other)

    def __or__(self, other: Word | int) -> Word:
        return self._with("BitwiseOr", other)

    def __and__(self, other: Word | int) -> Word:
        return self._with("BitwiseAnd", other)

    def __lshift__(self, bits: int) -> Word:
        return self._with("BitShift", bits, direction="LEFT")

    def __rshift__(self, bits: int) -> Word:
        return self._with("BitShift", bits, direction="RIGHT")

    def rotated(self, bits: int) -> Word:
        """To the right."""
        return self >> bits | self << 64 - bits

    def signed(self) -> str:
        return self.graph.cast(self.tensor, INT64)


def _unsigned(graph: Nodes, tensor: str) -> Word:
    return Word(graph, graph.cast(tensor, UINT64))


def _chosen(condition: str, yes: Word, no: Word) -> Word:
    """Each where a condition holds, and where it does not: onnxruntime's Where takes no such numbers."""
    return no + (yes - no) * _unsigned(yes.graph, condition)


class Texts:
    """The bytes of strings."""

    def __init__(self, graph: Nodes, texts: str) -> None:
        self.graph = graph
        pieces = graph.tokens(texts, separators=[""])
        sizes = graph.cast(graph.filled(pieces), INT64)
        #: Characters of each string, ``[N]``.
        self.characters = graph.make("ReduceSum", [sizes, np.array([1])], INT64, shape=[-1], keepdims=0)
        for pattern in _LONGER:
            longer = graph.make("RegexFullMatch", [pieces], BOOL, pattern=pattern)
            sizes = graph.make("Add", [sizes, graph.cast(longer, INT64)], INT64, shape=[-1, -1])
        #: Bytes of each string, ``[N]``.
        self.sizes = graph.make("ReduceSum", [sizes, np.array([1])], INT64, shape=[-1], keepdims=0)
        some = graph.make("Concat", [self.sizes, np.array([_BLOCK])], INT64, axis=0)
        longest = graph.make("ReduceMax", [some], INT64, keepdims=1)
        # Zeros follow the longest, too.
        self._room = graph.make("Add", [longest, np.array([8])], INT64, shape=[1])
        self._bytes = self._scattered(_characters(graph, pieces, sizes).tensor, sizes)

    def _scattered(self, characters: str, sizes: str) -> str:
        """All bytes ``[N, room + 1]``, zeros behind each string's; in the last column is anything."""
        graph = self.graph
        begins = graph.make("CumSum", [sizes, np.array(1)], INT64, exclusive=1)
        last = np.array([2])
        begins, sizes, characters = (graph.make("Unsqueeze", [each, last], UINT64 if each == characters else INT64)
                                     for each in (begins, sizes, characters))  # fmt: skip
        offsets = np.arange(4)
        places = graph.make("Add", [begins, offsets], INT64)
        there = graph.make("Less", [offsets, sizes], BOOL)
        places = graph.make("Where", [there, places, self._room], INT64)
        shifts = np.arange(0, 32, 8, dtype=np.uint64)
        values = Word(graph, graph.make("BitShift", [characters, shifts], UINT64, direction="RIGHT")) & 0xFF
        rows = graph.make("Shape", [self.sizes], INT64, shape=[1])
        columns = graph.make("Add", [self._room, np.array([1])], INT64, shape=[1])
        shape = graph.make("Concat", [rows, columns], INT64, shape=[2], axis=0)
        nothing = graph.make("Expand", [np.array(0, np.uint64), shape], UINT64, shape=[-1, -1])
        # A product, since -1 cannot be worked out where there are no rows.
        width = graph.make("Mul", [graph.make("Shape", [places], INT64, start=1, end=2), np.array([4])], INT64)
        flat = graph.make("Concat", [rows, width], INT64, shape=[2], axis=0)
        places = graph.make("Reshape", [places, flat], INT64, shape=[-1, -1], allowzero=1)
        found = graph.make("Reshape", [values.tensor, flat], UINT64, shape=[-1, -1], allowzero=1)
        return graph.make("ScatterElements", [nothing, places, found], UINT64, shape=[-1, -1], axis=1)

    def size(self) -> Word:
        return _unsigned(self.graph, self.sizes)

    def word(self, graph: Nodes, place: str | int, offset: int = 0, *, size: int = 8) -> Word:
        """A little-endian number; outside of a string it is any number, and not used."""
        if size > 4:
            # onnxruntime adds such numbers as doubles.
            return self.word(graph, place, offset, size=4) | self.word(graph, place, offset + 4, size=size - 4) << 32
        base = graph.make("Mul", [self.sizes, np.array(0)], INT64) if isinstance(place, int) else place
        offset += place if isinstance(place, int) else 0
        places = graph.make("Unsqueeze", [base, np.array([1])], INT64)
        places = graph.make("Add", [places, np.arange(offset, offset + size)], INT64)
        limit = graph.make("Squeeze", [self._room], INT64, shape=[])
        limit = graph.make("Sub", [limit, np.array(1)], INT64, shape=[])
        places = graph.make("Clip", [places, np.array(0), limit], INT64)
        found = graph.make("GatherElements", [self._bytes, places], UINT64, axis=1)
        shifts = np.arange(0, 8 * size, 8, dtype=np.uint64)
        found = graph.cast(graph.make("BitShift", [found, shifts], UINT64, direction="LEFT"), INT64)
        # Of other bits each: a sum is the same as OR, which knows no axis.
        found = graph.make("ReduceSum", [found, np.array([1])], INT64, shape=[-1], keepdims=0)
        return _unsigned(graph, found)

    def places(self, graph: Nodes, index: str, step: int) -> str:
        """A multiple of a step, for each string."""
        place = graph.make("Mul", [index, np.array(step)], INT64)
        return graph.make("Add", [graph.make("Mul", [self.sizes, np.array(0)], INT64), place], INT64)

    def repeat(self, counts: str, state: State, step: Callable[[Nodes, str, State], State]) -> State:
        """Takes steps, for each string so many."""

        def body(graph: Nodes, index: str, tensors: list[str]) -> list[str]:
            before = tuple(Word(graph, each) for each in tensors)
            goes_on = graph.make("Less", [index, counts], BOOL)
            after = step(graph, index, before)
            return [_chosen(goes_on, new, old).tensor for new, old in zip(after, before, strict=True)]

        some = self.graph.make("Concat", [counts, np.array([0])], INT64, axis=0)
        most = self.graph.make("ReduceMax", [some], INT64, shape=[], keepdims=0)
        ended = self.graph.loop(most, [each.tensor for each in state], UINT64, body)
        return tuple(Word(self.graph, each) for each in ended)


def _characters(graph: Nodes, pieces: str, sizes: str) -> Word:
    """The bytes of characters, little-endian, by the inverse of MurmurHash3_x86_32 with seed 0."""
    hashed = graph.make("MurmurHash3", [pieces], UINT32, domain=OWN_DOMAIN, positive=1, seed=0)

    def divided(value: Word, factor: int) -> Word:
        return value * pow(factor, -1, 1 << 32) & _MASK

    def turned(value: Word, bits: int) -> Word:
        return (value >> bits | value << 32 - bits) & _MASK

    value = _unsigned(graph, hashed)
    value = divided(value ^ value >> 16, 0xC2B2AE35)
    value = divided(value ^ value >> 13 ^ value >> 26, 0x85EBCA6B)
    value = value ^ value >> 16 ^ _unsigned(graph, sizes)
    whole = graph.make("Equal", [sizes, np.array(4)], BOOL)
    value = _chosen(whole, turned(divided(value - 0xE6546B64 & _MASK, 5), 13), value)
    return divided(turned(divided(value, 0x1B873593), 15), 0xCC9E2D51)


def _mixed(value: Word) -> Word:
    return value ^ value >> 47


def _both(one: Word, other: Word, factor: Word) -> Word:
    """FarmHash's HashLen16."""
    one = _mixed((one ^ other) * factor)
    return _mixed((other ^ one) * factor) * factor


def fingerprint(texts: Texts) -> Word:
    """FarmHash's Fingerprint64 (farmhashna::Hash64 of https://github.com/google/farmhash)."""
    graph, size = texts.graph, texts.size()
    factor = size * 2 + _K2

    def at(place: int, *, bytes: int = 8) -> Word:
        return texts.word(graph, place, size=bytes)

    def back(distance: int, *, bytes: int = 8) -> Word:
        return texts.word(graph, texts.sizes, -distance, size=bytes)

    def longer(than: int) -> str:
        return graph.make("Greater", [texts.sizes, np.array(than)], BOOL)

    middle = texts.word(graph, graph.make("Div", [texts.sizes, np.array(2)], INT64), size=1)
    found = _mixed((at(0, bytes=1) + (middle << 8)) * _K2 ^ (size + (back(1, bytes=1) << 2)) * _K0) * _K2
    found = _chosen(longer(0), found, size * 0 + _K2)
    found = _chosen(longer(3), _both(size + (at(0, bytes=4) << 3), back(4, bytes=4), factor), found)
    begin, end = at(0) + _K2, back(8)
    c, d = end.rotated(37) * factor + begin, (begin.rotated(25) + end) * factor
    found = _chosen(longer(7), _both(c, d, factor), found)
    a, b, c, d = at(0) * _K1, at(8), back(8) * factor, back(16) * _K2
    whole = _both((a + b).rotated(43) + c.rotated(30) + d, a + (b + _K2).rotated(18) + c, factor)
    found = _chosen(longer(16), whole, found)
    a = at(0) * _K2
    y = (a + b).rotated(43) + c.rotated(30) + d
    z = _both(y, a + (b + _K2).rotated(18) + c, factor)
    e, f, g, h = at(16) * factor, at(24), (y + back(32)) * factor, (z + back(24)) * factor
    whole = _both((e + f).rotated(43) + g.rotated(30) + h, e + (f + a).rotated(18) + g, factor)
    return _chosen(longer(_BLOCK), _long(texts), _chosen(longer(32), whole, found))


def _long(texts: Texts) -> Word:
    """Of more than 64 bytes."""
    graph = texts.graph
    zero, seed = texts.size() * 0, _SEED
    start = seed * _K1 + 113
    mixed = (start * _K2 + 113) % (1 << 64)
    x, y, z = zero + seed * _K2 + texts.word(graph, 0), zero + start, zero + (mixed ^ mixed >> 47) * _K2

    def step(inside: Nodes, index: str, state: State) -> State:
        return _block(texts, inside, texts.places(inside, index, _BLOCK), state, None)

    rest = graph.make("Sub", [texts.sizes, np.array(1)], INT64)
    # Division of the negative one of an empty string rounds to zero.
    blocks = graph.make("Div", [rest, np.array(_BLOCK)], INT64)
    x, y, z, v0, v1, w0, w1 = texts.repeat(blocks, (x, y, z, zero, zero, zero, zero), step)
    factor = ((z & 0xFF) << 1) + _K1
    w0 = w0 + (_unsigned(graph, rest) & _BLOCK - 1)
    v0 = v0 + w0
    w0 = w0 + v0
    last = graph.make("Sub", [texts.sizes, np.array(_BLOCK)], INT64)
    x, y, z, v0, v1, w0, w1 = _block(texts, graph, last, (x, y, z, v0, v1, w0, w1), factor)
    return _both(_both(v0, w0, factor) + _mixed(y) * _K0 + z, _both(v1, w1, factor) + x, factor)


def _block(texts: Texts, graph: Nodes, place: str, state: State, last: Word | None) -> State:
    """64 bytes; the last ones have a factor of their own, and two products more."""
    x, y, z, v0, v1, w0, w1 = state
    factor: Word | int = _K1 if last is None else last
    weight = 1 if last is None else 9

    def at(offset: int) -> Word:
        return texts.word(graph, place, offset)

    def weak(offset: int, a: Word, b: Word) -> tuple[Word, Word]:
        """WeakHashLen32WithSeeds."""
        a = a + at(offset)
        b = (b + a + at(offset + 24)).rotated(21)
        c = a
        a = a + at(offset + 8) + at(offset + 16)
        return a + at(offset + 24), b + a.rotated(44) + c

    x = (x + y + v0 + at(8)).rotated(37) * factor
    y = (y + v1 + at(48)).rotated(42) * factor
    x = x ^ w1 * weight
    y = y + v0 * weight + at(40)
    z = (z + w0).rotated(33) * factor
    v0, v1 = weak(0, v1 * factor, x + w0)
    w0, w1 = weak(32, z + w1, y + at(16))
    return z, y, x, v0, v1, w0, w1


def siphash(texts: Texts, key: tuple[int, int]) -> Word:
    """SipHash-2-4 (Aumasson and Bernstein, 2012)."""
    graph, zero = texts.graph, texts.size() * 0
    begin = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)

    def rounds(state: State, number: int) -> State:
        v0, v1, v2, v3 = state
        for _ in range(number):
            v0, v2 = v0 + v1, v2 + v3
            v1, v3 = v1.rotated(64 - 13) ^ v0, v3.rotated(64 - 16) ^ v2
            v0 = v0.rotated(32)
            v2, v0 = v2 + v1, v0 + v3
            v1, v3 = v1.rotated(64 - 17) ^ v2, v3.rotated(64 - 21) ^ v0
            v2 = v2.rotated(32)
        return v0, v1, v2, v3

    def taken(state: State, message: Word) -> State:
        v0, v1, v2, v3 = state
        v0, v1, v2, v3 = rounds((v0, v1, v2, v3 ^ message), 2)
        return v0 ^ message, v1, v2, v3

    def step(inside: Nodes, index: str, state: State) -> State:
        return taken(state, texts.word(inside, texts.places(inside, index, 8)))

    words = graph.make("Div", [texts.sizes, np.array(8)], INT64)
    state = tuple(zero + (start ^ key[index % 2]) for index, start in enumerate(begin))
    state = texts.repeat(words, state, step)
    rest = texts.word(graph, graph.make("Mul", [words, np.array(8)], INT64), size=7)
    v0, v1, v2, v3 = taken(state, rest | texts.size() << 56)
    v0, v1, v2, v3 = rounds((v0, v1, v2 ^ 0xFF, v3), 4)
    return v0 ^ v1 ^ v2 ^ v3


def hash_fast(context: Graph, node: Node, name: str, _: list[str]) -> None:
    source, buckets = node.input[0], node.get_attr_value("num_buckets")
    graph = Nodes(context, node, name)
    graph.done(graph.like((fingerprint(Texts(graph, source)) % buckets).signed(), source, INT64))


def hash_strong(context: Graph, node: Node, name: str, _: list[str]) -> None:
    source, buckets = node.input[0], node.get_attr_value("num_buckets")
    first, second = (int(each) % (1 << 64) for each in node.get_attr_value("key"))
    graph = Nodes(context, node, name)
    graph.done(graph.like((siphash(Texts(graph, source), (first, second)) % buckets).signed(), source, INT64))


def length(context: Graph, node: Node, name: str, _: list[str]) -> None:
    """Bytes, or characters."""
    source, unit = node.input[0], text_of(node, "unit")
    graph = Nodes(context, node, name)
    texts = Texts(graph, source)
    graph.done(graph.cast(graph.like(texts.characters if unit == "UTF8_CHAR" else texts.sizes, source, INT64), INT32))
