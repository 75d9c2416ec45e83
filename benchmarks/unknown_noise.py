"""scikit-learn's diabetes with unknown noise: a plain network and `Gaussian()`, against an exact Gaussian process.

    python -m benchmarks unknown_noise [--splits 10] [--quick]

One layer of 50 ReLU units, trained by squared error with Adam, once stopped early (100 steps) and once overfitted
(2,000). Nothing else is said: no noise, no prior, no validation rows. Beside it: scikit-learn's Gaussian process (a
length for each input and white noise, by its marginal likelihood) and laplace-torch (Kronecker factors, prior precision
and noise by the marginal likelihood, linearised) on the same networks. NLL, RMSE and the coverage of the 90 % interval
in units of y's deviation. Writes `unknown_noise.json` and `unknown_noise.md`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from pyro_metricbnn import Gaussian, MetricBNN, bayesianize

from .arguments import folder, parser, share
from .datasets import Problem, regression
from .networks import mlp
from .results import Cell, Results
from .tables import markdown

TRAININGS = {"stopped early": 100, "overfitted": 2000}  # steps of Adam at 1e-2
NORMAL_95 = 1.6448536269514722


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    made = parser(__doc__ or "")
    made.add_argument("--splits", type=int, default=10, choices=range(1, 21), metavar="1..20")
    arguments = made.parse_args(argv)
    part, out = share(arguments), folder(arguments) / "unknown_noise"
    results = Results(out / "unknown_noise.json", {"experiment": "unknown_noise", "share": part}, retry=arguments.retry)
    for split in tqdm(range(1 if arguments.quick else arguments.splits), unit=" splits"):
        problem = _joined(regression(None, "diabetes", split))
        for name, run in contenders(problem, split, part).items():
            results.cell(f"{name}|{split}", run)
    (out / "unknown_noise.md").write_text(table(results) + "\n")


def contenders(problem: Problem, split: int, part: float) -> dict[str, Callable[[], Cell]]:
    """By name, the GP first."""
    found: dict[str, Callable[[], Cell]] = {"Gaussian process, exact": partial(judged, problem, gaussian_process)}
    for how, steps in TRAININGS.items():
        pyro.set_rng_seed(split)
        net = trained(problem, round(steps * max(part, 0.1)))
        found[f"the network, {how}"] = partial(judged, problem, partial(as_trained, net=net))
        found[f"laplace-torch, {how}"] = partial(judged, problem, partial(laplace, net=net))
        found[f"MetricBNN, {how}"] = partial(judged, problem, partial(metric_bnn, net=net, part=part))
    return found


def _joined(problem: Problem) -> Problem:
    """With the rows that other experiments hold out: nothing is chosen on them here."""
    assert problem.x_valid is not None
    assert problem.y_valid is not None
    x, y = torch.cat([problem.x, problem.x_valid]), torch.cat([problem.y, problem.y_valid])
    return problem._replace(x=x, y=y, x_valid=None, y_valid=None)


def trained(problem: Problem, num_steps: int) -> nn.Module:
    """By squared error alone."""
    net = mlp(problem.x.shape[1], 50, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(num_steps):
        optimizer.zero_grad()
        (net(problem.x) - problem.y).pow(2).mean().backward()
        optimizer.step()
    return net


def judged(problem: Problem, fit: Callable[[Problem], tuple[Any, ...]]) -> Cell:
    """Figures of log densities, means and 90 % intervals (n,) at the test rows."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log_prob, mean, low, high = fit(problem)
    seconds, y = time.perf_counter() - begin, problem.y_test.flatten()
    inside = ((y >= low.flatten()) & (y <= high.flatten())).float().mean()
    rmse = (mean.flatten() - y).pow(2).mean().sqrt()
    return {"nll": -float(log_prob.mean()), "rmse": float(rmse), "coverage_90": float(inside), "seconds": seconds}


def normal(mean: Tensor, deviation: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Of a normal prediction at each row."""
    log_prob = torch.distributions.Normal(mean, deviation).log_prob(y.reshape(mean.shape))
    return log_prob, mean, mean - NORMAL_95 * deviation, mean + NORMAL_95 * deviation


def gaussian_process(problem: Problem) -> tuple[Tensor, ...]:
    """scikit-learn's, with the hyperparameters of the largest marginal likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0) * RBF(np.ones(problem.x.shape[1]), (1e-2, 1e3)) + WhiteKernel(0.5)
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0)
    process.fit(problem.x.numpy(), problem.y.numpy().ravel())
    mean, deviation = (torch.as_tensor(of) for of in process.predict(problem.x_test.numpy(), return_std=True))
    return normal(mean, deviation, problem.y_test)


def as_trained(problem: Problem, net: nn.Module) -> tuple[Tensor, ...]:
    """With the noise of its residuals."""
    with torch.no_grad():
        noise = (net(problem.x) - problem.y).pow(2).mean().sqrt()
        mean = net(problem.x_test)
    return normal(mean, noise.expand_as(mean), problem.y_test)


def laplace(problem: Problem, net: nn.Module) -> tuple[Tensor, ...]:
    """As its documentation has it for regressions: prior and noise by the marginal likelihood."""
    from laplace import Laplace

    posterior = Laplace(net, "regression", subset_of_weights="all", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(problem.x, problem.y), batch_size=len(problem.x)))
    log_prior, log_noise = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([log_prior, log_noise], 1e-1)
    for _ in range(100):
        optimizer.zero_grad()
        (-posterior.log_marginal_likelihood(log_prior.exp(), log_noise.exp())).backward()
        optimizer.step()
    mean, variance = posterior(problem.x_test)
    deviation = (variance.squeeze(-1) + posterior.sigma_noise.detach() ** 2).sqrt()
    return normal(mean.detach(), deviation.detach(), problem.y_test)


def metric_bnn(problem: Problem, net: nn.Module, part: float) -> tuple[Tensor, ...]:
    """The defaults."""
    metric = MetricBNN(bayesianize(net, Gaussian()), effort=part, num_steps=None if part == 1 else 20)
    prediction = metric.run(problem.x, problem.y, progress=False).predict(problem.x_test, 500)
    low, high = prediction.quantile(0.05), prediction.quantile(0.95)
    return prediction.log_prob(problem.y_test), prediction.mean, low, high


def table(results: Results) -> str:
    """Means over the splits, and the standard error of the NLL's difference from the Gaussian process's."""
    by_name: dict[str, dict[int, Cell]] = {}
    for key, cell in results.cells.items():
        name, split = key.split("|")
        by_name.setdefault(name, {})[int(split)] = cell
    reference = next(iter(by_name.values()))
    rows = []
    for name, cells in by_name.items():
        apart = np.array([cells[s]["nll"] - reference[s]["nll"] for s in cells])
        error = apart.std(ddof=1) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        mean = {
            key: np.mean([cell[key] for cell in cells.values()]) for key in ("nll", "rmse", "coverage_90", "seconds")
        }
        figures = [f"{mean['rmse']:.3f}", f"{mean['coverage_90']:.3f}", f"{mean['seconds']:.1f}"]
        rows.append([name, f"{mean['nll']:.3f}", f"{apart.mean():+.3f} ± {error:.3f}", *figures])
    head = ["", "NLL", "above the Gaussian process", "RMSE", "coverage of 90 %", "s"]
    return markdown(head, rows)


if __name__ == "__main__":
    main()
