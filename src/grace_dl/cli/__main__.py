"""`python -m grace_dl.cli`, for where the `grace` script is not on the path."""

import sys

from .main import main

sys.exit(main())
