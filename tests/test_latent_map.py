"""Claims about the closed-form latent map."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import Adam, DriftRefineKernel, Gaussian, Steer, Trajectories, bayesianize
from pyro_metricbnn.latent import KernelMap, MetricPosterior

X = torch.linspace(-2, 2, 40)[:, None]


def walk_with(refiner: Steer | Adam, num_steps: int = 40) -> Trajectories:
    torch.manual_seed(0)
    model = bayesianize(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), Gaussian(0.3))
    kernel = DriftRefineKernel(model, refiner=refiner, num_steps=num_steps)
    return kernel.walk(X, torch.sin(X), num_particles=4, progress=False)


@pytest.fixture(scope="module")
def steered() -> Trajectories:
    return walk_with(Steer(path=4))


@pytest.fixture(scope="module")
def pulled() -> Trajectories:
    return walk_with(Adam(num_refinements=5))


def positions_of(walk: Trajectories) -> Tensor:
    return walk.positions[1:]


@pytest.mark.parametrize("walk", ["steered", "pulled"])
def test_the_kernel_map_decodes_recorded_positions_to_recorded_points(
    walk: str, request: pytest.FixtureRequest
) -> None:
    trajectories: Trajectories = request.getfixturevalue(walk)
    latent = KernelMap().fit(trajectories)
    positions = positions_of(trajectories)
    for i in range(4):
        decoded = latent.decode_on(torch.full((len(positions),), i), positions)
        torch.testing.assert_close(decoded, trajectories.thetas[i, 1:], atol=1e-4, rtol=1e-4)
    assert (latent.residuals <= 1e-4 * latent.spreads).all()


def test_z_map_decodes_to_the_map_exactly(pulled: Trajectories) -> None:
    latent = KernelMap().fit(pulled)
    torch.testing.assert_close(latent.decode(torch.zeros(1, 4)), pulled.theta_star[None])


def test_decoding_a_latent_point_and_a_place_on_a_segment_agree(pulled: Trajectories) -> None:
    latent = KernelMap().fit(pulled)
    positions = torch.linspace(0, 1, 7)
    on_segment = latent.decode_on(torch.full((7,), 2), positions)
    torch.testing.assert_close(latent.decode(positions[:, None] * latent.ends[2]), on_segment, atol=1e-4, rtol=1e-4)


def test_segments_are_orthonormal() -> None:
    latent = KernelMap(latent_dim=6).fit(walk_with(Adam(num_refinements=1), num_steps=5))
    torch.testing.assert_close(latent.ends @ latent.ends.T, torch.eye(4))
    assert latent.ends.shape == (4, 6)


def test_too_few_latent_dimensions_are_refused(pulled: Trajectories) -> None:
    with pytest.raises(ValueError, match="less than the 4 walks"):
        KernelMap(latent_dim=3).fit(pulled)


def test_a_steered_walk_is_drawn_from_behind_its_approach(steered: Trajectories, pulled: Trajectories) -> None:
    assert KernelMap().fit(steered).start == pytest.approx(float(steered.positions[1]))
    assert KernelMap().fit(pulled).start == 0.0


def test_encoding_a_point_of_a_curve_finds_its_place(steered: Trajectories) -> None:
    latent = KernelMap().fit(steered)
    theta = latent.decode_on(torch.tensor([1, 3]), torch.tensor([0.9, 0.6]))
    z, distance = latent.encode(theta)
    torch.testing.assert_close(z[:, [1, 3]], torch.tensor([[0.9, 0.0], [0.0, 0.6]]), atol=1e-3, rtol=0)
    assert (distance < 0.01).all()


def test_encoding_says_how_far_a_point_is_from_the_curves(steered: Trajectories) -> None:
    latent = KernelMap().fit(steered)
    theta = latent.decode_on(torch.tensor([2]), torch.tensor([0.7]))
    _, distance = latent.encode(theta + 100)
    assert float(distance) == pytest.approx(100 * theta.shape[1] ** 0.5, rel=0.1)


def test_encoding_refuses_points_of_another_model(steered: Trajectories) -> None:
    with pytest.raises(ValueError, match="must be"):
        KernelMap().fit(steered).encode(torch.zeros(2, 3))


def test_spreads_are_the_deviations_of_the_recorded_points(pulled: Trajectories) -> None:
    points = pulled.thetas[:, 1:].flatten(0, 1)
    torch.testing.assert_close(KernelMap().fit(pulled).spreads, points.std(0, correction=0), atol=1e-4, rtol=1e-3)


def test_coordinates_independent_from_point_to_point_keep_their_spread(pulled: Trajectories) -> None:
    noise = torch.cat([torch.zeros(4, 1, 25), torch.randn(4, 40, 25)], dim=1)
    latent = KernelMap().fit(replace(pulled, thetas=noise))
    positions = torch.linspace(float(pulled.positions[1]), 1, 1000)
    between = torch.cat([latent.decode_on(torch.full((1000,), i), positions) for i in range(4)])
    assert float(between.std()) > 0.9


def test_a_walk_kept_in_half_precision_decodes_in_the_models(pulled: Trajectories) -> None:
    latent = KernelMap().fit(replace(pulled, thetas=pulled.thetas.half()))
    whole = KernelMap().fit(pulled)
    segment, position = torch.tensor([0, 3]), torch.tensor([0.31, 0.77])
    assert latent.decode_on(segment, position).dtype == torch.float32
    torch.testing.assert_close(
        latent.decode_on(segment, position), whole.decode_on(segment, position), atol=2e-3, rtol=2e-3
    )


def test_walks_that_froze_are_left_out(pulled: Trajectories) -> None:
    frozen = replace(pulled, frozen_at=torch.tensor([41, 7, 41, 41]))
    assert KernelMap().fit(frozen).num_segments == 3


def test_a_walk_that_froze_whole_is_refused(pulled: Trajectories) -> None:
    with pytest.raises(ValueError, match="every particle of the walk froze"):
        KernelMap().fit(replace(pulled, frozen_at=torch.full((4,), 3)))


def test_a_walk_of_one_step_can_be_laid_out() -> None:
    walk = walk_with(Adam(num_refinements=1), num_steps=1)
    latent = KernelMap().fit(walk)
    torch.testing.assert_close(latent.decode_on(torch.tensor([1]), torch.tensor([1.0])), walk.thetas[1:2, 1])


def test_a_coordinate_that_never_moves_does_not_disturb_the_others(pulled: Trajectories) -> None:
    thetas = pulled.thetas.clone()
    thetas[:, 1:, 0] = thetas[0, 0, 0] + 1e3  # constant, and not where the MAP has it
    latent, whole = (KernelMap().fit(walk) for walk in (replace(pulled, thetas=thetas), pulled))
    assert latent.length_scale == whole.length_scale
    segment, position = torch.tensor([0, 3]), torch.tensor([0.31, 0.77])
    one, two = (latent_map.decode_on(segment, position)[:, 1:] for latent_map in (latent, whole))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_a_map_says_in_one_line_what_it_has_laid_out(pulled: Trajectories) -> None:
    assert repr(KernelMap()) == "KernelMap(not fitted)"
    assert repr(KernelMap().fit(pulled)) == "KernelMap(4 segments, 25 coordinates)"


def test_a_map_knows_whether_it_is_fitted(pulled: Trajectories) -> None:
    assert not KernelMap().is_fitted
    assert KernelMap().fit(pulled).is_fitted


@pytest.mark.parametrize("use", [lambda m: m.decode(X), lambda m: m.encode(X), lambda m: m.decode_on(X[0], X[0])])
def test_a_map_that_is_not_fitted_says_so(use: Callable[[KernelMap], object]) -> None:
    with pytest.raises(AttributeError, match="has not been fitted: call fit"):
        use(KernelMap())


class Decoder(nn.Module):
    def __init__(self, latent: KernelMap) -> None:
        super().__init__()
        self.latent = latent

    def forward(self, segment: Tensor, position: Tensor) -> Tensor:
        return self.latent.decode_on(segment, position)


class Draws(nn.Module):
    def __init__(self, latent: KernelMap) -> None:
        super().__init__()
        self.posterior = MetricPosterior(latent)

    def forward(self, shift: Tensor) -> Tensor:
        return self.posterior.sample((60,)) + shift


def graph_of(way: str, module: nn.Module, *seen: Tensor, dynamic: bool = True) -> Callable[..., Tensor]:
    if way == "trace":
        return torch.jit.trace(module, seen, check_trace=False)
    if way == "compile":
        return torch.compile(module, backend="eager", fullgraph=True)
    shapes = ({0: torch.export.Dim("draws")},) * len(seen) if dynamic else None
    return torch.export.export(module, seen, dynamic_shapes=shapes).module()


@pytest.mark.parametrize("way", ["trace", "export", "compile"])
@pytest.mark.parametrize("drawn", [[3, 1, 0, 1, 2], [3, 1, 1], [2]])  # with and without what was seen
@pytest.mark.filterwarnings("ignore")  # the older way is deprecated
@pytest.mark.usefixtures("_compiles_by_itself")
def test_a_traced_map_decodes_walks_that_the_trace_did_not_see(
    way: str, drawn: list[int], pulled: Trajectories
) -> None:
    latent = KernelMap().fit(pulled)
    graph = graph_of(way, Decoder(latent), torch.tensor([0, 0, 1]), torch.rand(3))
    segment, position = torch.tensor(drawn), torch.rand(len(drawn))
    torch.testing.assert_close(graph(segment, position), latent.decode_on(segment, position))


@pytest.mark.parametrize("way", ["trace", "export", "compile"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_compiles_by_itself")
def test_a_traced_posterior_draws_anew_from_every_walk(way: str, pulled: Trajectories) -> None:
    latent = KernelMap().fit(pulled)
    graph = graph_of(way, Draws(latent), torch.zeros(()), dynamic=False)
    one, two = graph(torch.zeros(())), graph(torch.zeros(()))
    assert not bool((one == two).any())
    assert set(latent.nearest(two)[0].tolist()) == set(range(latent.num_segments))
