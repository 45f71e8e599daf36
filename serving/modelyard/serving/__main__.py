"""``python -m modelyard.serving``."""

import sys

from modelyard.serving._cli import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
