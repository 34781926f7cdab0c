"""A wall clock that jumps, for some processes: a preloaded library; the machine's stays as it is."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.lab import LabError

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The clock of the processes that are started in its environment.

    Parameters
    ----------
    directory : Path
        For the library and its offset.

    Raises
    ------
    LabError
        It cannot be built here.
    """

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise LabError("a clock that jumps needs a C compiler (cc)")
        library, self._offset = directory / "clock.so", directory / "clock.offset"
        self._offset.write_bytes(struct.pack("=q", 0))
        command: list[str | Path] = [compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE]
        built = subprocess.run(command, check=False, capture_output=True, text=True)
        if built.returncode:
            raise LabError(f"a clock that jumps cannot be built: {built.stderr.strip()}")
        self.environment = os.environ | {"LD_PRELOAD": str(library), "HS_CLOCK": str(self._offset)}
        self._refuse_static()

    def jump(self, seconds: int) -> None:
        """Be off by so much from now on."""
        with self._offset.open("r+b") as file:  # the same file, which others have mapped
            file.write(struct.pack("=q", seconds))

    def _refuse_static(self) -> None:
        """Make sure that an interpreter follows it: one with a libc of its own would not."""
        self.jump(86400)
        program = [sys.executable, "-c", "import time; print(time.time())"]
        said = subprocess.check_output(program, env=self.environment, text=True)
        self.jump(0)
        if float(said) - time.time() < 80000:
            raise LabError("this interpreter asks the kernel for the time, and no library")
