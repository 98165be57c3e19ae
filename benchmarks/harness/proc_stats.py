"""CPU time and memory of a process, from /proc."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, user and system, without ended children."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()  # the name may contain spaces and brackets
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def compiler_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a Java process's just-in-time compiler so far."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    fields = [stat.rpartition(")")[2].split() for stat in stats if "CompilerThre" in stat]
    return sum(int(one[11]) + int(one[12]) for one in fields) / _TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Return a process's resident memory. Raises `ValueError` if it is ending."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"process {pid} has no memory: it is ending")


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
