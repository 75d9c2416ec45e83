"""The tables that documents quote, by name: what writes each from which result files.

In: the folder of results.  Out: Markdown. To add a table: one more entry in `TABLES`, and its marks in a document.
A table in `results/kept` is the text of a run whose own file was not kept; it goes when the experiment is run again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import (
    banana,
    bias,
    complexity,
    fidelity,
    load,
    older,
    paper_figures,
    pca,
    posteriordb,
    pyro_models,
    sbc,
    snelson,
    unknown_noise,
)
from .datasets import REGRESSION, UCI_ALL
from .report import OURS, Cells, as_markdown, figures, of_one_set, on_the_same_splits, read, values
from .results import Cell, Results
from .tables import Figure, best, figure, markdown, written

NAMES = {
    "glass": "Glass",
    "australian": "Australian",
    "ionosphere": "Ionosphere",
    "breast_cancer": "Breast",
    "breast_ljubljana": "Ljubljana",
    "vehicle": "Vehicle",
    "waveform": "Waveform",
}
FEW = {  # of the README
    "MAP": "the network (MAP)",
    "Lin LA": "Laplace, linearised",
    "Ensemble": "ensemble of 20",
    "SWAG": "SWAG",
    "HMC": "HMC",
    "MILE": "MILE",
    OURS: "MetricBNN",
}
SOME = {
    "MAP": "the network (MAP)",
    "LA GN": "Laplace, full, drawn",
    "Lin LA": "Laplace, linearised",
    "Ensemble": "ensemble of 20",
    "Ensemble, stopped early": "ensemble of 20, stopped early",
    "SWAG": "SWAG",
    "SGLD": "SGLD",
    "HMC": "HMC",
    "MILE": "MILE",
    OURS: "MetricBNN, default",
    "MetricBNN, auto": "MetricBNN, temperature chosen",
    "MetricBNN, tempered": "MetricBNN, tempered",
}
AT_TEMPERATURES = {
    "MAP": "the network (MAP)",
    "Ensemble": "ensemble of 20",
    OURS: "temperature 1",
    "MetricBNN, auto": "auto",
}
PAPER_SETS = {  # ours, and the name in the paper
    "glass": "glass",
    "australian": "australian",
    "ionosphere": "ionosphere",
    "breast_ljubljana": "breast",
    "vehicle": "vehicle",
    "waveform5000": "waveform",
}
PAPER = "MetricBNN (paper)"
PAPER_ROWS = {
    "its setting, its training, raw features": ("uci_raw_paper_training", PAPER),
    "trained to the MAP, raw features": ("uci_raw", PAPER),
    "trained to the MAP, standardised": ("uci", PAPER),
    "our default on the networks of the second row": ("uci_raw_paper_training", OURS),
}
MCMCS = ("SGLD", "HMC", "MILE")
INFERRED, SECOND_OUTPUT = "MetricBNN, noise inferred", "MetricBNN, heteroscedastic"
WALKED_DEEP = ("HMC", OURS)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a document.

    Args:
        write: From the folder of results to Markdown.
        files: Which result files it is of, as patterns in that folder.
        methods: Which of our methods it shows; None for all that the files have.
    """

    write: Callable[[Path], str]
    files: tuple[str, ...] = ()
    methods: tuple[str, ...] | None = None

    def note(self, results: Path) -> str:
        """Which walk made it."""
        return older.note(results, self.files, self.methods)


# ------------------------------------------------------------------------------------------ UCI


def in_short(methods: Mapping[str, str]) -> Callable[[Path], str]:
    """NLL of some methods by set, without errors, the lowest of each set in bold."""

    def write(results: Path) -> str:
        table = figures(read(results / "uci", UCI_ALL), "nll")
        rows = [[label, *(_plain(table[method][name]) for name in NAMES)] for method, label in methods.items()]
        for column in range(1, len(NAMES) + 1):
            lowest = min(float(row[column]) for row in rows)
            for row in rows:
                row[column] = f"**{row[column]}**" if float(row[column]) == lowest else row[column]
        return markdown(["", *NAMES.values()], rows)

    return write


def _plain(value: Figure | None) -> str:
    return "–" if value is None else f"{value.mean:.3f}".replace("0.", ".", 1)


def of_sets(folder: str, sets: Sequence[str], quantity: str, *, largest: bool = False, digits: int = 3) -> Table:
    """A quantity of all methods by set."""

    def write(results: Path) -> str:
        bold = quantity not in ("seconds", "total_seconds", "coverage_90")
        return as_markdown(figures(read(results / folder, sets), quantity), largest=largest, digits=digits, bold=bold)

    return Table(write=write, files=tuple(f"{folder}/{name}.json" for name in sets))


def at_temperatures(results: Path) -> str:
    """What choosing the temperature brings, and what it costs."""
    cells = read(results / "uci", UCI_ALL)
    nll = figures(cells, "nll")
    rows = [[label, *(_plain(nll[method][name]) for name in NAMES)] for method, label in AT_TEMPERATURES.items()]
    rows.append(["auto above the lowest of all methods, split by split", *(_above(cells, name) for name in NAMES)])
    seconds = {method: [_median(cells, method, name) for name in NAMES] for method in (OURS, "MetricBNN, auto")}
    ratios = [after / before for before, after in zip(*seconds.values(), strict=True)]
    rows.append(["seconds of auto, in those of temperature 1", *(f"{ratio:.1f}" for ratio in ratios)])
    return markdown(["", *NAMES.values()], rows)


def paper_setting(results: Path) -> str:
    """The paper's table beside its setting on our networks: mean, deviation, accuracy and number of splits."""
    rows = []
    where = [paper_figures.SETS.index(name) for name in PAPER_SETS.values()]
    pairs = zip(paper_figures.NLL[OURS], paper_figures.ACCURACY[OURS], strict=True)
    theirs = [f"{nll} ({accuracy.split()[0]})" for nll, accuracy in pairs]
    rows.append(["the paper's table", *(theirs[i] for i in where)])
    for label, (folder, method) in PAPER_ROWS.items():
        cells = read(results / folder, tuple(PAPER_SETS))
        rows.append([label, *(_with_accuracy(cells.get(name, {}), method) for name in PAPER_SETS)])
    return markdown(["NLL (accuracy; splits)", *(NAMES.get(name, "Waveform, 5,000 rows") for name in PAPER_SETS)], rows)


def _with_accuracy(cells: dict[str, Cell], method: str) -> str:
    nll, accuracy = (values(cells, method, quantity) for quantity in ("nll", "accuracy"))
    if not nll:
        return "–"
    deviation = f" ± {statistics.stdev(nll):.2f}" if len(nll) > 1 else ""
    return f"{statistics.fmean(nll):.2f}{deviation} ({statistics.fmean(accuracy):.2f}; {len(nll)})"


def _above(cells: Cells, name: str) -> str:
    table = figures(cells, "nll")
    lowest = list(table)[best([row[name] for row in table.values()]) or 0]
    pairs = on_the_same_splits(cells[name], "MetricBNN, auto", lowest)
    apart = figure([ours - other for ours, other in pairs])
    return "–" if apart is None else f"{_plain(apart)} ± {f'{apart.error:.3f}'[1:]}"


def _median(cells: Cells, method: str, name: str) -> float:
    return statistics.median(values(cells[name], method, "seconds"))


def apart(folder: str, sets: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Table:
    """How far NLLs are apart split by split, of what one split is harder than another for both no part."""

    def write(results: Path) -> str:
        cells = read(results / folder, sets)
        rows = []
        for ours, other in pairs:
            by_set = [figure([a - b for a, b in on_the_same_splits(cells[name], ours, other)]) for name in cells]
            rows.append([f"{ours}, above {other}", *map(written, by_set)])
        return markdown(["", *(NAMES.get(name, name) for name in cells)], rows)

    return Table(
        write=write,
        files=tuple(f"{folder}/{name}.json" for name in sets),
        methods=tuple(method for pair in pairs for method in pair),
    )


def in_parts(folder: str, sets: Sequence[str], pairs: Sequence[tuple[str, str]], quantity: str) -> Table:
    """Seconds of one method in those of another, medians over the splits that both have."""

    def write(results: Path) -> str:
        cells = read(results / folder, sets)
        rows = []
        for ours, other in pairs:
            medians = [[values(cells[name], one, quantity) for one in (ours, other)] for name in cells]
            ratios = [f"{statistics.median(a) / statistics.median(b):.2f}" if a and b else "–" for a, b in medians]
            rows.append([f"{ours}, in those of {other}", *ratios])
        return markdown(["", *(NAMES.get(name, name) for name in cells)], rows)

    return Table(
        write=write,
        files=tuple(f"{folder}/{name}.json" for name in sets),
        methods=tuple(method for pair in pairs for method in pair),
    )


def seconds(results: Path) -> str:
    """From the trained network on, compiling included; those that train their own networks, from nothing."""
    cells = read(results / "uci", UCI_ALL)
    rows = [
        [label, *(f"{_median(cells, method, name):.1f}" for name in NAMES)]
        for method, label in SOME.items()
        if method != "MAP"
    ]
    return markdown(["", *NAMES.values()], rows)


# ------------------------------------------------------------------------------------------ the others


def what_time(results: Path) -> str:
    """Seconds of a run from the trained network on, the least and the largest of all sets."""
    classes, numbers = read(results / "uci", UCI_ALL), read(results / "regression", REGRESSION)
    models = [cell["seconds"] for cell in _cells(results, "pyro_models/pyro_models.json").values()]
    inferred = [_median(numbers, INFERRED, name) for name in numbers if values(numbers[name], INFERRED, "seconds")]
    rows = [
        ["a Pyro model without a network", _range(models)],
        [
            "a classifier of two layers of 32 units, 150 to 700 rows",
            _range([_median(classes, OURS, name) for name in NAMES]),
        ],
        ["a regression of one layer of 50 units whose noise is inferred, 300 to 1,400 rows", _range(inferred)],
    ]
    return markdown(["", "seconds"], rows)


def _range(found: Sequence[float]) -> str:
    return f"{round(min(found))} to {round(max(found))}"


def by_depth(quantity: str, digits: int) -> Table:
    """Of HMC and of ours, by hidden layers."""

    def write(results: Path) -> str:
        by_method = complexity.by_method(_cells(results, "complexity/complexity.json"))
        depths = sorted({depth for row in by_method.values() for depth in row})
        rows = []
        for method in ("MAP", *WALKED_DEEP):
            found = [by_method.get(method, {}).get(depth, {}).get(quantity) for depth in depths]
            rows.append([method, *("–" if value is None else f"{value:.{digits}f}" for value in found)])
        return markdown(["hidden layers", *map(str, depths)], rows)

    return Table(write=write, files=("complexity/complexity.json",))


def _cells(results: Path, path: str) -> dict[str, Cell]:
    return _results(results / path).cells


def _results(path: Path) -> Results:
    return Results(path, {}, read_only=True)


def figure_of(name: str, columns: Mapping[str, str]) -> Table:
    """One problem, all methods."""
    path = f"{name}/{name}.json"
    return Table(write=lambda results: of_one_set(_results(results / path), columns), files=(path,))


def nearness(problem: str) -> Table:
    """Distances to long runs of NUTS."""
    path = f"fidelity/{problem}.json"
    return Table(write=lambda results: fidelity.table(_results(results / path)), files=(path,))


def of_posteriordb(results: Path) -> str:
    """All posteriors, NUTS beside them where it was run."""
    cells, chains = (_cells(results, f"posteriordb/{name}.json") for name in ("posteriordb", "nuts"))
    return posteriordb.report(cells, chains, 0)


def of_ranks(results: Path) -> str:
    """Simulation-based calibration."""
    cells = _cells(results, "sbc/sbc.json")
    return sbc.table(sbc.gathered(cells), cells)


def loads(results: Path) -> str:
    """Memory by the number of weights."""
    return load.table(json.loads((results / "load" / "load.json").read_text())["rows"]).strip()


def kept(name: str) -> Table:
    """The text of a run."""

    def write(results: Path) -> str:
        content = json.loads((results / "kept" / f"{name}.json").read_text())
        return markdown(content["header"], content["rows"])

    return Table(write=write, files=(f"kept/{name}.json",))


ONE_FILE = "{0}/{0}.json"
UCI_FILES = tuple(f"uci/{name}.json" for name in UCI_ALL)
REGRESSION_FILES = tuple(f"regression/{name}.json" for name in REGRESSION)
TABLES: dict[str, Table] = {
    "older": Table(write=older.section),
    "few methods": Table(write=in_short(FEW), files=UCI_FILES, methods=(OURS,)),
    "some methods": Table(write=in_short(SOME), files=UCI_FILES, methods=tuple(SOME)),
    "some seconds": Table(write=seconds, files=UCI_FILES, methods=tuple(SOME)),
    "what time": Table(
        write=what_time,
        files=("pyro_models/pyro_models.json", *UCI_FILES, *REGRESSION_FILES),
        methods=("pyro_models/MetricBNN", "uci/MetricBNN", INFERRED),
    ),
    "temperature": Table(write=at_temperatures, files=UCI_FILES, methods=tuple(AT_TEMPERATURES)),
    "paper setting": Table(
        write=paper_setting,
        files=tuple(
            f"{folder}/{name}.json" for folder in ("uci", "uci_raw", "uci_raw_paper_training") for name in PAPER_SETS
        ),
        methods=(*(f"{folder}/{method}" for folder, method in PAPER_ROWS.values()),),
    ),
    "uci nll": of_sets("uci", UCI_ALL, "nll"),
    "uci ece": of_sets("uci", UCI_ALL, "ece", digits=1),
    "uci accuracy": of_sets("uci", UCI_ALL, "accuracy", largest=True),
    "uci seconds": of_sets("uci", UCI_ALL, "seconds", digits=1),
    "uci in turns": of_sets("uci_in_turns", UCI_ALL, "total_seconds", digits=1),
    "uci apart": apart("uci", UCI_ALL, [(OURS, other) for other in ("Ensemble", "Ensemble, stopped early", *MCMCS)]),
    "uci time in turns": in_parts("uci_in_turns", UCI_ALL, [(OURS, "Ensemble"), (OURS, "MILE")], "seconds"),
    "uci whole time in turns": in_parts("uci_in_turns", UCI_ALL, [(OURS, "Ensemble"), (OURS, "MILE")], "total_seconds"),
    "uci unit prior": of_sets("uci_unit_prior", UCI_ALL, "nll"),
    "regression apart": apart(
        "regression",
        REGRESSION,
        [
            (OURS, "Ensemble"),
            ("HMC", "Ensemble"),
            ("MetricBNN, scaled", "Ensemble, scaled"),
            (SECOND_OUTPUT, "MILE"),
            (INFERRED, SECOND_OUTPUT),
        ],
    ),
    "regression time": in_parts(
        "regression", REGRESSION, [(OURS, "Ensemble"), (INFERRED, "MILE"), (SECOND_OUTPUT, "MILE")], "total_seconds"
    ),
    "regression nll": of_sets("regression", REGRESSION, "nll"),
    "regression rmse": of_sets("regression", REGRESSION, "rmse"),
    "regression coverage": of_sets("regression", REGRESSION, "coverage_90"),
    "regression seconds": of_sets("regression", REGRESSION, "total_seconds", digits=1),
    "unknown noise": Table(
        write=lambda results: unknown_noise.table(_results(results / "unknown_noise" / "unknown_noise.json")),
        files=(ONE_FILE.format("unknown_noise"),),
    ),
    "bias": Table(write=lambda results: bias.table(_cells(results, "bias/bias.json")), files=("bias/bias.json",)),
    "bias, 100 particles": Table(
        write=lambda results: bias.table(_cells(results, "bias_100_particles/bias.json")),
        files=("bias_100_particles/bias.json",),
    ),
    "depth nll": by_depth("nll", 3),
    "depth train nll": by_depth("train_nll", 3),
    "depth seconds": by_depth("seconds", 0),
    "depth mean square": by_depth("mean_square", 2),
    "fidelity banana": nearness("banana"),
    "fidelity snelson": nearness("snelson"),
    "banana": figure_of("banana", banana.main.__self__.columns),  # type: ignore[attr-defined]
    "snelson": figure_of("snelson", snelson.main.__self__.columns),  # type: ignore[attr-defined]
    "pca": Table(write=lambda results: pca.table(_cells(results, "pca/pca.json")), files=("pca/pca.json",)),
    "posteriordb": Table(write=of_posteriordb, files=("posteriordb/*.json",)),
    "sbc": Table(write=of_ranks, files=("sbc/sbc.json",)),
    "pyro models": Table(
        write=lambda results: pyro_models.table(_cells(results, "pyro_models/pyro_models.json")),
        files=("pyro_models/pyro_models.json",),
    ),
    "load": Table(write=loads, files=("load/load.json",)),
    **{
        path.stem.replace("_", " "): kept(path.stem)
        for path in sorted((Path(__file__).parent / "results/kept").glob("*.json"))
    },
}
