"""Claims about files: they come back bit by bit, run no code, say what is wrong, and replace each other whole."""

import io
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pyro_metricbnn import AutoencoderMap, DriftRefineKernel, Gaussian, KernelMap, MetricBNN, Steer, bayesianize
from pyro_metricbnn.files import storage
from pyro_metricbnn.files.storage import Content, read, write
from pyro_metricbnn.latent.latent_map import LatentMap
from pyro_metricbnn.walk.trajectories import Trajectories

from .mutations import with_text

ROOT = Path(__file__).parent.parent
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
    content = dict(read(file, "posterior").values)
    for name, value in changes.items():
        *parts, last = name.split("__")
        place = content
        for part in parts:
            place = place[part]
        place[last] = value
    write(file, "posterior", content)
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
    half = replace(metric.trajectories, thetas=metric.trajectories.thetas.half())
    metric._built(half, metric.latent_map)
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
    assert loaded.trajectories.arguments[0][0].shape == (5, 1)


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

    other = MetricBNN(network())
    other._trajectories = replace(metric.trajectories, arguments=((X,), {"extra": [Data()]}))
    other._guide = metric._guide
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
    latent.shift = 3.0
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


def test_a_file_of_the_format_before_asks_for_another_run(tmp_path: Path) -> None:
    before = {"format": "pyro_metricbnn", "version": 1, "kind": "posterior", "content": {"num_particles": 3}}
    torch.save(before, tmp_path / "old.pt")
    with pytest.raises(ValueError, match=r"written by version 0\.1 .*before the format changed.*run again and save"):
        MetricBNN.load(tmp_path / "old.pt", network())


@pytest.mark.parametrize("said", [None, {}, {"format": "pt"}])
def test_a_file_of_another_program_is_said_to_be(said: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "foreign.pt", metadata=said)
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
    file.write_bytes(with_text(file.read_bytes(), lambda text: json.dumps({**json.loads(text), "version": 3})))
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


def test_a_network_with_other_fixed_weights_is_refused(tmp_path: Path) -> None:
    """The sites would fit, and the predictions be of nothing."""
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    path = tmp_path / "posterior.pt"
    run(bayesianize(net, Gaussian(0.3), where=["2"]), X, Y).save(path)
    MetricBNN.load(path, bayesianize(net, Gaussian(0.3), where=["2"]), X, Y)
    other = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"weights that are not inferred.*Load the trained network's state_dict"):
        MetricBNN.load(path, bayesianize(other, Gaussian(0.3), where=["2"]), X, Y)


def test_a_model_in_another_precision_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=r"in torch\.float32, .* this one is in torch\.float64"):
        MetricBNN.load(file, network(dtype=torch.float64), X.double(), Y.double())


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_tensors_of_a_device_that_is_not_here_can_be_loaded_elsewhere(metric: MetricBNN, file: Path) -> None:
    file.write_bytes(with_text(file.read_bytes(), lambda text: text.replace('"cpu"', '"cuda:0"')))
    with pytest.raises(ValueError, match="pass device='cpu'"):
        MetricBNN.load(file, network())
    assert_the_same(metric, MetricBNN.load(file, network(), device="cpu"))


# ---------------------------------------------------------------------------------- interrupted saves


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), RuntimeError("writer")])
@pytest.mark.parametrize("place", ["write", "os.fsync", "os.replace"])
def test_an_interrupted_save_leaves_the_old_file_whole(
    error: BaseException, place: str, metric: MetricBNN, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise error

    class Half(io.BufferedWriter):
        def write(self, data: Any) -> int:
            super().write(bytes(data)[:11])
            self.flush()
            raise error

    before = file.read_bytes()
    if place == "write":
        monkeypatch.setattr(storage, "open", lambda path, mode: Half(io.FileIO(path, mode)), raising=False)
    else:
        monkeypatch.setattr(place, interrupted)
    with pytest.raises(type(error), match="still whole" if isinstance(error, OSError) else None):
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


@pytest.mark.parametrize(
    "value", [np.ones(3), {1, 2}, len, torch.eye(2).to_sparse(), torch.ones(2, device="meta"), np.int64(3)]
)
def test_what_only_python_knows_is_refused_before_it_is_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\['value'\] is a .*a file that cannot run code"):
        write(tmp_path / "file.pt", "posterior", {"value": value})
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------- the format

PLAIN: list[Any] = [
    *(None, True, False, 0, -1, 10**30, 0.1, -0.0, 1e300, math.nan, math.inf, -math.inf, "", 'ä\n"\\', "\ud800"),
    *((), (1,), (1, (2.0, [None])), [], [[]], torch.Size(()), torch.Size((2, 3)), torch.float16, torch.bool),
    *({}, {"a": {}}, {3: "int", "3": "str", 1.5: "float", None: 1, (1, "b"): 2, torch.Size((1,)): 3}),
    *({"dict": [["a", 1]]}, {"tensor": ["a", "cpu"]}, {"float": "nan"}, ["tuple"]),
]


def same(one: Any, two: Any) -> bool:
    """The same values of the same types, in the same order."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(two.items()))
    if isinstance(one, (list, tuple)) and len(one) == len(two):
        return all(map(same, one, two))
    return repr(one) == repr(two)


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_a_plain_value_comes_back_with_its_type(value: Any, tmp_path: Path) -> None:
    write(tmp_path / "file.pt", "posterior", {"value": value})
    assert same(read(tmp_path / "file.pt", "posterior").values["value"], value)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([torch.float64, torch.bool])
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)


@settings(max_examples=100, deadline=None)
@given(tree=trees)
def test_any_tree_of_plain_values_comes_back(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "file.pt"), "posterior", {"tree": tree})
        assert same(read(Path(folder, "file.pt"), "posterior").values["tree"], tree)


def views() -> dict[str, Tensor]:
    numbers = torch.arange(24.0).reshape(4, 6)
    return {
        "whole": numbers,
        "turned": numbers.mT,
        "row": numbers[1],
        "column": numbers[:, 1],
        "every other": numbers[::2, ::2],
        "expanded": numbers[:1, :1].expand(3, 2),
        "none": numbers[:0],
        "one": numbers[2, 3],
        "conjugated": torch.complex(numbers, -numbers).mT.conj(),
        "negated": torch.complex(numbers, -numbers).conj().imag,
    }


def test_views_of_one_memory_come_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "file.pt", "posterior", views())
    found = read(tmp_path / "file.pt", "posterior").values
    for name, value in views().items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name
        found[name].zero_()  # which changes no other


def test_two_names_of_one_tensor_are_written_once_and_come_back_as_one(tmp_path: Path) -> None:
    numbers = torch.arange(1000.0)
    write(tmp_path / "file.pt", "posterior", {"a": numbers, "b": [numbers, nn.Parameter(numbers)]})
    assert (tmp_path / "file.pt").stat().st_size < 1.5 * numbers.nbytes
    found = read(tmp_path / "file.pt", "posterior").values
    found["a"][0] = 7
    assert float(found["b"][0][0]) == float(found["b"][1][0]) == 7


def test_other_programs_can_read_the_tensors(metric: MetricBNN, file: Path) -> None:
    found = load_file(file)
    assert torch.equal(found["['trajectories']['thetas']"], metric.trajectories.thetas)


def test_plain_values_that_no_reader_would_take_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_HEADER", 1000)
    with pytest.raises(ValueError, match="pass long lists of numbers as tensors"):
        write(tmp_path / "file.pt", "posterior", {"long": list(range(1000))})


MEASURE = """
import resource, sys, torch
from pyro_metricbnn.files.storage import write
numbers = torch.ones(25, 10**6)
write(sys.argv[1], "posterior", {"few": torch.ones(3)})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write(sys.argv[1], "posterior", {"whole": numbers, "part": numbers[3:20]})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is in other units elsewhere")
def test_saving_does_not_hold_a_large_record_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "file.pt")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(result.stdout) < 20  # megabytes, of 100
