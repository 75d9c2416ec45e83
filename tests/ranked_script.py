"""A script for torchrun: `torchrun --nproc-per-node 2 -m tests.ranked_script FOLDER [kill]`.

With "kill" the second rank is killed in its fifth step, the first time that it is started.
"""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from pyro_metricbnn import join_ranks
from pyro_metricbnn.walk import loop

from .ranked import X, Y, found, network, walked

STEP = loop._record_step


def main(folder: Path, *what: str) -> None:
    warnings.simplefilter("ignore")
    rank, count = join_ranks(seed=3, timeout=60), [0]

    def deadly(*args: Any) -> None:
        count[0] += 1
        if "kill" in what and count[0] == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        STEP(*args)

    with mock.patch.object(loop, "_record_step", deadly):
        metric = walked(network(), X, Y, checkpoint=folder / "walk.pt", checkpoint_every=0)
    torch.save({**found(metric), "steps walked": torch.tensor(count)}, folder / f"found.{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
