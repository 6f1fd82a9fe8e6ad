"""Where the ledger lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stagexec.files import BadPath, place

VARIABLE = "STAGEXEC_LEDGER"

host_folder: Path | None = None
"""The host's system user directory for `stagexec`, or its user directory; set when the host is known."""


used_folder: Path | None = None
"""The ledger's folder that this process writes to; None before it has begun, and outside our launcher."""


def ledger_folder(explicit: str | None = None) -> Path:
    """The ledger's folder: `explicit`, else $STAGEXEC_LEDGER, else the host's, else the user's own.

    Raises BadPath for a name that cannot be one.
    """
    named = explicit if explicit is not None else os.environ.get(VARIABLE) or None
    if named is not None:
        return place(named)
    if host_folder is not None:
        return host_folder
    for tree in (os.environ.get("COMFYUI_PATH"), "."):
        try:
            base = place(tree) if tree else None
            if base is not None and (base / "execution.py").is_file() and (base / "user").is_dir():
                return system_user_folder(base / "user")
        except (BadPath, OSError):  # a variable of the host's that leads nowhere, or a folder that is gone
            continue
    return default_folder()


def profile_flag(ledger: Path) -> Path:
    """The file in the `ledger` folder that arms `profile` timing for the next run that begins."""
    return ledger / "profile-next"


def take_profile_flag(ledger: Path) -> bool:
    """Whether a run was armed for `profile` timing; disarms. False where the file cannot be reached."""
    flag = profile_flag(ledger)
    try:
        if not flag.exists():
            return False
        flag.unlink()
    except OSError:  # another process was first, or it cannot be removed: then it is not ours
        return False
    return True


def system_user_folder(user: Path) -> Path:
    """ComfyUI keeps what belongs to no single user under `user/__<name>`; older trees have only `user`."""
    return user.absolute() / "__stagexec"


def default_folder() -> Path:
    """The ledger of a person who named none and runs no host here. BadPath where no home is known."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return place(base) / "stagexec"
