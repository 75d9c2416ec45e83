"""The whole flow on other devices and in other precisions.

Without a GPU two checks stand in: with `meta` as the default device, a tensor made without a device would
be on it and fail; and everything runs in float64.
"""

from collections.abc import Iterator
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, Predictive, Trace_ELBO
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import (
    Adam,
    AutoencoderMap,
    Bernoulli,
    Categorical,
    Descent,
    DriftRefineKernel,
    Gaussian,
    HeteroscedasticGaussian,
    KernelMap,
    MetricBNN,
    NoisyCategorical,
    Poisson,
    Steer,
    agreement,
    bayesianize,
    calibration,
    function_mixing,
    health,
    k_hat,
)
from pyro_metricbnn.diagnostics.calibration import ClassCalibration
from pyro_metricbnn.latent.latent_map import LatentMap
from pyro_metricbnn.model.likelihoods import Likelihood
from pyro_metricbnn.refiners.refiner import Refiner

LIKELIHOODS: list[tuple[Likelihood, int]] = [
    (Gaussian(0.3), 1),
    (HeteroscedasticGaussian(), 2),
    (Categorical(), 3),
    (NoisyCategorical(), 3),
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
def meta_by_default(_adam_keeps_off_the_default_device: None) -> Iterator[None]:
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


def use_the_posterior(device: str, dtype: torch.dtype, likelihood: Likelihood, num_outputs: int) -> None:
    """All that can be asked of a finished run."""
    x = torch.linspace(-1, 1, 12, device=device, dtype=dtype)[:, None]
    y = (x > 0).squeeze(-1).long() if isinstance(likelihood, Categorical) else (x > 0).to(dtype)
    model = bayesianize(nn.Linear(1, num_outputs, device=device, dtype=dtype), likelihood)
    kernel = DriftRefineKernel(model, refiner=Steer(path=2), num_steps=4)
    metric = MetricBNN(kernel, num_particles=2).run(x, y, progress=False)
    theta = metric.posterior.sample(torch.Size((3,)))
    tensors = [theta, metric.posterior.log_prob(theta), metric.posterior.mean, metric.posterior.variance]
    tensors += [*metric.latent_map.encode(theta), *metric.guide.median().values()]
    tensors += [*metric.draw(2).values(), *metric.draw(2, num_refinements=1).values()]
    prediction = metric.predict(x, 3, chunk_size=5)
    tensors += [prediction.mean, prediction.std, prediction.noise_std, prediction.model_std, prediction.quantile(0.1)]
    tensors += [prediction.log_prob(y)]
    if isinstance(likelihood, (Categorical, Bernoulli)):
        tensors += [prediction.probs, prediction.entropy, prediction.mutual_information]
    mixing = function_mixing(model, metric.get_samples(group_by_chain=True), x)
    tensors += [mixing.r_hat, mixing.ess, prediction.points(10)]
    figures = calibration(prediction, y)
    if isinstance(figures, ClassCalibration):
        tensors += [figures.reliability.confidence, figures.reliability.accuracy, figures.reliability.count]
    agreement(prediction, prediction)
    health(metric)
    k_hat(model, metric.guide, x, y, num_samples=100)
    Predictive(model, guide=metric.guide, num_samples=2)(x)
    Trace_ELBO().loss(model, metric.guide, x, y)
    assert {(tensor.device.type, tensor.dtype) for tensor in tensors} == {(device, dtype)}


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


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_what_comes_of_a_posterior_is_not_made_on_the_default_device(
    likelihood: Likelihood, num_outputs: int, meta_by_default: None
) -> None:
    use_the_posterior("cpu", torch.float32, likelihood, num_outputs)


@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_what_comes_of_a_posterior_in_float64_is_in_float64(likelihood: Likelihood, num_outputs: int) -> None:
    use_the_posterior("cpu", torch.float64, likelihood, num_outputs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("likelihood", "num_outputs"), LIKELIHOODS)
def test_what_comes_of_a_posterior_on_the_gpu_is_on_the_gpu(likelihood: Likelihood, num_outputs: int) -> None:
    use_the_posterior("cuda", torch.float32, likelihood, num_outputs)


def test_a_data_loader_of_float64_walks_in_float64() -> None:
    x = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]
    model = bayesianize(nn.Linear(1, 1, dtype=torch.float64), Gaussian(0.3))
    loader = DataLoader(TensorDataset(x, x), batch_size=4)
    walk = DriftRefineKernel(model, num_steps=3).walk(loader, num_particles=2, progress=False)
    assert walk.thetas.dtype == torch.float64


def save_and_resume(device: str, dtype: torch.dtype, latent_map: LatentMap, folder: Path) -> None:
    x = torch.linspace(-1, 1, 8, device=device, dtype=dtype)[:, None]
    model = bayesianize(nn.Linear(1, 1, device=device, dtype=dtype), Gaussian(0.3))
    thetas, draws = [], []
    for _ in range(2):
        kernel = DriftRefineKernel(model, refiner=Adam(num_refinements=2), num_steps=3)
        metric = MetricBNN(kernel, num_particles=2, latent_map=latent_map)
        metric.run(x, x, checkpoint=folder / "walk.pt", progress=False)
        thetas.append(metric.trajectories.thetas)
    metric.save(folder / "posterior.pt")
    for one in (metric, MetricBNN.load(folder / "posterior.pt", model)):
        pyro.set_rng_seed(0)
        draws.append(one.draw(3)["weight"])
    assert torch.equal(*thetas)
    assert torch.equal(*draws)
    assert draws[1].device.type == device
    assert draws[1].dtype == dtype


MAPS = [KernelMap(), AutoencoderMap(2, num_hidden=4, num_epochs=2)]


@pytest.mark.parametrize("latent_map", MAPS)
def test_saving_and_resuming_keep_to_the_datas_device(
    latent_map: LatentMap, meta_by_default: None, tmp_path: Path
) -> None:
    save_and_resume("cpu", torch.float32, latent_map, tmp_path)


@pytest.mark.parametrize("latent_map", MAPS)
def test_saving_and_resuming_keep_float64(latent_map: LatentMap, tmp_path: Path) -> None:
    save_and_resume("cpu", torch.float64, latent_map, tmp_path)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("latent_map", MAPS)
def test_saving_and_resuming_keep_to_the_gpu(latent_map: LatentMap, tmp_path: Path) -> None:
    save_and_resume("cuda", torch.float32, latent_map, tmp_path)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("refiner", REFINERS)
def test_everything_runs_on_the_gpu(refiner: Refiner) -> None:
    run_the_flow("cuda", torch.float32, Gaussian(0.3), 1, refiner)
