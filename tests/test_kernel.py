"""Claims about the walk: in one process, in Pyro's MCMC, on minibatches, and when it goes wrong."""

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, Predictive
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import Adam, BatchedPotential, Categorical, Descent, DriftRefineKernel, Gaussian, Steer, bayesianize
from tests.models import normal_mean

X = torch.linspace(-2, 2, 40)[:, None]
Y = torch.sin(2 * X)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


MODEL = bayesianize(network(), Gaussian(0.3))
STEER = Steer(path=2)  # a short path: these claims are for any


def hierarchical(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
    spread = pyro.sample("spread", dist.LogNormal(y.new_zeros(()), 1.0))
    with pyro.plate("groups", 3, dim=-2):
        effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("data", 5, dim=-1):
            pyro.sample("obs", dist.Normal(mean + spread * effect, 0.5), obs=y)


# ------------------------------------------------------------------------------------- N particles


@pytest.mark.parametrize("refiner", [STEER, Adam(num_refinements=3)])
def test_the_same_seed_gives_the_same_bits(refiner: Any) -> None:
    walks = []
    for _ in range(2):
        pyro.set_rng_seed(3)
        walks.append(DriftRefineKernel(MODEL, refiner=refiner, num_steps=5).walk(X, Y, num_particles=3, progress=False))
    assert torch.equal(walks[0].thetas, walks[1].thetas)
    assert torch.equal(walks[0].energies, walks[1].energies)


def test_other_seeds_walk_elsewhere() -> None:
    walks = []
    for seed in range(2):
        pyro.set_rng_seed(seed)
        walks.append(DriftRefineKernel(MODEL, refiner=STEER, num_steps=5).walk(X, Y, num_particles=3, progress=False))
    assert not torch.allclose(walks[0].thetas[:, -1], walks[1].thetas[:, -1])


def test_the_recorded_energies_are_those_of_the_recorded_points() -> None:
    kernel = DriftRefineKernel(MODEL, refiner=STEER, num_steps=5)
    walk = kernel.walk(X, Y, num_particles=3, progress=False)
    expected = BatchedPotential(MODEL, X, Y).value(walk.thetas.flatten(0, 1)).view(3, 6)
    torch.testing.assert_close(walk.energies, expected)


def test_a_chunked_walk_is_the_same_walk() -> None:
    walks = []
    for chunk_size in (None, 2):
        pyro.set_rng_seed(0)
        kernel = DriftRefineKernel(MODEL, refiner=Adam(num_refinements=3), num_steps=5, chunk_size=chunk_size)
        walks.append(kernel.walk(X, Y, num_particles=5, progress=False).thetas)
    torch.testing.assert_close(walks[0], walks[1], atol=1e-4, rtol=1e-4)


def test_constrained_sites_come_out_constrained_and_with_their_plates() -> None:
    y = torch.randn(3, 5)
    samples = DriftRefineKernel(hierarchical, num_steps=10).walk(y, num_particles=4, progress=False).samples()
    assert {name: value.shape[1:] for name, value in samples.items()} == {"mean": (), "spread": (), "effect": (3, 1)}
    assert (samples["spread"] > 0).all()


def test_thinning_while_walking_keeps_every_second_point() -> None:
    pyro.set_rng_seed(0)
    full = DriftRefineKernel(MODEL, refiner=STEER, num_steps=10).walk(X, Y, num_particles=3, progress=False)
    pyro.set_rng_seed(0)
    thin = DriftRefineKernel(MODEL, refiner=STEER, num_steps=10).walk(X, Y, num_particles=3, thin=2, progress=False)
    assert torch.equal(thin.thetas, full.thetas[:, ::2])


def test_the_record_can_be_kept_in_half_precision() -> None:
    walk = DriftRefineKernel(MODEL, refiner=STEER, num_steps=5).walk(
        X, Y, num_particles=3, storage_dtype=torch.float16, storage_device="cpu", progress=False
    )
    assert walk.thetas.dtype == torch.float16
    assert walk.samples()["0.weight"].dtype == torch.float32


def test_a_particle_without_a_finite_energy_is_frozen_at_its_last_good_point_and_said() -> None:
    refiner = Descent(alpha=0.1, eta=10.0)
    with pytest.warns(UserWarning, match=r"[123] of 3 particles .* frozen at their last good point"):
        walk = DriftRefineKernel(MODEL, refiner=refiner, num_steps=30).walk(X, Y, num_particles=3, progress=False)
    assert walk.thetas.isfinite().all()
    assert walk.energies.isfinite().all()
    frozen = walk.frozen_at <= 30
    assert frozen.any()
    particle = int(frozen.nonzero()[0])
    last_good = int(walk.frozen_at[particle]) - 1
    assert torch.equal(walk.thetas[particle, last_good], walk.thetas[particle, -1])
    assert len(walk.samples()["0.bias"]) == int(walk.is_good.sum()) < 90


def test_nothing_global_is_left_changed() -> None:
    before = (pyro.distributions.is_validation_enabled(), torch.get_default_dtype(), torch.is_grad_enabled())
    threads, params = torch.get_num_threads(), set(pyro.get_param_store().keys())
    DriftRefineKernel(MODEL, refiner=STEER, num_steps=3).walk(X, Y, num_particles=2, progress=False)
    assert before == (pyro.distributions.is_validation_enabled(), torch.get_default_dtype(), torch.is_grad_enabled())
    assert (threads, params) == (torch.get_num_threads(), set(pyro.get_param_store().keys()))


def test_samples_go_into_stock_predictive() -> None:
    walk = DriftRefineKernel(MODEL, refiner=STEER, num_steps=5).walk(X, Y, num_particles=2, progress=False)
    drawn = Predictive(MODEL, posterior_samples=walk.samples())(X[:7])
    assert drawn["obs"].shape == drawn["f"].shape == (10, 7, 1)


# ----------------------------------------------------------------------------------- Pyro's MCMC


def test_it_is_a_kernel_for_stock_mcmc() -> None:
    mcmc = MCMC(DriftRefineKernel(hierarchical, num_steps=20), num_samples=30, warmup_steps=5, disable_progbar=True)
    mcmc.run(torch.randn(3, 5))
    samples = mcmc.get_samples()
    assert samples["effect"].shape == (30, 3, 1)
    assert (samples["spread"] > 0).all()
    assert mcmc.diagnostics()["divergences"] == {"chain 0": []}
    mcmc.summary()


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_several_chains_run_in_processes(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 4)  # else two cores draw them one by one
    kernel = DriftRefineKernel(MODEL, num_steps=10)
    mcmc = MCMC(kernel, num_samples=4, warmup_steps=1, num_chains=2, mp_context=context, disable_progbar=True)
    mcmc.run(X, Y)
    samples = mcmc.get_samples(group_by_chain=True)["0.weight"]
    assert samples.shape == (2, 4, 8, 1)
    assert not torch.allclose(samples[0], samples[1])


def test_mcmc_starts_from_the_values_that_it_is_given() -> None:
    kernel = DriftRefineKernel(hierarchical, refiner=Adam(num_refinements=0, alpha=1e-6), num_steps=10)
    given = {"mean": torch.tensor([0.3]), "spread": torch.tensor([0.1]), "effect": torch.full((1, 3, 1), 0.2)}
    mcmc = MCMC(kernel, num_samples=1, warmup_steps=0, initial_params=given, disable_progbar=True)
    mcmc.run(torch.randn(3, 5))
    samples = mcmc.get_samples()
    assert float(samples["mean"]) == pytest.approx(0.3, abs=1e-4)
    assert float(samples["spread"].log()) == pytest.approx(0.1, abs=1e-4)


def test_cleaning_up_twice_does_no_harm() -> None:
    kernel = DriftRefineKernel(hierarchical)
    kernel.setup(0, torch.randn(3, 5))
    kernel.cleanup()
    kernel.cleanup()
    with pytest.raises(ValueError, match="no data yet"):
        kernel.sample({})


# ------------------------------------------------------------------------------------ minibatches


def test_a_batch_size_walks_on_minibatches_of_the_tensors() -> None:
    walk = DriftRefineKernel(MODEL, refiner=STEER, num_steps=5).walk(
        X, Y, batch_size=10, num_particles=3, progress=False
    )
    assert walk.thetas.isfinite().all()
    assert walk.thetas.shape[:2] == (3, 6)


def test_a_data_loader_stands_for_the_arguments() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    walk = DriftRefineKernel(MODEL, refiner=STEER, num_steps=5).walk(loader, num_particles=3, progress=False)
    assert walk.thetas.isfinite().all()


# ------------------------------------------------------------------------------------ bad input


def nan_in(x: Tensor) -> Tensor:
    x = x.clone()
    x[3] = float("nan")
    return x


def untrained_nan() -> Any:
    net = network()
    with torch.no_grad():
        next(net.parameters()).fill_(float("nan"))
    return net


def without_latents(y: Tensor) -> None:
    pyro.sample("obs", dist.Normal(0.0, 1.0).expand(y.shape).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: DriftRefineKernel(MODEL).walk(nan_in(X), Y), "argument 0 has 1 entries that are not finite"),
        (lambda: DriftRefineKernel(MODEL).walk(X, nan_in(Y)), "argument 1 has 1 entries that are not finite"),
        (lambda: DriftRefineKernel(MODEL).walk(X[:0], Y[:0]), "no rows"),
        (lambda: DriftRefineKernel(MODEL).walk(X, Y[:5]), "y has shape"),
        (lambda: DriftRefineKernel(MODEL).walk(X, Y, num_particles=0), "num_particles must be at least 1"),
        (lambda: DriftRefineKernel(MODEL).walk(X, Y, thin=0), "thin must be"),
        (lambda: DriftRefineKernel(MODEL).walk(X, Y, batch_size=0), "batch_size must be from 1"),
        (lambda: DriftRefineKernel(MODEL).walk(X, Y[:5], batch_size=2), "same number of rows"),
        (lambda: DriftRefineKernel(MODEL, num_steps=0), "num_steps must be at least 1"),
        (lambda: DriftRefineKernel(MODEL, chunk_size=0).walk(X, Y), "chunk_size must be at least 1"),
        (lambda: DriftRefineKernel(without_latents).walk(torch.ones(3)), "no latent site"),
        (lambda: bayesianize(untrained_nan(), Gaussian(0.3)), "not finite"),
        (
            lambda: DriftRefineKernel(MODEL).walk(X, Y, initial_params={"0.bias": torch.full((8,), float("inf"))}),
            "initial values of 0.bias are not finite",
        ),
        (lambda: DriftRefineKernel(bayesianize(network(), Categorical())).walk(X, Y), "use Bernoulli"),
    ],
)
def test_bad_input_is_refused_in_words_before_any_long_work(wrong: Callable[[], object], said: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=said):
            wrong()


def test_a_chain_of_pyros_mcmc_is_planned_for_warm_up_and_samples() -> None:
    planned = []
    kernel = DriftRefineKernel(normal_mean)

    def hook(kernel: DriftRefineKernel, *_: Any) -> None:
        assert kernel._chain is not None
        planned.append(kernel._chain[0].num_steps)

    MCMC(kernel, num_samples=7, warmup_steps=3, disable_progbar=True, hook_fn=hook).run(torch.ones(4).double())
    assert planned == [10] * 10


def test_a_kernel_forgets_where_the_last_run_of_mcmc_started() -> None:
    kernel = DriftRefineKernel(normal_mean)
    start = {"mean": torch.tensor([50.0], dtype=torch.float64)}
    runs = [
        MCMC(kernel, num_samples=4, warmup_steps=0, disable_progbar=True, initial_params=given)
        for given in (start, None)
    ]
    for mcmc in runs:
        mcmc.run(torch.ones(4).double())
    assert kernel._given is None
    assert float(runs[1].get_samples()["mean"][0].abs()) < 5
