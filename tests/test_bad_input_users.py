"""Claims about mistakes that people really make: refused before a walk begins, in words that say what to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import (
    BatchedPotential,
    Bernoulli,
    Categorical,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    bayesianize,
    choose_temperature,
    compare,
    predict,
)
from pyro_metricbnn.model.numbers import as_tensors
from pyro_metricbnn.walk import WalkOptions
from tests.wrong_calls import (
    INF,
    LABELS,
    Wrong,
    X,
    Y,
    anything,
    assert_goes_on_working,
    assert_refused,
    draws,
    kernel,
    metric,
    network,
    refuses,
    refuses_type,
    run,
    spoiled,
)

LEVELS = Y[:, 0]


def local(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Normal(mean, 1.0))
        pyro.sample("obs", dist.Normal(z, 0.5), obs=y)


def local_without_a_plate(y: Tensor) -> None:
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    pyro.sample("obs", dist.Normal(z, 0.5).to_event(1), obs=y)


def sequential(y: Tensor) -> None:
    for i in pyro.plate("rows", len(y)):
        z = pyro.sample(f"z_{i}", dist.Normal(0.0, 1.0))
        pyro.sample(f"obs_{i}", dist.Normal(z, 1.0), obs=y[i])


def on_a_sphere(y: Tensor) -> None:
    direction = pyro.sample("direction", dist.ProjectedNormal(torch.tensor([1.0, 0.0, 0.0])))
    pyro.sample("obs", dist.Normal(direction[0], 1.0).expand([len(y)]).to_event(1), obs=y)


def two_levels(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(a, 1.0))
    pyro.sample("obs", dist.Normal(b, 1.0).expand([len(y)]).to_event(1), obs=y)


def gaussian_process(y: Tensor) -> None:
    length = pyro.sample("length", dist.LogNormal(3.0, 0.1))
    covariance = torch.exp(-((X - X.T) ** 2) / (2 * length**2))
    pyro.sample("obs", dist.MultivariateNormal(torch.zeros(len(y)), covariance), obs=y)


def with_thin(y: Tensor, thin: float = 1.0) -> None:
    a = pyro.sample("a", dist.Normal(0.0, thin))
    pyro.sample("obs", dist.Normal(a, 1.0).expand([len(y)]).to_event(1), obs=y)


def with_batch_size(y: Tensor, batch_size: int = 3) -> None:
    with_thin(y, float(batch_size))


def probabilities(*last: nn.Module) -> Any:
    return bayesianize(nn.Sequential(nn.Linear(1, 3), *last), Categorical())


def bounded() -> Any:
    """Outputs are finite whatever the inputs are; gradients are not."""
    return bayesianize(nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)), Gaussian(0.3))


class Squashing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steep = nn.Linear(1, 1)
        nn.init.constant_(self.steep.weight, 9.0)
        self.last = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.last(self.steep(x)))


def squashed() -> Any:
    return bayesianize(Squashing(), Bernoulli())


class Two(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


def many_weights() -> Any:
    return bayesianize(nn.Sequential(nn.Linear(1, 2_000_000), nn.Linear(2_000_000, 1)), Gaussian(0.3))


WRONG: list[Wrong] = [
    refuses("run: a site for each row, in batches", lambda: run(LEVELS, model=local, batch_size=4), "'z' has a value"),
    refuses(
        "run: a value for each row without a plate, in batches",
        lambda: run(LEVELS, model=local_without_a_plate, batch_size=4),
        "all batches would share these.*without batch_size=",
    ),
    refuses(
        "run: a site for each row, in batches of one",
        lambda: run(LEVELS, model=local, batch_size=1),
        r"shape \(1,\) for 1 rows",
    ),
    refuses("run: softmax", lambda: run(X, LABELS, model=probabilities(nn.Softmax(-1))), "ends in a softmax"),
    refuses("run: sigmoid", lambda: run(X, LABELS, model=probabilities(nn.Sigmoid())), "ends in a sigmoid, .* logits"),
    refuses("run: sigmoid, out of sight", lambda: run(X, Y > 0, model=squashed()), "from 0 to 1: it ends in a sigmoid"),
    refuses_type("run: two outputs", lambda: run(X, Y, model=bayesianize(Two(1, 1), Gaussian(0.3))), "gives a tuple"),
    refuses("bayesianize: half", lambda: bayesianize(nn.Linear(1, 1).half(), Gaussian(0.3)), r"too coarse.*net\.float"),
    refuses(
        "run: infinite x",
        lambda: run(spoiled(X, INF), Y, model=bounded()),
        "argument 0 has 1 entries that are not finite: drop",
    ),
    refuses(
        "predict: float64 for a float32 network", lambda: metric().predict(X.double()), r"torch.float64: pass x.float"
    ),
    refuses_type("run: the network itself", lambda: run(X, Y, model=nn.Linear(1, 1)), r"bayesianize\(net, Gaussian"),
    refuses("run: the network itself, without y", lambda: run(X, model=nn.Linear(1, 1)), "with bayesianize"),
    refuses("run: float64 for a float32 network", lambda: run(X.double(), Y), r"argument 0 is.*pass x\.float\(\)"),
    refuses(
        "run: float32 for a float64 network",
        lambda: run(X, Y, model=bayesianize(nn.Linear(1, 1).double(), Gaussian(0.3))),
        r"pass x\.double\(\)",
    ),
    refuses("run: sequential plate", lambda: run(LEVELS, model=sequential), "'z_0' is in the sequential plate 'rows'"),
    refuses("run: sphere", lambda: run(LEVELS, model=on_a_sphere), "lies on a sphere.*ProjectedNormalReparam"),
    refuses(
        "run: hidden site",
        lambda: run(LEVELS, model=pyro.poutine.block(two_levels, hide=["b"])),
        "at a site that poutine.block hides",
    ),
    refuses("run: matrix", lambda: run(LEVELS, model=gaussian_process), r"1e-4 \* torch\.eye\(n\), or work in float64"),
    refuses(
        "run: thin is the model's", lambda: run(LEVELS, model=with_thin, thin=2), "thin is an argument of the model"
    ),
    refuses(
        "run: batch_size is the model's",
        lambda: run(LEVELS, model=with_batch_size, batch_size=2),
        "Pass the model's by position",
    ),
    refuses_type(
        "run: texts in an array", lambda: run(np.array([["a"]] * 12), Y), "x has entries of type.*get_dummies"
    ),
    refuses_type("run: objects in y", lambda: run(X, np.array([None] * 12)), "y has entries of type object"),
    refuses("run: arrays of other lengths", lambda: run(X.numpy(), Y.numpy()[:5]), "y has shape"),
    refuses_type("run: validation a tensor", lambda: run(X, Y, validation=X), r"must be a pair \(x, y\)"),
    refuses_type("run: validation of three", lambda: run(X, Y, validation=(X, Y, Y)), r"must be a pair \(x, y\)"),
    refuses("run: validation rows", lambda: run(X, Y, validation=(X, Y[:3])), "y has shape"),
    refuses(
        "run: validation of another width", lambda: run(X, Y, validation=(torch.ones(3, 2), Y[:3])), "does not run"
    ),
    refuses(
        "run: validation of a model that is no network",
        lambda: run(LEVELS, model=two_levels, validation=(LEVELS, LEVELS)),
        "validation is for networks",
    ),
    refuses("kernel: mode", lambda: kernel(mode=anything), "mode must be 'auto', 'vmap'"),
    refuses("kernel: mode and compile", lambda: kernel(mode="loop", compile=True), "say the same thing twice"),
    refuses("kernel: mode of a run", lambda: MetricBNN(kernel(), mode="loop"), "mode would be the kernel's to say"),
    refuses("choose_temperature: softmax", lambda: of_softmax(), "ends in a softmax"),
    refuses_type("predict: texts", lambda: predict(network(), draws(), np.array(["a"])), "x has entries of type"),
    refuses("potential: matrix", lambda: BatchedPotential(gaussian_process, LEVELS), "cannot be decomposed"),
]


def of_softmax() -> Any:
    return choose_temperature(probabilities(nn.Softmax(-1)), X, LABELS, validation=(X, LABELS), progress=False)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_mistake_is_refused_at_once_and_in_words(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(wrong, monkeypatch)


@pytest.mark.parametrize("subject", ["run", "predict"])
def test_after_all_these_mistakes_a_right_call_works(subject: str) -> None:
    assert_goes_on_working(subject, WRONG)


# ------------------------------------------------------------------------------------ too much memory


def test_a_record_that_does_not_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_metricbnn.walk.foresight.free_memory", lambda device: 20.0e9)
    with pytest.raises(MemoryError, match="would fit with thin=10, or where=") as refused:
        MetricBNN(many_weights()).run(X, Y, progress=False)
    assert "20 walks of 200 points in 6,000,001 coordinates takes 96.5 GB" in str(refused.value)


def test_what_is_said_to_fit_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyro_metricbnn.walk import foresight

    monkeypatch.setattr(foresight, "free_memory", lambda device: 1.1e9)
    cpu = torch.device("cpu")
    with pytest.raises(MemoryError) as refused:
        foresight.check_memory(100_000, 200, torch.float32, cpu, WalkOptions())
    said = str(refused.value)
    foresight.check_memory(100_000, 200, torch.float32, cpu, WalkOptions(storage_dtype=torch.float16))
    thin, num_particles = (int(said.split(f"{name}=")[1].split(",")[0]) for name in ("thin", "num_particles"))
    for options in (WalkOptions(thin=thin), WalkOptions(num_particles=num_particles)):
        foresight.check_memory(100_000, 200, torch.float32, cpu, options)


def test_the_memory_that_is_free_is_known_here() -> None:
    from pyro_metricbnn.walk.foresight import free_memory

    assert 1e8 < free_memory(torch.device("cpu")) < 1e14


# ------------------------------------------------------------------------------- what is taken, or said


def test_arrays_give_the_same_walk_as_tensors() -> None:
    pyro.set_rng_seed(0)
    tensors = run(X, Y)
    pyro.set_rng_seed(0)
    arrays = run(X.numpy(), Y.double().numpy())
    assert torch.equal(tensors.trajectories.thetas, arrays.trajectories.thetas)


def test_frames_and_series_are_taken_by_run_predict_and_compare() -> None:
    pandas = pytest.importorskip("pandas")
    frame, series = pandas.DataFrame({"x": X[:, 0].numpy()}), pandas.Series(Y[:, 0].numpy())
    found = run(frame, series)
    assert found.predict(frame, 20).mean.shape == (12, 1)
    assert len(compare(network(), {"a": found}, frame, series, pictures=False).table) == 1


def test_a_frame_that_must_not_be_written_is_taken_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    rows = X.numpy().copy()
    rows.setflags(write=False)
    as_tensors("x", rows, X)
    assert not recwarn.list


def test_labels_in_a_series_stay_whole_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    model = bayesianize(nn.Linear(1, 3), Categorical())
    assert run(X, pandas.Series(LABELS.numpy()), model=model).trajectories.num_steps == 6


def test_arrays_are_cut_into_batches() -> None:
    assert run(X.numpy(), Y.numpy(), batch_size=4).trajectories.in_batches


def said_by(*args: Any, model: Any) -> str:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        DriftRefineKernel(model, num_steps=4).walk(*args, num_particles=3, progress=False)
    return "\n".join(str(one.message) for one in warned)


def fitted_line() -> nn.Linear:
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.fill_(float((X * Y).sum() / (X * X).sum()))
        net.bias.fill_(float(Y.mean()))
    return net


def test_inputs_of_thousands_are_said_with_what_to_do() -> None:
    said = said_by(1000 * X, Y, model=bayesianize(fitted_line(), Gaussian(0.7)))
    assert "x has a mean of" in said
    assert "(x - x.mean(0)) / x.std(0)" in said


def test_targets_of_thousands_are_said_with_what_to_do() -> None:
    said = said_by(X, 1000 * Y, model=bayesianize(fitted_line(), Gaussian(700.0)))
    assert "(y - y.mean(0)) / y.std(0), and scale predictions back" in said


def test_a_model_that_observes_none_of_its_data_is_said() -> None:
    def forgot(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(a, 1.0).expand([len(y)]).to_event(1))

    with pytest.warns(UserWarning, match="observes none of it: what comes out is its prior.*obs="):
        run(LEVELS, model=forgot)


def test_few_rows_for_many_weights_are_said() -> None:
    net = nn.Sequential(nn.Linear(1, 1000), nn.Tanh(), nn.Linear(1000, 1))
    assert "there are 5 rows for 3,001 weights" in said_by(X[:5], Y[:5], model=bayesianize(net, Gaussian(0.3)))


def test_an_untrained_network_is_said() -> None:
    assert "it looks untrained" in said_by(X, Y + 3, model=bayesianize(nn.Linear(1, 1), Gaussian(0.7)))


def test_an_untrained_classifier_is_said() -> None:
    net = nn.Linear(1, 1)
    nn.init.zeros_(net.weight)
    assert "it looks untrained" in said_by(X, (X > 0).float(), model=bayesianize(net, Bernoulli()))


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_a_trained_network_on_standardised_data() -> None:
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.fill_(0.5)
    DriftRefineKernel(bayesianize(net, Gaussian(0.3)), num_steps=4).walk(X, 0.5 * X, num_particles=3, progress=False)


# --------------------------------------------------------------------------------- modes, and matrices


def branching(y: Tensor) -> None:
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    scale = 1.0 if level > 0 else 2.0
    pyro.sample("obs", dist.Normal(level, scale).expand([len(y)]).to_event(1), obs=y)


def test_a_model_that_branches_on_values_walks_in_a_loop() -> None:
    metric = MetricBNN(branching, mode="loop", num_particles=3, num_steps=5).run(LEVELS, progress=False)
    assert metric.trajectories.energies.isfinite().all()


def nearly_singular(y: Tensor) -> None:
    """In float32 no covariance of a length above about 2 can be decomposed."""
    length = pyro.sample("length", dist.LogNormal(0.0, 1.0))
    covariance = torch.exp(-((X - X.T) ** 2) / (2 * length**2)) + 1e-7 * torch.eye(len(y))
    pyro.sample("obs", dist.MultivariateNormal(torch.zeros(len(y)), covariance), obs=y)


def test_a_particle_whose_matrix_cannot_be_decomposed_is_alone_with_an_infinite_energy() -> None:
    pyro.set_rng_seed(1)
    for _ in range(20):  # the model is looked at where some of its matrices can be decomposed
        try:
            potential = BatchedPotential(nearly_singular, LEVELS)
            break
        except ValueError:
            continue
    value, grad = potential.value_and_grad(torch.tensor([[-1.0], [4.0], [-0.5]]))
    assert value.isfinite().tolist() == [True, False, True]
    assert grad.isfinite().all()


def test_a_right_call_still_has_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """What is announced goes to the error stream, and only where it takes minutes."""
    metric().kernel.walk(X, Y, num_particles=3, progress=True)
    assert "The walk takes about" not in capsys.readouterr().err


def test_a_walk_of_minutes_is_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("pyro_metricbnn.walk.foresight.LONG", 0.0)
    metric().kernel.walk(X, Y, num_particles=3, progress=True)
    assert "gradients of 3 particles" in capsys.readouterr().err


def test_a_warning_shows_the_line_that_called() -> None:
    x = 1000 * torch.randn(20, 1)
    model = bayesianize(nn.Linear(1, 1), Gaussian(1.0))
    with pytest.warns(UserWarning, match="x has a mean") as said:
        MetricBNN(model, num_particles=2, num_steps=4, effort=0.05).run(x, x / 1000, progress=False)
    assert {one.filename for one in said if "x has a mean" in str(one.message)} == {__file__}
