"""Claims about walks that several processes share: what they agree in, what they refuse, when one of them is gone."""

import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from pyro_metricbnn import Gaussian, MetricBNN, Ranks, bayesianize, join_ranks
from pyro_metricbnn.ranks.faults import refuse_different
from pyro_metricbnn.ranks.share import shared_out

from .ranked import NUM_PARTICLES, TIMEOUT, X, Y, network, walked

ROOT = Path(__file__).parent.parent
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
Found = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def found_by(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a rank of a group of so many found; a group is started when it is first asked for."""
    folders: dict[tuple[str, int], Path] = {}

    def find(what: str, size: int, rank: int = 0) -> dict[str, Any]:
        if (what, size) not in folders:
            folder = folders[what, size] = tmp_path_factory.mktemp(what)
            command = [sys.executable, "-W", "ignore", "-m", "tests.ranked", str(folder), what, str(size)]
            subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
        return torch.load(folders[what, size] / f"{what}.{size}.{rank}.pt")

    return find


@pytest.fixture
def _one_rank() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def largest_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


# ------------------------------------------------------------------------------- in this process


@pytest.mark.parametrize(("total", "num_places"), [(20, 1), (20, 3), (4, 4), (7, 2)])
def test_particles_are_shared_out_in_order_and_evenly(total: int, num_places: int) -> None:
    parts = shared_out(total, num_places)
    assert [number for part in parts for number in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_without_a_group_a_script_only_gets_a_seed() -> None:
    assert join_ranks(seed=5) == 0
    first = torch.rand(3)
    pyro.set_rng_seed(5)
    assert torch.equal(first, torch.rand(3))
    assert not torch.distributed.is_initialized()


@pytest.mark.filterwarnings("ignore:the network as it came")
def test_processes_of_torchrun_that_nobody_joined_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match="torchrun started 2 processes, and each walks by itself"):
        walked(network(2), X, Y)


@pytest.mark.usefixtures("_one_rank")
def test_a_process_alone_has_left_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "walk.pt"
    walked(network(2), X, Y, checkpoint=path, ranks=Ranks(together=False))
    with pytest.raises(ValueError, match="is a checkpoint of a process by itself, and this walk is one of several"):
        walked(network(2), X, Y, checkpoint=path)


@pytest.mark.usefixtures("_one_rank")
def test_a_run_of_one_rank_can_be_pickled_and_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = bayesianize(nn.Linear(1, 1).double(), Gaussian(0.3))
    metric = MetricBNN(model, num_particles=3, num_steps=4).run(X, Y, progress=False)
    assert metric.trajectories.share.is_several
    assert not pickle.loads(pickle.dumps(metric.trajectories)).share.is_several
    metric.save(tmp_path / "posterior.pt")
    loaded = MetricBNN.load(tmp_path / "posterior.pt", model)
    assert torch.equal(loaded.trajectories.thetas, metric.trajectories.thetas)


@pytest.mark.usefixtures("_one_rank")
def test_the_particles_of_a_group_leave_torchs_generator_alone() -> None:
    def after(num_steps: int) -> Tensor:
        torch.manual_seed(0)
        model = bayesianize(nn.Linear(1, 1).double(), Gaussian(0.3))
        start = model.trained_params
        MetricBNN(model, num_particles=3, num_steps=num_steps).kernel.walk(X, Y, map_params=start, progress=False)
        return torch.rand(2)

    assert torch.equal(after(3), after(6))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"gather": "some"}, "gather must be 'all', 'first' or 'none'"),
        ({"timeout": -1}, "timeout must be positive"),
        ({"mesh": "2x2"}, "named .particles. and .rows."),
    ],
)
def test_wrong_ways_to_share_out_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Ranks(**wrong)


def test_ranks_that_are_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks must be"):
        walked(network(2), X, Y, ranks=2)


@pytest.mark.usefixtures("_one_rank")
def test_rows_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide the 1 ranks"):
        walked(network(2), X, Y, ranks=Ranks(rows=2))


def test_the_rank_that_differs_is_named() -> None:
    with pytest.raises(ValueError, match=r"rank 2 differs from rank 0 in data: b for a\..*the same data"):
        refuse_different([{"data": "a"}, {"data": "a"}, {"data": "b"}], [0, 0, 0])


# ------------------------------------------------------------------------------- in several


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_of_rows_on_several_ranks_add_up_to_those_of_all(size: int, found_by: Found) -> None:
    for rank in range(size):
        for name, (shared, whole) in found_by("gradients", size, rank).items():
            torch.testing.assert_close(shared, whole, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("run", ["steer", "rows"])
def test_draws_agree_to_rounding_at_the_first_points_however_many_ranks(run: str, size: int, found_by: Found) -> None:
    one, several = (found_by("alike", number)[run]["thetas"] for number in (1, size))
    assert largest_difference(one[:, :3], several[:, :3]) < 1e-6
    assert largest_difference(one[:, 0], one[:, 2]) > 1e-2


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("run", ["small", "anneal", "adam", "minibatches", "last layer", "loader"])
def test_so_do_those_of_every_refiner_and_of_batches(run: str, found_by: Found) -> None:
    one, two = (found_by("alike", size)[run]["thetas"] for size in (1, 2))
    assert largest_difference(one[:, :3], two[:, :3]) < 1e-6


@pytest.mark.slow
@needs_fork
def test_the_rows_of_a_walk_may_be_anywhere(found_by: Found) -> None:
    results = found_by("alike", 2)
    assert largest_difference(results["rows"]["thetas"][:, :3], results["steer"]["thetas"][:, :3]) < 1e-6


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("size", [1, 2])
def test_the_same_number_of_ranks_gives_the_same_bits(size: int, found_by: Found) -> None:
    results = found_by("alike", size)
    assert all(torch.equal(value, results["again"][name]) for name, value in results["steer"].items())


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize(
    "run", ["steer", "small", "anneal", "adam", "minibatches", "last layer", "foreign", "rows", "loader"]
)
def test_every_rank_has_the_whole_record_and_draws_the_same_numbers_next(run: str, found_by: Found) -> None:
    first, second = (found_by("alike", 2, rank)[run] for rank in (0, 1))
    assert len(first["thetas"]) == NUM_PARTICLES
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.slow
@needs_fork
def test_ranks_do_not_share_the_random_numbers_of_somebody_elses_refiner(found_by: Found) -> None:
    thetas = found_by("alike", 2)["foreign"]["thetas"]
    moves = thetas[:, 1:].diff(dim=1).flatten(1)
    assert float(torch.corrcoef(moves).fill_diagonal_(0).abs().max()) < 0.2


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_walk_over_ranks_has_the_distribution_of_one_by_itself(size: int, found_by: Found) -> None:
    together, alone = (found_by("many", size)[name] for name in ("together", "by itself"))
    for of_walk in (lambda thetas: thetas.mean(1), lambda thetas: (thetas - alone.mean((0, 1))).square().mean(1)):
        one, other = of_walk(together), of_walk(alone)  # (N, D): walks are independent of each other
        error = ((one.var(0) + other.var(0)) / len(one)).sqrt()
        assert bool(((one.mean(0) - other.mean(0)).abs() < 4 * error).all())


@pytest.mark.slow
@needs_fork
def test_records_that_stay_apart_hold_a_share_each_and_predict_together(found_by: Found) -> None:
    parts = [found_by("alike", 4, rank)["apart"] for rank in range(4)]
    assert [len(part["thetas"]) for part in parts] == [2, 2, 1, 1]
    assert all(len(part["f"]) == 40 and torch.equal(part["f"], parts[0]["f"]) for part in parts)
    whole = found_by("alike", 4)["steer"]["thetas"]
    assert torch.equal(torch.cat([part["thetas"] for part in parts]), whole)
    assert "each rank has its own walks" in parts[0]["said"]


@pytest.mark.slow
@needs_fork
def test_the_first_rank_alone_can_have_the_whole_record(found_by: Found) -> None:
    whole = found_by("alike", 2)["steer"]["thetas"]
    assert torch.equal(found_by("alike", 2, 0)["first"]["thetas"], whole)
    assert torch.equal(found_by("alike", 2, 1)["first"]["thetas"], whole[NUM_PARTICLES // 2 :])


@pytest.mark.slow
@needs_fork
def test_what_is_sent_between_two_points_does_not_grow_with_the_weights(found_by: Found) -> None:
    sent = found_by("alike", 2)["bytes"]  # of networks of 97 and of 1,153 weights
    assert max(sent.values()) <= 8 * NUM_PARTICLES * 8


@pytest.mark.slow
@needs_fork
def test_one_rank_saves(found_by: Found) -> None:
    assert [found_by("alike", 2, rank)["saved"]["is there"] for rank in (0, 1)] == [True, False]


@pytest.mark.slow
@needs_fork
def test_ranks_that_walk_by_themselves_are_as_without_a_group(found_by: Found) -> None:
    assert torch.equal(found_by("alike", 2, 1)["by itself"]["thetas"], walked(network(), X, Y).trajectories.thetas)


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("data", "rank 1 differs from rank 0 in data"),
        ("seed", r"rank 1 differs from rank 0 in random state.*join_ranks\(seed=0\)"),
        ("prior", "rank 1 has another model than rank 0"),
        ("network", "rank 1 differs from rank 0 in sites"),
        ("versions", "rank 1 differs from rank 0 in versions"),
        ("settings", "rank 1 differs from rank 0 in thin"),
        ("gather", r"rank 1 differs from rank 0 in Ranks\(gather=\)"),
        ("checkpoint", "rank 1 differs from rank 0 in checkpoint=: False for True"),
        ("weights", r"rank 1 differs from rank 0 in initial_params \(or the trained weights\).*read its file on all"),
        ("too many ranks", "1 particles cannot be shared out over 2 ranks"),
        ("local", "'effect' has a value for each row"),
        ("not finite", "is not finite"),
    ],
)
def test_ranks_that_do_not_go_together_are_refused_in_words_on_all(what: str, said: str, found_by: Found) -> None:
    for rank in (0, 1):
        assert re.search(f"ValueError: .*{said}", found_by("alike", 2, rank)["refused"][what])


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("what", ["hung", "missing"])
def test_a_rank_that_does_not_answer_is_named(what: str, found_by: Found) -> None:
    began = time.monotonic()
    said = found_by(what, 2)["said"]
    assert "no answer from rank 1, which hangs or has ended" in said
    assert f"within {TIMEOUT:g} s" in said
    assert time.monotonic() - began < 60


@pytest.mark.slow
@needs_fork
def test_ctrl_c_on_one_rank_ends_all_after_the_same_point_and_keeps_what_there_is(found_by: Found) -> None:
    first, second = (found_by("interrupted", 2, rank) for rank in (0, 1))
    assert first["short"]["thetas"].shape[1] == 1 + 6
    assert all(torch.equal(value, second["short"][name]) for name, value in first["short"].items())
    assert second["handler"]


@pytest.mark.slow
@needs_fork
def test_an_interrupted_walk_of_ranks_goes_on_to_the_same_bits(found_by: Found) -> None:
    whole = found_by("alike", 2)["steer"]
    assert all(torch.equal(value, whole[name]) for name, value in found_by("interrupted", 2)["whole"].items())


@pytest.mark.slow
@needs_fork
def test_a_checkpoint_of_several_ranks_is_refused_by_a_process_alone(found_by: Found) -> None:
    assert "is a checkpoint of several ranks" in found_by("interrupted", 2, 0)["by itself"]


@pytest.mark.slow
@needs_fork
def test_ranks_without_a_file_hear_what_is_wrong_with_the_others(found_by: Found) -> None:
    for rank in (0, 1):
        assert "thin was 1, now 2" in found_by("interrupted", 2, rank)["thinned"]


@pytest.mark.slow
@needs_fork
def test_the_first_rank_chooses_the_temperature_of_all(found_by: Found) -> None:
    first, second = (found_by("chosen", 2, rank) for rank in (0, 1))
    assert first.pop("looked") == [0]
    assert second.pop("looked") == []
    assert first["taken"] != 1
    assert all(torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name])) for name in ("taken", "drawn"))
    assert torch.equal(first["thetas"], second["thetas"])


@pytest.mark.slow
@needs_fork
def test_what_cannot_be_chosen_over_ranks_is_said_on_all(found_by: Found) -> None:
    for rank in (0, 1):
        assert "each rank has a part of the rows" in found_by("chosen", 2, rank)["of parts"]
        assert "nothing to choose" in found_by("chosen", 2, rank)["failed"]


@pytest.mark.slow
def test_a_killed_rank_is_started_again_by_torchrun_to_the_bits_of_an_unbroken_run(tmp_path: Path) -> None:
    for name, what in (("unbroken", []), ("killed", ["kill"])):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["--max-restarts", "1", "-m", "tests.ranked_script", str(tmp_path / name), *what]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, timeout=300)
    for rank in (0, 1):
        unbroken, killed = (torch.load(tmp_path / name / f"found.{rank}.pt") for name in ("unbroken", "killed"))
        assert int(killed.pop("steps walked")) < int(unbroken.pop("steps walked"))  # it did go on
        assert all(torch.equal(value, killed[name]) for name, value in unbroken.items())


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_share_a_walk_over_nccl(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from pyro_metricbnn import Gaussian, MetricBNN, Ranks, bayesianize, join_ranks\n"
        "rank = join_ranks(seed=0)\n"
        "x = torch.linspace(-2, 2, 50, device='cuda')[:, None]\n"
        "model = bayesianize(torch.nn.Linear(1, 1).cuda(), Gaussian(0.3))\n"
        "for ranks in (Ranks(), Ranks(gather='first'), Ranks(gather='none'), Ranks(rows=2)):\n"
        "    metric = MetricBNN(model, num_particles=4, num_steps=5).run(x, 2 * x, progress=False, ranks=ranks)\n"
        "    assert metric.predict(x, num_samples=20).mean.isfinite().all()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
