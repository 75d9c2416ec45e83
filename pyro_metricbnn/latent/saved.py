"""A saved posterior: what of it fits the model that it is loaded for.

In: the content of a file, and a model's sites.  Out: the arguments, the walk and the latent map that are in it.
"""

import itertools
from typing import Any

import torch

from ..files.storage import Content
from ..files.tree import Tree
from ..model.network import BayesianNetwork
from ..model.sites import Sites
from ..model.structure import Model
from ..walk.checkpoint import fingerprint
from ..walk.trajectories import Arguments, Trajectories
from .latent_map import LatentMap


def plain_arguments(arguments: Arguments) -> Arguments:
    """The model's arguments, if a file without code can hold them."""
    try:
        Tree(arguments, "arguments")
    except ValueError as error:
        raise ValueError(f"{error} Pass data=False here, and the arguments to load.") from error
    return arguments


def saved_arguments(content: Content) -> Arguments:
    """The model's arguments in a file."""
    saved = content.value("arguments", tuple, type(None))
    if saved is None:
        raise ValueError(f"{content.path} has no data to show the model's structure: pass it, load(path, model, x, y).")
    if [type(part) for part in saved] != [tuple, dict] or not all(type(name) is str for name in saved[1]):
        raise content.wrong("arguments", "a tuple of arguments and a dict of keyword arguments")
    return saved


def state_of_model(model: Model) -> dict[str, Any]:
    """What a file says of a network: the prior's scale that was chosen, and what tells its fixed part from others."""
    if not isinstance(model, BayesianNetwork):
        return {}
    return {"prior_scale": model.chosen_prior_scale, "fixed_part": fingerprint(model.fixed_part)}


def restore_model(content: Content, model: Model) -> None:
    """Give a network the prior's scale of the file; refuse one with another fixed part: its sites would fit, and its
    predictions be of nothing."""
    if not isinstance(model, BayesianNetwork):
        return
    scale = content.value("prior_scale", float, type(None)) if "prior_scale" in content else None
    if scale is not None and model.prior_is_auto:
        model.take_prior_scale(scale)
    saved = content.value("fixed_part", str) if "fixed_part" in content else None
    if saved is not None and saved != fingerprint(model.fixed_part):
        how = "weights that are not inferred, or buffers such as BatchNorm's statistics, have other values in this one"
        advice = "Load the trained network's state_dict before bayesianize: the file has the inferred weights alone."
        raise ValueError(f"{content.path} is of another model: {how}. {advice}")


def saved_trajectories(content: Content, sites: Sites) -> Trajectories:
    """The walk in a file, if it is of a model with these sites: in another, theta would mean something else."""
    _check_sites(content, sites)
    walk = Trajectories.restored(content.part("trajectories"), sites)
    precision, device = content.value("precision", torch.dtype), walk.energies.device
    if precision != sites.dtype or device != sites.device:
        saved = f"{content.path} is of a model in {precision}, with tensors on {device}"
        here = f"this one is in {sites.dtype} on {sites.device}"
        raise ValueError(f"{saved}; {here}. Give load the model in that precision, and device={str(sites.device)!r}.")
    params = content.part("map_params")
    for name, value in sites.unflatten(walk.theta_star.to(sites.dtype)).items():
        in_file = params.tensor(name, *value.shape, dtype=value.dtype)
        if not torch.allclose(in_file, value, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise _of_another_model(content, f"site {name!r} has another support in this one")
    return walk


def _check_sites(content: Content, sites: Sites) -> None:
    saved = content.value("map_params", dict)
    for site, name in itertools.zip_longest(sites.sites, saved):
        if site is None or site.name != name:
            here = "no more sites" if site is None else f"site {site.name!r}"
            raise _of_another_model(content, f"this one has {here} where the file has {name!r}")
        shape = tuple(saved[name].shape) if torch.is_tensor(saved[name]) else None
        if shape != tuple(site.shape):
            raise _of_another_model(content, f"site {name!r} has shape {tuple(site.shape)} here, in the file {shape}")


def _of_another_model(content: Content, how: str) -> ValueError:
    return ValueError(
        f"{content.path} is of another model: {how}. Pass the one that was saved, with data of its shapes."
    )


def saved_map(content: Content, trajectories: Trajectories) -> LatentMap:
    """The fitted map in a file; its class is one that is defined already, so no code comes from the file."""
    classes = LatentMap.__subclasses__()
    for known in classes:
        classes.extend(known.__subclasses__())
    by_name = {known.__name__: known for known in classes}
    part = content.part("latent_map")
    name = part.value("class", str)
    if name not in by_name:
        here = f"which is not defined here (there are {', '.join(by_name)})"
        raise ValueError(f"{content.path} has a latent map of class {name!r}, {here}: import or define it before load.")
    return by_name[name].restored(part.part("state"), trajectories)
