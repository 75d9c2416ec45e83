"""The same seed gives the same draws from version to version, to the bit, on machines of the same kind.

`python -m tests.test_same_bits NAME ...` writes what the present code gives for these runs to tests/same_bits.json,
under the machine's kind: on another kind the last bits differ, and a walk makes much of them. A change of a result has
to be meant: the commit that writes a run anew says why.
"""

import hashlib
import json
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import (
    Adam,
    AutoencoderMap,
    Categorical,
    Descent,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    bayesianize,
)

FILE = Path(__file__).with_name("same_bits.json")
NUM_DRAWS = 50


def machine() -> str:
    """What decides on the last bits."""
    info = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {capability}, {name.group(1) if name else platform.processor()}"


def line(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, 40, dtype=dtype)[:, None]
    return x, torch.sin(2 * x)


def network(hidden: int = 16, dtype: torch.dtype = torch.float32) -> Any:
    net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    return bayesianize(net.to(dtype), Gaussian(0.3))


def groups(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = pyro.sample("spread", dist.HalfNormal(3.0))
    with pyro.plate("groups", 4, dim=-2):
        effect = pyro.sample("effect", dist.Normal(mean, spread))
        with pyro.plate("rows", 6, dim=-1):
            pyro.sample("obs", dist.Normal(effect, 1.0), obs=y)


def small(model: Any, **settings: Any) -> MetricBNN:
    return MetricBNN(model, **{"num_particles": 4, "num_steps": 10} | settings)


def drawn(metric: MetricBNN, **how: Any) -> list[Tensor]:
    draws = metric.draw(NUM_DRAWS, **how)
    return [metric.trajectories.thetas, *draws.values()]


def full_data() -> list[Tensor]:
    return drawn(small(network()).run(*line(), progress=False))


def tiny_network() -> list[Tensor]:
    return drawn(small(network(4)).run(*line(), progress=False))


def many_weights() -> list[Tensor]:
    return drawn(small(network(24)).run(*line(), progress=False))


def float64() -> list[Tensor]:
    return drawn(small(network(24, torch.float64)).run(*line(torch.float64), progress=False))


def minibatches() -> list[Tensor]:
    return drawn(small(network(24)).run(*line(), batch_size=8, progress=False))


def loader_and_adam() -> list[Tensor]:
    kernel = DriftRefineKernel(network(24), refiner=Adam(num_refinements=3), num_steps=10)
    loader = DataLoader(TensorDataset(*line()), batch_size=8, shuffle=True)
    return drawn(MetricBNN(kernel, num_particles=4).run(loader, progress=False))


def descent() -> list[Tensor]:
    kernel = DriftRefineKernel(network(24), refiner=Descent(alpha=0.1, eta=1e-4), num_steps=10)
    return drawn(MetricBNN(kernel, num_particles=4).run(*line(), progress=False))


def adam() -> list[Tensor]:
    kernel = DriftRefineKernel(network(24), refiner="adam", num_steps=10)
    return drawn(MetricBNN(kernel, num_particles=4).run(*line(), progress=False))


def autoencoder() -> list[Tensor]:
    latent_map = AutoencoderMap(4, num_epochs=20)
    return drawn(small(network(24), latent_map=latent_map).run(*line(), progress=False))


def paper() -> list[Tensor]:
    """But for the epochs of its autoencoder."""
    model = network(24)
    refiner = Descent(alpha=0.1, num_refinements=10, eta=1e-3, mean_loss=True)
    kernel = DriftRefineKernel(model, refiner=refiner, num_steps=50)
    metric = MetricBNN(kernel, num_particles=10, latent_map=AutoencoderMap.paper(num_epochs=3), tube_scale=0.0)
    return drawn(metric.run(*line(), map_params=model.trained_params, progress=False))


def pyro_model() -> list[Tensor]:
    y = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)) + torch.arange(4.0)[:, None]
    return drawn(small(groups).run(y, progress=False))


def classes() -> list[Tensor]:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    metric = small(bayesianize(net, Categorical())).run(x, x.argmax(1), progress=False)
    return [*drawn(metric), metric.predict(x, NUM_DRAWS).probs]


def warm() -> list[Tensor]:
    return drawn(small(network(24), temperature=4.0).run(*line(), progress=False))


def refined_draws() -> list[Tensor]:
    return drawn(small(network(24)).run(*line(), progress=False), num_refinements=3)


def thinned_in_half_precision() -> list[Tensor]:
    run = small(network(24)).run(*line(), thin=2, storage_dtype=torch.float16, progress=False)
    return [value.float() for value in drawn(run)]


def chain_of_pyros_mcmc() -> list[Tensor]:
    mcmc = MCMC(DriftRefineKernel(network(24)), num_samples=8, warmup_steps=2, disable_progbar=True)
    mcmc.run(*line())
    return list(mcmc.get_samples().values())


RUNS: dict[str, Callable[[], list[Tensor]]] = {
    run.__name__: run
    for run in (
        full_data,
        tiny_network,
        many_weights,
        float64,
        minibatches,
        loader_and_adam,
        descent,
        adam,
        autoencoder,
        paper,
        pyro_model,
        classes,
        warm,
        refined_draws,
        thinned_in_half_precision,
        chain_of_pyros_mcmc,
    )
}


def taken(name: str) -> str:
    """The digest of a run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pyro.set_rng_seed(3)
        values = RUNS[name]()
    finally:
        torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.filterwarnings("ignore")
def test_the_same_seed_gives_the_draws_that_it_gave_before(name: str) -> None:
    digest = json.loads(FILE.read_text()).get(machine(), {}).get(name)
    if digest is None:
        pytest.skip(f"no digest of {name} was taken on a machine like this: {machine()}")
    assert taken(name) == digest


if __name__ == "__main__":
    saved = json.loads(FILE.read_text()) if FILE.exists() else {}
    saved[machine()] = saved.get(machine(), {}) | {name: taken(name) for name in sys.argv[1:] or RUNS}
    FILE.write_text(json.dumps(saved, indent=1) + "\n")
