"""Small runs, and, as a program, processes in which the system kills them: what they leave is for the tests to look at.

python -m tests.killed FOLDER kill_walks kill_saves ...
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_metricbnn import Adam, AutoencoderMap, DriftRefineKernel, Gaussian, MetricBNN, Trajectories, bayesianize
from pyro_metricbnn.files import storage
from pyro_metricbnn.walk import checkpoint, loop

X = torch.linspace(-2, 2, 12)[:, None]
Y = torch.sin(2 * X)
NUM_STEPS = 8
KINDS: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "full": lambda: ((X, Y), {}),
    "minibatches": lambda: ((X, Y), {"batch_size": 5}),
    "loader": lambda: ((DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True),), {}),
}
MOMENTS = (1, 3, 4, 6)  # steps, after which a process has a few milliseconds left
INTERRUPTIONS = (1, 4, 5, 6)
WRITES = ("half written", "before the sync", "before the rename", "after the rename")
EPOCHS = (1, 7, 25)
DELAYS = random.Random(0)


def network(net: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    return bayesianize(nn.Linear(1, 1) if net is None else net, Gaussian(0.3))


def kernel(net: nn.Module | None = None) -> DriftRefineKernel:
    return DriftRefineKernel(network(net), refiner=Adam(num_refinements=3), num_steps=NUM_STEPS)


def arguments(kind: str, model: Any, path: Path | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a run of this kind is called with, after a seed."""
    pyro.set_rng_seed(3)
    args, kwargs = KINDS[kind]()
    start = {name: value.detach() for name, value in model.trained_params.items()}
    return args, {**kwargs, "map_params": start, "checkpoint": path, "checkpoint_every": 0, "progress": False}


def walked(kind: str, path: Path | None = None, net: nn.Module | None = None, **settings: Any) -> Trajectories:
    walker = kernel(net)
    args, kwargs = arguments(kind, walker.model, path)
    return walker.walk(*args, num_particles=3, **{**kwargs, **settings})


def fitted(kind: str, path: Path | None = None) -> MetricBNN:
    """With the paper's map, which is trained for a while."""
    metric = MetricBNN(kernel(), num_particles=3, latent_map=AutoencoderMap(2, num_hidden=8, num_epochs=30))
    args, kwargs = arguments(kind, metric.model, path)
    return metric.run(*args, **kwargs)


def draws(metric: MetricBNN) -> Tensor:
    return torch.cat([value.flatten() for value in metric.draw(5).values()])


# ------------------------------------------------------------------------------- in the processes


def kill_me(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_writing(place: str) -> None:
    """The next file that is written is this process's last."""
    replace = os.replace

    def half(path: Path, mode: str) -> None:
        with open(path, mode) as file:
            file.write(b"half a file")
            file.flush()
            kill_me()

    def after(*args: Any) -> None:
        replace(*args)
        kill_me()

    if place == "half written":
        storage.open = half  # type: ignore[attr-defined]
    elif place == "before the sync":
        os.fsync = kill_me
    else:
        os.replace = kill_me if place == "before the rename" else after  # type: ignore[assignment]


def on_call(number: int, function: Callable[..., Any], act: Callable[[], Any]) -> Callable[..., Any]:
    """The function, which acts before its n-th call."""
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return function(*args, **kwargs)

    return counted


def saying_steps(to: int) -> None:
    """The walks of this process write a byte before each step."""
    advance = loop._record_step

    def said(*args: Any) -> None:
        os.write(to, b".")
        advance(*args)

    loop._record_step = said  # type: ignore[assignment]


def in_a_process(work: Callable[[int], object], meddle: Callable[[int, int], None] | None = None) -> int:
    """How a process ended that did this work: its signal, or minus its exit code.

    `work` gets a pipe to write to, `meddle` the process and the end of that pipe to read from.
    """
    end, to = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            work(to)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(to)
    if meddle is not None:
        meddle(process, end)
    status = os.waitpid(process, 0)[1]
    os.close(end)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def after_steps(number: int, with_signal: int) -> Callable[[int, int], None]:
    """Send the signal a few milliseconds into a step."""

    def meddle(process: int, end: int) -> None:
        for _ in range(number):
            os.read(end, 1)
        time.sleep(DELAYS.uniform(0, 0.01))
        os.kill(process, with_signal)

    return meddle


# -------------------------------------------------------------------------------------- the kills

KILLS = ("kill_walks", "kill_writes", "kill_fits", "kill_saves", "walk_beside_each_other")


def folder_of(root: Path, *names: object) -> Path:
    folder = root.joinpath("-".join(map(str, names)).replace(" ", "_"))
    folder.mkdir(exist_ok=True)
    return folder


def killed(work: Callable[[int], object], meddle: Callable[[int, int], None] | None = None) -> None:
    ended = in_a_process(work, meddle)
    if ended != signal.SIGKILL:
        raise RuntimeError(f"a process was to be killed, but ended with {ended}")


def kill_walks(root: Path) -> None:
    for kind in KINDS:
        for moment in MOMENTS:
            path = folder_of(root, "walk", kind, moment) / "walk.pt"

            def work(to: int, kind: str = kind, path: Path = path) -> None:
                saying_steps(to)
                walked(kind, path)

            killed(work, after_steps(moment + 1, signal.SIGKILL))


def kill_writes(root: Path) -> None:
    for kind in KINDS:
        for place in WRITES:
            path = folder_of(root, "write", kind, place) / "walk.pt"

            def work(_: int, kind: str = kind, place: str = place, path: Path = path) -> None:
                checkpoint.write = on_call(4, checkpoint.write, lambda: kill_in_writing(place))
                walked(kind, path)

            killed(work)


def kill_fits(root: Path) -> None:
    for kind, epoch in zip(KINDS, EPOCHS, strict=True):
        path = folder_of(root, "fit", kind) / "walk.pt"

        def work(_: int, kind: str = kind, epoch: int = epoch, path: Path = path) -> None:
            AutoencoderMap._losses = on_call(epoch, AutoencoderMap._losses, kill_me)  # type: ignore[method-assign]
            fitted(kind, path)

        killed(work)


def kill_saves(root: Path) -> None:
    metric = MetricBNN(kernel(), num_particles=3)
    args, kwargs = arguments("full", metric.model, None)
    metric.run(*args, **kwargs)
    for place in WRITES:
        path = folder_of(root, "save", place) / "posterior.pt"
        metric.save(path)

        def work(_: int, place: str = place, path: Path = path) -> None:
            kill_in_writing(place)
            metric.tube_scale = 0.5
            metric.save(path)

        killed(work)


def walk_beside_each_other(root: Path) -> None:
    """A second process with the checkpoint of one that walks, and a third after that one was killed."""
    path = folder_of(root, "beside") / "walk.pt"

    def first(to: int) -> None:
        saying_steps(to)
        walked("full", path)

    def second(_: int) -> None:
        try:
            walked("full", path)
        except ValueError as error:
            path.with_name("second").write_text(str(error))

    def meddle(process: int, end: int) -> None:
        after_steps(3, signal.SIGSTOP)(process, end)
        path.with_name("first").write_text(f"process {process} on ")
        in_a_process(second)
        path.with_name("lock").write_text(str([file.name for file in path.parent.iterdir()]))
        os.kill(process, signal.SIGKILL)

    killed(first, meddle)


def interrupt_walks(root: Path) -> None:
    """Not killed, but interrupted as by Ctrl-C: what the walk gave, if anything, is left beside its checkpoint."""
    for kind in KINDS:
        for moment in INTERRUPTIONS:
            path = folder_of(root, "interrupted", kind, moment) / "walk.pt"

            def work(to: int, kind: str = kind, path: Path = path) -> None:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
                saying_steps(to)
                try:
                    torch.save(walked(kind, path).thetas.clone(), path.with_name("thetas.pt"))
                except KeyboardInterrupt:
                    path.with_name("raised").touch()

            if in_a_process(work, after_steps(moment + 1, signal.SIGINT)):
                raise RuntimeError("an interrupted process failed")


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    walked("full")  # what is imported late, is now
    for name in names:
        globals()[name](Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
