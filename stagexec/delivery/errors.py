"""Why our own nodes fail, in words for a person and with the ledger's cause."""

from __future__ import annotations

import errno

NO_ROOM = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}


class DeliveryProblem(Exception):
    """`phase` names the step that failed; `stagexec_cause` is one of stages.CAUSES for the ledger."""

    def __init__(self, phase: str, text: str, cause: str) -> None:
        super().__init__(text)
        self.phase = phase
        self.stagexec_cause = cause


class EncodeFailed(DeliveryProblem):
    """An encode that did not end in a whole file. `exit_code` is null when ffmpeg never ran."""

    def __init__(
        self, phase: str, text: str, exit_code: int | None = None, cause: str = "encode_failed"
    ) -> None:
        super().__init__(phase, text, cause)
        self.exit_code = exit_code


class DeliveryFailed(DeliveryProblem):
    """A delivery that was not committed. Nothing is under the final name."""

    def __init__(self, phase: str, text: str, cause: str = "delivery_failed") -> None:
        super().__init__(phase, text, cause)


def cause_of(error: BaseException) -> str:
    """disk_full where a file system says so, else delivery_failed."""
    return "disk_full" if isinstance(error, OSError) and error.errno in NO_ROOM else "delivery_failed"
