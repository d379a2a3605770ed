"""`python -m providers.sandbox`: the sandbox without Django."""

import sys

from .command import main

sys.exit(main())
