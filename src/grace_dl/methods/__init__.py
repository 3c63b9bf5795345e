"""The built-in methods: one module each, with its mathematics, its settings and its registration."""
