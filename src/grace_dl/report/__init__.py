"""`grace report`: one HTML page, complete in itself, from the result files of any benchmarks.

`load` reads and checks files, a module for each kind of benchmark makes its section from `charts` and `tables`, and
`page` puts sections together. Charts are SVG written here; the page is read without a network and without scripts.
"""
