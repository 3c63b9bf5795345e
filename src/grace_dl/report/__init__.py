"""`grace report`: one self-contained HTML page from the result files of any benchmarks.

`load` reads and checks files, one module per kind of benchmark builds its section from `charts` and `tables`, and
`page` combines the sections. Charts are inline SVG; the page needs neither a network nor scripts.
"""
