"""The Python of a box, and process 1's program compiled for it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from environments.sandboxes.base import SandboxError

OWN_PYTHON = "/opt/python"
BOX_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PACKAGE = Path(__file__).parent / "inside"
COMPILE = "import py_compile, sys; [py_compile.compile(p, p + 'c', doraise=True) for p in sys.argv[1:]]"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A python3: its path in the box, and the host folder to bind at OWN_PYTHON if it is not below /usr."""

    box_path: str
    host_folder: Path | None

    @property
    def host_path(self) -> str:
        """Where the host finds it."""
        return str(self.host_folder / "bin" / "python3") if self.host_folder else self.box_path

    @property
    def search_path(self) -> str:
        """PATH in the box."""
        return f"{OWN_PYTHON}/bin:{BOX_PATH}" if self.host_folder else BOX_PATH


def find_interpreter() -> Interpreter:
    """The host's own /usr python3 if there is one (so boxes look alike), else the one that runs us."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            return Interpreter(path, None)
    return Interpreter(f"{OWN_PYTHON}/bin/python3", Path(sys.base_prefix))


@cache
def program(interpreter: Interpreter) -> dict[str, bytes]:
    """Process 1's modules (`inside/NAME.pyc`) compiled once for all boxes: compiling at each start costs 10 ms.

    Raises SandboxError when the interpreter cannot compile them.
    """
    with TemporaryDirectory(prefix="longbreath-") as folder:
        copies = [Path(folder) / source.name for source in sorted(PACKAGE.glob("*.py"))]
        for copy in copies:
            copy.write_bytes((PACKAGE / copy.name).read_bytes())
        command = [interpreter.host_path, "-I", "-S", "-c", COMPILE, *map(str, copies)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode != 0:
            raise SandboxError(
                f"{interpreter.host_path} cannot compile a box's process 1: {done.stderr.strip()[-500:]}; boxes need "
                "Python 3.9 or later as /usr/bin/python3 (apt-get install python3)"
            )
        return {f"inside/{copy.stem}.pyc": copy.with_suffix(".pyc").read_bytes() for copy in copies}


def driver() -> str:
    """The shell's program without comments, on one line."""
    lines = (PACKAGE / "driver.sh").read_text().splitlines()
    return " ".join(line for line in lines if not line.startswith("#"))
