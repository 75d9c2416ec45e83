"""Images: MNIST, FashionMNIST and CIFAR10, the last layers of a trained network, beside what else one network can give.

    python -m benchmarks images --data DIR [--sets MNIST FashionMNIST CIFAR10] [--seeds 3] [--train] [--quick]

DIR/torchvision has the data as torchvision keeps them; without --data it is scikit-learn's digits, enlarged. Networks
are trained once (--train does that alone), on all training images but the last 5,000, and kept in the folder of --out,
as are the draws of all methods, for the experiments `rotation` and `corruption`. What is chosen is chosen on those
5,000, by the first seed. The ensemble of 5 has the networks 0 to 4, whichever of them a seed begins with. `single` is
the mean NLL of single draws, as others report it. Seconds are of the processor. Writes `images.json` and `images.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, calibration
from pyro_metricbnn.diagnostics import detection
from pyro_metricbnn.diagnostics.calibration import ClassCalibration
from pyro_metricbnn.predictions import Prediction, fit_scale

from .arguments import folder, parser, share
from .image_data import SETS, Images, images
from .image_heads import Head, heads
from .image_methods import (
    BASELINES,
    COLD,
    LAST_LAYER,
    Kept,
    baseline,
    kept,
    last_layer_laplace,
    processor_seconds,
    temperature,
    trained_on,
    walked,
)
from .image_networks import network
from .image_tables import picture, tables
from .results import Cell, Results

NUM_MEMBERS = 5
NUM_STARTS = 4
SHORT = {"num_particles": 3, "effort": 0.9}  # of several networks, at the ensemble's own cost
# Together they want a colder posterior. NLL of the validation images with effort .5, at temperatures 1, .3 and .1:
# FashionMNIST .2691, .2640 and .2651 (ensemble of 5 .2663), MNIST at .3 and .1 .0341 and .0345 (.0347).
SHORT_COLD = 0.3
NUM_SINGLE = 20
OTHER = {"MNIST": "FashionMNIST", "FashionMNIST": "MNIST"}  # what is told from what
WHOLE, MOST_SEEDS_WHOLE = "all layers", 1

Predictor = Callable[[Tensor], Prediction]
Made = tuple[Predictor, Cell]  # of a method, with what is to be said of it


def of_logits(*logits: Tensor) -> Prediction:
    """A prediction with a draw for each."""
    return Prediction(f=torch.stack(logits), likelihood=Categorical(), parameters={})


@dataclass(frozen=True)
class Place:
    """One set, one seed: the folder, the images, the part of the full work."""

    out: Path
    data: Images
    name: str
    seed: int
    part: float

    @property
    def first(self) -> int:
        """The network's number: of CIFAR10 there is one, and a seed is another walk."""
        return 0 if self.name == "CIFAR10" else self.seed

    @cached_property
    def net(self) -> nn.Sequential:
        """The network that all methods start from."""
        return self.member(self.first)

    @cached_property
    def training_seconds(self) -> float:
        """What it took."""
        return network(self.out, self.data, self.name, self.first, self.part)[1]

    def member(self, seed: int) -> Any:
        """A network of the set."""
        return network(self.out, self.data, self.name, seed, self.part)[0]

    @cached_property
    def heads(self) -> dict[str, Head]:
        return heads(self.net)

    @property
    def wide(self) -> str:
        """The part that most methods infer."""
        return "last two layers" if self.name == "CIFAR10" else "dense layers"

    def path(self, method: str, seed: int | None = None) -> Path:
        """Where draws are kept."""
        return self.out / "draws" / f"{self.name}-{method.replace(', ', '-')}-{self.seed if seed is None else seed}.pt"

    def draws(self, method: str, part: str, make: Callable[[], Kept]) -> Kept:
        """Of a method, from the folder where they are there."""

        def begin() -> Kept:
            pyro.set_rng_seed(1000 + self.seed)
            return make()

        return kept(self.path(f"{method}, {part}"), begin)

    def metric(self, part: str) -> Kept:
        """MetricBNN of a part."""

        def make() -> Kept:
            return walked(self.net, self.heads[part], self.data, part, self.part, self.cold)

        return self.draws("MetricBNN", part, make)

    @property
    def cold(self) -> float:
        """The temperature of the posterior: chosen on the validation images."""
        return COLD.get(self.name, 1.0)

    def control(self, part: str) -> Kept:
        """The same weights trained on."""
        num_steps = self.metric(part).said["gradients"]
        return self.draws("control", part, lambda: trained_on(self.heads[part], self.data, num_steps))

    def other(self, method: str) -> tuple[str, Kept]:
        """A baseline: its part, and its draws in the setting of the first seed."""
        part, first = LAST_LAYER if BASELINES[method].last_alone else self.wide, None
        if self.seed and self.path(f"{method}, {part}", 0).exists():
            first = torch.load(self.path(f"{method}, {part}", 0), weights_only=True)["setting"]
        return part, self.draws(method, part, partial(baseline, method, self.heads[part], self.data, self.part, first))

    def from_several(self) -> list[tuple[Head, Kept]]:
        """Short walks from several networks."""
        found = []
        for i in range(NUM_STARTS):
            seed = (self.seed + i) % NUM_MEMBERS
            net = self.member(seed)
            head = heads(net)[self.wide]
            make = partial(walked, net, head, self.data, self.wide, self.part, SHORT_COLD, **SHORT)
            found.append((head, kept(self.path(f"MetricBNN short, {self.wide}", seed), make)))
        return found


def _plain(place: Place, temper: bool) -> Made:
    """The network, its outputs divided by a temperature if wanted."""
    head, begin = place.heads[place.wide], processor_seconds()
    weights = {name: value[None] for name, value in head.net.named_parameters()}

    def logits(x: Tensor) -> Tensor:
        return head.predict(weights, head.of(x)).f[0].detach()

    scale = temperature(logits(place.data.x_valid), place.data.y_valid) if temper else 1.0
    return lambda x: of_logits(logits(x) / scale), {"fit_seconds": processor_seconds() - begin, "scale": scale}


def _as_used(place: Place) -> Made:
    """A last-layer Laplace as people use it."""
    head, begin = place.heads[LAST_LAYER], processor_seconds()
    posterior = last_layer_laplace(head, place.data)
    seconds = processor_seconds() - begin

    def predict(x: Tensor) -> Prediction:
        with torch.no_grad():
            probs = [posterior(rows, link_approx="probit") for rows in head.of(x).split(1000)]
        return of_logits(torch.cat(probs).clamp_min(1e-12).log())

    return predict, {"fit_seconds": seconds}


def _of_draws(place: Place, part: str, found: Kept) -> Made:
    head = place.heads[part]
    cell = {"fit_seconds": found.seconds, "setting": found.setting, **found.said}
    return lambda x: head.predict(found.weights, head.of(x)), cell


def _scaled(place: Place, found: Callable[[str], Kept]) -> Made:
    """Predictions of the walk, or of its control, as much less sure as the validation images ask for."""
    begin, (predict, cell) = processor_seconds(), _of_draws(place, place.wide, found(place.wide))
    factor = fit_scale(predict(place.data.x_valid), place.data.y_valid)
    seconds = cell["fit_seconds"] + processor_seconds() - begin
    return lambda x: predict(x).scaled(factor), {**cell, "fit_seconds": seconds, "scale": factor}


def _ensemble(place: Place) -> Made:
    nets = [network(place.out, place.data, place.name, i, place.part) for i in range(NUM_MEMBERS)]
    seconds = sum(seconds for _, seconds in nets) - place.training_seconds

    def predict(x: Tensor) -> Prediction:
        with torch.no_grad():
            return of_logits(*(torch.cat([net(rows) for rows in x.split(1000)]) for net, _ in nets))

    return predict, {"fit_seconds": seconds}


def _several(place: Place) -> Made:
    """Short walks from several networks, whose training counts."""
    walks, numbers = place.from_several(), [(place.seed + i) % NUM_MEMBERS for i in range(1, NUM_STARTS)]
    trained = sum(network(place.out, place.data, place.name, i, place.part)[1] for i in numbers)
    seconds = trained + sum(found.seconds for _, found in walks)

    def predict(x: Tensor) -> Prediction:
        f = [head.predict(found.weights, head.of(x)).f for head, found in walks]
        return Prediction(f=torch.cat(f), likelihood=Categorical(), parameters={})

    return predict, {"fit_seconds": seconds}


def predictors(place: Place, methods: Sequence[str] | None = None) -> dict[str, Callable[[], Made]]:
    """What makes each method's predictor, and what is to be said of it, by name; in the order of the tables."""
    made: dict[str, Callable[[], Made]] = {
        "network": partial(_plain, place, False),
        "temperature scaling": partial(_plain, place, True),
        "last-layer Laplace": partial(_as_used, place),
    }
    for part in (LAST_LAYER, place.wide, *([WHOLE] if _has_whole(place) else [])):
        made[f"MetricBNN, {part}"] = lambda part=part: _of_draws(place, part, place.metric(part))  # type: ignore[misc]
    made[f"MetricBNN, {place.wide}, scaled"] = partial(_scaled, place, place.metric)
    for part in (LAST_LAYER, place.wide):
        made[f"control, {part}"] = lambda part=part: _of_draws(place, part, place.control(part))  # type: ignore[misc]
    made[f"control, {place.wide}, scaled"] = partial(_scaled, place, place.control)
    for method in BASELINES:
        part = LAST_LAYER if BASELINES[method].last_alone else place.wide
        made[f"{method}, {part}"] = lambda method=method: _of_draws(place, *place.other(method))  # type: ignore[misc]
    if place.name != "CIFAR10":
        made[f"ensemble of {NUM_MEMBERS}"] = partial(_ensemble, place)
        made[f"MetricBNN, {NUM_STARTS} networks"] = partial(_several, place)
    return {name: make for name, make in made.items() if methods is None or name in methods}


def _has_whole(place: Place) -> bool:
    return place.name != "CIFAR10" and place.seed < MOST_SEEDS_WHOLE


def judged(prediction: Prediction, y: Tensor) -> Cell:
    """Figures at labelled images."""
    figures = calibration(prediction, y)
    if not isinstance(figures, ClassCalibration):
        raise TypeError("images have classes")
    each = [-float(of_logits(f).log_prob(y).mean()) for f in prediction.f[:NUM_SINGLE]]
    single = sum(each) / len(each)
    return {"nll": figures.nll, "ece": figures.ece, "accuracy": figures.accuracy, "single": single}


def measured(place: Place, make: Callable[[], Made], elsewhere: Tensor | None) -> Cell:
    """The figures of a method at the test images, and how well it tells others from them."""
    predictor, said = make()
    for head in place.heads.values():
        head.forget()
    begin = processor_seconds()
    prediction = predictor(place.data.x_test)
    seconds = processor_seconds() - begin + said.pop("fit_seconds")
    cell = {**judged(prediction, place.data.y_test), "seconds": seconds, "training_seconds": place.training_seconds}
    if elsewhere is not None:
        outside = predictor(elsewhere)
        cell["auroc"] = {
            score: detection(prediction, outside, score=score).auroc for score in ("entropy", "mutual_information")
        }
    return {**cell, **said}


def run_seed(results: Results, place: Place, elsewhere: Tensor | None, methods: Sequence[str] | None) -> None:
    """All methods from one network."""
    for method, make in predictors(place, methods).items():
        cell = results.cell(f"{place.name}|{method}|{place.seed}", partial(measured, place, make, elsewhere))
        print(place.name, place.seed, method, {k: v for k, v in cell.items() if k not in ("run", "walk_version")})


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing; write the tables."""
    made = parser(__doc__ or "")
    made.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--train", action="store_true", help="train the networks, and no more")
    made.add_argument("--only", nargs="+", metavar="METHOD", help="these methods, as the table calls them")
    arguments = made.parse_args(argv)
    part, out = share(arguments), folder(arguments) / "images"
    sets = arguments.sets if arguments.data is not None else ("digits",)
    seeds = 1 if arguments.quick else arguments.seeds
    results = Results(out / "images.json", {"experiment": "images", "share": part}, retry=arguments.retry)
    for name in sets:
        data = images(arguments.data, name)
        if arguments.train:
            for seed in range(1 if name == "CIFAR10" else max(seeds, NUM_MEMBERS)):
                network(out, data, name, seed, part)
            continue
        elsewhere = images(arguments.data, OTHER[name]).x_test if name in OTHER else None
        for seed in range(seeds):
            run_seed(results, Place(out, data, name, seed, part), elsewhere, arguments.only)
    if results.cells:
        (out / "images.md").write_text(tables(results, sets) + "\n")
        picture(results, sets, out / "images.png")


if __name__ == "__main__":
    main()
