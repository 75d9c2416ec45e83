"""Run a function of one particle for all particles at once: traced, tidied, in kept memory, compiled where that pays.

In: a function of theta (D,) and data.  Out: the same for theta (N, D), a few times as fast.
To add here: a rewriting of a traced graph, or a way to run one; nothing here knows of models or of Pyro.
"""

from .execution import BatchedFunction, Execution, Mode

__all__ = ["BatchedFunction", "Execution", "Mode"]
