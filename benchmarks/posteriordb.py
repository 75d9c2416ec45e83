"""Posteriors of posteriordb: draws with the defaults against Stan's reference draws, and NUTS's seconds beside them.

    python -m benchmarks posteriordb --reference DIR [NAME ...] [--seed 0] [--nuts] [--quick]

DIR is a clone of stan-dev/posteriordb, or a folder with a `DATA.json` of each data set and a `POSTERIOR.npz` (`names`,
`mean`, `std`) of the reference draws of each posterior. For each: the largest distance of means in posterior
deviations, the range of the ratios of deviations, seconds, and what was warned of. --nuts runs a short chain of Pyro's
NUTS too, which is the reference where there is none. Without --reference the data are made ones of the same shape.
Writes `posteriordb.json`, `nuts.json`, which needs not be run anew with the first, and `posteriordb.md`.
"""

from __future__ import annotations

import json
import time
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor
from tqdm import tqdm

from pyro_metricbnn import MetricBNN, health

from .arguments import folder, parser, share
from .posteriordb_data import made
from .posteriordb_models import posteriors
from .posteriordb_problem import Data, Posterior, Problem, Samples
from .results import Cell, Results
from .tables import markdown

NUM_DRAWS = 10_000
NUTS_WARMUP, NUTS_SAMPLES = 300, 500  # one chain: for its seconds, and a rough reference where there is none
TOLERANCE = 0.25  # deviations that a mean may be off without a warning
NOT_ABOUT_THE_RUN = (DeprecationWarning, FutureWarning, ImportWarning, ResourceWarning, torch.jit.TracerWarning)
Moments = dict[str, tuple[float, float]]  # mean and deviation of each parameter, under Stan's name


# ------------------------------------------------------------------------------------------ what is read


def read_data(posterior: Posterior, where: Path | None) -> Data:
    """From posteriordb's clone or a folder; made ones without."""
    if where is None:
        return made(posterior.data_name)
    plain = where / f"{posterior.data_name}.json"
    if plain.exists():
        return dict(json.loads(plain.read_text()))
    return dict(_zipped(where / "posterior_database/data/data" / f"{posterior.data_name}.json.zip"))


def read_reference(posterior: Posterior, where: Path | None) -> Moments | None:
    """Moments of the reference draws; None where there are none."""
    if where is None:
        return None
    plain = where / f"{posterior.name}.npz"
    zipped = where / "posterior_database/reference_posteriors/draws/draws" / f"{posterior.name}.json.zip"
    if plain.exists():
        with np.load(plain) as file:
            rows = zip(file["names"], file["mean"], file["std"], strict=True)
            return {str(name): (float(mean), float(deviation)) for name, mean, deviation in rows}
    if not zipped.exists():
        return None
    chains = _zipped(zipped)
    joined = {name: np.concatenate([chain[name] for chain in chains]) for name in chains[0]}
    return {name: (float(values.mean()), float(values.std(ddof=1))) for name, values in joined.items()}


def _zipped(path: Path) -> Any:
    """The one JSON file in an archive."""
    if not path.exists():
        raise SystemExit(
            f"{path} is not there. --reference takes a clone of stan-dev/posteriordb, or a folder of files."
        )
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


# -------------------------------------------------------------------------------------- what is compared


def named(parameters: Samples) -> dict[str, Tensor]:
    """Each number (S,) under Stan's name: beta[1], beta[2], sigma."""
    found = {}
    for name, value in parameters.items():
        if value.dim() == 1:
            found[name] = value
        else:
            found |= {f"{name}[{index}]": column for index, column in enumerate(value.unbind(1), start=1)}
    return found


def moments(problem: Problem, samples: Samples) -> Moments:
    """Of samples (S, ...) by site."""
    columns = named(problem.parameters(samples))
    return {name: (float(column.mean()), float(column.std())) for name, column in columns.items()}


def errors(found: Moments, reference: Moments) -> Cell:
    """Of the worst parameter: means in deviations; the least and the largest ratio of deviations."""
    shifts = {name: (found[name][0] - mean) / deviation for name, (mean, deviation) in reference.items()}
    ratios = {name: found[name][1] / deviation for name, (_, deviation) in reference.items()}
    worst = max(shifts, key=lambda name: abs(shifts[name]))
    return {
        "mean": shifts[worst],
        "worst": worst,
        "least deviation": min(ratios.values()),
        "largest deviation": max(ratios.values()),
    }


# ------------------------------------------------------------------------------------------ what is run


def walked(posterior: Posterior, where: Path | None, seed: int, effort: float, instead: Moments | None) -> Cell:
    """A run with the defaults."""
    problem = posterior.problem(read_data(posterior, where))
    pyro.set_rng_seed(seed)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        metric = MetricBNN(problem.model, effort=effort).run(*problem.args, progress=False)
        samples = metric.draw(NUM_DRAWS)
    times = {"seconds": time.perf_counter() - begun, "cpu seconds": time.process_time() - begun_cpu}
    heard = [str(one.message) for one in said if not issubclass(one.category, NOT_ABOUT_THE_RUN)]
    reference = read_reference(posterior, where) or instead
    against = {} if reference is None else errors(moments(problem, samples), reference)
    return {
        "dim": metric.trajectories.sites.dim,
        **times,
        **against,
        "warnings": [*heard, *health(metric).warnings],
    }


def nuts(posterior: Posterior, where: Path | None, seed: int, part: float) -> Cell:
    """A short chain of Pyro's own."""
    problem = posterior.problem(read_data(posterior, where))
    pyro.set_rng_seed(seed)
    pyro.clear_param_store()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    kernel = NUTS(problem.model, jit_compile=True, ignore_jit_warnings=True, full_mass=True)
    num_samples, warmup = max(2, int(part * NUTS_SAMPLES)), max(2, int(part * NUTS_WARMUP))
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup, disable_progbar=True)
    mcmc.run(*problem.args)
    times = {"seconds": time.perf_counter() - begun, "cpu seconds": time.process_time() - begun_cpu}
    found = moments(problem, mcmc.get_samples())
    reference = read_reference(posterior, where)
    return {**times, **(errors(found, reference) if reference else {"moments": found})}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the table."""
    parsing = parser(__doc__ or "")
    parsing.add_argument("names", nargs="*", metavar="NAME", help="posteriors, by a part of the name; all by default")
    parsing.add_argument("--reference", type=Path, metavar="DIR", help="posteriordb; made data and NUTS without it")
    parsing.add_argument("--seed", type=int, default=0)
    parsing.add_argument("--nuts", action="store_true", help="run NUTS where nuts.json does not have it")
    arguments = parsing.parse_args(argv)
    where, seed, part = arguments.reference, arguments.seed, share(arguments)
    arguments.data = where  # made data have a folder of their own
    out = folder(arguments) / "posteriordb"
    setting = {"experiment": "posteriordb", "share": part}
    results = Results(out / "posteriordb.json", setting, retry=arguments.retry)
    chains = Results(out / "nuts.json", {**setting, "chain": [NUTS_WARMUP, NUTS_SAMPLES]}, retry=arguments.retry)
    chosen = [one for one in posteriors() if not arguments.names or any(each in one.name for each in arguments.names)]
    for posterior in tqdm(chosen, unit=" posteriors"):
        instead = None
        if arguments.nuts or read_reference(posterior, where) is None:
            chain = chains.cell(posterior.name, partial(nuts, posterior, where, 0, part))
            instead = {name: (mean, deviation) for name, (mean, deviation) in chain.get("moments", {}).items()} or None
        key = f"{posterior.name}|{seed}"
        results.cell(key, partial(walked, posterior, where, seed, part, instead))
    text = report(results.cells, chains.cells, seed)
    out.mkdir(parents=True, exist_ok=True)
    (out / "posteriordb.md").write_text(text + "\n")
    print(text)


# ------------------------------------------------------------------------------------------ what is said


def report(cells: Mapping[str, Cell], chains: Mapping[str, Cell], seed: int) -> str:
    """A row a posterior, what was warned of, and the claim."""
    header = ("", "D", "mean", "of", "deviations", "warned", "s", "NUTS: mean", "deviations", "s")
    there = {one.name: cells[key] for one in posteriors() if (key := f"{one.name}|{seed}") in cells}
    whole = {name: cell for name, cell in there.items() if "mean" in cell}
    rows = [_row(name, cell, chains.get(name, {})) for name, cell in whole.items()]
    said = [f"- {name}: {text}" for name, cell in whole.items() for text in cell["warnings"]]
    failed = [f"- {name}: {cell['error']}" for name, cell in there.items() if "error" in cell]
    parts = [markdown(header, rows), *("\n".join(lines) for lines in (said, failed) if lines), verdict(whole)]
    return "\n\n".join(parts)


def verdict(cells: Mapping[str, Cell]) -> str:
    """How many posteriors are off by more than the tolerance, with and without a warning."""
    off = {name: cell for name, cell in cells.items() if not abs(cell["mean"]) <= TOLERANCE}
    silent = [name for name, cell in off.items() if not cell["warnings"]]
    warned = sum(bool(cell["warnings"]) for cell in cells.values())
    return (
        f"{len(cells)} posteriors, {len(off)} off by more than {TOLERANCE} deviations, "
        f"{len(silent)} of them without a warning{': ' + ', '.join(silent) if silent else ''}; {warned} warned of; "
        f"{sum(cell['seconds'] for cell in cells.values()):.0f} s in all."
    )


def _range(cell: Cell) -> str:
    return f"{cell['least deviation']:.2f} to {cell['largest deviation']:.2f}"


def _row(name: str, cell: Cell, chain: Cell) -> tuple[str, ...]:
    """A posterior's figures and NUTS's beside them."""
    warned = "yes" if cell["warnings"] else "–"
    ours = (name, str(cell["dim"]), f"{cell['mean']:+.2f}", cell["worst"], _range(cell), warned)
    theirs = (f"{chain['mean']:+.2f}", _range(chain)) if "mean" in chain else ("–", "–")
    return (*ours, f"{cell['seconds']:.1f}", *theirs, f"{chain['seconds']:.1f}" if "seconds" in chain else "–")


if __name__ == "__main__":
    main()
