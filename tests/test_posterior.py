"""Claims about the pushforward: its draws, moments and density."""

import math
from collections.abc import Callable

import pyro
import pytest
import torch
from torch import Tensor

from pyro_metricbnn import Adam
from pyro_metricbnn.latent import KernelMap, LatentMap, MetricPosterior, TrajectoryPosterior, TubePosterior
from pyro_metricbnn.walk.trajectories import Trajectories

from .test_latent_map import walk_with


class Curves(LatentMap):
    """Curves given by functions of the position."""

    def __init__(self, *curves: Callable[[Tensor], Tensor], start: float = 0.0) -> None:
        self.curves = curves
        self.start, self.bend = start, 0.0
        self.ends = torch.eye(len(curves), dtype=torch.float64)
        self.theta_star = curves[0](torch.zeros(1, dtype=torch.float64))[0]
        self.residuals, self.spreads = torch.full_like(self.theta_star, 0.1), torch.ones_like(self.theta_star)

    def fit(self, trajectories: Trajectories, *, progress: bool = True) -> "Curves":
        return self

    def decode(self, z: Tensor) -> Tensor:
        raise NotImplementedError("the tests draw on segments")

    def decode_on(self, segment: Tensor, position: Tensor) -> Tensor:
        return torch.cat([self.curves[int(i)](e[None]) for i, e in zip(segment, position, strict=True)])


def straight(e: Tensor) -> Tensor:
    return torch.stack([2 * e, torch.zeros_like(e), torch.zeros_like(e)], dim=-1)


def arc(e: Tensor) -> Tensor:
    return torch.stack([torch.cos(math.pi * e), torch.sin(math.pi * e)], dim=-1)


def test_draws_and_moments_of_a_straight_segment_are_exact() -> None:
    posterior = MetricPosterior(Curves(straight), tube_scale=0.2)
    assert posterior.event_shape == (3,)
    torch.testing.assert_close(posterior.mean, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    variance = torch.tensor([4 / 12 + 0.04, 0.04, 0.04], dtype=torch.float64)
    torch.testing.assert_close(posterior.variance, variance, atol=1e-4, rtol=0)
    draws = posterior.sample((20_000,))
    torch.testing.assert_close(draws.mean(0), posterior.mean, atol=0.02, rtol=0)
    torch.testing.assert_close(draws.var(0), posterior.variance, atol=0.02, rtol=0)


def test_the_density_of_a_straight_segment_is_exact() -> None:
    s = 0.3
    theta = torch.randn(50, 3, dtype=torch.float64)
    theta[:, 0] = torch.linspace(-1, 3, 50)  # where the difference below does not underflow
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    along = (normal.cdf(theta[:, 0] / s) - normal.cdf((theta[:, 0] - 2) / s)).log() - math.log(2)
    across = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), s).log_prob(theta[:, 1:]).sum(-1)
    posterior = MetricPosterior(Curves(straight), tube_scale=s)
    torch.testing.assert_close(posterior.log_prob(theta), along + across, atol=1e-8, rtol=1e-8)


def test_the_density_of_an_arc_is_the_integral_along_it() -> None:
    s = 0.25
    theta = 0.8 * torch.randn(40, 2, dtype=torch.float64)
    e = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    gaps = torch.cdist(theta, arc(e)) ** 2
    expected = torch.logsumexp(-gaps / (2 * s**2), -1) - math.log(len(e)) - math.log(2 * math.pi * s**2)
    posterior = MetricPosterior(Curves(arc), tube_scale=s)
    torch.testing.assert_close(posterior.log_prob(theta), expected, atol=2e-3, rtol=0)


def test_the_density_agrees_with_monte_carlo() -> None:
    posterior = MetricPosterior(Curves(arc), tube_scale=0.4)
    grid = torch.cartesian_prod(*[torch.linspace(-4, 4, 161, dtype=torch.float64)] * 2)
    density = posterior.log_prob(grid).exp()
    assert float(density.sum() * 0.05**2) == pytest.approx(1.0, abs=1e-3)
    left = float(density[grid[:, 0] < 0].sum() * 0.05**2)
    draws = posterior.sample((50_000,))
    assert left == pytest.approx(float((draws[:, 0] < 0).double().mean()), abs=0.02)


def test_far_from_every_curve_the_density_is_finite() -> None:
    posterior = MetricPosterior(Curves(straight), tube_scale=1e-3)
    assert posterior.log_prob(torch.full((1, 3), 50.0, dtype=torch.float64)).isfinite().all()


def test_without_a_tube_there_is_no_density_and_it_says_why() -> None:
    posterior = MetricPosterior(Curves(straight), tube_scale=0.0)
    assert posterior.sample().shape == (3,)
    with pytest.raises(ValueError, match="curves have no volume"):
        posterior.log_prob(torch.zeros(3, dtype=torch.float64))


def test_a_posterior_says_in_one_line_what_it_is_of(walk: Trajectories) -> None:
    assert repr(MetricPosterior(KernelMap().fit(walk))) == "MetricPosterior(4 segments, 25 coordinates)"
    assert repr(TrajectoryPosterior(walk)) == "TrajectoryPosterior(4 walks, 25 coordinates)"


def test_curves_of_ones_own_make_a_posterior_too() -> None:
    class Square(TubePosterior):
        knots = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [2.0, 2.0]]], dtype=torch.float64)

        def points(self, num_points: int) -> Tensor:
            return self.knots[0, torch.randint(3, (num_points,))]

    posterior = Square(torch.zeros(2, dtype=torch.float64), 0.1)
    assert posterior.log_prob(posterior.sample(torch.Size((5,)))).shape == (5,)
    torch.testing.assert_close(posterior.mean, torch.tensor([1.5, 0.5], dtype=torch.float64))


def test_draws_begin_behind_the_approach() -> None:
    draws = MetricPosterior(Curves(straight, start=0.5), tube_scale=0.0).sample((2000,))
    assert float(draws[:, 0].min()) >= 1.0


def test_it_expands_and_works_in_a_pyro_sample() -> None:
    posterior = MetricPosterior(Curves(straight, lambda e: -straight(e)), tube_scale=0.1)
    assert posterior.expand(torch.Size((4,))).sample((2,)).shape == (2, 4, 3)
    with pyro.plate("rows", 5):
        assert pyro.sample("theta", posterior).shape == (5, 3)


@pytest.mark.parametrize("scale", [-1.0, math.inf, math.nan])
def test_a_wrong_tube_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="tube_scale"):
        MetricPosterior(Curves(straight), tube_scale=scale)


def test_the_density_with_a_width_for_each_coordinate_is_exact() -> None:
    s = torch.tensor([0.3, 0.02, 5.0], dtype=torch.float64)
    theta = s * torch.randn(50, 3, dtype=torch.float64)
    theta[:, 0] = torch.linspace(-1, 3, 50)
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    along = (normal.cdf(theta[:, 0] / 0.3) - normal.cdf((theta[:, 0] - 2) / 0.3)).log() - math.log(2)
    across = torch.distributions.Normal(torch.zeros(2, dtype=torch.float64), s[1:]).log_prob(theta[:, 1:]).sum(-1)
    posterior = MetricPosterior(Curves(straight), tube_scale=s)
    torch.testing.assert_close(posterior.log_prob(theta), along + across, atol=1e-8, rtol=1e-8)


def test_a_very_narrow_tube_keeps_its_digits() -> None:
    posterior = MetricPosterior(Curves(straight), tube_scale=1e-9)
    at_deviation = torch.tensor([[1.0, 1e-9, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    difference = posterior.log_prob(at_deviation).diff()
    assert float(difference) == pytest.approx(0.5, abs=1e-3)


def test_by_default_the_tube_is_a_small_part_of_each_coordinates_spread() -> None:
    curves = Curves(straight)
    curves.spreads = torch.tensor([1.0, 100.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(MetricPosterior(curves).tube_scale, 5e-4 * curves.spreads)


def test_draws_carry_gradients_to_the_decoder() -> None:
    stretch = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    posterior = MetricPosterior(Curves(lambda e: stretch * straight(e)), tube_scale=0.1)
    posterior.rsample(torch.Size((7,))).sum().backward()
    assert stretch.grad is not None
    assert float(stretch.grad) > 0


def test_refined_draws_are_what_the_refinement_gives_and_have_no_density() -> None:
    posterior = MetricPosterior(Curves(straight), refine=lambda theta: theta * 0 + 3)
    assert (posterior.sample(torch.Size((2, 5))) == 3).all()
    assert posterior.sample().shape == (3,)
    with pytest.raises(ValueError, match="no known density"):
        posterior.log_prob(torch.zeros(3, dtype=torch.float64))


# ------------------------------------------------------------------------- the simpler posteriors


@pytest.fixture(scope="module")
def walk() -> Trajectories:
    return walk_with(Adam(num_refinements=5))


def test_draws_of_the_walk_lie_on_its_polyline(walk: Trajectories) -> None:
    draws = TrajectoryPosterior(walk).sample(torch.Size((50,)))
    starts, steps = walk.thetas[:, 1:-1].flatten(0, 1), walk.thetas[:, 1:].diff(dim=1).flatten(0, 1)
    part = ((draws[:, None] - starts) * steps).sum(-1) / steps.pow(2).sum(-1)
    nearest = starts + part.clamp(0, 1)[..., None] * steps
    assert float((draws[:, None] - nearest).norm(dim=-1).min(1).values.max()) < 1e-3


def test_the_walks_own_posterior_has_a_density_with_a_tube(walk: Trajectories) -> None:
    posterior = TrajectoryPosterior(walk, tube_scale=0.1)
    inside, outside = posterior.sample(), posterior.sample() + 10
    assert float(posterior.log_prob(inside)) > float(posterior.log_prob(outside))


def test_the_gaussian_has_the_walks_moments(walk: Trajectories) -> None:
    points = walk.thetas[:, 1:].flatten(0, 1)
    walk_svd = pytest.importorskip("benchmarks.methods.walk_svd", reason="needs the extra benchmarks")
    gaussian = walk_svd.gaussian_posterior(walk)
    torch.testing.assert_close(gaussian.mean, points.mean(0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gaussian.variance, points.var(0), atol=1e-4, rtol=2e-2)


def test_both_posteriors_have_one_interface(walk: Trajectories) -> None:
    for posterior in (MetricPosterior(KernelMap().fit(walk)), TrajectoryPosterior(walk, 0.1)):
        draw = posterior.sample(torch.Size((3,)))
        assert draw.shape == (3, 25)
        assert posterior.log_prob(draw).shape == (3,)
        assert posterior.mean.shape == posterior.variance.shape == (25,)
