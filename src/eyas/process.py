"""How a stage process lives and ends: logging, stop signals, exit codes, death with its parent."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from eyas.errors import ConfigError, EyasError, Interrupted

logger = logging.getLogger("eyas")

if not sys.stderr.isatty():
    os.environ.setdefault(
        "TQDM_DISABLE", "1"
    )  # libraries' progress bars fill a log; stages print lines there

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's main and exit.

    Exit codes: 0 done; 1 an EyasError or a full disk, shown without traceback (75 if another run has the journal);
    130 or 143 stopped by SIGINT or SIGTERM.
    A stopped stage never exits with 0: DVC would record its partial output as complete.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line per request would bury everything else
    die_with_parent()
    raise_on_stop_signals()
    try:
        main()
    except (EyasError, Interrupted) as error:
        print(f"\nerror: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        where = f"\n  where: {error.filename}" if error.filename else ""
        print(
            f"\nerror: {error.strerror}{where}\n  to do: make space and run again",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)


def dataset_argument() -> str:
    """The only argument of a per-dataset stage: the dataset's name.

    Raises:
        ConfigError: there is none, or more than one.
    """
    arguments = sys.argv[1:]
    if len(arguments) != 1:
        raise ConfigError(
            f"a dataset name is needed, not {arguments}",
            where=sys.argv[0],
            hint="dvc repro runs this stage once for each entry of `datasets` in params.yaml",
        )
    return arguments[0]


def raise_on_stop_signals() -> None:
    """Turn the first SIGINT or SIGTERM into Interrupted in the main thread; `finally` blocks then run."""

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Interrupted(signum)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def die_with_parent(signum: int = signal.SIGTERM) -> None:
    """Ask Linux to signal this process when its parent ends, so that no stage outlives a killed dvc."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signum)
