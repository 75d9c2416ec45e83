"""Runs in several processes at once, which write down what they found: python -m tests.ranked FOLDER WHAT SIZE.

The processes are forked after everything is imported, so that a group of them takes a second to start.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyro
import pyro.distributions as dist
import torch
import torch.distributed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pyro_metricbnn import (
    Adam,
    Anneal,
    BatchedPotential,
    DriftRefineKernel,
    Gaussian,
    Langevin,
    MetricBNN,
    Ranks,
    Steer,
    bayesianize,
)
from pyro_metricbnn.ranks.messages import RankShare
from pyro_metricbnn.refiners import Ground, Particles, Refiner
from pyro_metricbnn.tempering import TemperatureScores, auto
from pyro_metricbnn.walk import loop, over_ranks

X = torch.linspace(-2, 2, 24, dtype=torch.float64)[:, None]
Y = torch.sin(2 * X)
NUM_PARTICLES, NUM_STEPS = 6, 8
TIMEOUT = 3.0


def network(hidden: int = 16, noise: Gaussian | None = None, scale: float = 1.0) -> Any:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    return bayesianize(net.double(), noise or Gaussian(0.3), prior_scale=scale)


def groups(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 5.0))
    spread = pyro.sample("spread", dist.LogNormal(y.new_zeros(()), 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("obs", dist.StudentT(y.new_full((), 4.0), mean, spread), obs=y)


def last_layer() -> Any:
    """A network that is linear in its weights: on batches it walks in units of Hessians at all particles."""
    return bayesianize(nn.Linear(X.shape[1], 1).to(X), Gaussian(0.3))


def local(y: Tensor) -> None:
    with pyro.plate("rows", len(y)):
        effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), 1.0))
        pyro.sample("obs", dist.Normal(effect, 0.5), obs=y)


@dataclass(frozen=True, kw_only=True)
class Foreign(Refiner):
    """Somebody else's refiner, which draws from torch's own generator."""

    def reach(self, ground: Ground) -> float:
        return 1.0

    def num_gradients(self, ground: Ground) -> int:
        return ground.num_steps

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        theta = particles.theta + 0.01 * torch.randn_like(particles.theta)
        return Particles(**{**vars(particles), "theta": theta}), torch.zeros_like(particles.energy)


def walked(model: Any, *args: Any, refiner: Any = None, **settings: Any) -> MetricBNN:
    pyro.set_rng_seed(3)
    kernel = DriftRefineKernel(model, refiner=refiner or Steer(path=1), num_steps=NUM_STEPS, compile=False)
    if hasattr(model, "trained_params") and not model.likelihood.infers_noise:
        settings = {"map_params": model.trained_params, **settings}  # without a search, which takes most of the time
    return MetricBNN(kernel, num_particles=NUM_PARTICLES).run(*args, progress=False, **settings)


def found(metric: MetricBNN) -> dict[str, Tensor]:
    """The record, and draws, which show where the generators are."""
    walk = metric.trajectories
    return {"thetas": walk.thetas, "energies": walk.energies, "steps": walk.step_sizes, "drawn": torch.rand(2)}


def part_of_rows(num_parts: int) -> tuple[Tensor, Tensor]:
    """Not all as long as each other: the first part has two more rows."""
    here = torch.distributed.get_rank() % num_parts
    rows = len(X) // num_parts
    return (X[: rows + 2], Y[: rows + 2]) if here == 0 else (X[here * rows + 2 :][:rows], Y[here * rows + 2 :][:rows])


def on_parts() -> dict[str, Tensor]:
    size = torch.distributed.get_world_size()
    parts = min(2, size)
    return found(walked(network(), *part_of_rows(parts), ranks=Ranks(rows=parts)))


def in_a_loader() -> dict[str, Tensor]:
    size, data = torch.distributed.get_world_size(), TensorDataset(X, Y)
    sampler: Any = DistributedSampler(data, size, torch.distributed.get_rank(), shuffle=False)
    loader = DataLoader(data, batch_size=len(X) // size, sampler=sampler)
    return found(walked(network(), loader, refiner=Adam(num_refinements=3), ranks=Ranks(rows=size)))


def apart() -> dict[str, Any]:
    metric = walked(network(), X, Y, ranks=Ranks(gather="none"))
    prediction = metric.predict(X, num_samples=40)
    said = refused(lambda: metric.save("nowhere")) if torch.distributed.get_world_size() > 1 else ""
    return {**found(metric), "f": prediction.f, "said": said}


def at_the_first() -> dict[str, Tensor]:
    return found(walked(network(), X, Y, ranks=Ranks(gather="first")))


def bytes_sent() -> dict[str, int]:
    """What is handed to torch.distributed from one recorded point to the next, of two sizes of network."""
    sent, plain, step = {}, RankShare._do, loop._record_step
    for hidden in (8, 32):
        counts = [0]

        def counted(self: RankShare, call: Any, *args: Any, counts: list[int] = counts, **how: Any) -> Any:
            tensors = [value for value in args if torch.is_tensor(value)]
            counts[0] += sum(value.numel() * value.element_size() for value in tensors)
            return plain(self, call, *args, **how)

        at_points: list[int] = []

        def noted(*args: Any, at: list[int] = at_points, counts: list[int] = counts) -> None:
            at.append(counts[0])
            step(*args)

        with mock.patch.object(RankShare, "_do", counted), mock.patch.object(loop, "_record_step", noted):
            walked(network(hidden), X, Y)
        sent[str(hidden)] = max(b - a for a, b in itertools.pairwise(at_points))
    return sent


def saved(folder: Path) -> dict[str, bool]:
    path = folder / f"posterior.{torch.distributed.get_world_size()}.{torch.distributed.get_rank()}.pt"
    walked(network(), X, Y).save(path)
    return {"is there": path.exists()}


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def refusals(folder: Path) -> dict[str, str]:
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def seeded_by_rank() -> None:
        model = network()
        pyro.set_rng_seed(rank)
        DriftRefineKernel(model, num_steps=3).walk(X, Y, progress=False)

    def with_other_weights() -> None:
        model = network()
        with torch.no_grad():
            model.trained_params["0.weight"] += rank
        pyro.set_rng_seed(0)
        DriftRefineKernel(model, num_steps=3).walk(X, Y, progress=False)

    def with_versions() -> None:
        with mock.patch.object(over_ranks.pyro, "__version__", f"1.9.{rank}"):
            walked(network(), X, Y)

    def without_a_maximum() -> None:
        walked(network(), X, Y / 0)

    return {
        "data": refused(lambda: walked(network(), X, Y + rank)),
        "seed": refused(seeded_by_rank),
        "prior": refused(lambda: walked(network(scale=1.0 + rank), X, Y)),
        "network": refused(lambda: walked(network(8 + rank), X, Y)),
        "versions": refused(with_versions),
        "settings": refused(lambda: walked(network(), X, Y, thin=1 + rank)),
        "gather": refused(lambda: walked(network(), X, Y, ranks=Ranks(gather="none" if rank else "all"))),
        "checkpoint": refused(lambda: walked(network(), X, Y, checkpoint=None if rank else folder / "of_one.pt")),
        "weights": refused(with_other_weights),
        "too many ranks": refused(
            lambda: DriftRefineKernel(network()).walk(X, Y, num_particles=size - 1, progress=False)
        ),
        "local": refused(lambda: walked(local, Y[:8, 0], ranks=Ranks(rows=size))),
        "not finite": refused(without_a_maximum),
    }


def alike(folder: Path) -> dict[str, Any]:
    """All that a group of any size does; what it is asked to do is the same for all sizes."""
    size = torch.distributed.get_world_size()
    results: dict[str, Any] = {
        "steer": found(walked(network(), X, Y)),
        "rows": on_parts(),
        "apart": apart(),
    }
    if size > 2:
        return results
    results |= {
        "again": found(walked(network(), X, Y)),
        "small": found(walked(groups, Y[:, 0])),
        "anneal": found(walked(network(8, Gaussian()), X, Y, refiner=Anneal(effort=0.02), num_networks=1)),
        "adam": found(walked(network(), X, Y, refiner=Adam(num_refinements=3))),
        "minibatches": found(walked(network(), X, Y, batch_size=8)),
        "last layer": found(walked(last_layer(), X, Y, batch_size=8, refiner=Langevin(effort=0.02))),
        "foreign": found(walked(network(), X, Y, refiner=Foreign())),
        "loader": in_a_loader(),
        "first": at_the_first(),
        "by itself": found(walked(network(), X, Y, ranks=Ranks(together=False))),
        "bytes": bytes_sent(),
        "saved": saved(folder),
    }
    return results | ({"refused": refusals(folder)} if size == 2 else {})


def hung(folder: Path) -> dict[str, Any]:
    """The second rank sleeps in its fourth step."""
    step, count = loop._record_step, [0]

    def sleepy(*args: Any) -> None:
        count[0] += 1
        if count[0] == 4 and torch.distributed.get_rank() == 1:
            time.sleep(4 * TIMEOUT)
            os._exit(0)
        step(*args)

    with mock.patch.object(loop, "_record_step", sleepy):
        return {"said": refused(lambda: walked(network(), X, Y, ranks=Ranks(timeout=TIMEOUT)))}


def missing(folder: Path) -> dict[str, Any]:
    """The second rank never calls run."""
    if torch.distributed.get_rank() == 1:
        time.sleep(2 * TIMEOUT)
        os._exit(0)
    return {"said": refused(lambda: walked(network(), X, Y, ranks=Ranks(timeout=TIMEOUT)))}


def chosen(folder: Path) -> dict[str, Any]:
    """temperature="auto" over ranks, and who has looked for it."""
    looked: list[int] = []

    def scores(*args: Any) -> tuple[TemperatureScores, dict[str, Tensor]]:
        looked.append(torch.distributed.get_rank())
        return TemperatureScores(taken=4.0 / float(1 + torch.rand(3).sum()), way="a test"), {}

    def run(*args: Any, **settings: Any) -> MetricBNN:
        pyro.set_rng_seed(0)
        metric = MetricBNN(network(4), num_particles=NUM_PARTICLES, num_steps=4, temperature="auto", compile=False)
        return metric.run(*args, progress=False, **settings)

    with mock.patch.object(auto, "_chosen", scores):
        metric = run(X, Y)
    apart = run(*part_of_rows(2), ranks=Ranks(rows=2)).temperature_choice
    with mock.patch.object(auto, "_chosen", mock.Mock(side_effect=ValueError("nothing to choose"))):
        failed = refused(lambda: run(X, Y))
    taken = metric.kernel.temperature
    return {**found(metric), "taken": taken, "looked": looked, "of parts": f"{apart}", "failed": failed}


def interrupted(folder: Path) -> dict[str, Any]:
    """One rank alone is interrupted in its sixth step; then the same call goes on from the checkpoints."""
    step, count = loop._record_step, [0]

    def interrupting(*args: Any) -> None:
        count[0] += 1
        if count[0] == 6 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGINT)
        step(*args)

    settings: dict[str, Any] = {"checkpoint": folder / "walk.pt", "checkpoint_every": 1e9}
    before = signal.getsignal(signal.SIGINT)
    with mock.patch.object(loop, "_record_step", interrupting):
        short = walked(network(), X, Y, **settings)
    is_as_before = signal.getsignal(signal.SIGINT) is before
    results = {"short": found(short), "whole": found(walked(network(), X, Y, **settings)), "handler": is_as_before}
    by_itself = refused(lambda: walked(network(), X, Y, ranks=Ranks(together=False), **settings))
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 1:
        (folder / "walk.pt.rank1").unlink()
        (folder / "walk.pt.rank1.before").unlink(missing_ok=True)
    return {**results, "by itself": by_itself, "thinned": refused(lambda: walked(network(), X, Y, thin=2, **settings))}


def gradients(folder: Path) -> dict[str, Tensor]:
    """Of an energy whose rows are shared, and of all rows here."""
    size = torch.distributed.get_world_size()
    share: Any = over_ranks.share_of(Ranks(rows=size), NUM_PARTICLES)
    torch.manual_seed(0)
    results: dict[str, Tensor] = {}
    for name, model, rows, all_rows in (
        ("network", network(8), part_of_rows(size), (X, Y)),
        ("groups", groups, (part_of_rows(size)[1][:, 0],), (Y[:, 0],)),
    ):
        potential = BatchedPotential(model, *all_rows)
        theta = torch.randn(3, potential.dim, dtype=torch.float64)
        shared = over_ranks.over_rows(BatchedPotential(model, *rows), share)
        values = (*shared.value_and_grad(theta), *shared.at(4.0).value_and_grad(theta), *shared.energy_parts(theta))
        warm = potential.at(4.0)
        wanted = (*potential.value_and_grad(theta), *warm.value_and_grad(theta), *potential.energy_parts(theta))
        results |= {f"{name} {i}": torch.stack([a, b]) for i, (a, b) in enumerate(zip(values, wanted, strict=True))}
        results[f"{name} counts"] = torch.tensor([[shared.num_rows], [potential.num_rows]])
    return results


def many(folder: Path) -> dict[str, Tensor]:
    """More particles, over ranks and by themselves."""
    results = {}
    for name, ranks in (("together", None), ("by itself", Ranks(together=False))):
        pyro.set_rng_seed(torch.distributed.get_world_size())
        kernel = DriftRefineKernel(groups, refiner=Steer(path=40), num_steps=30, compile=False)
        results[name] = kernel.walk(Y[:, 0], num_particles=32, ranks=ranks, progress=False).thetas[:, 1:]
    return results


GROUPS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    one.__name__: one for one in (alike, hung, missing, chosen, interrupted, gradients, many)
}


def member(folder: Path, what: str, size: int, rank: int) -> None:
    """One process of a group."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / f"store.{what}.{size}"), size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    torch.save(dict(GROUPS[what](folder)), folder / f"{what}.{size}.{rank}.pt")
    if what in ("hung", "missing"):
        os._exit(0)  # there is no group to leave any more
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(folder: Path, what: str, *sizes: str) -> None:
    fork = multiprocessing.get_context("fork")
    for size in map(int, sizes):
        processes = [fork.Process(target=member, args=(folder, what, size, rank)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
