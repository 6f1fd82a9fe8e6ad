"""Is a process of this machine alive: the one question about the present that reading asks."""

from __future__ import annotations

import os
import socket


def is_alive(hostname: str | None, pid: int | None) -> bool:
    """Whether process `pid` runs on this machine; False for another machine's, since nobody can tell."""
    if pid is None or pid <= 0 or hostname != socket.gethostname():
        return False
    return _windows(pid) if os.name == "nt" else _posix(pid)


def _posix(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _windows(pid: int) -> bool:
    # os.kill(pid, 0) would send a console event here, so the process is asked for by a handle.
    import ctypes

    query_limited, still_active = 0x1000, 259
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - absent from the type stubs elsewhere
    handle = kernel.OpenProcess(query_limited, False, pid)
    if not handle:
        return False
    code = ctypes.c_ulong()
    answered = kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return bool(answered) and code.value == still_active
