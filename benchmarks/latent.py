"""The latent posterior's draws against the walk that they come from, an ensemble, and NUTS.

    python -m benchmarks.latent --data DIR [--splits 3] [--nuts]

UCI classification (two layers of 32): test NLL of MAP, ensemble of 20, walk and latent draws, and their times.
Snelson with a gap (1-32-32-32-1): train and gap NLL of walk and draws, and with --nuts of NUTS (200 + 200).
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import pyro
import torch
from pyro.infer import MCMC, NUTS
from torch.func import functional_call, vmap

from pyro_metricbnn import Categorical, Gaussian, MetricBNN, bayesianize, predict

from .cold_start import networks, train_all
from .datasets import UCI, snelson, uci
from .effort import NOISE, nll
from .networks import mlp, train

NUM_DRAWS = 1000


def classification(folder: Path, name: str, split: int) -> dict[str, float]:
    """Test NLL and seconds of each contender on one split."""
    pyro.set_rng_seed(split)
    problem = uci(folder, name, split)
    nets = networks(problem, 20)
    begin = time.perf_counter()
    params = train_all(nets, problem)
    ensemble_seconds = time.perf_counter() - begin
    with torch.no_grad():
        f = vmap(lambda weights: functional_call(nets[0], weights, (problem.x_test,)))(params)
    nets[0].load_state_dict({key: value[0] for key, value in params.items()})
    begin = time.perf_counter()
    metric = MetricBNN(bayesianize(nets[0], Categorical())).run(problem.x, problem.y, progress=False)
    ours = {"walk": metric.get_samples(), "draws": metric.draw(NUM_DRAWS)}
    seconds = time.perf_counter() - begin
    scores = {
        kind: -float(predict(metric.kernel.model, samples, problem.x_test).log_prob(problem.y_test).mean())  # type: ignore[arg-type]
        for kind, samples in ours.items()
    }
    map_nll, ensemble_nll = (nll(Categorical(), draws, problem.y_test) for draws in (f[:1], f))
    return {"MAP": map_nll, "ensemble": ensemble_nll, **scores, "ratio of times": seconds / ensemble_seconds}


def gap(folder: Path, seed: int, with_nuts: bool) -> dict[str, float]:
    """Train and gap NLL and seconds on Snelson's data."""
    pyro.set_rng_seed(seed)
    problem = snelson(folder)
    model = bayesianize(train(mlp(1, 32, 32, 32, 1), problem.x, problem.y, NOISE, 5000), Gaussian(NOISE))
    begin = time.perf_counter()
    metric = MetricBNN(model).run(problem.x, problem.y, progress=False)
    run_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    metric.latent_map.fit(metric.trajectories)
    fit_seconds = time.perf_counter() - begin
    samples = {"walk": metric.get_samples(), "draws": metric.draw(NUM_DRAWS)}
    result = {"run, s": run_seconds, "fit, s": fit_seconds}
    if with_nuts:
        nuts = MCMC(NUTS(model), num_samples=200, warmup_steps=200, disable_progbar=True)
        begin = time.perf_counter()
        nuts.run(problem.x, problem.y)
        result["NUTS, s"] = time.perf_counter() - begin
        samples["NUTS"] = nuts.get_samples()
    for kind, values in samples.items():
        for part, x, y in (("train", problem.x, problem.y), ("gap", problem.x_test, problem.y_test)):
            result[f"{kind} {part}"] = -float(predict(model, values, x).log_prob(y).mean())
    return result


def averaged(rows: list[dict[str, float]]) -> str:
    """The means of all figures, in one line."""
    return ", ".join(f"{key} {statistics.fmean(row[key] for row in rows):.3f}" for key in rows[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--splits", type=int, default=3, help="splits of each data set, and seeds")
    parser.add_argument("--nuts", action="store_true", help="run NUTS on Snelson's data too (minutes)")
    arguments = parser.parse_args()
    for name in UCI:
        rows = [classification(arguments.data, name, split) for split in range(arguments.splits)]
        print(f"{name}: {averaged(rows)}", flush=True)
    print(f"snelson: {averaged([gap(arguments.data, seed, arguments.nuts) for seed in range(arguments.splits)])}")


if __name__ == "__main__":
    main()
