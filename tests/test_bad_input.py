"""Claims about wrong calls of models, energies, kernels and runs: refused at once, in words, and nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, config_enumerate
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pyro_metricbnn import (
    Adam,
    BatchedPotential,
    Bernoulli,
    Categorical,
    Descent,
    DriftRefineKernel,
    Gaussian,
    HeteroscedasticGaussian,
    KernelMap,
    Langevin,
    MetricBNN,
    NoisyCategorical,
    Poisson,
    Steer,
    bayesianize,
    choose_temperature,
    find_map,
)
from pyro_metricbnn.energy.minibatches import MinibatchPotential
from tests.wrong_calls import (
    INF,
    LABELS,
    NAN,
    PLANE,
    Endless,
    Unreadable,
    Wrong,
    X,
    Y,
    anything,
    assert_goes_on_working,
    assert_refused,
    changing_after,
    classifier,
    discrete,
    draws,
    each,
    kernel,
    loader,
    meta,
    metric,
    network,
    potential,
    refuses,
    refuses_type,
    run,
    spoiled,
    subsampled,
    used_up,
)


def relaxed(theta: torch.Tensor) -> torch.Tensor:
    return metric().kernel.relax(metric().trajectories, theta, 1)


TABLE = [
    # a network as a model
    refuses_type(
        "bayesianize: a number", lambda: bayesianize(anything, Gaussian(1.0)), "net must be an nn.Module, got int"
    ),
    refuses_type(
        "bayesianize: no likelihood", lambda: bayesianize(nn.Linear(1, 1), anything), "must say what the output"
    ),
    refuses_type(
        "bayesianize: where", lambda: bayesianize(nn.Linear(1, 1), Gaussian(1.0), where=[anything]), "where must"
    ),
    refuses(
        "bayesianize: unknown part", lambda: bayesianize(nn.Linear(1, 1), Gaussian(1.0), where="head"), "named 'head'"
    ),
    refuses_type(
        "bayesianize: keys of priors",
        lambda: bayesianize(nn.Linear(1, 1), Gaussian(1.0), prior_scale={anything: 1.0}),
        "prefixes of parameter names",
    ),
    refuses(
        "bayesianize: prior", lambda: bayesianize(nn.Linear(1, 1), Gaussian(1.0), prior_scale=-1), "must be positive"
    ),
    refuses(
        "bayesianize: other device", lambda: bayesianize(nn.Linear(1, 1, device="meta"), Gaussian(1.0)), "meta device"
    ),
    refuses(
        "bayesianize: no shape yet", lambda: bayesianize(nn.LazyLinear(1), Gaussian(1.0)), "no shape yet: call the net"
    ),
    refuses("likelihood: scale", lambda: Gaussian(NAN), "scale must be positive"),
    refuses_type("likelihood: floor", lambda: HeteroscedasticGaussian("low"), "floor must be a number"),  # type: ignore[arg-type]
    refuses("likelihood: unknown class", lambda: run(X, LABELS + 1, model=classifier()), "outside the support.*from 0"),
    refuses(
        "likelihood: no zero or one",
        lambda: run(X, LABELS, model=bayesianize(nn.Linear(1, 1), Bernoulli())),
        "4 values outside the support of its Bernoulli",
    ),
    refuses(
        "likelihood: negative count",
        lambda: run(X, Y, model=bayesianize(nn.Linear(1, 1), Poisson())),
        "outside the support of its Poisson",
    ),
    refuses_type("likelihood: no rate", lambda: NoisyCategorical("some"), "rate must be a number"),
    refuses("likelihood: real labels", lambda: Categorical().targets(torch.zeros(12, 3), Y), r"y\.long\(\)"),
    # the energy
    refuses_type("potential: no model", lambda: BatchedPotential(anything), "model must be a Pyro model"),
    refuses_type("potential: no theta", lambda: potential().value(np.zeros((2, 2))), "theta must be a tensor"),  # type: ignore[arg-type]
    refuses_type("potential: whole theta", lambda: potential().value(torch.zeros(2, 2).long()), "theta is torch.int64"),
    refuses(
        "potential: other device", lambda: potential().grad(meta(torch.zeros(2, 2))), "theta is on the meta device"
    ),
    refuses("potential: shape", lambda: potential().grad(torch.zeros(2, 7)), r"must be \(N, 2\)"),
    refuses(
        "potential: inside grad",
        lambda: torch.func.grad(lambda t: potential().value(t).sum())(torch.zeros(1, 2)),
        "inside a transform of torch.func",
    ),
    refuses(
        "potential: recorded inside vmap",
        lambda: torch.func.vmap(potential().using(mode="trace").grad)(torch.zeros(3, 1, 2)),
        r"inside a transform of torch.func.*Call value_and_grad",
    ),
    refuses("potential: calls", lambda: potential().using(expected_calls=-1), "expected_calls must not be negative"),
    refuses_type("potential: chunk", lambda: potential().using(chunk_size=1.5), "chunk_size must be a whole number"),
    refuses("potential: missing site", lambda: potential().flatten({"bias": torch.zeros(1)}), r"missing \['weight'\]"),
    refuses_type("potential: no values", lambda: potential().flatten(anything), "values must be a dict"),
    refuses_type("find_map: no potential", lambda: find_map(network()), "potential must be a BatchedPotential"),
    refuses_type("find_map: starts", lambda: find_map(potential(), num_starts=1.5), "num_starts must be a whole"),  # type: ignore[arg-type]
    refuses_type("find_map: values", lambda: find_map(potential(), anything), "initial values must be a dict"),
    refuses("find_map: unknown site", lambda: find_map(potential(), {"slope": X}), r"unknown \['slope'\]"),
    # batches
    refuses_type("minibatches: number", lambda: MinibatchPotential(network(), 3, 12), "batches must be a DataLoader"),
    refuses("minibatches: used up", lambda: MinibatchPotential(network(), used_up(), 12), "only once"),
    refuses("minibatches: size", lambda: MinibatchPotential(network(), [(X, Y)], -1), "num_data must be at least 1"),
    refuses("run: empty loader", lambda: run(loader(X[:0], Y[:0])), "num_data must be at least 1"),
    refuses("run: no whole batch", lambda: run(loader(X, Y, batch_size=20, drop_last=True)), "gave no batch"),
    refuses("run: endless loader", lambda: run(DataLoader(Endless(), batch_size=4)), "Endless does not say how many"),
    Wrong("run: unreadable", lambda: run(DataLoader(Unreadable(), batch_size=4)), OSError, "the disk is gone"),
    Wrong("run: workers", lambda: run(DataLoader(Unreadable(), num_workers=1)), OSError, "the disk is gone"),
    refuses("run: NaN in a later batch", lambda: run(loader(X, spoiled(Y, row=9))), "argument 1 has 1 entr"),
    refuses("run: inf in a later batch", lambda: run(X, spoiled(Y, INF), batch_size=2), "argument 1 has 1 entr"),
    refuses("run: loader and more", lambda: run(loader(X), Y), "stands for all of the model's arguments"),
    refuses("run: loader and names", lambda: run(loader(X), y=Y), r"keyword arguments \(y\) are not cut into batches"),
    refuses("run: names in batches", lambda: run(X, y=Y, batch_size=4), r"keyword arguments \(y\) are not cut"),
    refuses_type("run: batch_size", lambda: run(X, Y, batch_size=2.5), "batch_size must be a whole number"),
    refuses("run: large batch", lambda: run(X, Y, batch_size=13), "from 1 to the number of rows, 12"),
    refuses("run: generator", lambda: run(iter([(X, Y)])), "list_iterator, which can be gone through only once"),
    # a run
    refuses_type("run: nothing", lambda: run(), r"does not run on its arguments \(none\)"),
    refuses("run: no observations", lambda: run(X), "y is missing"),
    refuses_type("run: unknown name", lambda: run(X, Y, colour="red"), "unexpected keyword argument 'colour'"),
    refuses("run: precision", lambda: run(X.double(), Y), r"torch.float64 tensor of shape \(12, 1\).*dtype"),
    refuses("run: other device", lambda: run(meta(X), Y), "argument 0 is on the meta device"),
    refuses("run: lengths", lambda: run(X, Y[:5]), r"y has shape \(5, 1\), but the network's output has \(12, 1\)"),
    refuses("run: columns", lambda: run(PLANE, Y), "does not run on its arguments"),
    refuses("run: NaN", lambda: run(spoiled(X), Y), "argument 0 has 1 entr"),
    refuses("run: unknown site", lambda: run(X, Y, initial_params={"weigth": X[:1]}), r"unknown \['weigth'\]"),
    refuses("run: shape of a site", lambda: run(X, Y, initial_params={"weight": X}), r"'weight' has shape \(12, 1\)"),
    refuses_type("run: text for a site", lambda: run(X, Y, initial_params={"weight": "1"}), "no tensor of numbers"),
    refuses_type("run: no mapping", lambda: run(X, Y, initial_params=[1.0]), "initial_params must be a dict"),
    refuses("run: missing site", lambda: run(X, Y, map_params={"bias": torch.zeros(1)}), r"missing \['weight'\]"),
    refuses("run: two starts", lambda: run(X, Y, map_params={}, initial_params={}), "Pass one of them"),
    refuses("run: discrete", lambda: run(Y[:, 0], model=discrete), "'kind' is discrete.*Sum it out"),
    refuses("run: enumerated", lambda: run(Y[:, 0], model=config_enumerate(discrete)), "'kind' is discrete"),
    refuses("run: subsampled", lambda: run(Y[:, 0], model=subsampled), "'data' draws 4 of 12 rows anew"),
    refuses("run: new site", lambda: run(Y[:, 0], model=changing_after(1)), "changes from call to call.*'late'"),
    refuses("run: later site", lambda: run(Y[:, 0], model=changing_after(2)), "changes from call to call.*'late'"),
    refuses("run: last site", lambda: run(Y[:, 0], model=changing_after(4)), "changes from call to call.*'late'"),
    refuses("run: other shape", lambda: run(Y[:, 0], model=changing_after(2, shape=True)), "call to call.*'mean'"),
    refuses("run: last shape", lambda: run(Y[:, 0], model=changing_after(4, shape=True)), "call to call.*'mean'"),
    refuses("run: module without prior", lambda: run(X, model=nn.Linear(1, 1)), "no latent site.*bayesianize"),
    refuses_type("run: checkpoint", lambda: run(X, Y, checkpoint=anything), "path must be the name of a file"),
    refuses_type(
        "run: seconds", lambda: run(X, Y, checkpoint="w.pt", checkpoint_every="1"), "checkpoint_every must be"
    ),
    # MetricBNN and what it has
    refuses_type("metric: no model", lambda: MetricBNN(anything), "model must be a Pyro model"),
    refuses_type("metric: particles", lambda: MetricBNN(network(), num_particles=2.5), "num_particles must be a whole"),  # type: ignore[arg-type]
    refuses("metric: no particles", lambda: MetricBNN(network(), num_particles=-1), "num_particles must be at least 1"),
    refuses_type("metric: map", lambda: MetricBNN(network(), latent_map=KernelMap), "got the class KernelMap"),  # type: ignore[arg-type]
    refuses(
        "metric: map and size", lambda: MetricBNN(network(), latent_map=KernelMap(), latent_dim=30), "latent map's to"
    ),
    refuses_type("metric: tube", lambda: MetricBNN(network(), tube_scale="wide"), "tube_scale must be a number"),  # type: ignore[arg-type]
    refuses("metric: task", lambda: MetricBNN.paper(network(), task="speech"), "task must be one of"),
    refuses("metric: temperature", lambda: MetricBNN(network(), temperature=0), "temperature must be positive"),
    refuses(
        "metric: temperatures",
        lambda: choose_temperature(network(), X, Y, validation=(X, Y), temperatures=()),
        "temperatures is empty",
    ),
    refuses("metric: draw before run", lambda: MetricBNN(network()).draw(2), "call run"),
    refuses("metric: guide before run", lambda: MetricBNN(network()).guide, "call run"),
    refuses_type("ran: draws", lambda: metric().draw(2.5), "num_samples must be a whole number"),  # type: ignore[arg-type]
    refuses_type("ran: refinements", lambda: metric().draw(2, num_refinements=1.5), "num_refinements must be a whole"),  # type: ignore[arg-type]
    refuses("ran: prob", lambda: metric().summary(prob=2), "prob must be from 0 to 1"),
    refuses("ran: run on NaN", lambda: metric().run(X, spoiled(Y)), "argument 1 has 1 entr"),
    refuses(
        "ran: run from nowhere", lambda: metric().run(Y, X, map_params=each(lambda v: v / 0, draws())), "shape|finite"
    ),
    refuses_type("ran: save", lambda: metric().save(anything), "path must be the name of a file"),
    # the kernel
    refuses_type("kernel: no model", lambda: DriftRefineKernel(anything), "model must be a Pyro model"),
    refuses("kernel: refiner", lambda: kernel(refiner="walk"), "refiner must be a Refiner or one of 'steer'"),
    refuses_type("kernel: refiner's class", lambda: kernel(refiner=Steer), "refiner must be a Refiner"),
    refuses_type("kernel: compile", lambda: kernel(compile="yes"), "compile must be True, False"),
    refuses("kernel: chunk", lambda: kernel(chunk_size=0), "chunk_size must be at least 1"),
    refuses_type("kernel: steps", lambda: kernel(num_steps=2.5), "num_steps must be a whole number"),
    refuses_type("kernel: thin", lambda: kernel().walk(X, Y, thin=1.5), "thin must be a whole number"),
    refuses("kernel: whole record", lambda: kernel().walk(X, Y, storage_dtype=torch.int32), "cuts off fractions"),
    refuses("kernel: unknown device", lambda: kernel().walk(X, Y, storage_device="tpu9"), "which is no device"),
    refuses("kernel: other device", lambda: kernel().walk(X, Y, storage_device="meta"), "where tensors have no values"),
    refuses_type("relax: no walk", lambda: kernel().relax(anything, torch.zeros(2, 2), 1), "walk must be the Traj"),
    refuses("relax: NaN", lambda: relaxed(torch.full((2, 2), NAN)), "not finite"),
    refuses("relax: shape", lambda: relaxed(torch.zeros(2, 5)), r"must be \(S, 2\)"),
    refuses("mcmc: NaN", lambda: MCMC(kernel(), 2, disable_progbar=True).run(X, spoiled(Y)), "argument 1 has 1 entr"),
    refuses("mcmc: too early", lambda: kernel().sample({}), "has no data yet"),
    refuses_type("refiner: effort", lambda: Steer(effort="much"), "effort must be a number"),  # type: ignore[arg-type]
    refuses("refiner: no friction", lambda: Langevin(momentum=1.0), "momentum must be below 1"),
    refuses("refiner: endless path", lambda: Steer(path=INF), "path must be positive and finite"),
    refuses("refiner: eta", lambda: Descent(eta=-1.0), "eta must be positive"),
    refuses_type("refiner: M", lambda: Descent(num_refinements=1.5), "num_refinements must be a whole"),  # type: ignore[arg-type]
    refuses("refiner: rate", lambda: Adam(lr=NAN), "lr must be positive"),
]


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: wrong.name)
def test_a_wrong_call_is_refused_at_once_and_in_words(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(wrong, monkeypatch)


@pytest.mark.parametrize("subject", dict.fromkeys(wrong.subject for wrong in TABLE))
def test_after_all_its_wrong_calls_a_right_one_works(subject: str) -> None:
    assert_goes_on_working(subject, TABLE)


# ---------------------------------------------------------------------------------- nothing is lost


class Flaky(Dataset[Any]):
    """A dataset that cannot be read at one time."""

    def __init__(self) -> None:
        self.fails = False

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if self.fails:
            raise OSError("the disk is gone")
        return X[index], Y[index]


def test_a_loader_that_failed_can_be_read_again() -> None:
    data = Flaky()
    potential = MinibatchPotential(network(), DataLoader(data, batch_size=12))
    expected = potential.value(torch.zeros(1, 2))
    data.fails = True
    with pytest.raises(OSError, match="the disk is gone") as caught:
        potential.value(torch.zeros(1, 2))
    assert "DataLoader" in caught.value.__notes__[0]
    data.fails = False
    assert torch.equal(potential.value(torch.zeros(1, 2)), expected)


def test_batches_of_another_structure_are_refused_when_they_come() -> None:
    potential = MinibatchPotential(network(), [(X, Y), (X, Y, Y)], 12)
    with pytest.raises(ValueError, match="all batches need the same arguments"):
        potential.value(torch.zeros(1, 2))
    assert bool(potential.value(torch.zeros(1, 2)).isfinite())  # of the first again


def test_a_mask_may_hide_what_is_not_finite_in_batches() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)), pyro.poutine.mask(mask=~y.isnan()):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y.nan_to_num())

    potential = MinibatchPotential(model, loader(spoiled(Y[:, 0])))
    assert bool(potential.value(torch.zeros(1, 1)).isfinite())


@pytest.mark.parametrize("wrong", [{"y": spoiled(Y)}, {"y": Y + 1, "map_params": {"weight": X, "bias": X}}])
def test_a_refused_run_leaves_the_one_before_as_it_was(wrong: dict[str, Any]) -> None:
    one = run(X, Y, map_params=metric().map_params)

    def found() -> tuple[Any, ...]:
        return one.trajectories, one.posterior, one.guide, one.trajectories.arguments, one.trajectories.ground

    before = found()
    with pytest.raises(ValueError, match=r"argument 'y' has 1|has shape"):
        one.run(X, **wrong)
    assert all(old is new for old, new in zip(before, found(), strict=True))


def test_an_energy_recorded_through_a_known_gradient_follows_theta_inside_torch_func() -> None:
    """What the error about torch.func advises."""
    fresh = BatchedPotential(network(), X, Y).using(mode="trace")

    class Known(torch.autograd.Function):
        @staticmethod
        def forward(theta: Tensor) -> tuple[Tensor, Tensor]:
            return fresh.value_and_grad(theta)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            return cotangents[0][:, None] * ctx.saved_tensors[0]

    for theta in (torch.zeros(1, 2), torch.ones(1, 2)):
        found = torch.func.grad(lambda points: Known.apply(points)[0].sum())(theta)
        assert torch.allclose(found, potential().grad(theta))
