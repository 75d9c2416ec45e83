"""Claims about both latent maps."""

import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import Adam, DriftRefineKernel, Gaussian, Steer, Trajectories, bayesianize
from pyro_metricbnn.autoencoder_map import AutoencoderMap
from pyro_metricbnn.latent_map import KernelMap, LatentMap

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
        spread = trajectories.thetas[i, 1:].std(0).mean()
        assert float((decoded - trajectories.thetas[i, 1:]).pow(2).mean().sqrt()) < 0.1 * spread


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
    torch.testing.assert_close(z[:, [1, 3]], torch.tensor([[0.9, 0.0], [0.0, 0.6]]), atol=0.03, rtol=0)
    far = latent.encode(theta + 5)[1]
    assert (distance < 0.5).all()
    assert (far > 5).all()


def test_the_autoencoder_learns_segments_that_decode_to_the_walk(pulled: Trajectories) -> None:
    latent: LatentMap = AutoencoderMap(8, num_hidden=64, num_epochs=400).fit(pulled, progress=False)
    ends = latent.decode(latent.ends).detach()
    spread = float((pulled.thetas[:, -1] - pulled.theta_star).norm(dim=-1).mean())
    assert float((ends - pulled.thetas[:, -1]).norm(dim=-1).mean()) < 0.3 * spread
    assert latent.bend < 0.15


def test_the_papers_autoencoder_has_its_sizes_and_losses(pulled: Trajectories) -> None:
    latent = AutoencoderMap.paper()
    assert (latent.latent_dim, latent.num_hidden, latent.num_epochs, latent.batch_size) == (32, 256, 1000, 1024)
    latent.num_epochs = 3
    latent.fit(pulled, progress=False)
    assert len(latent.losses) == 3
    assert set(latent.losses[0]) == {"plus", "minus", "reconstruction"}
    assert latent.ends.shape == (4, 32)
