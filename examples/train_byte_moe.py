"""Train a small byte-level Mixture-of-Experts language model on Jane Austen's novels.

Three families, about two million parameters each, built from plain `transformers` classes:

* `qwen3-moe`: gated SiLU experts, softmax router, 8 experts, top-2, renormalised weights;
* `gpt-oss`: clamped, interleaved SwiGLU experts with biases, attention sinks, sliding windows;
* `nemotron-h`: non-gated squared-ReLU experts, sigmoid router with a correction bias, 16 experts,
  top-4, one shared expert, attention and expert layers only.

A token is a byte, so no tokenizer is needed. The text is cut by byte position into 90 % training,
5 % validation and 5 % test. Training keeps fp32 weights under bf16 autocast; the checkpoint is bf16.

    python examples/train_byte_moe.py qwen3-moe --out austen-qwen3-moe
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, one_hot
from transformers import AutoModelForCausalLM, GptOssConfig, NemotronHConfig, PretrainedConfig, Qwen3MoeConfig
from transformers.integrations.moe import ExpertsInterface

WINDOW = 512  # bytes in a training or evaluation window
BIAS_STEP = 1e-3  # step of the sigmoid router's correction bias


def build_config(variant: str, aux_loss: float) -> PretrainedConfig:
    """The configuration of one of the three model families."""
    shared: dict[str, Any] = {"vocab_size": 256, "hidden_size": 128, "max_position_embeddings": 1024}
    shared |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.05}
    shared |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    layers = {"num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    softmax = {"num_experts_per_tok": 2, "router_aux_loss_coef": aux_loss}
    if variant == "qwen3-moe":
        shared |= {"intermediate_size": 256, "moe_intermediate_size": 128}
        return Qwen3MoeConfig(**shared, **layers, **softmax, num_experts=8, norm_topk_prob=True)
    if variant == "gpt-oss":
        windows = {"sliding_window": 128, "swiglu_limit": 7.0}
        return GptOssConfig(**shared, **layers, **softmax, **windows, intermediate_size=128, num_local_experts=8)
    blocks = ["full_attention", "moe"] * 4
    sigmoid = {"num_experts_per_tok": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    experts = {"n_routed_experts": 16, "moe_intermediate_size": 128, "intermediate_size": 256}
    experts |= {"n_shared_experts": 1, "moe_shared_expert_intermediate_size": 128}
    return NemotronHConfig(**shared, **sigmoid, **experts, layers_block_type=blocks)


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Cut a text by byte position: the first 90 % to train on, then 5 % validation, then 5 % test."""
    first, second = len(data) * 90 // 100, len(data) * 95 // 100
    return data[:first], data[first:second], data[second:]


def windows_of(data: bytes, window: int = WINDOW) -> Tensor:
    """Non-overlapping windows of a text as token ids, a shorter last one dropped."""
    ids = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return ids[: len(ids) // window * window].view(-1, window).long()


@torch.no_grad()
def bits_per_byte(model: Any, data: bytes, window: int = WINDOW, batch: int = 64) -> float:
    """Mean next-byte cross entropy in bits.

    The text is cut into non-overlapping windows of `window` bytes, a shorter last one dropped. Each
    window is read on its own, and its bytes 2..window are predicted from the ones before them. The
    result is the mean over all `window - 1` predictions of all windows, divided by ln 2.
    """
    windows, was_training, total = windows_of(data, window).to(model.device), model.training, 0.0
    model.eval()
    for ids in windows.split(batch):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        total += cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
    model.train(was_training)
    return total / (len(windows) * (window - 1)) / math.log(2)


def dense_experts(self: Any, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Every expert on every token, as two matrix products: quick for experts this small, and at home in autocast."""
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
        self.routers: list[Any] = [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
        self.outputs: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(self.routers)
        for layer, router in enumerate(self.routers):
            router.register_forward_hook(partial(self._keep, layer))

    def _keep(self, layer: int, _router: nn.Module, _args: Any, out: tuple[Tensor, ...]) -> None:
        self.outputs[layer] = (out[0], out[2])

    def loads(self) -> Tensor:
        """Share of the assignments that each expert got, `[layers, experts]`."""
        return torch.stack([one_hot(i.flatten(), x.shape[-1]).float().mean(0) for x, i in self.outputs])

    def aux_loss(self) -> Tensor:
        """Switch-style load-balancing loss, 1 when every expert gets the same share."""
        prob = torch.stack([x.float().softmax(-1).mean(0) for x, _ in self.outputs])
        return (self.loads() * prob).sum(-1).mean() * prob.shape[-1]

    @torch.no_grad()
    def update_bias(self) -> None:
        """Raise the correction bias of experts with little load and lower that of the others."""
        for router, load in zip(self.routers, self.loads(), strict=True):
            router.e_score_correction_bias.add_(torch.sign(load.mean() - load), alpha=BIAS_STEP)


@torch.no_grad()
def expert_loads(model: Any, data: bytes) -> list[list[float]]:
    """Share of the assignments per layer and expert over a text, read in windows."""
    tap, windows, total = RouterTap(model), windows_of(data).to(model.device), torch.zeros((), device=model.device)
    for part in windows.split(64):
        model(input_ids=part, use_cache=False)
        total = total + tap.loads() * len(part) / len(windows)
    return [[round(x, 4) for x in layer] for layer in total.tolist()]


def add_dropout(model: nn.Module, rate: float) -> None:
    """Dropout on the embedding and on what each attention and expert layer adds to the residual stream."""

    def drop(module: nn.Module, _args: Any, out: Any) -> Any:
        first, *rest = out if isinstance(out, tuple) else (out,)
        first = dropout(first, rate, module.training)
        return (first, *rest) if isinstance(out, tuple) else first

    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in {"self_attn", "mlp", "mixer", "embed_tokens", "embeddings"}:
            module.register_forward_hook(drop)


def optimizer_for(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, with weight decay for the matrices alone."""
    decayed: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p in model.named_parameters():
        decayed[p.ndim >= 2 and not name.endswith("bias")].append(p)
    groups = [{"params": ps, "weight_decay": args.weight_decay * matrices} for matrices, ps in decayed.items()]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=args.device == "cuda")


def train(model: nn.Module, args: argparse.Namespace, texts: tuple[bytes, bytes, bytes], log: Any) -> float:
    """Train on random windows with a cosine schedule, calling `log` at every validation; return the seconds."""
    data, tap = torch.frombuffer(bytearray(texts[0]), dtype=torch.uint8).to(args.device), RouterTap(model)
    add_dropout(model, args.dropout)
    optimizer, warmup = optimizer_for(model, args), max(1, min(200, args.steps // 10))

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warmup) * (0.01 + 0.495 * (1 + math.cos(math.pi * step / args.steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    offsets, running = torch.arange(WINDOW, device=args.device), torch.zeros((), device=args.device)
    started = time.time()
    model.train()
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(data) - WINDOW + 1, (args.batch, 1), device=args.device)
        ids = data[starts + offsets].long()
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        running += loss.detach()
        if args.variant != "nemotron-h":
            loss = loss + args.aux_loss * tap.aux_loss()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if args.variant == "nemotron-h":
            tap.update_bias()
        if step % args.eval_every == 0 or step == args.steps:
            mean = running.item() / ((step - 1) % args.eval_every + 1)
            running.zero_()
            with torch.autocast(args.device, torch.bfloat16):
                valid = bits_per_byte(model, texts[1])
            scores = {"train_bits_per_byte": mean / math.log(2), "validation_bits_per_byte": valid}
            log("eval", step=step, train_loss=mean, **scores, seconds=time.time() - started)
    return time.time() - started


def main() -> None:
    """Parse the command line, train, save, and score what was saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=["qwen3-moe", "gpt-oss", "nemotron-h"])
    parser.add_argument("--text", type=Path, default=Path(__file__).parent / "data" / "austen.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the log")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    numbers = {"steps": 3000, "batch": 64, "eval-every": 250, "seed": 0}
    for name, default in {**numbers, "lr": 3e-3, "weight-decay": 0.1, "dropout": 0.1, "aux-loss": 0.003}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    texts = split(args.text.read_bytes())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "training_log.jsonl").write_text("")

    def log(event: str, **record: Any) -> None:
        rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in record.items()}
        print(line := json.dumps({"event": event, **rounded}), flush=True)
        with (args.out / "training_log.jsonl").open("a") as file:
            file.write(line + "\n")

    ExpertsInterface.register("dense", dense_experts)
    config = build_config(args.variant, args.aux_loss)
    model: Any = AutoModelForCausalLM.from_config(config, experts_implementation="dense").to(args.device)
    host = {"torch": torch.__version__, "transformers": transformers.__version__}
    host["device_name"] = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    options = {k: v for k, v in vars(args).items() if k not in {"text", "out"}}
    log("start", **options, window=WINDOW, parameters=sum(p.numel() for p in model.parameters()), **host)
    seconds = train(model, args, texts, log)
    bias = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    model.to(torch.bfloat16)
    for name, value in bias.items():  # small steps: stays fp32, as in the family's own checkpoints
        model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = value
    model.save_pretrained(args.out)
    scores: dict[str, float] = {}  # of what was written, with the stock experts: computed in fp32 and in bf16
    for dtype, suffix in ((torch.bfloat16, "_bf16"), (torch.float32, "")):
        model = AutoModelForCausalLM.from_pretrained(args.out, dtype=dtype, experts_implementation="eager")
        model.to(args.device)
        scores[f"validation_bits_per_byte{suffix}"] = bits_per_byte(model, texts[1])
        scores[f"test_bits_per_byte{suffix}"] = bits_per_byte(model, texts[2])
    log("final", step=args.steps, **scores, seconds=seconds)
    log("expert_loads", text="validation", loads=expert_loads(model.eval(), texts[1]))


if __name__ == "__main__":
    main()
