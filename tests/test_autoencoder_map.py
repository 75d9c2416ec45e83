"""Claims about the paper's autoencoder, and ours."""

import pytest
import torch

from pyro_metricbnn import Adam, AutoencoderMap, Trajectories
from pyro_metricbnn.latent.latent_map import LatentMap

from .test_latent_map import walk_with


@pytest.fixture(scope="module")
def pulled() -> Trajectories:
    return walk_with(Adam(num_refinements=5))


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


def test_training_ends_when_the_loss_no_longer_falls(pulled: Trajectories) -> None:
    latent = AutoencoderMap(2, num_hidden=4, num_epochs=5000, lr=0.03).fit(pulled, progress=False)
    assert len(latent.losses) < 5000


def test_losses_and_bends_are_recorded_on_the_way(pulled: Trajectories) -> None:
    latent = AutoencoderMap(4, num_hidden=16, num_epochs=20).fit(pulled, progress=False)
    assert [set(row) for row in latent.losses] == [{"plus", "minus", "reconstruction", "segment"}] * 20
    assert len(latent.bends) == 2
    assert latent.bends[-1] == pytest.approx(latent.bend)


def test_encoding_is_the_encoders_and_the_distance_that_to_the_curves(pulled: Trajectories) -> None:
    latent = AutoencoderMap(8, num_hidden=64, num_epochs=300).fit(pulled, progress=False)
    z, distance = latent.encode(pulled.thetas[:, -1])
    torch.testing.assert_close(z, latent.ends, atol=1e-4, rtol=1e-4)
    assert (latent.encode(pulled.thetas[:, -1] + 10)[1] > distance).all()


def test_the_autoencoder_says_in_one_line_what_it_has_laid_out(pulled: Trajectories) -> None:
    latent = AutoencoderMap(2, num_hidden=4, num_epochs=1)
    assert repr(latent) == "AutoencoderMap(not fitted)"
    with pytest.raises(AttributeError, match="has not been fitted: call fit"):
        latent.decode(torch.zeros(1, 2))
    assert repr(latent.fit(pulled, progress=False)) == "AutoencoderMap(4 segments, 25 coordinates)"


def test_the_autoencoder_does_not_keep_the_callers_gradients_on(pulled: Trajectories) -> None:
    latent = AutoencoderMap(4, num_hidden=16, num_epochs=2).fit(pulled, progress=False)
    assert not latent.ends.requires_grad
    assert not latent.theta_star.requires_grad
