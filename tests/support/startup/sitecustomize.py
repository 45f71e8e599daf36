"""Run by every Python process that tests start: what makes the import of TensorFlow, in hundreds of them, cheaper.

Keras finds none of the libraries that it has no use for here: it imports scikit-learn, pandas and matplotlib where they
are installed, and takes twice the time for it, 2 s of processor time in each process. All else finds them.

And Python looks for no garbage while TensorFlow is imported, nor later among what that made: it looked 660 times, for
a sixth of the processor time of the import.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_NAMES = frozenset({"sklearn", "pandas", "matplotlib"})


class _NotForKeras(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in _NAMES:
            keras = sys.modules.get("keras")
            if getattr(getattr(keras, "__spec__", None), "_initializing", False):
                raise ModuleNotFoundError(f"No module named {fullname!r} for Keras, in tests", name=fullname)


class _WithoutCollections(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname)
        if spec is not None and spec.loader is not None and gc.isenabled():
            execute = spec.loader.exec_module

            def without_collections(module: ModuleType) -> None:
                gc.disable()
                try:
                    execute(module)
                finally:
                    gc.freeze()
                    gc.enable()

            spec.loader.exec_module = without_collections  # type: ignore[method-assign]
        return spec


sys.meta_path[:0] = [_NotForKeras(), _WithoutCollections()]
