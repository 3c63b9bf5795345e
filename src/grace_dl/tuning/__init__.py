"""What the method `auto` does while it runs: measures steps, predicts alternatives, tries them in turns, and watches.

`timing` measures steps, `link` the network; `forecast` ranks plans with the cost model; `trial` and `drift` are the rules of
decisions, as pure functions; `tuner` puts them together. Everything happens between two steps, on all ranks together.
"""
