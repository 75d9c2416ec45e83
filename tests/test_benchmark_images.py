"""The image benchmarks in their quick setting, on digits."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import corruption, images, rotation
from benchmarks.image_data import images as data_of
from benchmarks.image_heads import heads
from benchmarks.image_networks import augmented, lenet, resnet

METHODS = [
    "network", "temperature scaling", "MetricBNN, last layer", "MetricBNN, dense layers",
    "MetricBNN, dense layers, scaled", "control, last layer", "MetricBNN, 4 networks",
]  # fmt: skip


def cells(path: Path) -> Mapping[str, Any]:
    found = json.loads(path.read_text())["cells"]
    assert not [cell["error"] for cell in found.values() if "error" in cell]
    return found


@pytest.mark.slow
def test_images_and_their_shifts_write_their_files_from_one_set_of_draws(tmp_path: Path) -> None:
    images.main(["--quick", "--out", str(tmp_path), "--only", *METHODS])
    found = cells(tmp_path / "images" / "images.json")
    assert [key.split("|")[1] for key in found] == METHODS
    draws = {path: path.read_bytes() for path in (tmp_path / "images" / "draws").iterdir()}
    rotation.main(["--quick", "--out", str(tmp_path)])
    corruption.main(["--quick", "--out", str(tmp_path), "--images", "100"])
    assert {path: path.read_bytes() for path in draws} == draws
    turned = cells(tmp_path / "rotation" / "rotation.json")
    assert turned["0|network|0"]["nll"] == pytest.approx(found["digits|network|0"]["nll"], rel=1e-3)
    assert turned["90|network|0"]["nll"] > turned["0|network|0"]["nll"]
    assert cells(tmp_path / "corruption" / "corruption.json")
    for name in ("images/images.md", "images/images.png", "rotation/rotation.png", "corruption/corruption.md"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("label", ["last layer", "dense layers", "all layers"])
def test_a_part_of_lenet_on_its_features_is_the_network(label: str) -> None:
    torch.manual_seed(0)
    net, x = lenet(), data_of(None, "digits").x_test[:20]
    part = heads(net)[label]
    assert torch.allclose(part.net(part.of(x)), net(x), atol=1e-5)


@pytest.mark.parametrize("label", ["last layer", "last two layers"])
def test_a_part_of_resnet_on_its_features_is_the_network(label: str) -> None:
    pytest.importorskip("torchvision")
    torch.manual_seed(0)
    net, x = resnet(), torch.rand(8, 3, 32, 32)
    net(x)  # running means that are not zero
    part = heads(net.eval())[label]
    with torch.no_grad():
        assert torch.allclose(part.net(part.of(x)), net(x), atol=1e-4)


def test_an_augmented_image_is_a_part_of_the_padded_one_or_of_its_mirror_image() -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 1, 8, 8)
    wide = torch.nn.functional.pad(x, (4, 4, 4, 4))
    parts = {
        tuple(side[0, 0, i : i + 8, j : j + 8].flatten().tolist())
        for side in (wide, wide.flip(-1))
        for i in range(9)
        for j in range(9)
    }
    found = {tuple(one.flatten().tolist()) for one in augmented(x.expand(200, -1, -1, -1))}
    assert found <= parts
    assert len(found) > 50
