"""The whole flow on other devices and in other precisions.

Without a GPU two checks stand in: with `meta` as the default device, a tensor made without a device would
be on it and fail; and everything runs in float64.
"""

from collections.abc import Iterator

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import (
    Adam,
    Bernoulli,
    Categorical,
    Descent,
    DriftRefineKernel,
    Gaussian,
    HeteroscedasticGaussian,
    Poisson,
    Steer,
    bayesianize,
)
from pyro_metricbnn.likelihoods import Likelihood
from pyro_metricbnn.refiners import Refiner

LIKELIHOODS: list[tuple[Likelihood, int]] = [
    (Gaussian(0.3), 1),
    (HeteroscedasticGaussian(), 2),
    (Categorical(), 3),
    (Bernoulli(), 1),
    (Poisson(), 1),
]
REFINERS: list[Refiner] = [Steer(), Adam(num_refinements=2), Descent(alpha=0.01, eta=1e-4, num_refinements=2)]


def hierarchical(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), y.new_ones(())))
    spread = pyro.sample("spread", dist.LogNormal(y.new_zeros(()), y.new_ones(())))
    with pyro.plate("groups", len(y), dim=-1):
        effect = pyro.sample("effect", dist.Normal(mean, spread))
        pyro.sample("obs", dist.Normal(effect, y.new_ones(())), obs=y)


@pytest.fixture
def meta_by_default() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def run_the_flow(device: str, dtype: torch.dtype, likelihood: Likelihood, num_outputs: int, refiner: Refiner) -> None:
    x = torch.linspace(-1, 1, 12, device=device, dtype=dtype)[:, None]
    y = (x > 0).to(dtype)
    if isinstance(likelihood, Categorical):
        y = y.squeeze(-1).long()
    net = nn.Sequential(nn.Linear(1, 3, device=device, dtype=dtype), nn.Tanh())
    net.append(nn.Linear(3, num_outputs, device=device, dtype=dtype))
    model = bayesianize(net, likelihood)
    walk = DriftRefineKernel(model, refiner=refiner, num_steps=3).walk(x, y, num_particles=2, progress=False)
    assert walk.thetas.device.type == device
    assert walk.thetas.dtype == dtype
    assert all(value.dtype == dtype and value.isfinite().all() for value in walk.samples().values())
    walk.thinned(2)


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_no_tensor_is_made_on_the_default_device(
    likelihood: Likelihood, num_outputs: int, meta_by_default: None
) -> None:
    run_the_flow("cpu", torch.float32, likelihood, num_outputs, Adam(num_refinements=2))


@pytest.mark.parametrize("refiner", REFINERS)
def test_no_refiner_makes_a_tensor_on_the_default_device(refiner: Refiner, meta_by_default: None) -> None:
    run_the_flow("cpu", torch.float32, Gaussian(0.3), 1, refiner)


@pytest.mark.filterwarnings("ignore:the density has no maximum")
def test_a_hierarchical_model_minibatches_and_mcmc_keep_to_the_datas_device(meta_by_default: None) -> None:
    y = torch.linspace(-1, 1, 6, device="cpu")
    DriftRefineKernel(hierarchical, refiner=Steer(path=1), num_steps=3).walk(y, num_particles=2, progress=False)
    net = nn.Linear(1, 1, device="cpu")
    model = bayesianize(net, Gaussian(0.3))
    DriftRefineKernel(model, num_steps=3).walk(y[:, None], y[:, None], batch_size=2, num_particles=2, progress=False)
    mcmc = MCMC(
        DriftRefineKernel(model, refiner=Steer(path=1), num_steps=3),
        num_samples=2,
        warmup_steps=1,
        disable_progbar=True,
    )
    mcmc.run(y[:, None], y[:, None])
    assert mcmc.get_samples()["weight"].device.type == "cpu"


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_everything_runs_in_float64(likelihood: Likelihood, num_outputs: int) -> None:
    run_the_flow("cpu", torch.float64, likelihood, num_outputs, Adam(num_refinements=2))


@pytest.mark.parametrize("refiner", REFINERS)
def test_every_refiner_runs_in_float64(refiner: Refiner) -> None:
    run_the_flow("cpu", torch.float64, Gaussian(0.3), 1, refiner)


def test_a_data_loader_of_float64_walks_in_float64() -> None:
    x = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]
    model = bayesianize(nn.Linear(1, 1, dtype=torch.float64), Gaussian(0.3))
    loader = DataLoader(TensorDataset(x, x), batch_size=4)
    walk = DriftRefineKernel(model, num_steps=3).walk(loader, num_particles=2, progress=False)
    assert walk.thetas.dtype == torch.float64


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("refiner", REFINERS)
def test_everything_runs_on_the_gpu(refiner: Refiner) -> None:
    run_the_flow("cuda", torch.float32, Gaussian(0.3), 1, refiner)
