"""One module a subcommand of `grace`. They import frameworks inside `run` only, so that `grace --help` is instant."""
