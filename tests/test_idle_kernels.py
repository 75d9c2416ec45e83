"""Convolutions whose kernels see padding alone: what is left of them gives the same."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from pyro_metricbnn.runtime.written_out import _without_idle_entries, written_out

SETTINGS = list(itertools.product((1, 2, 3, 5), (1, 2, 3, 5, 7), (1, 2, 3), (0, 1, 2, 3), (1, 2)))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_written_out_gives_what_torchs_own_gives(groups: int) -> None:
    torch.manual_seed(0)
    num_cut = 0
    for length, kernel, stride, padding, dilation in SETTINGS:
        if length + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        x, weight = torch.randn(2, 4, length, length + 1).double(), torch.randn(6, 4 // groups, kernel, kernel).double()
        arguments = (x, weight, torch.randn(6).double(), stride, padding, dilation, groups)
        with written_out():
            written = torch.conv2d(*arguments)
        assert torch.allclose(torch.conv2d(*arguments), written), arguments[3:]
        num_cut += _without_idle_entries(*arguments)[1].shape != weight.shape
    assert num_cut > 20


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_a_convolution_of_one_pixel_is_left_with_the_middle_of_its_kernels(kind: type[nn.Module]) -> None:
    num = int(kind.__name__[4])
    layer = kind(3, 5, 3, padding=1)
    x = torch.randn(2, 3, *[1] * num)
    weight, padding = (_without_idle_entries(x, layer.weight, None, 1, 1)[i] for i in (1, 4))  # type: ignore[arg-type]
    assert weight.shape[2:] == (1,) * num
    assert padding == [0] * num
    with written_out():
        assert torch.allclose(layer(x), functional_call(layer, dict(layer.named_parameters()), (x,)), atol=1e-6)


def test_what_sees_padding_alone_has_no_gradient_and_the_rest_has_its_own() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(4, 3, 1, 1).double(), torch.randn(7, 5, 3, 3, 3).double()

    def loss(weight: Tensor) -> Tensor:
        return torch.conv2d(x, weight, padding=1).tanh().sum()

    with written_out():
        found = vmap(grad(loss))(weights)
    assert torch.allclose(found, vmap(grad(loss))(weights))
    assert int((found != 0).sum()) == 7 * 5 * 3


def test_words_for_the_padding_are_left_to_torch() -> None:
    layer = nn.Conv2d(2, 2, 3, padding="same")
    x = torch.randn(1, 2, 1, 1)
    with written_out():
        written = layer(x)
    assert torch.equal(written, layer(x))


def test_a_convolution_takes_its_arguments_by_name() -> None:
    x, weight = torch.randn(2, 3, 1, 1), torch.randn(5, 3, 3, 3)
    with written_out():
        named = nn.functional.conv2d(input=x, weight=weight, padding=1)
    assert torch.allclose(named, nn.functional.conv2d(x, weight, padding=1), atol=1e-6)
