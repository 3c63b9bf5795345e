"""The cost model: how long a training step takes with each method, on clusters of any size.

Pure functions over four inputs: a `Profile` of the model, a `Cluster`, codec costs measured on this machine, and methods.
`docs/planning.md` has the formulas.
"""
