"""The shifted images of the benchmarks: fifteen corruptions, and rotations."""

import numpy as np
import pytest
import torch

from benchmarks.corruptions import CORRUPTIONS, corrupted
from benchmarks.rotation import rotated


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Smooth images (n, 3, 32, 32) with an edge."""
    draw = np.random.default_rng(0)
    waves = draw.uniform(0.1, 0.6, (6, 3, 1, 1)) * np.arange(32)[:, None] + draw.uniform(
        0.1, 0.6, (6, 3, 1, 1)
    ) * np.arange(32)
    x = 0.5 + 0.3 * np.sin(waves)
    x[:, :, 8:20, 10:24] *= draw.uniform(0.2, 1, (12, 14))
    return x.astype(np.float32)


def test_there_are_fifteen_corruptions() -> None:
    assert len(CORRUPTIONS) == 15


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_gives_images_and_the_same_ones_again(name: str, images: np.ndarray) -> None:
    once, again = corrupted(images, name, 3), corrupted(images, name, 3)
    assert once.shape == images.shape
    assert once.dtype == np.float32
    assert 0 <= once.min() <= once.max() <= 1
    assert np.array_equal(once, again)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_highest_severity_changes_more_than_the_lowest(name: str, images: np.ndarray) -> None:
    least, most = (float(np.abs(corrupted(images, name, severity) - images).mean()) for severity in (1, 5))
    assert most > least > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_leaves_the_images_that_it_is_given_alone(name: str, images: np.ndarray) -> None:
    before = images.copy()
    corrupted(images, name, 5)
    assert np.array_equal(before, images)


def test_blurs_keep_the_mean_of_an_even_image() -> None:
    even = np.full((2, 3, 32, 32), 0.4, dtype=np.float32)
    for name in ("defocus_blur", "motion_blur", "zoom_blur", "glass_blur", "elastic_transform", "pixelate"):
        assert np.allclose(corrupted(even, name, 4), 0.4, atol=0.01), name


def test_a_corruption_that_there_is_not_is_refused(images: np.ndarray) -> None:
    with pytest.raises(ValueError, match="no corruption 'rain'"):
        corrupted(images, "rain", 1)
    with pytest.raises(ValueError, match="severity 6"):
        corrupted(images, "fog", 6)


def test_a_quarter_turn_moves_the_corner_and_none_changes_nothing() -> None:
    x = torch.zeros(1, 1, 28, 28)
    x[0, 0, :14, :14] = 1
    assert torch.allclose(rotated(x, 0), x, atol=1e-5)
    assert torch.allclose(rotated(x, 90), torch.rot90(x, 1, (2, 3)), atol=1e-4)
