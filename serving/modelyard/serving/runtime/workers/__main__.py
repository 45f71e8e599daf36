"""One worker: ``python -m modelyard.serving.runtime.workers CHANNEL INDEX FLAG...``, started by a supervisor."""

import socket
import sys

from modelyard.serving.runtime import main

if __name__ == "__main__":
    channel, index, *flags = sys.argv[1:]
    raise SystemExit(main(flags, worker=(socket.socket(fileno=int(channel)), int(index))))
