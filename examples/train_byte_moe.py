"""Train a small byte-level Mixture-of-Experts language model on Jane Austen's novels.

Three families, about two million parameters each, built from plain `transformers` classes:

* `qwen3-moe`: gated SiLU experts, softmax router, 8 experts, top-2, renormalised weights;
* `gpt-oss`: clamped, interleaved SwiGLU experts with biases, attention sinks, sliding windows;
* `nemotron-h`: non-gated squared-ReLU experts, sigmoid router with a correction bias, 16 experts,
  top-4, one shared expert, attention and expert layers only.

A token is a byte, so no tokenizer is needed. The text is cut by byte position into 90 % training,
5 % validation and 5 % test. Training uses fp32 weights under bf16 autocast; the checkpoint is
written in bf16. Progress goes to the screen and, one JSON object a line, to `training_log.jsonl`.

    python examples/train_byte_moe.py qwen3-moe --out austen-qwen3-moe
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GptOssConfig, NemotronHConfig, PretrainedConfig, Qwen3MoeConfig
from transformers.integrations.moe import ExpertsInterface

WINDOW = 512  # bytes in a training or evaluation window
AUX_LOSS_COEF = 0.003  # load-balancing loss of the softmax routers
BIAS_STEP = 1e-3  # step of the sigmoid router's correction bias


def build_config(variant: str) -> PretrainedConfig:
    """The configuration of one of the three model families."""
    attention = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    common = {"vocab_size": 256, "hidden_size": 128, "max_position_embeddings": 1024, "initializer_range": 0.05}
    no_ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    shared: dict[str, Any] = {**common, **attention, **no_ids, "tie_word_embeddings": False}
    if variant == "qwen3-moe":
        return Qwen3MoeConfig(
            **shared, **rope, num_hidden_layers=4, intermediate_size=256, moe_intermediate_size=128, num_experts=8,
            num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=AUX_LOSS_COEF,
        )  # fmt: skip
    if variant == "gpt-oss":
        return GptOssConfig(
            **shared, **rope, num_hidden_layers=4, intermediate_size=128, num_local_experts=8, num_experts_per_tok=2,
            sliding_window=128, swiglu_limit=7.0, router_aux_loss_coef=AUX_LOSS_COEF,
        )  # fmt: skip
    if variant == "nemotron-h":
        return NemotronHConfig(
            **shared, layers_block_type=["full_attention", "moe"] * 4, intermediate_size=256, n_routed_experts=16,
            num_experts_per_tok=4, n_shared_experts=1, moe_intermediate_size=128,
            moe_shared_expert_intermediate_size=128, routed_scaling_factor=2.5, norm_topk_prob=True,
        )  # fmt: skip
    raise ValueError(f"unknown variant {variant!r}")


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Cut a text by byte position: the first 90 % to train on, then 5 % validation, then 5 % test."""
    first, second = len(data) * 90 // 100, len(data) * 95 // 100
    return data[:first], data[first:second], data[second:]


def as_ids(data: bytes, device: torch.device | str = "cpu") -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


@torch.no_grad()
def bits_per_byte(model: nn.Module, data: bytes, window: int = WINDOW, batch: int = 64) -> float:
    """Mean next-byte cross entropy in bits.

    The text is cut into non-overlapping windows of `window` bytes, a shorter last one dropped. Each
    window is read on its own, and its bytes 2..window are predicted from the ones before them. The
    result is the mean over all `window - 1` predictions of all windows, divided by ln 2.
    """
    device = next(model.parameters()).device
    windows = as_ids(data[: len(data) // window * window], device).view(-1, window).long()
    was_training = model.training
    model.eval()
    total = 0.0
    for ids in windows.split(batch):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        total += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
    model.train(was_training)
    return total / (len(windows) * (window - 1)) / math.log(2)


def dense_experts(self: Any, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Every expert on every token, as two matrix products.

    More arithmetic than routing needs, but for experts this small it is quick, works under autocast,
    and sums the gradients of the expert biases in fp32. Same result as the other implementations.
    """
    tokens, hidden = x.shape
    share = x.new_zeros(tokens, self.num_experts, dtype=top_k_weights.dtype).scatter_(1, top_k_index, top_k_weights)
    first, down = (self.gate_up_proj if self.has_gate else self.up_proj), self.down_proj
    if not self.is_transposed:
        first, down = first.transpose(1, 2), down.transpose(1, 2)
    h = x @ first.permute(1, 0, 2).reshape(hidden, -1)
    if self.has_bias:
        h = h + self.gate_up_proj_bias.flatten().to(h.dtype)
    h = h.view(tokens, self.num_experts, -1)
    h = self._apply_gate(h) if self.has_gate else self.act_fn(h)
    out = (h * share.to(h.dtype).unsqueeze(-1)).flatten(1) @ down.reshape(-1, hidden)
    if self.has_bias:
        out = out + share @ self.down_proj_bias
    return out.to(x.dtype)


class RouterTap:
    """Keeps the logits and choices of every router in the last forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.routers = [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
        self.logits: list[Tensor] = [torch.empty(0)] * len(self.routers)
        self.index: list[Tensor] = [torch.empty(0)] * len(self.routers)
        for layer, router in enumerate(self.routers):
            router.register_forward_hook(lambda _m, _a, out, layer=layer: self._keep(layer, out))

    def _keep(self, layer: int, out: tuple[Tensor, Tensor, Tensor]) -> None:
        self.logits[layer], self.index[layer] = out[0], out[2]

    def loads(self) -> Tensor:
        """Share of the assignments that each expert got, `[layers, experts]`."""
        experts = self.logits[0].shape[-1]
        return torch.stack([F.one_hot(i.flatten(), experts).float().mean(0) for i in self.index])

    def aux_loss(self) -> Tensor:
        """Switch-style load-balancing loss, 1 when every expert gets the same share."""
        prob = torch.stack([x.float().softmax(-1).mean(0) for x in self.logits])
        return (self.loads() * prob).sum(-1).mean() * prob.shape[-1]

    @torch.no_grad()
    def update_bias(self) -> None:
        """Raise the correction bias of experts with little load and lower that of the others."""
        for router, load in zip(self.routers, self.loads(), strict=True):
            router.e_score_correction_bias.add_(torch.sign(load.mean() - load), alpha=BIAS_STEP)


@torch.no_grad()
def expert_loads(model: nn.Module, data: bytes) -> list[list[float]]:
    """Share of the assignments per layer and expert over a text, read in windows."""
    tap, ids = RouterTap(model), as_ids(data[: len(data) // WINDOW * WINDOW]).view(-1, WINDOW).long()
    parts = []
    for part in ids.split(64):
        model(input_ids=part.to(model.device), use_cache=False)
        parts.append(tap.loads() * len(part))
    return [[round(x, 4) for x in layer] for layer in (torch.stack(parts).sum(0) / len(ids)).tolist()]


def add_dropout(model: nn.Module, rate: float) -> None:
    """Dropout on the embedding and on what each attention and expert layer adds to the residual stream."""

    def drop(module: nn.Module, _args: Any, out: Any) -> Any:
        if not module.training:
            return out
        if isinstance(out, tuple):
            return (F.dropout(out[0], rate), *out[1:])
        return F.dropout(out, rate)

    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in {"self_attn", "mlp", "mixer", "embed_tokens", "embeddings"}:
            module.register_forward_hook(drop)


def optimizer_for(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, with weight decay for the matrices alone."""
    named = list(model.named_parameters())
    plain = {n for n, p in named if p.ndim < 2 or n.endswith("bias")}
    groups = [
        {"params": [p for n, p in named if n not in plain], "weight_decay": args.weight_decay},
        {"params": [p for n, p in named if n in plain], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=args.device == "cuda")


def train(model: nn.Module, args: argparse.Namespace, texts: tuple[bytes, bytes, bytes], log: Any) -> None:
    data, tap = as_ids(texts[0], args.device), RouterTap(model)
    add_dropout(model, args.dropout)
    optimizer = optimizer_for(model, args)
    warmup = min(200, args.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / max(1, warmup)) * (0.01 + 0.495 * (1 + math.cos(math.pi * s / args.steps))),
    )
    offsets, running, started = torch.arange(WINDOW, device=args.device), torch.zeros((), device=args.device), time.time()
    model.train()
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(data) - WINDOW + 1, (args.batch, 1), device=args.device)
        ids = data[starts + offsets].long()
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        running += loss.detach()
        if args.variant != "nemotron-h":
            loss = loss + AUX_LOSS_COEF * tap.aux_loss()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if args.variant == "nemotron-h":
            tap.update_bias()
        if step % args.eval_every == 0 or step == args.steps:
            train_loss = running.item() / ((step - 1) % args.eval_every + 1)
            running.zero_()
            with torch.autocast(args.device, torch.bfloat16):
                valid = bits_per_byte(model, texts[1])
            log(event="eval", step=step, train_loss=train_loss, train_bits_per_byte=train_loss / math.log(2),
                validation_bits_per_byte=valid, seconds=time.time() - started)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=["qwen3-moe", "gpt-oss", "nemotron-h"])
    parser.add_argument("--text", type=Path, default=Path(__file__).parent / "data" / "austen.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the log")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64, help="windows of 512 bytes in a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    texts = split(args.text.read_bytes())
    args.out.mkdir(parents=True, exist_ok=True)
    file = (args.out / "training_log.jsonl").open("w")

    def log(**record: Any) -> None:
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in record.items()})
        print(line, flush=True)
        print(line, file=file, flush=True)

    ExpertsInterface.register("dense", dense_experts)
    model = AutoModelForCausalLM.from_config(build_config(args.variant), experts_implementation="dense").to(args.device)
    options = {k: v for k, v in vars(args).items() if k not in {"text", "out"}}
    device_name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    log(event="start", **options, window=WINDOW, parameters=sum(p.numel() for p in model.parameters()),
        device_name=device_name, torch=torch.__version__, transformers=transformers.__version__)  # fmt: skip
    started = time.time()
    train(model, args, texts, log)
    seconds = time.time() - started

    bias = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    model.to(torch.bfloat16)
    for name, value in bias.items():  # small steps: stays fp32, as in the family's own checkpoints
        model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = value
    model.save_pretrained(args.out)
    # Score what was written: the stored weights, with the stock experts, in fp32 and in bf16.
    load = AutoModelForCausalLM.from_pretrained
    stored = load(args.out, dtype=torch.float32, experts_implementation="eager").to(args.device).eval()
    in_bf16 = load(args.out, dtype=torch.bfloat16, experts_implementation="eager").to(args.device)
    log(event="final", step=args.steps, validation_bits_per_byte=bits_per_byte(stored, texts[1]),
        test_bits_per_byte=bits_per_byte(stored, texts[2]),
        validation_bits_per_byte_bf16=bits_per_byte(in_bf16, texts[1]),
        test_bits_per_byte_bf16=bits_per_byte(in_bf16, texts[2]), seconds=seconds)  # fmt: skip
    log(event="expert_loads", text="validation", loads=expert_loads(stored, texts[1]))


if __name__ == "__main__":
    main()
