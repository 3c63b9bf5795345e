"""Low-rank kernels: bases, starting factors, and the compiled products beside the reference."""

from __future__ import annotations

import importlib
import math

import pytest
import torch

from grace_dl.compressor.lowrank import orthonormalise, starting_factor, warm
from grace_dl.errors import UnsupportedError
from grace_dl.kernels import reference
from grace_dl.kernels.limits import LARGE
from grace_dl.key import Key


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("rank", [1, 4, 8, 12])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_orthonormal_whatever_the_columns(monkeypatch, backend, rank, dtype, tolerance):
    if backend == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not built")
    monkeypatch.setattr("grace_dl.kernels.forced", backend)
    base = torch.randn(50, rank, dtype=dtype)
    parallel = base[:, :1] @ torch.ones(1, rank, dtype=dtype)
    near = parallel + 1e-5 * base
    wild = base * 10.0 ** torch.linspace(-37, 37, rank, dtype=dtype)
    zero = torch.zeros(50, rank, dtype=dtype)
    some = base.clone()
    some[:, rank // 2] = 0
    ones = torch.zeros(50, rank, dtype=dtype)
    ones[range(rank), range(rank)] = 3
    square = torch.randn(rank, rank, dtype=dtype)
    singular = torch.ones(rank, rank, dtype=dtype)
    large = torch.randn(3000, rank, dtype=dtype)
    strided = base.t().contiguous().t()
    factors = [base, parallel, near, wild, zero, some, ones, square, singular, large, strided]
    for factor, rows in zip(factors, orthonormalise([factor.t() for factor in factors])):
        assert rows.shape == factor.t().shape
        assert rows.is_contiguous()
        q = rows.t()
        torch.testing.assert_close(q.t() @ q, torch.eye(rank, dtype=dtype), rtol=0, atol=tolerance)
        unit = factor / factor.abs().amax(0).clamp_min(torch.finfo(dtype).tiny)
        torch.testing.assert_close(q @ (q.t() @ unit), unit, rtol=0, atol=20 * tolerance)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_has_no_basis(bad):
    factors = [torch.randn(3, 50), torch.randn(3, 50)]
    factors[1][1, 20] = bad
    good, spoilt = orthonormalise(factors)
    assert good.isfinite().all()
    assert not spoilt.isfinite().all()


def test_starting_factors_are_shared_and_differ_by_name_and_step():
    like = torch.zeros(1)
    one = starting_factor(Key("w", rank=0), "q", 4, 1000, like)
    assert torch.equal(one, starting_factor(Key("w", rank=3), "q", 4, 1000, like))
    for other in (Key("v"), Key("w", step=1), Key("w", seed=1)):
        assert not torch.equal(one, starting_factor(other, "q", 4, 1000, like))
    assert -0.5 <= one.min() < -0.49
    assert 0.49 < one.max() < 0.5
    assert abs(float(one.mean())) < 0.03
    assert torch.equal(starting_factor(Key("w"), "q", 4, 1000, like.double()), one.double())


def test_warm_factors_keep_directions_and_redraw_zeros():
    mean = torch.randn(20, 3).t()
    mean[1] = 0
    kept = warm(mean, Key("w"), "q")
    assert kept.is_contiguous()
    torch.testing.assert_close(kept[[0, 2]], mean[[0, 2]] / mean[[0, 2]].abs().amax(1, keepdim=True))
    assert kept[1].abs().max() > 0.1
    assert not mean[1].any()
    assert torch.equal(kept, warm(mean, Key("w", rank=1), "q"))
    assert not torch.equal(kept[1], warm(mean, Key("w", step=1), "q")[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (12, 40), (4, 1003)])
def test_native_unit_rows_are_the_references(dtype, shape):
    native = pytest.importorskip("grace_dl.kernels.native", reason="the compiled kernels are not built")
    rows = torch.randn(shape, dtype=dtype)
    for zero in (False, True):
        rows[-1] *= not zero
        ours, expected = rows.clone(), rows.clone()
        assert native.unit_rows_(ours) is reference.unit_rows_(expected) is not zero
        assert torch.equal(ours, expected)


def kernel_results(module, e, g, p, q, p_mean, q_mean):
    """What every low-rank kernel computes, with each way in which the two products may share factors."""
    (rows, small), (columns, again) = module.project_rows(e, g, q), module.project_columns(e, g, p)
    assert small and again
    found = [rows, columns]
    for mean in ((p, q), (p_mean, q), (p, q_mean), (p_mean, q_mean)):
        residual, out = e.clone(), g.clone()
        module.settle_factors(residual, out, p, q, out, *mean)
        alone = e.clone()
        module.settle_factors(alone, g, p, q, None, *mean)
        assert torch.equal(alone, residual)
        expanded = torch.full_like(out, math.nan)
        module.expand_factors(*mean, expanded)
        assert torch.equal(expanded, out)
        found += [residual, out]
    return found


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 64), (67, 131), (130, 1037), (1000, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_kernels_agree_with_the_reference(rank, shape, dtype):
    native = pytest.importorskip("grace_dl.kernels.native", reason="the compiled kernels are not built")
    n, m = shape
    generator = torch.Generator().manual_seed(n + m + rank)
    e, g = (torch.randn(n, m, generator=generator, dtype=dtype) for _ in range(2))
    p, p_mean = (torch.randn(n, rank, generator=generator, dtype=dtype) for _ in range(2))
    q, q_mean = (torch.randn(rank, m, generator=generator, dtype=dtype) for _ in range(2))
    tolerance = (1e-5 if dtype == torch.float32 else 1e-14) * 2 * math.sqrt(n + m + rank)
    for strided in (False, True):
        if strided:
            p, q_mean = p.t().contiguous().t(), q_mean.t().contiguous().t()
        ours = kernel_results(native, e, g, p, q, p_mean, q_mean)
        for mine, expected in zip(ours, kernel_results(reference, e, g, p, q, p_mean, q_mean)):
            torch.testing.assert_close(mine, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rank", [1, 4, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_bits_do_not_depend_on_threads_or_instructions(rank, dtype):
    native = pytest.importorskip("grace_dl.kernels.native", reason="the compiled kernels are not built")
    compiled = importlib.import_module("grace_dl._native")
    n, m = 301, 1003
    e, g = (torch.randn(n, m, dtype=dtype) for _ in range(2))
    p, q = torch.randn(n, rank, dtype=dtype), torch.randn(rank, m, dtype=dtype)
    threads, expected = torch.get_num_threads(), None
    try:
        for isa in ("baseline", "avx2"):
            if not compiled.set_isa(isa):
                continue
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                found = kernel_results(native, e, g, p, q, p + 1, q + 1)
                found.append(native.orthonormal_rows(torch.stack([q, q * q, q + 1])))
                expected = expected or found
                assert all(torch.equal(one, two) for one, two in zip(found, expected))
    finally:
        torch.set_num_threads(threads)
        compiled.set_isa("")


def test_native_kernels_check_what_they_are_given():
    native = pytest.importorskip("grace_dl.kernels.native", reason="the compiled kernels are not built")
    e, p, q = torch.zeros(20, 30), torch.zeros(20, 2), torch.zeros(2, 30)
    for call in (
        lambda: native.project_rows(e, e[:-1], q),
        lambda: native.project_rows(e, e, q[:, :-1]),
        lambda: native.project_rows(e, e.double(), q),
        lambda: native.project_rows(e, e.t().contiguous().t(), q),
        lambda: native.project_columns(e, e, p[:-1]),
        lambda: native.settle_factors(e, e, p, q, e[:-1], p, q),
        lambda: native.settle_factors(e, e, p, q, e, p, q[:1]),
        lambda: native.settle_factors(e, e, p[:, :1], q, None, p, q),
        lambda: native.expand_factors(p, q, e[:, 1:]),
        lambda: native.expand_factors(p, q[:1], e),
        lambda: native.orthonormal_rows(torch.zeros(2, 30, 4).mT),
        lambda: native.unit_rows_(torch.zeros(30, 4).t()),
    ):
        with pytest.raises(UnsupportedError):
            call()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1.0, -2.0, math.inf, math.nan])
def test_large_elements_are_told_wherever_they_are(backend, value, dtype):
    """Even in a row or column that the other factor does not see."""
    module = pytest.importorskip(f"grace_dl.kernels.{backend}", reason="the compiled kernels are not built")
    for shape in ((6, 43), (9, 1101)):
        e, g = torch.zeros(shape, dtype=dtype), torch.randn(shape).to(dtype)
        q, p = torch.randn(2, shape[1]).to(dtype), torch.randn(shape[0], 2).to(dtype)
        assert module.project_rows(e, g, q)[1] and module.project_columns(e, g, p)[1]
        for row, column in ((0, 0), (-1, -1), (3, 17)):
            big = g.clone()
            big[row, column] = value * LARGE[dtype]
            q[:, column], p[row] = 0, 0
            assert not module.project_rows(e, big, q)[1]
            assert not module.project_columns(e, big, p)[1]
