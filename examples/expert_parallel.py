"""A trained model whose experts are spread over ranks: `torchrun --nproc-per-node 2 examples/expert_parallel.py`.

Every rank runs the attention on the same text; it reads and keeps its own experts only. In each expert layer a rank
takes its share of the tokens (none of a single one, but for rank 0), sends them to the ranks of their experts, and all
ranks gather what came of it. Without torchrun one process holds everything, and the text is the same. `--dispatcher
padded` and `low_latency` never wait on the host: they have buffers for a rank's share of the prompt.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from safetensors import safe_open
from torch import Tensor, nn

import moesaic
from moesaic import Dispatcher, Experts, Local, Problem, Routing, SwiGLU, bind
from moesaic.checkpoints import Checkpoint
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement, even_share

MODEL = Path(moesaic.__file__).parent / "shipped" / "austen-qwen3-moe"
DISPATCHERS: dict[str, Callable[[Ranks, Placement, int], Dispatcher]] = {
    "all_to_all": lambda ranks, placement, _: AllToAll(ranks, placement),
    "all_gather": lambda ranks, placement, _: AllGather(ranks, placement),
    "padded": PaddedAllToAll,
    "low_latency": LowLatency,
}
"""By name: of ranks, a placement, and the most tokens that a rank hands in."""


class SpreadExperts(nn.Module):
    """The experts of one layer of a transformers model, of which this rank holds a part."""

    def __init__(self, dispatcher: Dispatcher, experts: Experts, ranks: Ranks | None) -> None:
        super().__init__()
        self.dispatcher, self.experts, self.ranks = dispatcher, experts, ranks
        self.num_experts = dispatcher.num_experts(experts.problem.num_experts)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """What transformers' experts return: the weighted sums, `[T, H]`."""
        if self.ranks is None:
            return self._run(hidden_states, top_k_index, top_k_weights)
        number, size = len(hidden_states), self.ranks.size
        shares = [even_share(number, size, rank) for rank in range(size)]
        own = slice(shares[self.ranks.rank].start, shares[self.ranks.rank].stop)
        output = self._run(hidden_states[own], top_k_index[own], top_k_weights[own])
        padded = output.new_zeros(len(shares[0]), output.shape[1])
        padded[: len(output)] = output
        gathered = self.ranks.all_gather(padded, "SpreadExperts.forward, the outputs")
        return torch.cat([part[: len(share)] for part, share in zip(gathered, shares, strict=True)])

    def _run(self, hidden_states: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        batch, receipt = self.dispatcher.dispatch(hidden_states, Routing(ids, weights.float()))
        return self.dispatcher.combine(self.experts(batch), receipt)


def spread(model: nn.Module, kind: str, ranks: Ranks | None, num_tokens: int) -> None:
    """Put `SpreadExperts` in the place of each experts module, reading this rank's experts from the checkpoint.

    `num_tokens`: the most of a call, of which each rank takes its share.
    """
    checkpoint, config = Checkpoint(MODEL), model.config
    for number, layer in enumerate(model.model.layers):
        placement = Placement.contiguous(checkpoint.num_experts(number), 1 if ranks is None else ranks.size)
        held = placement.experts[0 if ranks is None else ranks.rank]
        most = len(even_share(num_tokens, placement.num_ranks, 0))
        dispatcher = Local() if ranks is None else DISPATCHERS[kind](ranks, placement, most)
        problem = Problem(
            num_experts=len(held),
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.moe_intermediate_size,
            activation=SwiGLU(),
            dtype=torch.float32,
            layout=dispatcher.layout,
        )
        experts = bind(problem, checkpoint.read(number, experts=held).dequantize(torch.float32))
        dispatcher.agree(len(held), {"backend": experts.backend.name, "problem.dtype": str(problem.dtype)})
        layer.mlp.experts = SpreadExperts(dispatcher, experts, ranks)


@torch.no_grad()
def continued(model: nn.Module, text: str, num_bytes: int) -> str:
    """`text` and the bytes that the model holds most likely after it."""
    ids = torch.tensor([list(text.encode())])
    options = {"max_new_tokens": num_bytes, "min_new_tokens": num_bytes, "do_sample": False, "pad_token_id": 0}
    output = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return bytes(output[0].tolist()).decode(errors="replace")


def model_without_experts() -> nn.Module:
    """The shipped model in float32 without its experts, of which no byte is read."""
    config = transformers.AutoConfig.from_pretrained(MODEL, local_files_only=True)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for layer in model.model.layers:
        layer.mlp.experts = nn.Identity()
    model.model.rotary_emb = model.model.rotary_emb.__class__(config)  # computed, so not in the file
    with safe_open(MODEL / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if ".experts." not in name]  # noqa: SIM118 - not a dict
        model.load_state_dict({name: file.get_tensor(name).float() for name in names}, assign=True)
    return model.eval()


def read(arguments: list[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default="It was a truth universally acknowledged, that ")
    parser.add_argument("--bytes", type=int, default=80, help="new bytes")
    parser.add_argument("--dispatcher", choices=DISPATCHERS, default="all_to_all")
    asked = parser.parse_args(arguments)
    if not asked.prompt:
        parser.error("--prompt is empty, but the model goes on from at least one byte")
    if asked.bytes < 1:
        parser.error(f"--bytes is {asked.bytes}, but at least one byte is generated")
    return asked


def main() -> None:
    """Rank 0 prints the text, and nothing else, on standard output."""
    asked = read(None)
    torch.set_num_threads(1)
    model = model_without_experts()
    if "RANK" not in os.environ:
        spread(model, asked.dispatcher, None, 0)
        print(continued(model, asked.prompt, asked.bytes))
        return
    dist.init_process_group("gloo")
    try:
        ranks = Ranks.world(timeout=60.0)
        spread(model, asked.dispatcher, ranks, len(asked.prompt.encode()))
        text = continued(model, asked.prompt, asked.bytes)
        held = sum(layer.mlp.experts.experts.problem.weight_bytes for layer in model.model.layers)
        sys.stderr.write(f"rank {ranks.rank} of {ranks.size} holds {held} bytes of experts\n")
        if ranks.rank == 0:
            print(text)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
