"""Tables of the tensors of a bucket, for programs that take all of them and the payloads of all ranks in one launch.

A table (int64) has a line for each tensor: its first program, the address of the result, its number of elements, a random
word, and for each rank the addresses of the parts of its payload.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

SIZES = ["tensors", "ranks", "divisor_low", "divisor_high"]
"""Parameters that differ from call to call without a new compilation."""


@triton.jit
def locate(table, tensors, COLUMNS: tl.constexpr, LINES: tl.constexpr):
    """The line of the tensor that this program works on, and the number of its tile."""
    program = tl.program_id(0).to(tl.int64)
    lines = tl.arange(0, LINES)
    first = tl.load(table + lines * COLUMNS, mask=lines < tensors, other=0x7FFFFFFFFFFFFFFF)
    line = table + (tl.sum((first <= program).to(tl.int32), axis=0) - 1) * COLUMNS
    return line, program - tl.load(line)


@triton.jit
def address(line, COLUMN: tl.constexpr, dtype: tl.constexpr):
    """The address in a column, of numbers of `dtype`."""
    return tl.load(line + COLUMN).to(tl.pointer_type(dtype))
