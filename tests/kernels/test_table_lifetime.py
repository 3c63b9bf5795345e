"""A compiled kernel gets addresses of cached tables: they stay valid while it runs, whatever other threads do."""

from __future__ import annotations

import weakref
from typing import Any

import grace_dl._native as _native
import pytest
import torch

from grace_dl.kernels.native import tables
from grace_dl.kernels.reference import tables as reference
from grace_dl.kernels.source import Source


class Replacing:
    """The compiled module; just before a kernel reads its tables, the cache loses them, as if another thread's replaced them."""

    def __init__(self, inner: Any, held: list[weakref.ref[torch.Tensor]]) -> None:
        self._inner, self._held = inner, held

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._inner, name)

        def run(*arguments: Any) -> Any:
            tables.tree.cache_clear()
            assert all(table() is not None for table in self._held), (
                f"{name} would read memory that was freed"
            )
            return kernel(*arguments)

        return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_live_until_the_kernel_returns(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1000, dtype=dtype)
    codes, scale = torch.empty(1000, dtype=torch.uint8), torch.empty(1, dtype=dtype)
    reference.u8bit_encode(Source(x.clone()), codes, scale)
    decoded = torch.zeros_like(x)
    reference.u8bit_add(decoded, codes, scale)

    held = [weakref.ref(table) for table in tables.tree(dtype)[1]]
    monkeypatch.setattr(tables, "_native", Replacing(_native, held))
    mine, top = torch.empty_like(codes), torch.empty_like(scale)
    tables.u8bit_encode(Source(x.clone()), mine, top)
    assert torch.equal(mine, codes) and torch.equal(top, scale)

    held[:] = [weakref.ref(table) for table in tables.tree(dtype)[1]]
    out = torch.zeros_like(x)
    tables.u8bit_add(out, mine, top)
    assert torch.equal(out, decoded)
