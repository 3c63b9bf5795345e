"""One module per subcommand of `grace`. Frameworks are imported only inside `run`, so that `grace --help` is fast."""
