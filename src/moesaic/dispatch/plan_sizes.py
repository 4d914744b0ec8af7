"""PlanSizes: the numbers that a plan keeps to, checked against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from moesaic.checks import whole_number
from moesaic.dispatch.placement import Placement, even_share
from moesaic.errors import DispatchError


@final
@dataclass(frozen=True)
class PlanSizes:
    """Sizes that fit together: E experts in `groups` runs, S slots and N ranks on `num_nodes` equal nodes."""

    num_experts: int
    num_slots: int
    num_ranks: int
    num_nodes: int
    groups: int

    @classmethod
    def checked(cls, num_experts: int, num_slots: int, num_ranks: int, num_nodes: int, groups: int | None) -> PlanSizes:
        """Raises DispatchError that says which two numbers do not fit, and what to change."""
        numbers = {"num_slots": num_slots, "num_ranks": num_ranks, "num_nodes": num_nodes}
        numbers["groups"] = 1 if groups is None else groups
        sizes = {name: whole_number("balance", name, value, DispatchError) for name, value in numbers.items()}
        found = cls(num_experts, **sizes)
        if groups is None and found.num_nodes > 1:
            raise DispatchError(
                f"num_nodes is {found.num_nodes}, but without groups no experts are kept together on a node: give the "
                f"number of groups ({num_experts} keeps the replicas of each expert together), or leave num_nodes out"
            )
        for name, whole, part, of in (
            ("groups", num_experts, found.groups, "experts"),
            ("num_nodes", found.groups, found.num_nodes, "groups"),
            ("num_nodes", found.num_ranks, found.num_nodes, "ranks"),
            ("num_nodes", found.num_slots, found.num_nodes, "slots"),
        ):
            if whole % part:
                raise DispatchError(f"{name} is {part}, which does not divide the {whole} {of}")
        found._check_slots()
        return found

    @property
    def capacities(self) -> tuple[int, ...]:
        """Slots of each rank of a node."""
        slots, ranks = self.num_slots // self.num_nodes, self.num_ranks // self.num_nodes
        return tuple(len(even_share(slots, ranks, rank)) for rank in range(ranks))

    def check_current(self, current: Sequence[Placement], layers: int) -> None:
        """Raise DispatchError unless there is a plan for each layer with these sizes, shared out as here."""
        if len(current) != layers:
            raise DispatchError(f"{len(current)} current placements for the load of {layers} layers")
        for layer, own in enumerate(current):
            sizes = tuple(map(len, own.experts))
            if own.num_experts != self.num_experts or sizes != self.capacities * self.num_nodes:
                raise DispatchError(
                    f"the current placement of layer {layer} has {own.num_experts} experts and ranks of {sizes} slots, "
                    f"but the plan has {self.num_experts} and ranks of {self.capacities * self.num_nodes}: give one of "
                    "that size, or none"
                )

    def allows(self, placement: Placement) -> bool:
        """Whether each group is on one node."""
        per_node, per_group = self.num_ranks // self.num_nodes, self.num_experts // self.groups
        pairs = {
            (expert // per_group, rank // per_node) for rank, own in enumerate(placement.experts) for expert in own
        }
        return len(pairs) == self.groups

    def _check_slots(self) -> None:
        """Raise DispatchError if an expert or a rank would be left without slot, or replicas would meet on a rank."""
        experts, slots, most = self.num_experts, self.num_slots, self.num_ranks // self.num_nodes
        if slots < experts:
            raise DispatchError(f"num_slots is {slots}, but {experts} experts need at least one slot each")
        if slots < self.num_ranks:
            raise DispatchError(f"num_slots is {slots}, but {self.num_ranks} ranks need at least one each")
        if slots > experts * most:
            raise DispatchError(
                f"num_slots is {slots}, but {experts} experts with one replica on each of {most} ranks "
                f"{'of a node ' if self.num_nodes > 1 else ''}fill {experts * most}: use fewer slots"
            )
