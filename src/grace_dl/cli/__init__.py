"""The `grace` command: `main` finds its subcommands, one file each, in the folder `commands`."""
