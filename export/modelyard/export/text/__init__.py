"""What converters are given for text and tables."""

from modelyard.export.text._expressions import prefers_shorter
from modelyard.export.text._guard import keep_assertions
from modelyard.export.text._handlers import Handler, make_string_handlers, name_operator_sets

__all__ = ["Handler", "keep_assertions", "make_string_handlers", "name_operator_sets", "prefers_shorter"]
