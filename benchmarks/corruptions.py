"""The fifteen corruptions of CIFAR10-C at five severities, made from images (Hendrycks and Dietterich, 2019).

In: images (n, 3, H, W) from 0 to 1, a name and a severity 1 to 5.  Out: such images.

The parameters are those of CIFAR10-C, the code is ours. Frost has made crystals, random needles, in the place of
photographs; snow is what `_snow` says; elastic deformation, which has no parameter list here, moves pixels by a smooth
field of so many pixels. Random numbers are of one generator for each name and severity.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates, zoom

Array = np.ndarray
Corruption = Callable[[Array, int, np.random.Generator], Array]


def corrupted(images: Array, name: str, severity: int) -> Array:
    """Images (n, 3, H, W) from 0 to 1 under a corruption; the same images give the same result."""
    if name not in CORRUPTIONS or not 1 <= severity <= 5:
        raise ValueError(f"there is no corruption {name!r} of severity {severity}: see CORRUPTIONS, 1 to 5.")
    draw = np.random.default_rng(zlib.crc32(f"{name}{severity}".encode()))
    pictures = images.transpose(0, 2, 3, 1).astype(np.float32)
    result = CORRUPTIONS[name](pictures, severity - 1, draw)
    return np.clip(result, 0, 1).transpose(0, 3, 1, 2).astype(np.float32)


def gaussian_noise(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Of one deviation."""
    return x + draw.normal(0, (0.04, 0.06, 0.08, 0.09, 0.10)[level], x.shape)


def shot_noise(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Photons that are counted."""
    photons = (500, 250, 100, 75, 50)[level]
    return draw.poisson(x * photons) / photons


def impulse_noise(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Salt and pepper."""
    chance = draw.random(x.shape)
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    return np.where(chance < amount / 2, 0.0, np.where(chance < amount, 1.0, x))


def defocus_blur(x: Array, level: int, draw: np.random.Generator) -> Array:
    """A disk, its edge smoothed."""
    radius, alias = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[level]
    reach = np.arange(-8, 9) if radius <= 8 else np.arange(-math.ceil(radius), math.ceil(radius) + 1)
    across, down = np.meshgrid(reach, reach)
    disk = (across**2 + down**2 <= radius**2).astype(np.float32)
    size = 3 if radius <= 8 else 5
    disk = gaussian_filter(disk / disk.sum(), alias, truncate=(size // 2) / alias)
    return _convolved(x, disk)


def glass_blur(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Pixels change places with near ones."""
    sigma, reach, rounds = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))[level]
    x = _blurred(x, sigma).copy()
    n, height, width, _ = x.shape
    every = np.arange(n)
    for _ in range(rounds):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, across = draw.integers(-reach, reach, (2, n), endpoint=True)
                other_row, other = (row - 1 + down).clip(0, height - 1), (column - 1 + across).clip(0, width - 1)
                here = x[:, row - 1, column - 1].copy()
                x[:, row - 1, column - 1] = x[every, other_row, other]
                x[every, other_row, other] = here
    return _blurred(x, sigma)


def motion_blur(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Along a random direction within 45 degrees, the weight falling."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[level]
    angle = np.deg2rad(draw.uniform(-45, 45, len(x)))
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    result = np.zeros_like(x)
    every = np.arange(len(x))[:, None, None]
    rows, columns = np.arange(x.shape[1])[None, :, None], np.arange(x.shape[2])[None, None, :]
    for i, weight in enumerate(weights):
        down = np.rint(i * np.sin(angle)).astype(int)[:, None, None]
        across = np.rint(i * np.cos(angle)).astype(int)[:, None, None]
        row, column = (rows + down).clip(0, x.shape[1] - 1), (columns + across).clip(0, x.shape[2] - 1)
        result += weight * x[every, row, column]
    return result


def zoom_blur(x: Array, level: int, draw: np.random.Generator) -> Array:
    """The mean of the image and of enlarged ones."""
    end = (1.06, 1.11, 1.16, 1.21, 1.26)[level]
    factors = np.arange(1, end, 0.01)
    return (x + sum(_enlarged(x, factor) for factor in factors)) / (len(factors) + 1)


def snow(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Flakes that fall: noise above a threshold, enlarged and blurred along one direction, on a paler image."""
    mean, spread, size, threshold, sigma, mix = (
        (0.1, 0.2, 1, 0.6, 3, 0.95), (0.1, 0.2, 1, 0.5, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 6, 0.8),
    )[level]  # fmt: skip
    layer = draw.normal(mean, spread, x.shape[:3]).astype(np.float32)[..., None]
    layer = _enlarged(layer, size)
    layer = np.where(layer < threshold, 0, layer).clip(0, 1)
    down, total = np.zeros_like(layer), 0.0
    for i in range(9):  # along a diagonal that points down
        weight = math.exp(-(i**2) / (2 * sigma**2))
        down, total = down + weight * np.roll(layer, (i, -(i // 2)), (1, 2)), total + weight
    layer = down / total
    grey = x @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    pale = mix * x + (1 - mix) * np.maximum(x, grey[..., None] * 1.5 + 0.5)
    return pale + layer + np.rot90(layer, 2, (1, 2))


def frost(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Needles of ice of random places and directions, in a bluish white; a picture that is made, no photograph."""
    image, ice = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    n, height, width, _ = x.shape
    layer = np.abs(draw.normal(0, 0.35, (n, height, width))).astype(np.float32)
    every = np.arange(n)
    for _ in range(25):
        row, column = draw.uniform(0, height, n), draw.uniform(0, width, n)
        angle, length = draw.uniform(0, 2 * np.pi, n), draw.uniform(4, 14, n)
        for part in np.linspace(0, 1, 16):
            there = (
                (row + part * length * np.sin(angle)).astype(int),
                (column + part * length * np.cos(angle)).astype(int),
            )
            layer[every, there[0].clip(0, height - 1), there[1].clip(0, width - 1)] = 1.2 - 0.4 * part
    layer = gaussian_filter(layer, (0, 0.5, 0.5)).clip(0, 1)
    return image * x + ice * layer[..., None] * np.array([0.85, 0.95, 1.0], dtype=np.float32)


def fog(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Clouds of all sizes, by midpoint displacement."""
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[level]
    clouds = np.stack([_plasma(draw, x.shape[1], decay) for _ in range(len(x))])[..., None]
    most = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + amount * clouds) * most / (most + amount)


def brightness(x: Array, level: int, draw: np.random.Generator) -> Array:
    """The value of hue, saturation and value is raised."""
    value = x.max(-1, keepdims=True)
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[level]).clip(0, 1)
    return np.where(value > 0, x * raised / np.maximum(value, 1e-6), raised)


def contrast(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Nearer to the mean of the image."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean


def elastic_transform(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Pixels are moved by a smooth random field; its deviation is so many pixels."""
    deviation, smooth = ((0.25, 2.5), (0.4, 2.5), (0.55, 2.5), (0.75, 2.2), (1.0, 2.0))[level]
    n, height, width, channels = x.shape
    fields = gaussian_filter(draw.uniform(-1, 1, (2, n, height, width)), (0, 0, smooth, smooth), mode="reflect")
    fields *= deviation / fields.std()
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    result = np.empty_like(x)
    for i in range(n):
        at = (rows + fields[0, i], columns + fields[1, i])
        for channel in range(channels):
            result[i, ..., channel] = map_coordinates(x[i, ..., channel], at, order=1, mode="reflect")
    return result


def pixelate(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Fewer pixels."""
    part = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    size = x.shape[2], x.shape[1]
    small = int(size[0] * part), int(size[1] * part)

    def one(picture: Image.Image) -> Image.Image:
        return picture.resize(small, Image.Resampling.BOX).resize(size, Image.Resampling.NEAREST)

    return _by_pillow(x, one)


def jpeg_compression(x: Array, level: int, draw: np.random.Generator) -> Array:
    """Of a low quality."""

    def one(picture: Image.Image) -> Image.Image:
        written = io.BytesIO()
        picture.save(written, "JPEG", quality=(80, 65, 58, 50, 40)[level])
        return Image.open(written).convert("RGB")

    return _by_pillow(x, one)


def _by_pillow(x: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    pixels = (x * 255).round().clip(0, 255).astype(np.uint8)
    return np.stack([np.asarray(change(Image.fromarray(one))) for one in pixels]).astype(np.float32) / 255


def _blurred(x: Array, sigma: float) -> Array:
    return np.asarray(gaussian_filter(x, (0, sigma, sigma, 0)))


def _convolved(x: Array, kernel: Array) -> Array:
    """Each channel with a small kernel, the edge mirrored."""
    reach = len(kernel) // 2
    wide = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    result = np.zeros_like(x)
    for i, j in zip(*np.nonzero(kernel), strict=True):
        result += kernel[i, j] * wide[:, i : i + x.shape[1], j : j + x.shape[2]]
    return result


def _enlarged(x: Array, factor: float) -> Array:
    """The middle, enlarged to the whole."""
    if factor <= 1:
        return x
    height = x.shape[1]
    cut = math.ceil(height / factor)
    first = (height - cut) // 2
    wide = zoom(x[:, first : first + cut, first : first + cut], (1, factor, factor, 1), order=1)
    first = (wide.shape[1] - height) // 2
    return np.asarray(wide[:, first : first + height, first : first + height])


def _plasma(draw: np.random.Generator, size: int, decay: float) -> Array:
    """Noise of halving sizes, each weaker by `decay`, from 0 to 1."""
    total, weight = np.zeros((size, size), dtype=np.float32), 1.0
    cells = 2
    while cells <= size:
        coarse = draw.uniform(-1, 1, (cells + 1, cells + 1))
        at = np.linspace(0, cells, size)
        total += weight * map_coordinates(coarse, np.meshgrid(at, at, indexing="ij"), order=1)
        weight, cells = weight / decay, 2 * cells
    return (total - total.min()) / (total.max() - total.min())


ORDER: Sequence[Corruption] = (
    *(gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur),
    *(snow, frost, fog, brightness, contrast, elastic_transform, pixelate, jpeg_compression),
)
CORRUPTIONS: dict[str, Corruption] = {function.__name__: function for function in ORDER}
