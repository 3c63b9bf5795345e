"""The Triton programs; the modules of the parent package check arguments and launch them.

Rules that keep results bit-identical to the reference:

- Kernels are launched with `enable_fp_fusion=False` (see `launch.py`): a product and a sum round separately.
- float32 is divided by `divide`: Triton's `/` is not correctly rounded there, and older versions flush subnormals.
- Sums of floats run over explicit halvings (`halve`), never over `tl.sum` of a long axis, whose order is unspecified.
- Negative zeros are made by a product with -1 or by setting the bit: Triton negates by subtracting from zero.
- bfloat16 is widened by `widen`: the interpreter loses subnormal numbers.
- Real parameters arrive as the two halves of a float64: Triton would round a Python float to float32.
"""
