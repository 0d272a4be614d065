"""Process between TVM's client, on pipes, and a connection that was opened for it.

Run as a file, with the connection's number and those of two pipes; it imports nothing of ours.
"""

import os
import sys
import threading

_PIECE = 1 << 20


def _pass_on(source: int, target: int) -> None:
    """Copy until either side ends, and end the process then."""
    try:
        while piece := os.read(source, _PIECE):
            left = memoryview(piece)
            while left:
                left = left[os.write(target, left) :]
    except OSError:
        pass  # the other side is gone, which is how sessions end
    os._exit(0)


def main() -> None:
    """Pass bytes on, both ways."""
    line, from_client, to_client = map(int, sys.argv[1:4])
    threading.Thread(target=_pass_on, args=(line, to_client), daemon=True).start()
    _pass_on(from_client, line)


if __name__ == "__main__":
    main()
