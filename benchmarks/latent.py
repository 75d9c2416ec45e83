"""The latent posterior's draws against the walk that they come from, an ensemble, NUTS and long HMC chains.

    python -m benchmarks latent --data DIR [--splits 10] [--seeds 3] [--nuts] [--reference DIR] [--only uci | snelson]

UCI classification (two layers of 32): test NLL of MAP, ensemble of 20, walk and latent draws, and their times; with
--reference, the folder that `benchmarks.reference` wrote, also the total variation of their mean predictive to those
chains on split 0, in units of that between two sets of four chains (cut where their R-hat first is below 1.05).
Snelson with a gap (1-32-32-32-1): train and gap NLL of walk and draws, what fitting and drawing take of the walk's
time, and with --nuts NUTS (200 + 200). Writes `latent.json` and `latent.md`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor
from torch.func import functional_call, vmap
from tqdm import tqdm

from pyro_metricbnn import Categorical, Gaussian, MetricBNN, bayesianize, predict
from pyro_metricbnn.diagnostics.agreement import total_variation

from .arguments import folder, parser
from .cold_start import networks, train_all
from .datasets import UCI, snelson, uci
from .effort import NOISE, nll
from .networks import mlp, train
from .results import Cell, Results

NUM_DRAWS = 1000
NUM_INPUTS = 200
MIXED = 1.05


def seconds_of(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives, and its time."""
    begin = time.perf_counter()
    return call(), time.perf_counter() - begin


def classification(folder: Path, name: str, split: int, reference: Path | None) -> Cell:
    """Test NLL and seconds of each contender on one split; on split 0 its distance to the reference."""
    pyro.set_rng_seed(split)
    problem = uci(folder, name, split)
    nets = networks(problem, 20)
    params, ensemble_seconds = seconds_of(lambda: train_all(nets, problem))
    with torch.no_grad():
        f = vmap(lambda weights: functional_call(nets[0], weights, (problem.x_test,)))(params)
    nets[0].load_state_dict({key: value[0] for key, value in params.items()})
    model = bayesianize(nets[0], Categorical())
    metric, seconds = seconds_of(lambda: MetricBNN(model).run(problem.x, problem.y, progress=False))
    draws, more = seconds_of(lambda: metric.draw(NUM_DRAWS))
    outputs = {
        "MAP": f[:1],
        "ensemble": f,
        "walk": predict(model, metric.get_samples(), problem.x_test).f,
        "draws": predict(model, draws, problem.x_test).f,
    }
    result: Cell = {kind: nll(Categorical(), values, problem.y_test) for kind, values in outputs.items()}
    result["seed"] = split
    result["time / ensemble's"] = (seconds + more) / ensemble_seconds
    if reference is not None and split == 0:
        result |= distances(torch.load(reference / f"{name}.pt", weights_only=True), outputs)
    return result


def distances(chains: Tensor, outputs: dict[str, Tensor]) -> dict[str, float]:
    """Total variation to all chains (chains, iterations, n, C), in units of that between two sets of four of them."""
    sets = chains[:4], chains[4:8]
    length = next((n for n in range(20, chains.shape[1], 10) if all(r_hat(s[:, :n]) < MIXED for s in sets)), None)
    length = length or chains.shape[1]

    def means(n: int) -> list[Tensor]:
        return [s[:, :n].softmax(-1).mean((0, 1)) for s in sets]

    yardstick, shortest = total_variation(*means(length)), total_variation(*means(chains.shape[1]))
    target = chains.softmax(-1).mean((0, 1))
    to_target = {kind: total_variation(f.softmax(-1).mean(0), target) for kind, f in outputs.items()}
    return {
        "R-hat of all": r_hat(chains),
        "iterations": length,
        "TV between": yardstick,
        **{f"TV {kind}": distance / yardstick for kind, distance in to_target.items()},
        f"TV draws, sets of {chains.shape[1]}": to_target["draws"] / shortest,
    }


def r_hat(f: Tensor) -> float:
    """The largest R-hat of the function values (chains, iterations, n, C); those of classes count up to a shift."""
    values = f - f.mean(-1, keepdim=True) if f.shape[-1] > 1 else f
    return float(split_gelman_rubin(values, chain_dim=0, sample_dim=1).max())


def gap(folder: Path, seed: int, with_nuts: bool) -> Cell:
    """Train and gap NLL and seconds on Snelson's data."""
    pyro.set_rng_seed(seed)
    problem = snelson(folder)
    model = bayesianize(train(mlp(1, 32, 32, 32, 1), problem.x, problem.y, NOISE, 5000), Gaussian(NOISE))
    metric, run = seconds_of(lambda: MetricBNN(model).run(problem.x, problem.y, progress=False))
    fit = statistics.median(seconds_of(lambda: metric.latent_map.fit(metric.trajectories))[1] for _ in range(5))
    inputs = torch.linspace(0, 6, NUM_INPUTS)[:, None]
    draw = statistics.median(seconds_of(lambda: metric.predict(inputs, NUM_DRAWS).mean)[1] for _ in range(5))
    points = metric.trajectories.num_particles * metric.trajectories.num_steps
    result: Cell = {
        "seed": seed,
        "run, s": run,
        "fit / run": fit / run,
        "drawing / walking": NUM_DRAWS / points * (run - fit) / draw,
    }
    samples = {"walk": metric.get_samples(), "draws": metric.draw(NUM_DRAWS)}
    if with_nuts:
        nuts = MCMC(NUTS(model), num_samples=200, warmup_steps=200, disable_progbar=True)
        _, seconds = seconds_of(lambda: nuts.run(problem.x, problem.y))
        samples["NUTS"] = nuts.get_samples()
        result |= {"NUTS, s": seconds, "run / NUTS": run / seconds}
    for kind, values in samples.items():
        for part, x, y in (("train", problem.x, problem.y), ("gap", problem.x_test, problem.y_test)):
            result[f"{kind} {part}"] = -float(predict(model, values, x).log_prob(y).mean())
    return result


def averaged(rows: list[Cell]) -> str:
    """The means of all figures that each row has, then those of the first alone, in one line."""
    rows = [{key: value for key, value in row.items() if key not in ("seed", "run")} for row in rows]
    shared = [f"{key} {statistics.fmean(row[key] for row in rows):.3f}" for key in rows[-1]]
    return ", ".join(shared + [f"{key} {value:.3f}" for key, value in rows[0].items() if key not in rows[-1]])


def by_problem(cells: Mapping[str, Cell]) -> dict[str, list[Cell]]:
    """The cells of each problem that have no error."""
    rows: dict[str, list[Cell]] = {}
    for key, cell in cells.items():
        if "error" not in cell:
            rows.setdefault(key.split("|")[0], []).append(cell)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the lines."""
    made = parser(__doc__ or "")
    made.add_argument("--splits", type=int, default=10, help="splits of each UCI set")
    made.add_argument("--seeds", type=int, default=3, help="runs on Snelson's data")
    made.add_argument("--nuts", action="store_true", help="run NUTS on Snelson's data too (many minutes)")
    made.add_argument("--reference", type=Path, help="folder of the chains that benchmarks.reference wrote")
    made.add_argument("--only", choices=("uci", "snelson"), help="one half of it")
    args = made.parse_args(argv)
    if args.data is None:
        raise SystemExit("latent needs the UCI sets: pass their folder with --data.")
    if args.quick:
        args.splits, args.seeds = 1, 1
    runs: dict[str, Callable[[], Cell]] = {}
    for name in UCI if args.only != "snelson" else ():
        runs |= {f"{name}|{i}": partial(classification, args.data, name, i, args.reference) for i in range(args.splits)}
    if args.only != "uci":
        runs |= {f"snelson|{seed}": partial(gap, args.data, seed, args.nuts) for seed in range(args.seeds)}
    setting = {"experiment": "latent", "nuts": args.nuts, "reference": args.reference is not None}
    results = Results(folder(args) / "latent" / "latent.json", setting, retry=args.retry)
    for key, measure in tqdm(runs.items(), desc="latent", unit=" runs"):
        results.cell(key, measure)
    text = "\n".join(f"- {name}: {averaged(rows)}" for name, rows in by_problem(results.cells).items())
    results.path.with_suffix(".md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
