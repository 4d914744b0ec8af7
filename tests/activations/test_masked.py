"""The count-aware activation in torch: live rows by the oracle, every other row of the buffer bit for bit as it was."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moesaic import ACTIVATIONS, Activation, Identity, SwiGLU
from moesaic.activations import masked
from moesaic.errors import ActivationError, BatchError
from tests.activations.masked_cases import EVERY, POISONS, SENTINEL, case, check_specials, specials, strided


@pytest.mark.parametrize("name", EVERY)
def test_live_rows_are_the_oracles_and_undefined_rows_change_no_bit(name):
    outs = [EVERY[name].run(masked.apply, poison) for poison in POISONS]
    for out in outs:
        EVERY[name].check(out)
        assert torch.equal(out, outs[0])


def test_the_cases_hold_every_activation():
    assert {type(c.activation) for c in EVERY.values()} == set(ACTIVATIONS)


def test_strides_are_followed_and_memory_between_them_is_left_alone():
    got, wanted, target = strided(masked.apply)
    assert torch.equal(got, wanted)
    assert (target == SENTINEL).all()


def test_nan_and_infinity_are_those_of_the_formula():
    check_specials(specials(masked.apply))


def test_nan_in_a_live_row_stays_nan_in_that_row():
    given = case(SwiGLU(limit=1.0), [5, 3], (2, 7, 9))
    rows = given.rows(0.0)
    rows[1, 2, 4] = float("nan")
    out = masked.apply(given.activation, rows, given.counts, out=given.out())
    assert out.isnan().nonzero().tolist() == [[1, 2, 4]]


def test_a_nan_of_the_callers_keeps_its_payload():
    bits = torch.full((4, 3), 0x7FC12345, dtype=torch.int32)
    out = bits.view(torch.float32).clone()
    masked.apply(Identity(), torch.ones(4, 3), torch.tensor(1, dtype=torch.int32), out=out)
    assert torch.equal(out.view(torch.int32)[1:], bits[1:])


def test_without_out_the_result_is_new_and_in_the_dtype_of_the_rows():
    given = case(SwiGLU(), 11, (17, 65), dtype=torch.bfloat16)
    out = masked.apply(given.activation, given.rows(1e4), given.counts)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out[:11], given.run(masked.apply, 1e4)[:11])


def test_float64_is_computed_in_float64():
    rows = torch.randn(3, 8, dtype=torch.float64)
    out = masked.apply(SwiGLU(), rows, torch.tensor(3, dtype=torch.int32))
    assert torch.equal(out, SwiGLU()(rows))


def test_any_activation_of_a_users_own_is_served():
    @dataclasses.dataclass(frozen=True)
    class Cube(Activation):
        gated: ClassVar[bool] = False

        def formula(self, rows, at):
            return rows**3

    out = masked.apply(Cube(), torch.full((2, 1), 2.0), torch.tensor(2, dtype=torch.int32))
    assert out.tolist() == [[8.0], [8.0]]


class NothingOnTheHost(TorchDispatchMode):
    """Fails where a value of a tensor is read on the host, or a tensor is made from the host's numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        refused = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.lift_fresh.default)
        assert func not in (*refused, torch.ops.aten.nonzero.default), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [n for n in EVERY if "[17, 65]" in n or "[4, 17, 65]" in n])
def test_counts_and_ids_are_never_read_on_the_host(name):
    given = EVERY[name]
    rows, out = given.rows(0.0), given.out()
    with NothingOnTheHost():
        masked.apply(given.activation, rows, given.counts, out=out, expert_ids=given.expert_ids)


FLAT = {"activation": SwiGLU(), "rows": torch.ones(4, 6), "counts": torch.tensor(2, dtype=torch.int32)}
SLABS = {**FLAT, "rows": torch.ones(2, 4, 6), "counts": torch.tensor([2, 1], dtype=torch.int32)}
INT32 = {"dtype": torch.int32}
SHARED = torch.ones(4, 12)
REFUSED = {
    "an activation's name": ({**FLAT, "activation": "silu"}, ActivationError, r"SwiGLU\(\)"),
    "one dimension": ({**FLAT, "rows": torch.ones(4)}, BatchError, r"\(T, D\)"),
    "four dimensions": ({**FLAT, "rows": torch.ones(1, 2, 4, 6)}, BatchError, r"\(E, T, D\)"),
    "one count for slabs": ({**SLABS, "counts": torch.tensor(2, **INT32)}, BatchError, r"of shape \(2,\)"),
    "counts of other experts": ({**SLABS, "counts": torch.tensor([1, 1, 1], **INT32)}, BatchError, r"of shape \(2,\)"),
    "counts of a flat buffer": ({**FLAT, "counts": torch.tensor([2], **INT32)}, BatchError, r"of shape \(\)"),
    "a number as the count": ({**FLAT, "counts": 2}, BatchError, r"apply.counts is 2, .* torch.tensor\(3, dtype="),
    "a list of counts": ({**SLABS, "counts": [2, 1]}, BatchError, r"apply.counts is \[2, 1\]"),
    "rows that are a list": ({**FLAT, "rows": [[1.0]]}, BatchError, "apply.rows is"),
    "out that is none": ({**FLAT, "out": 1}, BatchError, "apply.out is 1"),
    "ids in a list": ({**FLAT, "expert_ids": [0, 0, 0, 0]}, BatchError, "apply.expert_ids is"),
    "expanded columns": ({**FLAT, "out": torch.ones(4, 1).expand(4, 3)}, BatchError, r"strides \(1, 0\)"),
    "expanded rows": ({**FLAT, "out": torch.ones(3).expand(4, 3)}, BatchError, "expanded view"),
    "int64 counts": ({**FLAT, "counts": torch.tensor(2)}, BatchError, "torch.int32"),
    "an odd width": ({**FLAT, "rows": torch.ones(4, 5)}, BatchError, "5 columns"),
    "float8 rows": ({**FLAT, "rows": torch.ones(4, 6).to(torch.float8_e4m3fn)}, BatchError, "float8_e4m3fn"),
    "integer out": ({**FLAT, "out": torch.ones(4, 3, **INT32)}, BatchError, "out is torch.int32"),
    "out of another shape": ({**FLAT, "out": torch.ones(4, 6)}, BatchError, r"\(4, 3\)"),
    "out in the rows": ({**FLAT, "rows": SHARED[:, :6], "out": SHARED[:, :3]}, BatchError, "shares memory"),
    "another device": ({**FLAT, "counts": torch.tensor(2, device="meta", **INT32)}, BatchError, "counts is on meta"),
    "ids for slabs": ({**SLABS, "expert_ids": torch.zeros(4, **INT32)}, BatchError, "leave it out"),
    "ids of another length": ({**FLAT, "expert_ids": torch.zeros(3, **INT32)}, BatchError, r"\(4,\)"),
    "ids that are floats": ({**FLAT, "expert_ids": torch.zeros(4)}, BatchError, "torch.int32"),
    "no ids": ({**FLAT, "activation": SwiGLU(limit=(1.0, 2.0))}, ActivationError, "expert_ids"),
    "other experts' constants": ({**SLABS, "activation": SwiGLU(limit=(1.0, 2.0, 3.0))}, ActivationError, "select"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_described_is_refused(name):
    arguments, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        masked.apply(**arguments)


def test_one_row_of_any_stride_is_no_expanded_view():
    out = torch.ones(3).expand(1, 3)
    assert masked.apply(SwiGLU(), torch.ones(1, 6), torch.tensor(1, dtype=torch.int32), out=out) is out


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30], ids=str)
@pytest.mark.parametrize("name", [n for n in EVERY if "65]" in n and "float32-float32" in n])
def test_the_gradient_of_dead_rows_is_zero_and_that_of_live_ones_is_the_formulas(name, poison):
    given = EVERY[name]
    rows, clean = given.rows(poison).requires_grad_(), given.rows(0.5).requires_grad_()
    live = torch.from_numpy(given.live)
    for each in (rows, clean):
        out = masked.apply(given.activation, each, given.counts, expert_ids=given.expert_ids)
        out[live].sum().backward()
    assert (rows.grad[~live] == 0).all()
    assert torch.equal(rows.grad[live], clean.grad[live])
    assert live.sum() == 0 or rows.grad[live].abs().max() > 0


def test_memory_beside_the_rows_is_not_in_them():
    memory = torch.ones(8 * 12)
    rows, out = memory[:24].view(4, 6), memory[24:36].view(4, 3)
    assert masked.apply(SwiGLU(), rows, torch.tensor(4, dtype=torch.int32), out=out) is out
