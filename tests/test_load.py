"""Claims about memory: a run holds its record and a few copies of its particles, a stream one batch of draws."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import load
from pyro_metricbnn import DriftRefineKernel, KernelMap, MetricBNN, Steer
from pyro_metricbnn.latent import kernel_map
from pyro_metricbnn.walk.trajectories import Trajectories

linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
CONSTANT = 16  # numbers in single precision for each of N D; 15 measured at D = 1,000,000 and 10,000,000


@pytest.fixture(scope="module")
def large() -> MetricBNN:
    """A run of a network of 10,000 weights."""
    torch.manual_seed(0)
    model, x, y = load.wide(10_000)
    kernel = DriftRefineKernel(model, refiner=Steer(path=0.3), num_steps=4, compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MetricBNN(kernel, num_particles=3).run(x, y, map_params=model.trained_params, progress=False)


def sizes(stream: Iterator[dict[str, Tensor]]) -> list[int]:
    return [len(next(iter(draws.values()))) for draws in stream]


def test_a_stream_has_as_many_draws_as_asked_for(metric: MetricBNN) -> None:
    assert sizes(metric.stream(25, batch_size=10)) == [10, 10, 5]


def test_a_stream_by_itself_takes_batches_of_bounded_size(large: MetricBNN) -> None:
    first = next(large.stream(100_000))
    assert 2**23 < sum(value.numel() for value in first.values()) <= 2**24


def test_a_stream_in_one_batch_gives_the_draws_of_draw(metric: MetricBNN) -> None:
    torch.manual_seed(3)
    (streamed,) = metric.stream(7, batch_size=7)
    torch.manual_seed(3)
    drawn = metric.draw(7)
    assert all(torch.equal(streamed[name], drawn[name]) for name in drawn)


def test_a_stream_refines_its_draws_as_draw_does(metric: MetricBNN) -> None:
    torch.manual_seed(3)
    (streamed,) = metric.stream(5, batch_size=5, num_refinements=2)
    torch.manual_seed(3)
    drawn = metric.draw(5, num_refinements=2)
    assert all(torch.equal(streamed[name], drawn[name]) for name in drawn)


@pytest.mark.parametrize("settings", [{"num_samples": 0}, {"num_samples": 5, "batch_size": 0}])
def test_a_stream_refuses_nonsense_before_its_first_batch(metric: MetricBNN, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        metric.stream(**settings)


def test_the_latent_map_is_the_same_in_parts_of_the_coordinates(
    large: MetricBNN, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk: Trajectories = large.trajectories
    segment, position = torch.tensor([0, 2, 1, 2]), torch.tensor([0.1, 0.4, 0.8, 1.0])
    whole = KernelMap().fit(walk)
    expected = whole.decode_on(segment, position), whole.decode(position[:, None] * whole.ends[segment])
    monkeypatch.setattr(kernel_map, "NUMBERS_AT_ONCE", 4 * 999)
    parts = KernelMap().fit(walk)
    assert len(parts._columns) == 11
    torch.testing.assert_close((parts.spreads, parts.residuals), (whole.spreads, whole.residuals), rtol=1e-4, atol=1e-5)
    found = parts.decode_on(segment, position), parts.decode(position[:, None] * parts.ends[segment])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_run_records_thinned_and_in_the_precision_that_is_asked_for(metric: MetricBNN) -> None:
    x, y = metric.trajectories.arguments[0]
    kernel = DriftRefineKernel(metric.model, refiner=Steer(path=0.1, warmup=0.0), num_steps=6)
    run = MetricBNN(kernel, num_particles=2).run(
        x, y, map_params=metric.map_params, thin=3, storage_dtype=torch.float16, progress=False
    )
    assert run.trajectories.thetas.shape[1] == 3
    assert run.trajectories.thetas.dtype == torch.float16
    assert run.draw(2)["0.weight"].dtype == torch.float32


def test_without_compiling_means_in_the_search_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr("pyro_metricbnn.graphs.execution.worth_compiling", lambda graph, calls: True)
    torch.manual_seed(0)
    model, x, y = load.wide(1_000)
    kernel = DriftRefineKernel(model, refiner=Steer(path=0.1), num_steps=1, compile=False)
    kernel.walk(x, y, num_particles=2, progress=False)


@pytest.mark.slow
@linux
def test_a_run_holds_its_record_and_a_constant_number_of_copies_of_the_particles() -> None:
    found = load.in_own_process(300_000)
    assert found["walk"]["peak"] >= found["record"]  # what is measured is there at all
    assert found["walk"]["constant"] <= CONSTANT


@pytest.mark.slow
@linux
def test_a_hundred_thousand_draws_take_the_memory_of_a_few_batches() -> None:
    few, many = (load.in_own_process(10_000, f"--draws={number}") for number in (6_000, 100_000))
    held_at_once = 100_000 * 10_000 * load.FOUR
    assert many["draws"]["peak"] <= few["draws"]["peak"] + 0.01 * held_at_once


@pytest.mark.slow
@linux
def test_the_benchmark_of_memory_writes_its_table(tmp_path: Path) -> None:
    load.main(["--quick", "--out", str(tmp_path), "--draws", "5"])
    rows = json.loads((tmp_path / "load.json").read_text())["rows"]
    assert [row["dim"] for row in rows] == [10, 1001]
    assert len((tmp_path / "load.md").read_text().splitlines()) == 4
