"""Nodes that break what a process shares: descriptors, limits, streams, functions, folders, threads."""
# ruff: noqa: N802 (the host asks for these names)

import builtins
import ctypes
import gc
import locale
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

CATEGORY = "stagexec chaos"


def sys_exit():
    sys.exit(3)


def exit_in_a_thread():
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()


def endless_recursion():
    endless_recursion()


def deep_cause():
    """An exception with thousands of causes, whose text and representation raise as well."""
    error = BadText()
    for _ in range(3000):
        error.__cause__ = None
        new = BadText()
        new.__cause__ = error
        error = new
    raise error


class BadText(Exception):
    """Cannot be shown."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def half_a_character():
    raise ValueError("\ud800 \x1b[31m")


def close_ours():
    close(lambda path: "/ledger/" in path)


def close_files():
    """What daemons do, but for sockets and the event loop's own: every other descriptor from 3 on."""
    close(lambda path: path.startswith("/") and not path.startswith(("/dev", "/proc", "/sys")))


def close(which):
    for number in range(3, 512):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            kind = os.fstat(number).st_mode
        except OSError:
            continue
        if stat.S_ISREG(kind) and which(path) and "comfyui.db" not in path:
            os.close(number)
    # What is opened next gets the numbers: nothing of ours may be written there.
    user = os.path.join(output_folder(), "user.txt")
    mine = [os.open(user, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(8)]
    os.write(mine[0], b"the user's\n")


def output_folder():
    import folder_paths

    return folder_paths.get_output_directory()


def other_folder():
    os.chdir("/")


def other_umask():
    os.umask(0o777)
    threading.Timer(1.5, os.umask, (0o022,)).start()


def other_locale():
    locale.setlocale(locale.LC_ALL, "C")
    for name in ("LC_ALL", "LANG", "PYTHONIOENCODING"):
        os.environ.pop(name, None)


def other_environment():
    kept = dict(os.environ)
    os.environ.clear()
    threading.Timer(1.5, os.environ.update, (kept,)).start()


def other_signals():
    """A node is on no main thread, so Python refuses; the C library does not."""
    ctypes.CDLL(None).signal(int(signal.SIGUSR1), 1)


def broken_open():
    """`open` raises for one and a half seconds."""
    original = builtins.open

    def refuse(*args, **kwargs):
        raise RuntimeError("open was replaced")

    builtins.open = refuse
    threading.Timer(1.5, setattr, (builtins, "open", original)).start()


def broken_paths():
    """`Path.exists` and `Path.stat` raise for one and a half seconds."""
    for name in ("exists", "stat"):
        original = getattr(pathlib.Path, name)

        def refuse(*args, **kwargs):
            raise RuntimeError("a path's method was replaced")

        setattr(pathlib.Path, name, refuse)
        threading.Timer(1.5, setattr, (pathlib.Path, name, original)).start()


def no_collector():
    gc.disable()


def low_recursion():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    threading.Timer(1.5, sys.setrecursionlimit, (before,)).start()


def long_turns():
    sys.setswitchinterval(0.5)
    threading.Timer(2.0, sys.setswitchinterval, (0.005,)).start()


def closed_streams():
    sys.stdout.close()
    sys.stderr.close()


def no_streams():
    sys.stdout = sys.stderr = None


def fork():
    """A child that lives on: it has a copy of everything of ours, and no business with it."""
    if os.fork() == 0:
        signal.alarm(5)  # a copy of a lock that another thread held may never be free
        time.sleep(2.0)
        os._exit(0)


def fork_that_exits():
    """A child that ends as a process does: its exit handlers run."""
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            import atexit

            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def child_that_stays():
    subprocess.Popen(["sleep", "3"])


def threads_left():
    for _ in range(50):
        threading.Thread(target=time.sleep, args=(3.0,), daemon=True).start()


def no_output_folder():
    shutil.rmtree(output_folder(), ignore_errors=True)
    os.makedirs(output_folder(), exist_ok=True)


def no_ledger():
    shutil.rmtree(os.environ["CHAOS_LEDGER"], ignore_errors=True)


def huge_text():
    return "x" * 20_000_000


def endless_objects():
    error = ValueError("x" * 5_000_000)
    raise error


SURVIVED = {
    one.__name__: one
    for one in (
        sys_exit, exit_in_a_thread, endless_recursion, deep_cause, half_a_character, close_ours, close_files,
        other_folder, other_umask, other_locale, other_environment, other_signals, broken_open, broken_paths,
        no_collector, low_recursion, long_turns, closed_streams, no_streams, fork, fork_that_exits,
        child_that_stays, threads_left, no_output_folder, no_ledger, huge_text, endless_objects,
    )
}  # fmt: skip
"""After these a stock host still runs prompts."""


def exit_at_once():
    os._exit(7)


def abort():
    os.abort()


def bad_address():
    ctypes.string_at(8)


ENDS = {one.__name__: one for one in (exit_at_once, abort, bad_address)}
"""These end the process."""


class ChaosHostile:
    """Does one of the deeds above. `label` defeats the cache."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        label = ("INT", {"default": 0, "min": -(2**31), "max": 2**31})
        return {"required": {"image": ("IMAGE",), "deed": ([*SURVIVED, *ENDS],), "label": label}}

    def run(self, image, deed, label):
        told = {**SURVIVED, **ENDS}[deed]()
        return {"ui": {"text": [str(told)]}}


NODES = {"ChaosHostile": ChaosHostile}
