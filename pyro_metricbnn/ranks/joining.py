"""From processes that torchrun started to the share that each has in a walk.

In: the environment of torchrun, or a group that was initialised, and `Ranks`.  Out: a `Share`.
"""

import atexit
import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyro
import torch
import torch.distributed as dist

from ..runtime.arguments import check_count, check_number, check_type
from .faults import named, refuse_different
from .share import ALONE, Share

TIMEOUT = 1800.0  # seconds, as torch's own of gloo
_groups: dict[Any, tuple[Any, Any, Any]] = {}  # made once for each setting: to make them is work of all ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """How a walk is shared out over the processes of `torch.distributed`, for `run(..., ranks=Ranks(...))`.

    Where `torch.distributed` is initialised, a run without it is shared out as `Ranks()` says: particles over all
    ranks, all the data on each of them.

    Args:
        rows: So many ranks have a part of the rows each and sum their gradients: 1 for all data on each rank; all ranks
            for data that fit on none of them; between the two it is a mesh of particles x rows. Rank r has part
            r % rows of the data.
        gather: Who has the whole posterior afterwards: "all" ranks, the "first", or "none": each keeps its own walks,
            and `predict`, called by all, averages over them.
        timeout: Seconds to wait for a rank that does not answer before it is named and all end. The search for the MAP
            has to be over within them.
        together: False for each rank to walk by itself.
        mesh: Your own `init_device_mesh(..., mesh_dim_names=("particles", "rows"))`, in place of `rows`.

    Example:
        >>> MetricBNN(model, num_particles=4, num_steps=10).run(x, y, ranks=Ranks(gather="first"), progress=False)
        MetricBNN(4 walks of 10 points, D = 3, KernelMap)
    """

    rows: int = 1
    gather: Literal["all", "first", "none"] = "all"
    timeout: float = TIMEOUT
    together: bool = True
    mesh: Any = None

    def __post_init__(self) -> None:
        check_count("rows", self.rows, "it counts the ranks that share the rows.")
        check_number("timeout", self.timeout, "it counts seconds.")
        check_type("together", self.together, bool, "True or False")
        if self.gather not in ("all", "first", "none"):
            raise ValueError(f"gather must be 'all', 'first' or 'none', got {self.gather!r}: who has the whole record.")
        if self.mesh is not None and tuple(getattr(self.mesh, "mesh_dim_names", None) or ()) != ("particles", "rows"):
            raise ValueError("mesh must be an init_device_mesh(...) of two dimensions, named 'particles' and 'rows'.")


def join_ranks(*, seed: int, timeout: float = TIMEOUT) -> int:
    """Join the processes that torchrun started, with the same random numbers in each: a line at the top of a script.

    It initialises `torch.distributed` (gloo for processors, nccl for GPUs, of which each process gets its own) and
    seeds as `pyro.set_rng_seed(seed)` does. Without torchrun it only seeds.

    Args:
        seed: With it all ranks make the same data and networks.
        timeout: Seconds to wait for a rank that does not answer.

    Returns:
        The rank, 0 for the first.

    Example:
        >>> join_ranks(seed=0)
        0
    """
    check_number("timeout", timeout, "it counts seconds.")
    if "RANK" in os.environ and not is_initialized():
        on_gpus = torch.cuda.is_available()
        if on_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **_store())
        atexit.register(_leave)
    pyro.set_rng_seed(seed)
    return dist.get_rank() if is_initialized() else 0


def _store() -> dict[str, Any]:
    """Torchrun's own store, with names of their own for each time that it starts the processes again.

    In torch 2.15 a group that is started again by `torchrun --standalone` otherwise waits for processes that are gone.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    names = f"pyro_metricbnn/{os.environ.get('TORCHELASTIC_RUN_ID')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"store": dist.PrefixStore(names, store), "rank": rank, "world_size": size}


def is_initialized() -> bool:
    """Whether there is a group of processes; one of one process counts, too."""
    return dist.is_available() and dist.is_initialized()


def _leave() -> None:
    if is_initialized():
        dist.destroy_process_group()


def share_of(ranks: Ranks | None, num_particles: int) -> Share:
    """What is this process's of a walk."""
    if ranks is not None and not ranks.together:
        return ALONE
    if not is_initialized():
        _say_not_joined()
        return ALONE
    from .messages import RankShare

    ranks = ranks or Ranks()
    wait = timedelta(seconds=ranks.timeout)
    key = (id(dist.group.WORLD), ranks.rows, ranks.timeout, id(ranks.mesh))
    if key not in _groups:
        _groups[key] = _made(ranks, wait)
    control, roll, mesh = _groups[key]
    if num_particles < mesh.size(0):
        raise ValueError(
            f"{num_particles} particles cannot be shared out over {mesh.size(0)} ranks: each needs one. Start fewer "
            "ranks, take more particles (num_particles=), or let ranks share the rows (Ranks(rows=))."
        )
    return RankShare(mesh, control, roll, num_particles, ranks.gather, wait)


def _say_not_joined() -> None:
    """Torchrun started several processes, and nobody told torch."""
    size = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1":
        warnings.warn(
            f"torchrun started {size} processes, and each walks by itself: torch.distributed is not initialised. "
            "Call join_ranks(seed=0) at the top of the script; Ranks(together=False) says that this is meant.",
            stacklevel=5,
        )


def _made(ranks: Ranks, wait: timedelta) -> tuple[Any, Any, Any]:
    """A group for small numbers, one for the roll call, and the mesh."""
    world, backend = dist.group.WORLD, dist.get_backend()
    if backend == "gloo":
        named(world, wait, dist.monitored_barrier, timeout=wait, wait_all_ranks=True)
    control, roll = (dist.new_group(backend="gloo", timeout=wait) for _ in range(2))
    size = dist.get_world_size()
    said: list[Any] = [None] * size
    mine = {"Ranks(rows=)": ranks.rows, "Ranks(mesh=)": ranks.mesh is not None}
    named(roll, wait, dist.all_gather_object, said, mine, group=control)
    refuse_different(said, [0] * size)
    return control, roll, ranks.mesh or _mesh(size, ranks.rows, wait)


def _mesh(size: int, rows: int, wait: timedelta) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    if size % rows:
        raise ValueError(f"Ranks(rows={rows}) does not divide the {size} ranks: each part of the rows needs as many.")
    kind = "cuda" if torch.cuda.is_available() and dist.get_backend() != "gloo" else "cpu"
    mesh = init_device_mesh(kind, (size // rows, rows), mesh_dim_names=("particles", "rows"))
    set_timeout: Any = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # before 2.15
    for group in (mesh.get_group("particles"), mesh.get_group("rows")):  # a mesh takes no time-out of its own
        if group is not dist.group.WORLD:
            set_timeout(wait, group)
    return mesh
