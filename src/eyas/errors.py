"""The exceptions of eyas. Every message says what is wrong, where, and what to do next.

EyasError
    ConfigError             a params.yaml section is wrong
    InputError              a file or row that the user gave is wrong
    ArtifactError           a stage output is missing, partial, damaged or foreign
    ChangedWhileRunning     params or code changed under a running stage
    JournalError            the journal is damaged or can't be written; JournalInUse: another process writes it
    GateError               the data is wrong: a threshold or check of a stage failed
    ServerError             the inference server did not start, died, or is not what params say

Interrupted                 SIGINT or SIGTERM arrived; work so far is kept (no Exception, see there)
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text that is safe to show: whatever a terminal might obey (ESC, \x9b, direction marks, ...) is written out.

    Messages quote what servers and files say. Newlines stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


class EyasError(Exception):
    """Base of all errors that a user can cause; shown without a traceback.

    `what` is wrong, `where` (file, line, sample id) it was seen, `hint` is what to do next.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = printable(what)
        self.where = None if where is None else printable(where)
        self.hint = None if hint is None else printable(hint)
        super().__init__(self.what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  to do: {self.hint}")
        return "\n".join(lines)


class ConfigError(EyasError, ValueError):
    """A params.yaml section is missing, has an unknown key, a wrong type or an impossible value."""


class InputError(EyasError, ValueError):
    """A source file or row that the user gave can't be used."""


class ArtifactError(EyasError):
    """A stage output is missing, partial, damaged, or was made from something else."""


class ChangedWhileRunning(EyasError):
    """Params or code changed under a running stage; DVC would record the new ones as its cause."""


class JournalError(EyasError):
    """The journal is in use by another process, damaged, or can't be written."""


class JournalInUse(JournalError):
    """Another process is writing the journal."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class GateError(EyasError):
    """The data failed a check or threshold; the stage must not go on."""


class ServerError(EyasError):
    """The inference server did not start, died, or does not serve what params say."""


class Interrupted(BaseException):
    """A stop signal arrived; what had arrived by then is kept.

    Like KeyboardInterrupt no Exception: it is raised wherever the main thread is, and no library's `except Exception`
    may take it for a failure of its own.
    """

    def __init__(self, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(
            f"stopped by signal {signum}\n  to do: run `dvc repro` again; finished work is kept and not repeated"
        )
