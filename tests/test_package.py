"""Claims about the package as a whole: its order, its imports, its front page."""

import ast
import inspect
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pyro_metricbnn

ROOT = Path(__file__).parent.parent
PACKAGE = Path(pyro_metricbnn.__file__).parent  # the installed one, where it is
FLOW = ["runtime", "ranks", "files", "model", "graphs", "energy", "refiners", "search", "walk", "latent"]
FLOW += ["predictions", "diagnostics", "tempering", "plots", "comparison", "results", "inference", "temperature"]
CONTRACT = """
bayesianize BatchedPotential MetricBNN DriftRefineKernel Steer Descent Adam Gaussian HeteroscedasticGaussian Categorical
NoisyCategorical Bernoulli Poisson to_arviz compare choose_temperature AutoMetric MetricPosterior LatentMap KernelMap
AutoencoderMap
"""
ROOMS = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def imported(path: Path) -> set[str]:
    """The packages, or modules beside them, that a file of the package imports from."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            up = len(path.parent.parts) + 1 - node.level
            found.add((node.module or "").split(".")[0] if up == 0 else path.parts[0])
    return found


def test_every_package_has_a_place_in_the_flow() -> None:
    here = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert here - {"__init__"} == set(FLOW)


@pytest.mark.parametrize("path", ROOMS, ids=str)
def test_a_package_imports_only_from_those_above_it(path: Path) -> None:
    assert imported(path) <= set(FLOW[: FLOW.index(path.parts[0]) + 1])


@pytest.mark.parametrize("package", [name for name in FLOW if (PACKAGE / name).is_dir()])
def test_a_package_has_three_to_eight_files_and_says_what_it_is_for(package: str) -> None:
    assert 3 <= len([path for path in ROOMS if path.parts[0] == package]) - 1 <= 8
    said = (PACKAGE / package / "__init__.py").read_text()
    assert {"In:", "Out:", "To"} <= set(said.split())


def test_no_page_is_long_and_no_function_is() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 50, f"{path}: {node.name}"


@pytest.mark.parametrize("name", CONTRACT.split())
def test_the_contracts_names_are_at_the_front_door(name: str) -> None:
    assert name in pyro_metricbnn.__all__


def test_dir_shows_no_internals() -> None:
    assert {"MetricBNN", "diagnostics", "__version__"} <= set(dir(pyro_metricbnn))
    assert {name for name in dir(pyro_metricbnn) if inspect.ismodule(getattr(pyro_metricbnn, name))} <= set(FLOW)
    assert not {"inference", "results", "runtime", "files", "Any"} & set(dir(pyro_metricbnn))


@pytest.mark.parametrize(
    ("namespace", "base"),
    [
        ("refiners", "Refiner"),
        ("model", "Likelihood"),
        ("model", "Prior"),
        ("latent", "LatentMap"),
        ("predictions", "Prediction"),
        ("predictions", "Source"),
        ("energy", "GradientEstimator"),
        ("walk", "WalkOptions"),
        ("diagnostics", "Health"),
    ],
)
def test_what_can_be_subclassed_is_in_its_namespace(namespace: str, base: str) -> None:
    assert base in getattr(pyro_metricbnn, namespace).__all__


def test_what_a_namespace_exports_can_be_had_from_the_top() -> None:
    assert pyro_metricbnn.k_hat is pyro_metricbnn.diagnostics.k_hat
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        _ = pyro_metricbnn.nothing


def test_all_names_that_are_promised_can_be_imported() -> None:
    assert all(hasattr(pyro_metricbnn, name) for name in pyro_metricbnn.__all__)


def test_arviz_and_matplotlib_load_only_when_used() -> None:
    heavy = ("arviz", "matplotlib", "pandas", "torchmetrics")
    code = f"import sys, pyro_metricbnn; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.alone
def test_importing_costs_no_more_than_importing_pyro_and_a_fifth() -> None:
    code = """
from time import perf_counter
start = perf_counter()
import pyro
pyros = perf_counter() - start
import pyro_metricbnn
print((perf_counter() - start) / pyros)
"""
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT) for _ in range(7)]
    assert statistics.median(float(run.stdout) for run in runs) <= 1.2


@pytest.mark.slow
def test_the_readme_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:  # each goes on from the one before
        exec(compile(block, "README.md", "exec"), names)


def test_the_version_is_the_projects() -> None:
    assert f'version = "{pyro_metricbnn.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_what_is_installed_with_it_is_what_it_runs_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", one)[0] for one in project["dependencies"]}
    assert names == {"torch", "pyro-ppl", "arviz", "tqdm", "safetensors"}


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {pyro_metricbnn.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_readme_states_the_oldest_versions_that_are_allowed() -> None:
    bounds = dict(re.findall(r'"(torch|pyro-ppl|arviz)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text()))
    oldest = f"torch {bounds['torch']}, Pyro {bounds['pyro-ppl']} and ArviZ {bounds['arviz']} or newer"
    assert oldest in (ROOT / "README.md").read_text()
