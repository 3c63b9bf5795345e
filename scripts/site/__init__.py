"""The documentation site: `python -m scripts.site OUT` builds it from the repository's Markdown files and the package.

`navigation` says which page stands where, `staging` collects the pages, `method_pages`, `api_pages` and `command_page`
generate the rest, `docstrings` reads docstrings, and `conf` is Sphinx's configuration.
"""
