"""The benchmarks' frame: results that can be gone on with, tables, and each experiment in its quick setting."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import banana, fidelity, regression, snelson, uci
from benchmarks.__main__ import COMMANDS, main, overview
from benchmarks.arguments import RESULTS, folder, parser
from benchmarks.datasets import Problem, classification
from benchmarks.methods import methods
from benchmarks.methods.method import Method, timed, tuned
from benchmarks.report import winner
from benchmarks.results import Results
from benchmarks.tables import best, figure, markdown, written
from benchmarks.task import Task, paper_prior_scale, trained
from pyro_metricbnn import Categorical

QUICK = ["MAP", "LA GN Kron", "Ensemble", "MetricBNN", "MetricBNN, tempered"]


def fail() -> dict[str, Any]:
    raise RuntimeError("it broke")


def never() -> dict[str, Any]:
    raise AssertionError("this cell was there already")


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return trained(classification(None, "iris", 0), Categorical(), (4,), share=0.05)


def test_a_cell_that_is_there_is_not_measured_again(tmp_path: Path) -> None:
    Results(tmp_path / "a.json", {"x": 1}).cell("m|0", lambda: {"nll": 2.0})
    assert Results(tmp_path / "a.json", {"x": 1}).cell("m|0", never)["nll"] == 2.0


def test_an_error_is_kept_as_a_result_and_retried_when_asked(tmp_path: Path) -> None:
    assert Results(tmp_path / "a.json", {}).cell("m|0", fail)["error"] == "RuntimeError: it broke"
    assert "error" in Results(tmp_path / "a.json", {}).cells["m|0"]
    assert Results(tmp_path / "a.json", {}, retry=True).cell("m|0", lambda: {"nll": 1.0})["nll"] == 1.0


def test_results_of_another_setting_are_refused(tmp_path: Path) -> None:
    Results(tmp_path / "a.json", {"share": 1.0}).cell("m|0", lambda: {"nll": 2.0})
    with pytest.raises(SystemExit, match="another setting"):
        Results(tmp_path / "a.json", {"share": 0.02})


def test_two_writers_of_one_file_keep_each_others_cells(tmp_path: Path) -> None:
    one, other = Results(tmp_path / "a.json", {}), Results(tmp_path / "a.json", {})
    one.cell("a|0", lambda: {"nll": 1.0})
    other.cell("b|0", lambda: {"nll": 2.0})
    assert set(Results(tmp_path / "a.json", {}).cells) == {"a|0", "b|0"}


def test_a_cell_names_a_run_with_commit_versions_and_time(tmp_path: Path) -> None:
    Results(tmp_path / "a.json", {}).cell("m|0", lambda: {"nll": 2.0})
    content = json.loads((tmp_path / "a.json").read_text())
    run = content["runs"][content["cells"]["m|0"]["run"]]
    assert run["versions"]["torch"] == torch.__version__.split("+")[0] or run["versions"]["torch"] == torch.__version__
    assert {"commit", "begun", "threads"} <= run.keys()


def test_a_figure_is_the_mean_with_its_standard_error() -> None:
    seen = figure([1.0, 2.0, 3.0])
    assert seen is not None
    assert seen.mean == 2.0
    assert math.isclose(seen.error, 1 / math.sqrt(3))
    assert written(seen, bold=True) == "**2.000 ± 0.577**"


def test_the_best_of_a_column_leaves_out_what_is_missing_or_not_finite() -> None:
    assert best([None, figure([float("nan")]), figure([3.0]), figure([2.0])]) == 3


def test_means_over_fewer_splits_are_not_ranked() -> None:
    assert best([figure([0.0]), figure([2.0, 3.0]), figure([1.0, 3.0])]) == 2


def test_a_table_has_a_line_a_row() -> None:
    assert markdown(["", "a"], [["x", "1"]]) == "|  | a |\n|---|---|\n| x | 1 |"


def test_the_line_of_a_set_says_whether_the_default_is_within_a_standard_error() -> None:
    cells = {
        "s": {f"{name}|{i}": {"nll": value + i} for name, value in (("MAP", 1.0), ("MetricBNN", 1.1)) for i in (0, 1)}
    }
    line = winner(cells, "s")
    assert "MAP has the lowest NLL, 1.500" in line
    assert ", within one standard error" in line
    assert line.endswith("split by split 0.100 ± 0.000 above it")


def test_the_line_of_a_set_does_not_compare_a_default_of_fewer_splits() -> None:
    cells = {"s": {"MAP|0": {"nll": 1.0}, "MAP|1": {"nll": 2.0}, "MetricBNN|0": {"nll": 0.5}}}
    assert "fewer splits" in winner(cells, "s")


def test_a_method_may_not_try_more_settings_than_the_others() -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        Method("greedy", lambda task: None, settings=({},) * 5)  # type: ignore[arg-type, return-value]


def test_tuning_takes_the_setting_with_the_best_validation_rows_and_leaves_out_a_failing_one(task: Task) -> None:
    def fit(task: Task, sharpness: float) -> Callable[[torch.Tensor], Any]:
        if sharpness == 0:
            raise RuntimeError("no such setting")
        with torch.no_grad():
            f = task.net(task.problem.x_valid)[None] * sharpness
        return lambda x: task.prediction(f)

    method = Method("sharp", fit, settings=({"sharpness": 0.0}, {"sharpness": 1.0}, {"sharpness": -30.0}))
    assert tuned(method, task) == {"sharpness": 1.0}


@pytest.mark.parametrize(("best", "chosen"), [(0.5, 1.0), (4.0, 4.0), (32.0, 16.0), (0.25, 0.25)])
def test_tuning_goes_on_from_an_end_of_the_grid_as_long_as_it_gets_better(
    task: Task, best: float, chosen: float
) -> None:
    def fit(task: Task, value: float) -> Callable[[torch.Tensor], Any]:
        y = task.problem.y_valid
        assert y is not None
        shift = torch.tensor([1e3, 0.0, 0.0]) * abs(math.log(value / best))
        f = torch.nn.functional.one_hot(y, 3) - shift
        return lambda x: task.prediction(f[None])

    settings = tuple({"value": value} for value in (1.0, 2.0, 4.0))
    method = Method("far", fit, settings=settings, below=({"value": 0.25},), above=({"value": 8.0}, {"value": 16.0}))
    assert tuned(method, task) == {"value": chosen}


def test_training_finds_a_network_that_beats_the_class_frequencies(task: Task) -> None:
    run = timed(methods()["MAP"], task, {}, task.problem.x_test)
    assert -float(run.prediction.log_prob(task.problem.y_test).mean()) < math.log(3)


def test_all_methods_have_names_of_their_own() -> None:
    names = list(methods())
    assert len(names) == len(set(names)) >= 17


def test_the_overview_names_every_command() -> None:
    assert all(name in overview() for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_an_unknown_command_lists_those_there_are() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "uci" in done.stderr


def test_the_two_priors_of_uci_have_a_folder_each(tmp_path: Path) -> None:
    for prior in ("paper", "unit"):
        uci.main(["--quick", "--out", str(tmp_path), "--methods", "MAP", "--prior", prior])
    seen = {path.parent.name: json.loads(path.read_text())["setting"] for path in tmp_path.glob("*/wine.json")}
    priors = {name: setting["prior_scale"] for name, setting in seen.items()}
    assert priors == {"uci": "10 / sqrt(n)", "uci_unit_prior": 1.0}


def test_a_method_for_noisy_labels_is_run_on_uci(tmp_path: Path) -> None:
    uci.main(["--quick", "--out", str(tmp_path), "--splits", "1", "--methods", "MetricBNN, noisy labels"])
    cells = json.loads((tmp_path / "uci" / "wine.json").read_text())["cells"]
    assert cells["MetricBNN, noisy labels|0"]["nll"] < math.log(3)


def test_the_papers_training_is_a_variant_that_ends_at_other_weights(tmp_path: Path) -> None:
    for training in ("map", "paper"):
        uci.main(["--quick", "--out", str(tmp_path), "--methods", "MAP", "--training", training])
    written = [json.loads((tmp_path / name / "wine.json").read_text()) for name in ("uci", "uci_paper_training")]
    assert [one["setting"].get("training") for one in written] == [None, "paper"]
    assert written[0]["cells"]["MAP|0"]["nll"] != written[1]["cells"]["MAP|0"]["nll"]


def test_a_table_has_the_methods_of_earlier_runs_too(tmp_path: Path) -> None:
    for method in ("MAP", "LA GN Kron"):
        banana.main(["--quick", "--out", str(tmp_path), "--methods", method])
    lines = (tmp_path / "banana" / "banana.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| MAP", "| LA GN Kron"]


def test_results_of_made_data_and_of_a_quick_look_are_apart_from_the_tables() -> None:
    made, real, quick = (
        folder(parser("").parse_args(line))
        for line in ([], ["--data", "somewhere"], ["--quick", "--data", "somewhere"])
    )
    assert len({made, real, quick}) == 3
    assert real == RESULTS


def test_the_papers_decay_on_a_hundred_rows_is_a_standard_normal_prior() -> None:
    x = torch.zeros(100, 2)
    assert paper_prior_scale(Problem("zeros", x, x, x, x)) == pytest.approx(1.0)


@pytest.mark.slow
def test_networks_that_learn_their_noise_predict_better_than_the_targets_spread(tmp_path: Path) -> None:
    names = ["MetricBNN, noise inferred", "MetricBNN, heteroscedastic", "Ensemble, heteroscedastic"]
    regression.main(["--quick", "--out", str(tmp_path), "--methods", *names])
    cells = json.loads((tmp_path / "regression" / "diabetes.json").read_text())["cells"]
    spread = 5.77  # the NLL of a normal with the mean and the deviation, 77, of all targets
    assert [cells[f"{name}|0"]["nll"] < spread for name in names] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "files"),
    [
        (uci, ("uci/wine.json", "uci/uci.md", "uci/uci.png")),
        (regression, ("regression/diabetes.json", "regression/regression.md", "regression/regression.png")),
        (snelson, ("snelson/snelson.json", "snelson/snelson.md", "snelson/snelson.png")),
        (banana, ("banana/banana.json", "banana/banana.md", "banana/banana.png")),
        (fidelity, ("fidelity/banana.json", "fidelity/snelson.json", "fidelity/fidelity.md")),
    ],
    ids=lambda value: value.__name__.split(".")[-1] if hasattr(value, "__name__") else "files",
)
def test_an_experiment_writes_its_files_and_a_second_run_measures_nothing(
    experiment: Any, files: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ["--quick", "--out", str(tmp_path), "--methods", *QUICK]
    experiment.main(arguments)
    assert all((tmp_path / name).stat().st_size > 0 for name in files)
    before = {name: (tmp_path / name).read_bytes() for name in files if not name.endswith(".png")}
    experiment.main(arguments)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    cells = json.loads((tmp_path / files[0]).read_text())["cells"]
    assert not [cell["error"] for cell in cells.values() if "error" in cell]
