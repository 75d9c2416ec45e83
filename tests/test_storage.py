"""Claims about files: they come back bit by bit, run no code, say what is wrong, and replace each other whole."""

import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pyro_metricbnn import AutoencoderMap, DriftRefineKernel, Gaussian, KernelMap, MetricBNN, Steer, bayesianize
from pyro_metricbnn.files.storage import Content, plain, read, write
from pyro_metricbnn.latent.latent_map import LatentMap
from pyro_metricbnn.walk.trajectories import Trajectories

X = torch.linspace(-2, 2, 12)[:, None]
Y = torch.sin(2 * X)
GROUPS = torch.linspace(-1, 1, 6)


def hierarchical(y: Tensor, *, noise: float = 0.5) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
    spread = pyro.sample("spread", dist.LogNormal(y.new_zeros(()), 1.0))
    share = pyro.sample("share", dist.Dirichlet(y.new_ones(3)))
    with pyro.plate("groups", len(y)):
        effect = pyro.sample("effect", dist.Normal(y.new_zeros(()), 1.0))
        pyro.sample("obs", dist.Normal(mean + spread * effect + share[0], noise), obs=y)


def network(num_hidden: int = 3, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    layers = (nn.Linear(1, num_hidden, dtype=dtype), nn.Tanh(), nn.Linear(num_hidden, 1, dtype=dtype))
    return bayesianize(nn.Sequential(*layers), Gaussian(0.3))


def run(model: Any, *args: Any, latent_map: LatentMap | None = None, **kwargs: Any) -> MetricBNN:
    torch.manual_seed(0)
    kernel = DriftRefineKernel(model, refiner=Steer(path=2), num_steps=6)
    return MetricBNN(kernel, num_particles=3, latent_map=latent_map).run(*args, progress=False, **kwargs)


def assert_the_same(one: MetricBNN, two: MetricBNN) -> None:
    for field in (
        "thetas",
        "energies",
        "energy_errors",
        "drift_survived",
        "step_sizes",
        "paths",
        "gradients",
        "frozen_at",
    ):
        assert torch.equal(getattr(one.trajectories, field), getattr(two.trajectories, field)), field
    assert torch.equal(one.trajectories.positions, two.trajectories.positions)
    assert one.trajectories.spacing == two.trajectories.spacing
    seeded = []
    for metric in (one, two):
        pyro.set_rng_seed(1)
        theta = metric.trajectories.thetas[:, 3]
        values = (metric.map_params, metric.get_samples(), metric.draw(20), metric.guide.median())
        seeded.append((*values, {"density": metric.posterior.log_prob(theta), "z": metric.latent_map.encode(theta)[0]}))
    for ours, theirs in zip(*seeded, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def metric() -> MetricBNN:
    return run(network(), X, Y)


@pytest.fixture
def file(metric: MetricBNN, tmp_path: Path) -> Path:
    metric.save(tmp_path / "posterior.pt")
    return tmp_path / "posterior.pt"


def changed(file: Path, **changes: Any) -> Path:
    """The file with entries of its content replaced: a name with __ goes into a part."""
    document = torch.load(file, weights_only=True)
    for name, value in changes.items():
        *parts, last = name.split("__")
        place = document["content"]
        for part in parts:
            place = place[part]
        place[last] = value
    torch.save(document, file)
    return file


# --------------------------------------------------------------------------------- round trips


def test_a_loaded_network_is_the_saved_one_to_the_bit(metric: MetricBNN, file: Path) -> None:
    assert_the_same(metric, MetricBNN.load(file, network()))


@pytest.mark.parametrize("in_span", [True, False])
def test_a_loaded_autoencoder_is_the_saved_one_to_the_bit(in_span: bool, tmp_path: Path) -> None:
    metric = run(network(), X, Y, latent_map=AutoencoderMap(2, num_hidden=8, num_epochs=3, in_span=in_span))
    metric.save(tmp_path / "posterior.pt")
    loaded = MetricBNN.load(tmp_path / "posterior.pt", network())
    assert_the_same(metric, loaded)
    assert isinstance(loaded.latent_map, AutoencoderMap)
    assert isinstance(metric.latent_map, AutoencoderMap)
    assert loaded.latent_map.losses == metric.latent_map.losses


def test_a_loaded_hierarchical_model_is_the_saved_one_to_the_bit(tmp_path: Path) -> None:
    metric = run(hierarchical, GROUPS, noise=0.4)
    metric.save(tmp_path / "posterior.pt")
    assert_the_same(metric, MetricBNN.load(tmp_path / "posterior.pt", hierarchical))


def test_a_record_in_half_precision_is_loaded_so(tmp_path: Path) -> None:
    metric = run(network(), X, Y)
    metric._built(metric.trajectories.stored(torch.float16), metric.latent_map)
    metric.save(tmp_path / "posterior.pt")
    assert MetricBNN.load(tmp_path / "posterior.pt", network()).trajectories.thetas.dtype == torch.float16


def test_predictions_and_the_summary_are_the_saved_ones(
    metric: MetricBNN, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, means = [], []
    for one in (metric, MetricBNN.load(file, network())):
        pyro.set_rng_seed(2)
        means.append(one.predict(X, num_samples=5).mean)
        one.summary()
        said.append(capsys.readouterr().out)
    assert torch.equal(*means)
    assert said[0] == said[1]


def test_a_loaded_one_runs_anew(file: Path) -> None:
    loaded = MetricBNN.load(file, DriftRefineKernel(network(), refiner=Steer(path=2), num_steps=4))
    assert loaded.run(X, Y, progress=False).trajectories.thetas.shape[:2] == (3, 5)


def test_given_arguments_win_over_the_saved_ones(file: Path) -> None:
    loaded = MetricBNN.load(file, network(), X[:5], Y[:5])
    assert loaded.kernel.example_arguments[0][0].shape == (5, 1)


def test_without_data_the_file_has_no_row_of_it(metric: MetricBNN, file: Path, tmp_path: Path) -> None:
    metric.save(tmp_path / "bare.pt", data=False)
    row = X.numpy().tobytes()
    assert row in file.read_bytes()
    assert row not in (tmp_path / "bare.pt").read_bytes()
    assert_the_same(metric, MetricBNN.load(tmp_path / "bare.pt", network(), X, Y))


def test_missing_arguments_are_asked_for(metric: MetricBNN, tmp_path: Path) -> None:
    metric.save(tmp_path / "bare.pt", data=False)
    with pytest.raises(ValueError, match=r"load\(path, model, x, y\)"):
        MetricBNN.load(tmp_path / "bare.pt", network())


def test_arguments_that_no_file_can_hold_are_named(metric: MetricBNN, tmp_path: Path) -> None:
    class Data:
        pass

    kernel = DriftRefineKernel(network())
    kernel.example_arguments = ((X,), {"extra": [Data()]})
    other = MetricBNN(kernel)
    other._trajectories, other._fitted = metric.trajectories, metric._fitted
    with pytest.raises(ValueError, match=r"arguments\[1\]\['extra'\]\[0\] is a .*Data.*data=False"):
        other.save(tmp_path / "posterior.pt")
    assert list(tmp_path.iterdir()) == []


def test_before_a_run_there_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="call run"):
        MetricBNN(hierarchical).save(tmp_path / "posterior.pt")


# ------------------------------------------------------------------------------ other latent maps


class Bare(KernelMap):
    """Somebody's own map, without a word about files."""

    state = LatentMap.state
    restored = LatentMap.restored  # type: ignore[assignment]


class Shifted(KernelMap):
    """Somebody's own map, with its state."""

    shift = 0.0

    def state(self) -> dict[str, Any]:
        return {"shift": self.shift}

    @classmethod
    def restored(cls, state: Content, trajectories: Trajectories) -> "Shifted":
        latent = cls().fit(trajectories)
        assert isinstance(latent, Shifted)
        latent.shift = state.value("shift", float)
        return latent


def test_a_map_that_cannot_be_saved_says_what_it_needs(metric: MetricBNN, tmp_path: Path) -> None:
    other = MetricBNN(metric.kernel)._built(metric.trajectories, Bare().fit(metric.trajectories))
    with pytest.raises(NotImplementedError, match=r"Bare cannot be saved.*state\(\).*restored"):
        other.save(tmp_path / "posterior.pt")


def test_a_map_of_ones_own_is_saved_and_loaded(metric: MetricBNN, tmp_path: Path) -> None:
    latent = Shifted().fit(metric.trajectories)
    latent.shift = 3.0  # type: ignore[attr-defined]
    MetricBNN(metric.kernel)._built(metric.trajectories, latent).save(tmp_path / "posterior.pt")
    loaded = MetricBNN.load(tmp_path / "posterior.pt", network()).latent_map
    assert isinstance(loaded, Shifted)
    assert loaded.shift == 3.0


def test_a_map_that_is_not_defined_here_is_named(file: Path) -> None:
    with pytest.raises(ValueError, match="'Exotic', which is not defined here"):
        MetricBNN.load(changed(file, latent_map__class="Exotic"), network())


# ------------------------------------------------------------------------------- files of strangers


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_in_it_does_not_run(zipped: bool, tmp_path: Path) -> None:
    bad = {"format": "pyro_metricbnn", "version": 1, "kind": "posterior", "content": Payload(tmp_path / "ran")}
    if zipped:
        torch.save(bad, tmp_path / "bad.pt")
    else:
        (tmp_path / "bad.pt").write_bytes(pickle.dumps(bad))
    with pytest.raises(ValueError, match=r"bad\.pt"):
        MetricBNN.load(tmp_path / "bad.pt", network())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.7, 0.99, 0.9999])
def test_a_truncated_file_is_said_to_be(part: float, file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ValueError, match=r"posterior\.pt is truncated or damaged"):
        MetricBNN.load(file, network())


def test_one_flipped_bit_is_noticed(metric: MetricBNN, file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[whole.find(metric.trajectories.thetas.numpy().tobytes()) + 40] ^= 1
    file.write_bytes(whole)
    with pytest.raises(ValueError, match="check sum"):
        MetricBNN.load(file, network())


@settings(max_examples=200, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), length=st.floats(0, 1))
def test_no_change_to_a_file_is_taken_for_content(position: float, byte: int, length: float) -> None:
    content = {"thetas": torch.arange(6.0), "names": ["a", "b"], "scale": 0.5}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "file.pt")
        write(file, "posterior", content)
        data = bytearray(file.read_bytes())
        data[int(position * len(data))] = byte
        file.write_bytes(data[: int(length * len(data))] if length > 0.5 else data)
        try:
            found = read(file, "posterior")
        except ValueError:
            return
    assert torch.equal(found.tensor("thetas", 6), content["thetas"])  # type: ignore[arg-type]
    assert found.value("names", list) == content["names"]
    assert found.value("scale", float) == content["scale"]


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(10**6))
    with pytest.raises(ValueError, match="unpack to more"):
        read(tmp_path / "bomb.pt", "posterior")


@pytest.mark.parametrize("foreign", [{"weight": torch.ones(3)}, [1, 2], {"format": "other", "version": 1}])
def test_a_file_of_another_program_is_said_to_be(foreign: Any, tmp_path: Path) -> None:
    torch.save(foreign, tmp_path / "foreign.pt")
    with pytest.raises(ValueError, match="written by another program"):
        read(tmp_path / "foreign.pt", "posterior")


def test_a_text_is_no_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("theta\n1.0\n")
    with pytest.raises(ValueError, match=r"text\.pt is truncated or damaged, or no file of pyro_metricbnn"):
        read(tmp_path / "text.pt", "posterior")


def test_a_file_of_another_kind_says_what_it_is_for(tmp_path: Path) -> None:
    write(tmp_path / "walk.pt", "checkpoint", {})
    with pytest.raises(ValueError, match="the checkpoint of a walk: pass it as checkpoint="):
        MetricBNN.load(tmp_path / "walk.pt", network())


def test_a_newer_format_asks_for_an_upgrade(file: Path) -> None:
    torch.save({**torch.load(file, weights_only=True), "version": 2}, file)
    with pytest.raises(ValueError, match="Upgrade with pip"):
        MetricBNN.load(file, network())


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.pt"):
        MetricBNN.load(tmp_path / "nothing.pt", network())
    with pytest.raises(ValueError, match="is a folder"):
        MetricBNN.load(tmp_path, network())


NONSENSE: list[tuple[str, Any]] = [
    ("trajectories__energies", torch.ones(3, 2)),
    ("trajectories__thetas", torch.ones(0, 7, 10)),
    ("trajectories__thetas", torch.ones(3, 7, 10, dtype=torch.int64)),
    ("trajectories__frozen_at", torch.ones(3)),
    ("trajectories__spacing", "far"),
    ("trajectories__paths", torch.ones(2)),
    ("trajectories__positions", torch.zeros(7)),
    ("trajectories", None),
    ("num_particles", -1),
    ("tube_scale", [1.0]),
    ("tube_scale", float("nan")),
    ("arguments", ({}, ())),
    ("map_params", 3),
    ("latent_map__state__latent_dim", 1),
]


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_a_well_formed_file_that_makes_no_sense_is_refused(name: str, value: Any, file: Path) -> None:
    with pytest.raises(ValueError, match=r"makes no sense|must be|is less than"):
        MetricBNN.load(changed(file, **{name: value}), network())


@pytest.mark.parametrize("name", ["encoder", "ends", "basis", "settings__num_hidden"])
def test_an_autoencoder_that_makes_no_sense_is_refused(name: str, tmp_path: Path) -> None:
    metric = run(network(), X, Y, latent_map=AutoencoderMap(2, num_hidden=8, num_epochs=1))
    metric.save(tmp_path / "posterior.pt")
    with pytest.raises(ValueError, match="makes no sense"):
        MetricBNN.load(changed(tmp_path / "posterior.pt", **{f"latent_map__state__{name}": 10**9}), network())


# --------------------------------------------------------------------------------- other models


def test_a_model_with_other_sites_is_refused_by_the_first_that_differs(file: Path) -> None:
    with pytest.raises(ValueError, match=r"this one has site 'mean' where the file has '0\.weight'"):
        MetricBNN.load(file, hierarchical, GROUPS)


def test_a_model_with_other_shapes_is_refused_by_the_first_that_differs(file: Path) -> None:
    with pytest.raises(ValueError, match=r"site '0\.weight' has shape \(4, 1\) here, in the file \(3, 1\)"):
        MetricBNN.load(file, network(num_hidden=4))


def test_a_model_with_another_support_is_refused(tmp_path: Path) -> None:
    def model(y: Tensor, positive: bool) -> None:
        prior = dist.LogNormal(y.new_zeros(()), 1.0) if positive else dist.Normal(y.new_zeros(()), 1.0)
        pyro.sample("obs", dist.Normal(pyro.sample("mean", prior), 1.0).expand(y.shape).to_event(1), obs=y)

    run(model, GROUPS, positive=True).save(tmp_path / "posterior.pt")
    with pytest.raises(ValueError, match="site 'mean' has another support"):
        MetricBNN.load(tmp_path / "posterior.pt", model, GROUPS, positive=False)


def test_a_model_in_another_precision_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=r"in torch\.float32, .* this one is in torch\.float64"):
        MetricBNN.load(file, network(dtype=torch.float64), X.double(), Y.double())


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_tensors_of_a_device_that_is_not_here_can_be_loaded_elsewhere(
    metric: MetricBNN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("torch.serialization.location_tag", lambda _: "cuda:0")
        metric.save(tmp_path / "gpu.pt")
    with pytest.raises(ValueError, match="pass device='cpu'"):
        MetricBNN.load(tmp_path / "gpu.pt", network())
    assert_the_same(metric, MetricBNN.load(tmp_path / "gpu.pt", network(), device="cpu"))


# ---------------------------------------------------------------------------------- interrupted saves


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), RuntimeError("writer")])
@pytest.mark.parametrize("place", ["torch.save", "os.fsync", "os.replace"])
def test_an_interrupted_save_leaves_the_old_file_whole(
    error: BaseException, place: str, metric: MetricBNN, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        if place == "torch.save":
            args[1].write(b"half a file")
        raise error

    before = file.read_bytes()
    monkeypatch.setattr(place, interrupted)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OSError
    with pytest.raises(expected, match=None if expected is KeyboardInterrupt else "still whole"):
        metric.save(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("room", [10, 5_000, 100_000])
def test_without_room_the_systems_reason_is_said(room: int, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    write(tmp_path / "file.pt", "posterior", {"small": torch.ones(3)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*still whole"):
            write(tmp_path / "file.pt", "posterior", {"large": torch.ones(10**5)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(read(tmp_path / "file.pt", "posterior").tensor("small", 3), torch.ones(3))
    assert list(tmp_path.iterdir()) == [tmp_path / "file.pt"]


def test_a_save_into_a_missing_folder_says_so(metric: MetricBNN, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make it first"):
        metric.save(tmp_path / "no" / "posterior.pt")


def test_a_save_to_a_link_writes_what_it_points_to(metric: MetricBNN, tmp_path: Path) -> None:
    (tmp_path / "link.pt").symlink_to(tmp_path / "real.pt")
    metric.save(tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert_the_same(metric, MetricBNN.load(tmp_path / "real.pt", network()))


def test_a_view_is_written_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    write(tmp_path / "view.pt", "posterior", {"row": torch.zeros(10**6)[:3]})
    assert (tmp_path / "view.pt").stat().st_size < 10_000


def test_numbers_of_numpy_become_plain_ones(tmp_path: Path) -> None:
    write(tmp_path / "number.pt", "posterior", {"a": np.float64(0.5), "b": True, "c": nn.Parameter(torch.ones(2))})
    content = read(tmp_path / "number.pt", "posterior")
    assert content.value("a", float) == 0.5
    assert content.value("b", bool)
    assert type(content.tensor("c", 2)) is Tensor


@pytest.mark.parametrize("value", [np.ones(3), {1, 2}, len, torch.eye(2).to_sparse()])
def test_what_only_python_knows_is_refused_before_it_is_written(value: Any) -> None:
    with pytest.raises(ValueError, match="a file that cannot run code"):
        plain({"value": value})
