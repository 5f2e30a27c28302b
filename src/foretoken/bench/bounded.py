"""What the system says of a process's memory; and a bound for other engines, which have none of their own.

    python -m foretoken.bench.bounded                           # prints the bytes of memory that a program may use
    python -m foretoken.bench.bounded --leave 1GiB COMMAND...   # locks all other memory, and runs a command

A memory control group is better than a lock, where one may be had: it bounds one program. The lock bounds the whole
machine, and takes its memory from all other programs.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from foretoken.common.limits import meminfo, memory_left
from foretoken.errors import ForetokenError, SettingError
from foretoken.settings.amounts import bytes_of

_SLACK = 1.1  # what is left may be so much more than the bound


def expect_bounded(within: Sequence[str], bound: int) -> int:
    """The bytes that are left to a program that is run by the command `within`. Raises SettingError if that is not the
    bound, or if the command does not run."""
    command = [*within, sys.executable, "-m", "foretoken.bench.bounded"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        left = int(said.split()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        why = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        raise SettingError(f"within is {' '.join(within)!r}, which does not run a command: {why}") from None
    if left > _SLACK * bound:
        raise SettingError(
            f"within is {' '.join(within)!r}, which leaves a program {left:,} bytes of memory, and the bound is "
            f"{bound:,}; give a command that bounds it (docs/larger-than-memory.md)"
        )
    return left


def locked(leave: int) -> mmap.mmap:
    """Memory that is in use until it is closed, so that `leave` bytes are left. Raises ForetokenError if the system
    does not allow it."""
    available = meminfo().get("MemAvailable", 0)
    size = available - leave
    if size <= 0:
        raise SettingError(f"{available:,} bytes of memory are left, and {leave:,} were to be; leave less")
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)):
        raise ForetokenError(f"{size:,} bytes of memory cannot be locked ({os.strerror(ctypes.get_errno())})")
    return memory


def peak_memory(process: int | str = "self") -> int:
    """The most bytes of memory that a process has used, by the system's count."""
    return 1024 * int(_told(process, "status")["VmHWM"].split()[0])


def forget_peak_memory() -> bool:
    """From now on `peak_memory` of this process is what it uses from now on. False where the system does not allow it.
    Source: Linux, proc(5), clear_refs."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def read_bytes(process: int | str = "self") -> int:
    """What a process has read from disks, by the system's count."""
    return int(_told(process, "io")["read_bytes"])


def _told(process: int | str, file: str) -> dict[str, str]:
    lines = Path(f"/proc/{process}/{file}").read_text(encoding="ascii", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def main() -> None:
    """The command line."""
    match sys.argv[1:]:
        case []:
            print(memory_left())
        case ["--leave", amount, *command] if command:
            try:
                leave = bytes_of(amount)
                if leave is None:
                    raise SettingError(f"leave is {amount!r}, expected an amount such as 1GiB")
                memory = locked(leave)
            except ForetokenError as error:
                sys.exit(f"foretoken: {error}")
            code = subprocess.run(command, check=False).returncode
            del memory
            sys.exit(code)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
