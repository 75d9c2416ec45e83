"""Claims about networks made Pyro models: which sites they have, what their priors are, what stays as it was."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_metricbnn import (
    BatchedPotential,
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    bayesianize,
    predict,
)
from pyro_metricbnn.model import NormalPrior, Prior
from tests.models import SIGNAL, X, noise, small_network

LABELS = torch.arange(12) % 3


class TiedAutoencoder(nn.Module):
    """The decoder's weight is the encoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(left * right)


class NamedParameter(nn.Module):
    """One parameter of a given name."""

    def __init__(self, name: str, value: Tensor) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.parameters())


def with_batch_norm_and_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()


def trace_of(model: Any, *args: Any) -> poutine.Trace:
    return poutine.trace(model).get_trace(*args)


def latent(model: Any, *args: Any) -> list[str]:
    nodes = trace_of(model, *args).nodes.items()
    return [n for n, node in nodes if node["type"] == "sample" and not node["is_observed"] and n != "data"]


def conditioned(model: Any, net: nn.Module, *args: Any) -> poutine.Trace:
    """The model's trace at the weights of a module."""
    weights = {name: value.detach() for name, value in net.named_parameters()}
    return trace_of(poutine.condition(model, data=weights), *args)


# --------------------------------------------------------------------------------------------- sites


def test_latent_sites_are_named_after_the_parameters() -> None:
    net = small_network(3, 1)
    assert latent(bayesianize(net, Gaussian(1.0)), X, SIGNAL) == [name for name, _ in net.named_parameters()]


def test_the_observation_site_is_obs() -> None:
    node = trace_of(bayesianize(small_network(3, 1), Gaussian(1.0)), X, SIGNAL).nodes["obs"]
    assert torch.equal(node["value"], SIGNAL[:, None])


def test_the_deterministic_site_f_is_the_networks_output() -> None:
    net = small_network(3, 1)
    trace = conditioned(bayesianize(net, Gaussian(1.0)), net, X)
    assert torch.equal(trace.nodes["f"]["value"], net(X))


def test_the_model_returns_the_networks_output() -> None:
    nodes = trace_of(bayesianize(small_network(3, 1), Gaussian(1.0)), X).nodes
    assert torch.equal(nodes["_RETURN"]["value"], nodes["f"]["value"])


def test_the_output_adds_nothing_to_the_density() -> None:
    trace = trace_of(bayesianize(small_network(3, 1), Gaussian(1.0)), X, SIGNAL)
    trace.compute_log_prob()
    assert float(trace.nodes["f"]["log_prob_sum"]) == 0.0


def test_without_targets_the_observations_are_drawn() -> None:
    node = trace_of(bayesianize(small_network(3, 3), Categorical()), X).nodes["obs"]
    assert (node["is_observed"], node["value"].shape) == (False, (12,))


def test_a_prior_on_the_noise_makes_a_latent_site_scale() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(dist.LogNormal(0.0, 1.0)))
    assert latent(model, X, SIGNAL)[-1] == "scale"


def test_inputs_in_a_tuple_are_the_networks_arguments() -> None:
    net = TwoInputs().double()
    trace = conditioned(bayesianize(net, Gaussian(1.0)), net, (X, X))
    assert torch.equal(trace.nodes["f"]["value"], net(X, X))


def test_the_likelihood_of_a_network_is_its_own_at_the_trained_weights() -> None:
    net = small_network(3, 3)
    trace = conditioned(bayesianize(net, Categorical()), net, X, LABELS)
    trace.compute_log_prob()
    loss = nn.functional.cross_entropy(net(X), LABELS, reduction="sum")
    torch.testing.assert_close(trace.nodes["obs"]["log_prob_sum"], -loss.detach())


# --------------------------------------------------------------------------------------------- where


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("2", ("2.weight", "2.bias")),
        ("0.weight", ("0.weight",)),
        (["2.bias", "0"], ("0.weight", "0.bias", "2.bias")),
        (("0.", "2.bias"), ("0.weight", "0.bias", "2.bias")),
        ("0.w", ("0.weight",)),
        ("", ("0.weight", "0.bias", "2.weight", "2.bias")),
        (None, ("0.weight", "0.bias", "2.weight", "2.bias")),
    ],
)
def test_where_takes_the_parameters_below_its_prefixes(where: Any, names: tuple[str, ...]) -> None:
    assert bayesianize(small_network(3, 1), Gaussian(1.0), where=where).names == names


def test_a_module_path_does_not_take_its_longer_namesakes() -> None:
    net = nn.ModuleDict({"fc": nn.Linear(1, 1), "fc2": nn.Linear(1, 1)})
    assert bayesianize(net, Gaussian(1.0), where="fc").names == ("fc.weight", "fc.bias")


def test_the_parameters_that_where_leaves_out_stay_at_their_values() -> None:
    net = small_network(3, 1)
    model = bayesianize(net, Gaussian(1.0), where="2")
    weights = {name: torch.zeros_like(value) for name, value in net.named_parameters() if name.startswith("2")}
    weights["2.bias"] += 1
    weights["2.weight"][0, 0] = 1.0
    f = trace_of(poutine.condition(model, data=weights), X).nodes["f"]["value"]
    torch.testing.assert_close(f, torch.tanh(net[0](X))[:, :1].detach() + 1)


# ---------------------------------------------------------------------------------------------- ties


def test_a_tied_weight_is_one_site() -> None:
    assert bayesianize(TiedAutoencoder(), Gaussian(1.0)).names == ("encoder.weight", "encoder.bias", "decoder.bias")


def test_a_tied_weight_counts_once_in_the_potential() -> None:
    model = bayesianize(TiedAutoencoder().double(), Gaussian(1.0))
    assert BatchedPotential(model, X, X).dim == 9 + 3 + 3


def test_a_tied_weight_stays_tied() -> None:
    net = TiedAutoencoder().double()
    model = bayesianize(net, Gaussian(1.0))
    with torch.no_grad():
        net.encoder.weight.copy_(noise(3, 3, seed=8))
    assert torch.equal(conditioned(model, net, X).nodes["f"]["value"], net(X))


def test_a_tied_weight_is_found_by_its_other_name() -> None:
    names = bayesianize(TiedAutoencoder(), Gaussian(1.0), where="decoder").names
    assert set(names) == {"encoder.weight", "decoder.bias"}


# ------------------------------------------------------------------------------ evaluation behaviour


def test_batch_norm_and_dropout_behave_as_in_evaluation() -> None:
    net = with_batch_norm_and_dropout().train()
    net(5 * X + 2)  # running statistics that are not those of X
    trace = conditioned(bayesianize(net, Gaussian(1.0)), net, X)
    assert torch.equal(trace.nodes["f"]["value"], copy.deepcopy(net).eval()(X))


def test_a_model_that_is_set_to_training_still_evaluates() -> None:
    net = with_batch_norm_and_dropout()
    model = bayesianize(net, Gaussian(1.0)).train()
    assert torch.equal(conditioned(model, net, X).nodes["f"]["value"], net.eval()(X))


def test_the_energy_of_a_network_with_dropout_is_the_same_at_each_call() -> None:
    potential = BatchedPotential(bayesianize(with_batch_norm_and_dropout(), Gaussian(1.0)), X, SIGNAL)
    theta = noise(2, potential.dim)
    assert torch.equal(potential.value(theta), potential.value(theta))


def test_a_run_of_the_model_leaves_the_buffers_as_they_were() -> None:
    net = with_batch_norm_and_dropout()
    model = bayesianize(net, Gaussian(1.0))
    before = {name: value.clone() for name, value in (*model.named_buffers(), *net.named_buffers())}
    potential = BatchedPotential(model, X, SIGNAL)
    potential.grad(noise(2, potential.dim))
    after = dict((*model.named_buffers(), *net.named_buffers()))
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_buffers_are_no_sites() -> None:
    names = bayesianize(with_batch_norm_and_dropout(), Gaussian(1.0)).names
    assert names == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")


# --------------------------------------------------------------------------- the caller's own module


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_module_keeps_its_training_flag(training: bool) -> None:
    net = with_batch_norm_and_dropout().train(training)
    bayesianize(net, Gaussian(1.0))(X)
    assert [module.training for module in net.modules()] == [training] * len(list(net.modules()))


def test_the_callers_module_keeps_its_weights() -> None:
    net = small_network(3, 1)
    before = copy.deepcopy(net.state_dict())
    model = bayesianize(net, Gaussian(1.0))
    potential = BatchedPotential(model, X, SIGNAL).using(mode="trace")
    potential.grad(noise(2, potential.dim))
    model(X)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_the_callers_module_keeps_its_requires_grad() -> None:
    net = small_network(3, 1)
    net.get_parameter("0.bias").requires_grad_(False)
    bayesianize(net, Gaussian(1.0))(X)
    assert [value.requires_grad for value in net.parameters()] == [True, False, True, True]


def test_training_the_callers_module_on_does_not_change_the_model() -> None:
    net = small_network(3, 1)
    model = bayesianize(net, Gaussian(1.0), where="2")
    before = {name: value.clone() for name, value in model.trained_params.items()}
    with torch.no_grad():
        net.get_parameter("2.weight").add_(1)
    assert all(torch.equal(model.trained_params[name], value) for name, value in before.items())


def test_the_trained_weights_are_kept_by_site() -> None:
    net = small_network(3, 1)
    trained = bayesianize(net, Gaussian(1.0), where="2").trained_params
    expected = {name: value.tolist() for name, value in net.named_parameters() if name.startswith("2")}
    assert {name: value.tolist() for name, value in trained.items()} == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_from_the_prior_have_the_modules_dtype(dtype: torch.dtype) -> None:
    model = bayesianize(small_network(3, 1).to(dtype), Gaussian(0.1))
    nodes = trace_of(model, X.to(dtype)).nodes
    assert {nodes[name]["value"].dtype for name in (*model.names, "f", "obs")} == {dtype}


def test_a_potential_has_the_modules_dtype() -> None:
    potential = BatchedPotential(bayesianize(small_network(3, 1).float(), Gaussian(1.0)), X.float(), SIGNAL.float())
    assert potential.value(torch.zeros(2, potential.dim)).dtype == torch.float32


# -------------------------------------------------------------------------------------------- priors


def prior_scales(model: Any) -> dict[str, float]:
    """The one deviation of each site's prior."""
    return {name: float(model.prior(name).variance.sqrt().unique()) for name in model.names}


def test_the_default_prior_is_standard_normal() -> None:
    net = small_network(3, 1)
    trace = conditioned(bayesianize(net, Gaussian(1.0)), net, X)
    trace.compute_log_prob()
    expected = dist.Normal(0.0, 1.0).log_prob(net[0].weight).sum()
    torch.testing.assert_close(trace.nodes["0.weight"]["log_prob_sum"], expected.detach())


def test_a_number_is_the_deviation_of_every_prior() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=2.5)
    assert prior_scales(model) == dict.fromkeys(model.names, 2.5)


@pytest.mark.parametrize("scales", [{"0": 1.0, "2": 2.0, "2.bias": 3.0}, {"2.bias": 3.0, "2": 2.0, "": 1.0}])
def test_the_longest_prefix_has_the_last_word(scales: dict[str, float]) -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=scales)
    assert prior_scales(model) == {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 2.0, "2.bias": 3.0}


def test_a_function_gives_each_parameter_its_prior() -> None:
    def prior(name: str, shape: torch.Size) -> Any:
        return dist.Laplace(torch.zeros(shape).double(), float(len(name)))

    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=prior)
    node = trace_of(model, X).nodes["2.bias"]
    expected = dist.Laplace(0.0, 6.0).log_prob(node["value"]).sum()
    torch.testing.assert_close(node["fn"].log_prob(node["value"]), expected)


def test_a_function_is_told_names_and_shapes() -> None:
    seen = {}

    def prior(name: str, shape: torch.Size) -> Any:
        seen[name] = tuple(shape)
        return dist.Normal(0.0, 1.0)

    bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=prior, where="2")
    assert seen == {"2.weight": (1, 4), "2.bias": (1,)}


def test_a_scalar_prior_from_a_function_fills_the_shape() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=lambda name, shape: dist.Normal(0.0, 2.0))
    assert (model.prior("0.weight").event_shape, model.prior("0.weight").batch_shape) == ((4, 3), ())


def test_a_prior_over_whole_rows_from_a_function_is_kept() -> None:
    def prior(name: str, shape: torch.Size) -> Any:
        return dist.MultivariateNormal(torch.zeros(shape[-1]), torch.eye(shape[-1]) + 0.5)

    model = bayesianize(small_network(3, 1).float(), Gaussian(1.0), prior_scale=prior)
    assert model.prior("0.weight").event_shape == (4, 3)


def test_a_prior_with_plain_numbers_from_a_function_suits_a_float64_module() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=lambda name, shape: dist.Normal(0.0, 2.0))
    assert model(X).dtype == torch.float64


def test_a_function_is_called_once_for_each_parameter() -> None:
    calls = []

    def prior(name: str, shape: torch.Size) -> Any:
        calls.append(name)
        return dist.Normal(0.0, 1.0)

    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=prior)
    model(X)
    assert tuple(calls) == model.names


def test_a_model_with_priors_from_a_function_can_be_pickled() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=lambda name, shape: dist.Normal(0.0, 2.0))
    assert prior_scales(pickle.loads(pickle.dumps(model))) == prior_scales(model)


# --------------------------------------------------------------------- priors from outside the package


class FanIn(Prior):
    """As wide as the inputs of a unit are few."""

    def distribution(self, name: str, value: Tensor) -> Any:
        return dist.Normal(value.new_zeros(()), value[0].numel() ** -0.5)


class Horseshoe(Prior):
    """Each parameter has a scale of its own, which is inferred too."""

    def distribution(self, name: str, value: Tensor) -> Any:
        return dist.Normal(value.new_zeros(()), pyro.sample(f"{name}.scale", dist.HalfCauchy(value.new_ones(()))))


def test_a_prior_is_a_class_with_one_method() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=FanIn())
    expected = {"0.weight": 3**-0.5, "0.bias": 1.0, "2.weight": 0.5, "2.bias": 1.0}
    assert prior_scales(model) == pytest.approx(expected)


def test_a_prefix_can_have_a_prior_instead_of_a_number() -> None:
    model = bayesianize(
        small_network(3, 1), Gaussian(1.0), prior_scale={"2": FanIn(), "": NormalPrior(2.0), "0.bias": 3}
    )
    assert prior_scales(model) == {"0.weight": 2.0, "0.bias": 3.0, "2.weight": 0.5, "2.bias": 1.0}


def test_a_number_is_short_for_a_normal_prior() -> None:
    models = [bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale=prior) for prior in (2.5, NormalPrior(2.5))]
    theta = noise(2, 21)
    assert torch.equal(*(BatchedPotential(model, X, SIGNAL).value(theta) for model in models))


def test_a_prior_follows_the_modules_precision() -> None:
    model = bayesianize(small_network(3, 1).float(), Gaussian(1.0), prior_scale=FanIn())
    assert model.double().prior("0.weight").sample().dtype == torch.float64


def test_what_a_prior_samples_is_inferred_with_the_weights() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(1.0), prior_scale={"2": Horseshoe(), "": 1.0})
    potential = BatchedPotential(model, X, SIGNAL)
    assert potential.sites.names == ("0.weight", "0.bias", "2.weight.scale", "2.weight", "2.bias.scale", "2.bias")
    values = potential.unflatten(noise(3, potential.dim))
    assert predict(model, values, X).mean.shape == (12, 1)
    scale, weight, bias = (values[f"2.{name}"] for name in ("weight.scale", "weight", "bias"))
    terms = [
        dist.Normal(0.0, 1.0).log_prob(values["0.weight"]).sum((1, 2)),
        dist.Normal(0.0, 1.0).log_prob(values["0.bias"]).sum(1),
        dist.HalfCauchy(1.0).log_prob(scale) + scale.log(),
        dist.HalfCauchy(1.0).log_prob(values["2.bias.scale"]) + values["2.bias.scale"].log(),
        dist.Normal(0.0, scale[:, None, None]).log_prob(weight).sum((1, 2)),
        dist.Normal(0.0, values["2.bias.scale"][:, None]).log_prob(bias).sum(1),
    ]
    torch.testing.assert_close(potential.energy_parts(noise(3, potential.dim))[0], -sum(terms))


# ----------------------------------------------------------------------------------------- with Pyro


def test_pyros_predictive_takes_samples_of_the_weights() -> None:
    net = small_network(3, 1)
    samples = {name: torch.stack([value.detach(), 0 * value.detach()]) for name, value in net.named_parameters()}
    predicted = Predictive(bayesianize(net, Gaussian(0.1)), posterior_samples=samples, return_sites=("f", "obs"))(X)
    torch.testing.assert_close(predicted["f"], torch.stack([net(X), 0 * net(X)]).detach())


def test_pyros_predictive_draws_observations_with_the_noise() -> None:
    net = small_network(3, 1)
    samples = {name: value.detach().expand(400, *value.shape) for name, value in net.named_parameters()}
    predicted = Predictive(bayesianize(net, Gaussian(0.1)), posterior_samples=samples, return_sites=("obs",))(X)
    spread = (predicted["obs"] - net(X).detach()).std()
    torch.testing.assert_close(float(spread), 0.1, rtol=0.05, atol=0)


def test_pyros_predictive_draws_from_the_prior() -> None:
    prior = Predictive(bayesianize(small_network(3, 3), Categorical()), num_samples=7)(X)
    assert (prior["obs"].shape, prior["f"].shape) == ((7, 12), (7, 12, 3))


def test_an_autoguide_of_pyro_trains_on_the_model() -> None:
    model = bayesianize(small_network(3, 1), Gaussian(0.3))
    guide = pyro.infer.autoguide.AutoNormal(model)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO(num_particles=4))
    losses = [svi.step(X, SIGNAL) for _ in range(30)]
    assert sum(losses[-5:]) < sum(losses[:5])


# ----------------------------------------------------------------------------------------- bad input


def refused(said: str, net: Any = None, likelihood: Any = None, **settings: Any) -> None:
    with pytest.raises(ValueError, match=said):
        bayesianize(net if net is not None else small_network(3, 1), likelihood or Gaussian(1.0), **settings)


def test_what_is_no_module_is_refused() -> None:
    refused("net must be an nn.Module, got function", net=lambda x: x)


def test_a_module_without_parameters_is_refused() -> None:
    refused("ReLU has no parameters", net=nn.ReLU())


@pytest.mark.parametrize("likelihood", [Gaussian, "gaussian", dist.Normal(0.0, 1.0)], ids=["class", "name", "pyro"])
def test_what_is_no_likelihood_is_refused_with_what_to_pass(likelihood: Any) -> None:
    refused(r"Pass Gaussian\(scale\)", likelihood=likelihood)


def test_a_prefix_that_names_nothing_is_refused_with_the_names() -> None:
    refused(r"no parameter is named 'head' .* has 0\.weight, 0\.bias", where="head")


@pytest.mark.parametrize("where", [[], 2], ids=["empty", "number"])
def test_a_where_that_is_no_prefix_is_refused(where: Any) -> None:
    refused("where", where=where)


@pytest.mark.parametrize("name", ["obs", "f", "scale", "data"])
def test_a_parameter_with_a_name_of_the_models_own_is_refused_with_what_to_do(name: str) -> None:
    refused(rf"{name}.*wrap the module in nn\.Sequential", net=NamedParameter(name, torch.ones(1)))


def test_such_a_name_below_another_module_is_taken() -> None:
    assert bayesianize(nn.Sequential(NamedParameter("scale", torch.ones(1))), Gaussian(1.0)).names == ("0.scale",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(bad: float) -> None:
    refused("'w' has values that are not finite", net=NamedParameter("w", torch.tensor([1.0, bad])))


def test_complex_parameters_are_refused_by_name() -> None:
    refused("'w' is torch.complex64", net=NamedParameter("w", torch.ones(2, dtype=torch.complex64)))


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_a_prior_scale_that_is_not_positive_is_refused_by_name(scale: float) -> None:
    refused("prior scale of '0.weight' must be positive and finite", prior_scale={"0.weight": scale, "": 1.0})


def test_a_normal_prior_that_has_no_width_is_refused() -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite, got -1"):
        NormalPrior(-1)


class ToTheModel(Prior):
    """Takes the whole module to be one parameter."""

    def distribution(self, name: str, value: Tensor) -> Any:
        return dist.Normal(torch.zeros(7), 1.0)


def test_a_prior_that_does_not_fit_is_refused_by_name_and_shape() -> None:
    refused(r"prior of '2\.weight' does not fit its shape \(1, 4\)", prior_scale={"2": ToTheModel(), "": 1.0})


def test_prefixes_that_leave_parameters_out_are_refused_with_their_names() -> None:
    refused(r"no scale for 2\.weight, 2\.bias.*'' for all the rest", prior_scale={"0": 1.0})


def test_a_prior_for_a_prefix_that_names_nothing_is_refused() -> None:
    refused("no parameter is named 'head'", prior_scale={"head": 1.0, "": 1.0})


@pytest.mark.parametrize(
    "prior_scale", [None, [1.0, 2.0], "wide", dist.Normal(0.0, 1.0)], ids=["none", "list", "text", "distribution"]
)
def test_what_is_no_prior_is_refused(prior_scale: Any) -> None:
    refused("prior_scale|prior scale", prior_scale=prior_scale)


@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal(torch.zeros(7), 1.0),
        dist.Normal(torch.zeros(2, 4, 3), 1.0).to_event(3),
        torch.distributions.Normal(0.0, 1.0),
        1.0,
        None,
    ],
    ids=["shape", "dimensions", "torch", "number", "none"],
)
def test_a_function_whose_prior_does_not_fit_is_refused_by_name_and_shape(prior: Any) -> None:
    refused(r"prior of '0\.weight' does not fit its shape \(4, 3\)", prior_scale=lambda name, shape: prior)


def test_a_discrete_prior_of_weights_is_refused_by_name() -> None:
    model = bayesianize(
        small_network(3, 1), Gaussian(1.0), prior_scale=lambda _, shape: dist.Poisson(torch.ones(shape))
    )
    with pytest.raises(ValueError, match=r"0\.weight"):
        BatchedPotential(model, X, SIGNAL)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "said"),
    [
        (Gaussian(1.0), 1, SIGNAL[:5], r"y has shape \(5,\)"),
        (Categorical(), 3, LABELS.double(), "whole numbers"),
        (Categorical(), 3, torch.arange(12), "support|from 0 to 2"),
        (Categorical(), 1, LABELS, r"Bernoulli\(\)"),
        (Bernoulli(), 1, SIGNAL.sign(), "support|0 and 1|zeros and ones"),
        (HeteroscedasticGaussian(), 1, SIGNAL, "two outputs a target"),
    ],
)
def test_targets_that_do_not_fit_are_refused_before_any_walk(
    likelihood: Any, outputs: int, y: Tensor, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        BatchedPotential(bayesianize(small_network(3, outputs), likelihood), X, y)


class TotalOutput(nn.Module):
    """One number for all inputs together."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum()


def test_a_network_whose_output_has_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="output"):
        bayesianize(TotalOutput(), Gaussian(1.0))(X, SIGNAL)
