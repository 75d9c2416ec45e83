"""MILE, microcanonical Langevin ensembles (Sommer et al., ICLR 2025), by its authors' package `sklearn-contrib-bde`.

It takes no trained network: eight members of the same hidden layers are trained from scratch, with early stopping on
rows of the training part that it sets aside itself, and each then starts a microcanonical chain on all of that part.
The prior is the task's. Members, training and the 5,000 warm-up steps are those of the package's own examples; 1,000
draws each, of which every tenth predicts. For real targets its networks have a second output, the noise's scale at that
input; the task's known noise is not told to it. Draws with an output that is not finite are left out. Compiling is part
of its time, at each fit.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_metricbnn import Categorical, Gaussian, HeteroscedasticGaussian
from pyro_metricbnn.predictions.prediction import Prediction

from ..task import Task
from .method import Method, Predictor

NUM_MEMBERS = 8
NUM_EPOCHS = 1000
PATIENCE = 10
NUM_WARMUP = 5000
NUM_DRAWS = 1000  # of each member
THINNING = 10
NOISE_FLOOR = 1e-6  # the package's

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu", nn.GELU: "gelu", nn.Sigmoid: "sigmoid"}


def sampler(task: Task) -> Any:
    """The package's estimator with the task's network and prior."""
    from bde import BdeClassifier, BdeRegressor

    if not isinstance(task.likelihood, (Categorical, Gaussian)):
        raise ValueError(f"MILE has classes and real targets only, not {type(task.likelihood).__name__}.")
    if task.activation not in ACTIVATIONS:
        raise ValueError(f"MILE has no {task.activation.__name__}: use one of {[a.__name__ for a in ACTIVATIONS]}.")
    kind = BdeClassifier if isinstance(task.likelihood, Categorical) else BdeRegressor
    return kind(
        n_members=task.count(NUM_MEMBERS),
        hidden_layers=list(task.hidden),
        seed=int(torch.randint(2**31 - 1, ())),
        activation=ACTIVATIONS[task.activation],
        epochs=task.count(NUM_EPOCHS, 20),
        patience=PATIENCE,
        validation_split=0.15,
        warmup_steps=task.count(NUM_WARMUP, 50),
        n_samples=task.count(NUM_DRAWS, 20),
        n_thinning=THINNING,
        prior_family="normal",
        prior_kwargs={"loc": 0.0, "scale": task.prior_scale},
    )


def fit(task: Task) -> Predictor:
    """The draws of all members."""
    estimator = sampler(task)
    with redirect_stderr(io.StringIO()):  # a progress bar
        estimator.fit(task.problem.x.numpy(), task.problem.y.numpy().reshape(-1))

    def predictor(x: Tensor) -> Prediction:
        raw = torch.from_numpy(np.array(estimator.predict(x.numpy(), raw=True)))  # (members, draws, n, C)
        f = raw.flatten(0, 1)
        f = f[f.isfinite().flatten(1).all(1)]
        if not len(f):
            raise ValueError("all of MILE's chains left the finite numbers.")
        if isinstance(task.likelihood, Categorical):
            return task.prediction(f)
        return Prediction(f=f, likelihood=HeteroscedasticGaussian(floor=NOISE_FLOOR), parameters={})

    return predictor


METHODS = (
    Method(
        "MILE",
        fit,
        needs="sklearn-contrib-bde",
        cite="Sommer et al., Microcanonical Langevin ensembles, ICLR 2025",
    ),
)
