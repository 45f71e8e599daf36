"""The parts of HTTP/2's header compression (HPACK, RFC 7541) that need no state: every peer here is made of them."""

from modelyard.wire.hpack._primitives import STATIC_TABLE, HpackError, huffman_codes, read_integer, read_text, sized

__all__ = ["HpackError", "STATIC_TABLE", "huffman_codes", "read_integer", "read_text", "sized"]
