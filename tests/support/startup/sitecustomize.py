"""Run by every Python process that tests start: Keras finds none of the libraries that it has no use for here.

It imports scikit-learn, pandas and matplotlib where they are installed, and takes twice the time for it: 2 s of
processor time in each of some hundred processes. All else finds them.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_NAMES = frozenset({"sklearn", "pandas", "matplotlib"})


class _NotForKeras(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in _NAMES:
            keras = sys.modules.get("keras")
            if getattr(getattr(keras, "__spec__", None), "_initializing", False):
                raise ModuleNotFoundError(f"No module named {fullname!r} for Keras, in tests", name=fullname)


sys.meta_path.insert(0, _NotForKeras())
