"""Compiled sparse kernels."""
