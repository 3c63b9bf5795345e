"""What runs on the device, in Triton's language; the modules above check arguments and launch.

Rules that keep the bits those of the reference:

- Kernels are launched with `enable_fp_fusion=False` (see `launch.py`): a product and a sum round separately.
- float32 is divided by `divide`: Triton's `/` is only nearly rounded there, and older versions drop subnormals.
- Sums of floats run over explicit halvings (`halve`), never over `tl.sum` of a long axis, whose order is open.
- Real parameters arrive as the two halves of a float64: Triton would round a Python float to float32.
"""
