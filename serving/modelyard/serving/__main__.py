"""``python -m modelyard.serving``."""

import sys

from modelyard.serving.runtime import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
