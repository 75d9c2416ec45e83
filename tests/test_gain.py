"""Claims about what a run brought: the network as it came, the MAP, the posterior."""

from __future__ import annotations

import warnings
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, Descent, Gaussian, HeteroscedasticGaussian, MetricBNN, bayesianize, compare
from pyro_metricbnn.diagnostics import Gain

X = torch.linspace(-2, 2, 60)[:, None]
NOISE = 0.3


def noisy(seed: int) -> Tensor:
    return torch.sin(2 * X) + NOISE * torch.randn(X.shape, generator=torch.Generator().manual_seed(seed))


def trained(num_outputs: int = 1, hidden: int = 20, num_steps: int = 400, every: int = 1) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, num_outputs))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(num_steps):
        optimizer.zero_grad()
        ((net(X[::every])[:, :1] - noisy(0)[::every]) ** 2).mean().backward()
        optimizer.step()
    return net


def run(model: Any, y: Tensor, **settings: Any) -> tuple[MetricBNN, list[str]]:
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        metric = MetricBNN(model, num_particles=8, num_steps=40).run(X, y, progress=False, **settings)
    return metric, [str(one.message) for one in warned]


def test_a_run_with_validation_rows_has_the_three_stages_side_by_side() -> None:
    metric, _ = run(bayesianize(trained(), Gaussian(NOISE)), noisy(0), validation=(X, noisy(1)))
    assert isinstance(metric.gain, Gain)
    assert list(metric.gain.stages) == ["as it came", "MAP", "posterior"]
    assert str(metric.gain).count("coverage") == 3


def test_the_network_as_it_came_is_judged_with_the_noise_of_its_residuals() -> None:
    net = trained()
    metric, _ = run(bayesianize(net, Gaussian(dist.LogNormal(0.0, 1.0))), noisy(0), validation=(X, noisy(1)))
    assert metric.gain is not None
    with torch.no_grad():
        noise = (net(X) - noisy(0)).square().mean().sqrt()
        expected = -torch.distributions.Normal(net(X), noise).log_prob(noisy(1)).mean()
    assert metric.gain.stages["as it came"].nll == pytest.approx(float(expected), abs=1e-4)


def test_a_posterior_that_predicts_worse_than_what_came_in_is_said_with_what_to_try() -> None:
    """A noise far too large spreads the posterior, and with it the predictions."""
    _, said = run(bayesianize(trained(), Gaussian(3.0), prior_scale=30.0), noisy(0), validation=(X, noisy(1)))
    assert any("worse than the network as it came" in text and "Try" in text for text in said)


def test_what_a_posterior_gains_over_an_overfitted_network_is_no_reason_for_a_warning() -> None:
    net = trained(hidden=50, num_steps=3000, every=5)
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        metric = MetricBNN(bayesianize(net, Gaussian(NOISE)), num_particles=8, num_steps=40)
        metric.run(X[::5], noisy(0)[::5], progress=False, validation=(X, noisy(1)))
    said = [str(one.message) for one in warned]
    assert metric.gain is not None
    assert metric.gain.difference < -0.1
    assert not any("worse than the network" in text for text in said)


def test_a_difference_within_two_standard_errors_is_no_reason_for_a_warning() -> None:
    said = [Gain(stages={}, difference=error * 0.1, standard_error=0.1).warnings for error in (1.9, -3.0)]
    assert said == [(), ()]


@pytest.mark.parametrize(("likelihood", "way"), [(Gaussian(3.0), "temperature"), (Gaussian(), "prior_scale=")])
def test_what_to_try_fits_the_likelihood(likelihood: Gaussian, way: str) -> None:
    metric, _ = run(bayesianize(trained(), likelihood, prior_scale=30.0), noisy(0), validation=(X, noisy(1)))
    assert metric.gain is not None
    assert way in metric.gain.way


def test_validation_rows_do_not_change_the_walk() -> None:
    model = bayesianize(trained(), Gaussian(NOISE))
    with_rows, _ = run(model, noisy(0), validation=(X, noisy(1)))
    after = with_rows.draw(3)["0.bias"]
    without, _ = run(model, noisy(0))
    assert torch.equal(with_rows.trajectories.thetas, without.trajectories.thetas)
    assert torch.equal(after, without.draw(3)["0.bias"])


def test_classes_have_their_calibration_in_the_stages() -> None:
    labels = (noisy(0) > 0).long()[:, 0]
    metric, _ = run(bayesianize(trained(2), Categorical()), labels, validation=(X, labels))
    assert str(metric.gain).count("ECE") == 3


# ---------------------------------------------------------------------------------------------- noise


def test_a_noise_that_has_collapsed_where_the_walk_begins_is_said() -> None:
    model = bayesianize(trained(2), HeteroscedasticGaussian())
    collapsed = {name: value.clone() for name, value in model.trained_params.items()}
    collapsed["2.weight"][1], collapsed["2.bias"][1] = 0.0, -5.0  # softplus: .007
    metric = MetricBNN(model, num_particles=5, num_steps=4, refiner=Descent(alpha=1e-4, num_refinements=1, eta=1e-9))
    with pytest.warns(UserWarning, match=r"took the noise down to 0\.0068, .* joint maximum"):
        metric.run(X, noisy(0), map_params=collapsed, progress=False)


def test_a_given_noise_far_below_the_residuals_is_said() -> None:
    line = nn.Linear(1, 1)
    _, said = run(bayesianize(line, Gaussian(0.01)), noisy(0))
    assert any("the noise is 0.01 and the residuals are" in text for text in said)


def test_a_noise_of_the_residuals_size_is_no_reason_for_a_warning() -> None:
    _, said = run(bayesianize(trained(), Gaussian(NOISE)), noisy(0))
    assert not any("noise" in text for text in said)


# -------------------------------------------------------------------------------------------- compare


def test_a_comparison_on_test_data_has_the_network_as_it_came_and_the_map() -> None:
    model = bayesianize(trained(), Gaussian(NOISE))
    metric, _ = run(model, noisy(0))
    table = compare(model, {"MetricBNN": metric}, x_test=X, y_test=noisy(1), pictures=False).table
    assert list(table.index) == ["as it came", "MAP", "MetricBNN"]
    assert table["test_nll"].notna().all()


def test_a_comparison_without_test_data_has_them_where_they_are_asked_for() -> None:
    model = bayesianize(trained(), Gaussian(NOISE))
    metric, _ = run(model, noisy(0))
    assert len(compare(model, {"MetricBNN": metric}, pictures=False).table) == 1
    assert len(compare(model, {"MetricBNN": metric}, pictures=False, stages=True).table) == 3
