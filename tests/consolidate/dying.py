"""The hsstore command, killed by itself with SIGKILL when it renames a file for the k-th time.

python dying.py K ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

from hsstore.cli import main


def die_at(renames: int) -> None:
    """Have this process kill itself."""
    seen = count(1)

    def look(event: str, _: tuple[object, ...]) -> None:
        if event == "os.rename" and next(seen) == renames:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


if __name__ == "__main__":
    die_at(int(sys.argv[1]))
    sys.argv = ["hsstore", *sys.argv[2:]]
    main()
