"""Carry an optimizer's state over to a model that has lost some of its parameters.

An optimizer's state_dict knows parameters only by their position in its groups. When one vanishes, all later positions
shift, and loading the old state would give each parameter its neighbour's momentum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.errors import Misconfigured


def remap_optimizer_state(
    state: Mapping[str, Any], names_before: Sequence[str], names_after: Sequence[str]
) -> dict[str, Any]:
    """The state_dict of the same optimizer over `names_after`, as a new dictionary; tensors are shared, not copied.

    state: state_dict of a torch.optim.Optimizer.
    names_before: the parameters' names in the order of the state's positions, over all groups.
    names_after: the same for the optimizer that will load the result, in its own order. State of a parameter that is
        no longer there is dropped, and all other entries are kept.

    Raises Misconfigured when a name is new, since nothing tells its group, or when `names_before` does not fit `state`.
    """
    positions = [position for group in state["param_groups"] for position in group["params"]]
    if len(positions) != len(names_before):
        raise Misconfigured(
            f"the optimizer's state has {len(positions)} parameters and {len(names_before)} names were given",
            fix="name the parameters in the order in which the optimizer was given them",
        )
    if new := sorted(set(names_after) - set(names_before)):
        raise Misconfigured(f"the optimizer's state knows no {', '.join(new)}", fix="start with a new optimizer")
    places = {name: place for place, name in enumerate(names_after)}
    moved = {position: places.get(name) for position, name in zip(positions, names_before, strict=True)}
    return {
        **state,
        "state": {
            moved.get(key, key): value
            for key, value in state["state"].items()
            if key not in moved or moved[key] is not None
        },
        "param_groups": [_without_the_dropped(group, moved) for group in state["param_groups"]],
    }


def _without_the_dropped(group: Mapping[str, Any], moved: Mapping[int, int | None]) -> dict[str, Any]:
    stays = [moved[position] is not None for position in group["params"]]
    kept = {**group, "params": [moved[position] for position in group["params"] if moved[position] is not None]}
    if "param_names" in group:  # of an optimizer that was given named parameters
        kept["param_names"] = [name for name, stay in zip(group["param_names"], stays, strict=True) if stay]
    return kept
