"""The processes of an extraction: started by torchrun, or by the first of them; Lightning Fabric hands out the devices.

Fabric's own launcher does not start them: when a process fails, it ends the first one with SIGKILL, which could then
neither say why nor stop its children. Nor do they form a process group: they compute apart from each other, and waiting in
a group's collectives is deaf to signals and to the death of others.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta

import torch

from eyas.compute import ComputeParams
from eyas.errors import ConfigError
from eyas.extract.ranks import Alone, Ranks, Team, rank_0_is_gone

LOCALHOST = "127.0.0.1"
TORCHRUN_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""In the environment of processes that torchrun has started: its own store is at MASTER_ADDR and MASTER_PORT."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has restarted the processes of this machine; not the same number on every node."""
FIRST_PID = "EYAS_FIRST_PID"
"""In the environment of processes that the first one has started: its pid."""
CONNECT_S = 30.0
"""How long a process looks for a store that was there before it."""
START_S = 300.0
"""The same for one that rank 0 serves, which another launcher starts at the same time."""
TORCHRUN = "torchrun --nnodes N --nproc-per-node GPUS --rdzv-backend c10d --rdzv-endpoint HOST:PORT stages/extract.py"


def start(compute: ComputeParams, *, one_process: str | None = None) -> Ranks:
    """Join the processes that extract together, after starting them if nobody has.

    Args:
        compute: section `compute`.
        one_process: why there may be only one process; None if there may be several.

    Raises:
        ConfigError: the devices are not there, there may be one process only, or several nodes were asked for and
            torchrun has not started this process.
    """
    started = "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ
    size = int(os.environ["WORLD_SIZE"]) if started else _wanted(compute, one_process is not None)
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size)) if started else size
    if size > 1 and one_process is not None:
        raise ConfigError(f"{size} processes are too many: {one_process}", where="compute.devices")
    if local_size > 1 and compute.device_map is not None:
        raise ConfigError(
            f"compute.device_map: {compute.device_map} spreads one process over all GPUs of a machine, "
            f"and {local_size} processes were asked for",
            where="compute.devices",
            hint="compute.devices: 1, or compute.device_map: null if one GPU holds the target",
        )
    _set_threads(compute, local_size)
    if size == 1:
        return Alone(device_of(compute.accelerator))
    team = _given_team(size, local_size) if started else _own_team(size)
    if team.rank != 0:
        logging.getLogger("eyas").setLevel(logging.WARNING)  # rank 0 speaks for all
    with ExitStack() as unfinished:
        unfinished.enter_context(team)
        team.device = _device_of_rank(compute, team)
        team.meet("started")
        unfinished.pop_all()
    return team


def device_of(accelerator: str) -> torch.device:
    """The device of a process that is alone.

    Raises:
        ConfigError: it is not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    wanted = {"auto": ["cuda", "cpu"], "gpu": ["cuda", "mps"]}.get(accelerator, [accelerator])
    for name in wanted:
        if there[name]:
            return torch.device(name)
    raise ConfigError(
        f"this machine has no {' or '.join(wanted)} that torch can use",
        where="compute.accelerator",
        hint="compute.accelerator: auto",
    )


def _wanted(compute: ComputeParams, alone: bool) -> int:
    """Processes that this command is to be."""
    if compute.num_nodes > 1:
        raise ConfigError(
            f"compute.num_nodes is {compute.num_nodes}, and this process was not started by torchrun",
            where="compute.num_nodes",
            hint=f"on each node, in the shared folder: {TORCHRUN}",
        )
    if isinstance(compute.devices, int):
        return compute.devices
    if alone or compute.device_map is not None or compute.accelerator not in ("auto", "gpu", "cuda"):
        return 1
    return max(1, torch.cuda.device_count())


def _set_threads(compute: ComputeParams, local_size: int) -> None:
    """CPU threads of this process. torchrun sets OMP_NUM_THREADS to 1 where nobody has chosen."""
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))


def _start_children(size: int, port: int) -> dict[int, subprocess.Popen[bytes]]:
    """Run this command size - 1 times more, as ranks 1, 2, ... of this machine; this process becomes rank 0."""
    os.environ |= {
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(port),
        "NODE_RANK": "0",
        "LOCAL_RANK": "0",
        "RANK": "0",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    own = {FIRST_PID: str(os.getpid())}
    return {
        rank: subprocess.Popen(command, env={**os.environ, **own, "LOCAL_RANK": str(rank), "RANK": str(rank)})
        for rank in range(1, size)
    }


def _own_team(size: int) -> Team:
    """Rank 0 of processes that this one starts."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported without saying so

    store = TCPStore(LOCALHOST, 0, size, True, wait_for_workers=False)
    return Team(torch.device("cpu"), 0, size, size, store, _start_children(size, store.port))


def _given_team(size: int, local_size: int) -> Team:
    """A process that torchrun, another launcher or rank 0 has started."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    rank = int(os.environ["RANK"])
    first, by_torchrun = os.environ.get(FIRST_PID), TORCHRUN_STORE in os.environ
    # It may have been killed before this process could ask to die with it.
    if first is not None and os.getppid() != int(first):
        raise rank_0_is_gone("it ended while this process was started")
    serves = rank == 0 and not by_torchrun
    seconds = START_S if first is None and not by_torchrun else CONNECT_S
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = TCPStore(*address, size, serves, timedelta(seconds=seconds), wait_for_workers=False)
    except RuntimeError as error:
        raise rank_0_is_gone(str(error).splitlines()[0]) from error
    given = PrefixStore(f"eyas-{os.environ.get(RESTARTS, '0')}", store) if by_torchrun else store
    team = Team(torch.device("cpu"), rank, size, local_size, given, {})
    if by_torchrun:
        _refuse_restart(team)
    return team


def _refuse_restart(team: Team) -> None:
    """One node counts its restarts, and begins anew. Over several a restarted group can't find together.

    A node counts only the restarts that its own processes caused (pytorch/pytorch#108158), and none when a node joins or
    leaves. So after one, processes would look for each other in different places, or among the traces of those before.

    Raises:
        ConfigError: torchrun has restarted the processes.
    """
    spread = team.size > team.local_size and int(os.environ.get(RESTARTS, "0")) > 0
    with team:  # the others are told
        if spread or team.count(f"lives of rank {team.rank}", 1) > 1:
            raise ConfigError(
                "torchrun has restarted the processes of several nodes, or their number has changed",
                where="torchrun",
                hint="--max-restarts 0 and a fixed --nnodes. Run again: finished shards are kept",
            )


def _device_of_rank(compute: ComputeParams, team: Team) -> torch.device:
    """The device of one of several processes, as Fabric hands them out.

    Raises:
        ConfigError: there are not enough.
    """
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        fabric = Fabric(
            accelerator=compute.accelerator,
            devices=team.local_size,
            num_nodes=team.size // team.local_size,
            strategy="ddp",
            plugins=[LightningEnvironment()],
        )
        device = fabric.device
    except (MisconfigurationException, ValueError, IndexError) as error:
        raise ConfigError(
            f"{team.local_size} processes on this machine can't get a device each: {error}",
            where="compute.accelerator, compute.devices",
            hint="as many processes as GPUs, or compute.accelerator: cpu",
        ) from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
