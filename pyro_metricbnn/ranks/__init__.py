"""Several processes on one walk, by `torch.distributed`: who walks which particles, on which rows, and who is missing.

In: a group of processes, as torchrun starts one, and `Ranks`.  Out: a `Share`; of a process by itself, all of it.
To change here: what ranks say to each other, what they refuse, what happens when one of them does not answer.
"""

from .joining import Ranks, join_ranks, share_of
from .share import ALONE, Share

__all__ = ["ALONE", "Ranks", "Share", "join_ranks", "share_of"]
