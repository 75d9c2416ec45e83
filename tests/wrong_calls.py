"""Small runs, what is asked of them rightly, and how a wrong call has to be refused: for the tests of bad input."""

from __future__ import annotations

import functools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pyro_metricbnn import (
    Adam,
    AutoencoderMap,
    BatchedPotential,
    Bernoulli,
    Categorical,
    Descent,
    DriftRefineKernel,
    Gaussian,
    KernelMap,
    MetricBNN,
    Steer,
    Trajectories,
    TrajectoryPosterior,
    agreement,
    bayesianize,
    calibration,
    compare,
    detection,
    find_map,
    function_mixing,
    health,
    k_hat,
    plots,
    predict,
    selective,
    to_arviz,
)
from pyro_metricbnn.energy.minibatches import MinibatchPotential

SECONDS = 1.0  # of this process: what else runs on the machine does not count
X = torch.linspace(-2, 2, 12)[:, None]
Y = torch.sin(2 * X)
LABELS = torch.arange(12) % 3
NAN, INF = float("nan"), float("inf")

# --------------------------------------------------------------------------------- what is called


def spoiled(values: Tensor, bad: float = NAN, row: int = 3) -> Tensor:
    values = values.clone()
    values[row] = bad
    return values


def meta(values: Tensor) -> Tensor:
    """On another device."""
    return values.to("meta")


@functools.cache
def network() -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Linear(1, 1), Gaussian(0.3))


@functools.cache
def classifier() -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Linear(1, 3), Categorical())


def kernel(model: Any = None, **settings: Any) -> DriftRefineKernel:
    return DriftRefineKernel(model or network(), **{"refiner": Steer(path=2), "num_steps": 6, **settings})


def run(*args: Any, model: Any = None, **settings: Any) -> MetricBNN:
    return MetricBNN(kernel(model), num_particles=3).run(*args, progress=False, **settings)


@functools.cache
def metric() -> MetricBNN:
    return run(X, Y, map_params={"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})


@functools.cache
def classes() -> MetricBNN:
    return run(X, LABELS, model=classifier(), map_params={"weight": torch.zeros(3, 1), "bias": torch.zeros(3)})


def walk() -> Trajectories:
    return metric().trajectories


@functools.cache
def draws() -> dict[str, Tensor]:
    return metric().draw(10)


def chains() -> dict[str, Tensor]:
    return metric().get_samples(group_by_chain=True)


def each(function: Callable[[Tensor], Any], samples: dict[str, Tensor]) -> dict[str, Any]:
    return {name: function(value) for name, value in samples.items()}


@functools.cache
def prediction() -> Any:
    return metric().predict(X, 20)


@functools.cache
def class_prediction() -> Any:
    return classes().predict(X, 20)


@functools.cache
def potential() -> BatchedPotential:
    return BatchedPotential(network(), X, Y)


def mean_of(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)


def discrete(y: Tensor) -> None:
    kind = pyro.sample("kind", dist.Bernoulli(torch.tensor(0.5)))
    with pyro.plate("data", len(y)):
        pyro.sample("obs", dist.Normal(kind, 1.0), obs=y)


def subsampled(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y), subsample_size=4) as rows:
        pyro.sample("obs", dist.Normal(mean, 1.0), obs=y[rows])


def changing_after(num_calls: int, *, shape: bool = False) -> Callable[[Tensor], None]:
    """A model with one more site, or a longer one, from some call on."""
    calls = [0]

    def model(y: Tensor) -> None:
        calls[0] += 1
        late = calls[0] > num_calls
        size = 3 if shape and late else 2
        mean = pyro.sample("mean", dist.Normal(torch.zeros(size), 1.0).to_event(1)).sum()
        if late and not shape:
            mean = mean + pyro.sample("late", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)

    return model


def loader(*tensors: Tensor, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), **{"batch_size": 4, **settings})


class Unreadable(Dataset[Any]):
    """A dataset whose file is gone."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        raise OSError("the disk is gone")


class Endless(IterableDataset[Any]):
    """One that does not know how long it is."""

    def __iter__(self) -> Iterator[Any]:
        return zip(X, Y, strict=True)


def used_up() -> Iterator[Any]:
    batches = iter([(X, Y)])
    next(batches)
    return batches


# ------------------------------------------------------------------------------ right calls, by subject

RIGHT: dict[str, Callable[[], object]] = {
    "bayesianize": lambda: bayesianize(nn.Linear(1, 1), Gaussian(0.3)),
    "likelihood": lambda: bayesianize(nn.Linear(1, 1), Bernoulli())(X, (Y > 0).float()),
    "potential": lambda: potential().value_and_grad(torch.zeros(2, 2)),
    "find_map": lambda: find_map(potential(), {"weight": torch.zeros(1, 1)}, max_iterations=1, progress=False),
    "minibatches": lambda: MinibatchPotential(network(), [(X, Y)], 12).value(torch.zeros(1, 2)),
    "refiner": lambda: (Steer(effort=2), Descent(eta=0.1), Adam(lr=0.1)),
    "kernel": lambda: kernel(num_steps=1).walk(X, Y, num_particles=2, map_params=metric().map_params, progress=False),
    "relax": lambda: metric().kernel.relax(metric().trajectories, torch.zeros(2, 2), 1),
    "mcmc": lambda: kernel().setup(1, X, Y),
    "metric": lambda: MetricBNN(network(), num_particles=2),
    "run": lambda: run(X, Y, map_params=metric().map_params),
    "ran": lambda: (metric().draw(2), metric().predict(X, 2), metric().diagnostics()),
    "latent map": lambda: (KernelMap().fit(walk()), AutoencoderMap(2, num_epochs=1).fit(walk(), progress=False)),
    "posterior": lambda: metric().posterior.log_prob(TrajectoryPosterior(walk()).sample()),
    "guide": lambda: (metric().guide.quantiles([0.1]), metric().guide.sample_posterior(2)),
    "predict": lambda: predict(network(), draws(), X),
    "prediction": lambda: (prediction().quantile(0.5), prediction().log_prob(Y), class_prediction().log_prob(LABELS)),
    "trajectories": lambda: walk().thinned(2),
    "to_arviz": lambda: to_arviz(draws(), network(), X, Y, coords={"data": list(range(12))}),
    "health": lambda: health(walk()),
    "function_mixing": lambda: function_mixing(network(), chains(), X),
    "k_hat": lambda: k_hat(network(), metric().guide, X, Y, num_samples=100),
    "calibration": lambda: (calibration(prediction(), Y), calibration(class_prediction(), LABELS)),
    "agreement": lambda: agreement(prediction(), prediction()),
    "detection": lambda: (detection(X, Y), detection(prediction(), prediction(), score="std")),
    "selective": lambda: (selective(prediction(), Y), selective(class_prediction(), LABELS, score="entropy")),
    "compare": lambda: compare(network(), {"walk": walk()}, X, Y, pictures=False),
    "plots": lambda: (plots.plot_energy(walk()), plots.plot_band(prediction(), X, (X, Y))),
    "load": lambda: saved_and_loaded(metric()),
}


def saved_and_loaded(metric: MetricBNN) -> MetricBNN:
    with tempfile.TemporaryDirectory() as folder:
        metric.save(Path(folder) / "posterior.pt")
        return MetricBNN.load(Path(folder) / "posterior.pt", metric.model)


class Wrong:
    """A wrong call: what it is, the subject that goes on working, the error and what it says."""

    def __init__(self, name: str, call: Callable[[], object], error: type[Exception], said: str) -> None:
        self.name, self.call, self.error, self.said = name, call, error, said
        self.subject = name.split(": ")[0]


def refuses_type(name: str, call: Callable[[], object], said: str) -> Wrong:
    return Wrong(name, call, TypeError, said)


def refuses(name: str, call: Callable[[], object], said: str) -> Wrong:
    return Wrong(name, call, ValueError, said)


anything: Any = 3
PLANE = torch.cat([X, X], 1)


@functools.cache
def load() -> None:
    """What is loaded or walked once, before the clock runs."""
    pytest.importorskip("matplotlib").use("Agg")
    import arviz  # noqa: F401
    import matplotlib.pyplot  # noqa: F401

    _ = metric(), classes(), draws(), prediction(), class_prediction(), potential()


def assert_refused(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its error and its words, at once, and before a step of a walk or of training."""
    begun: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load()
        for place in (
            "refiners.steer.Steer.walk",
            "refiners.pull_back._PullBack.advance",
            "latent.autoencoder_map.AutoencoderMap._train",
        ):
            monkeypatch.setattr(f"pyro_metricbnn.{place}", lambda *_, place=place: begun.append(place))
        start = time.process_time()
        with pytest.raises(wrong.error, match=f"(?s){wrong.said}"):
            wrong.call()
        seconds = time.process_time() - start
    assert not begun
    assert seconds < SECONDS


def assert_goes_on_working(subject: str, table: list[Wrong]) -> None:
    """All wrong calls of a subject, then a right one."""
    import matplotlib.pyplot as plt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load()
        for wrong in table:
            if wrong.subject == subject:
                with pytest.raises(wrong.error):
                    wrong.call()
        assert not plt.get_fignums(), "a refused picture left a figure behind"
        RIGHT[subject]()
    plt.close("all")
